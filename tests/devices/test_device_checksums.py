"""Streams that decode to other bytes than their checksum says, on the emulated device.

Its decoder looks at no checksum, so what is found is found by the kernels.
"""

from __future__ import annotations

import ctypes

import crc32c
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

import gpushard
from array_strategies import codec
from cuda_host.device import EmulatedDevice
from cuda_host.launch import Kernels
from cuda_host.reads import read_on_device
from cuda_host.standin import load_standin
from cuda_host.statuses import Status
from gpushard.selecting import expressions
from gpushard.selecting.selection import whole
from zarr_oracle import assert_same_bits

KERNELS = Kernels()
SHAPE, CHUNK = (32, 64), (16, 16)
# Random bytes at level 0: stored as they are, so that any of them can be changed.
CHAINS = {
    "gzip": [GzipCodec(level=0)],
    "zlib": [codec("numcodecs.zlib", level=0)],
    "zstd": [ZstdCodec(level=1, checksum=True)],
    "numcodecs.zstd": [codec("numcodecs.zstd", level=1, checksum=True)],
}
# Bytes from the end of a stream to the end of its checksum, and to decoded bytes.
END_OF_CHECKSUM = {"gzip": 4, "zlib": 0, "zstd": 0, "numcodecs.zstd": 0}

OK = Status.OK

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")
each_chain = pytest.mark.parametrize("chain", CHAINS)


def emulated(seed=0):
    return EmulatedDevice(KERNELS, load_standin(), seed=seed)


def stored(place, compressors, values):
    made = zarr.create_array(
        place,
        shape=values.shape,
        chunks=CHUNK,
        shards=SHAPE,
        dtype=values.dtype,
        compressors=compressors,
    )
    made[...] = values
    return place / "c/0/0"


def noise():
    return np.random.default_rng(5).integers(0, 2**32, SHAPE, "u4")


def change(shard, entry, place, bits=0x10):
    """Flip bits of the byte `place` bytes from the end of an inner chunk."""
    data = bytearray(shard.read_bytes())
    index = np.frombuffer(bytes(data[-(16 * 8 + 4) : -4]), "<u8").reshape(-1, 2)
    offset, nbytes = map(int, index[entry])
    data[offset + nbytes - place] ^= bits
    shard.write_bytes(bytes(data))


def assert_refused_alike(place, *, entry, seed):
    """Both paths tell the same, and the device found it by itself, alone."""
    a = gpushard.open_array(place, device="cpu")
    with pytest.raises(gpushard.ChecksumError) as host:
        a[...]
    device = emulated(seed)
    with pytest.raises(gpushard.ChecksumError) as found:
        read_on_device(a, [whole(a.shape)], device, max_rows=3)
    assert_same_failure(found.value, host.value)
    assert found.value.inner_chunk == divmod(entry, 4)
    assert device.is_idle


def assert_same_failure(error, other):
    for name in ("what", "shard_key", "inner_chunk", "codec"):
        assert getattr(error, name) == getattr(other, name)


@each_chain
@pytest.mark.parametrize(("entry", "byte"), [(0, 1), (3, 2), (6, 3), (0, 4)])
def test_a_wrong_trailer_is_a_checksum_error_that_names_its_place(
    tmp_path, chain, entry, byte
):
    shard = stored(tmp_path, CHAINS[chain], noise())
    change(shard, entry, END_OF_CHECKSUM[chain] + byte)
    assert_refused_alike(tmp_path, entry=entry, seed=byte)


@each_chain
@pytest.mark.parametrize("place", [30, 700])
def test_a_wrong_decoded_byte_is_a_checksum_error(tmp_path, chain, place):
    shard = stored(tmp_path, CHAINS[chain], noise())
    change(shard, 5, place)
    assert_refused_alike(tmp_path, entry=5, seed=place)


@each_chain
def test_only_the_damaged_inner_chunk_is_refused(tmp_path, chain):
    values = noise()
    shard = stored(tmp_path, CHAINS[chain], values)
    change(shard, 5, 40)
    a = gpushard.open_array(tmp_path, device="cpu")
    selection = expressions.basic((slice(0, 16),), a.shape)
    device = emulated()
    results, job = read_on_device(a, [selection], device)
    assert_same_bits(results[0], values[:16])
    assert "n_refused_inner_chunks" not in job.tally.counts
    seen = []
    launch = device.launch

    def watched(kernel, *rest):
        launch(kernel, *rest)
        if kernel.startswith("gs_scatter"):
            device.drain()
            with device.open_memory():
                seen.append(statuses_of(rest[1][0]))

    device.launch = watched
    with pytest.raises(gpushard.ChecksumError):
        read_on_device(a, [whole(a.shape)], device)
    assert [sorted(statuses) for statuses in seen] == [[*[OK] * 7, Status.CHECKSUM]]


def statuses_of(scatter):
    """Statuses of the rows that a scatter is launched on."""
    address, n_rows = int(scatter["status"]), int(scatter["n_rows"])
    return list(np.frombuffer(ctypes.string_at(address, 4 * n_rows), np.uint32))


def test_the_checksum_of_a_zlib_stream_in_blosc_is_verified(tmp_path):
    values = np.arange(2048, dtype="u4").reshape(SHAPE)
    blosc = BloscCodec(cname="zlib", shuffle="noshuffle", blocksize=512, typesize=4)
    shard = stored(tmp_path, [blosc], values)
    a = gpushard.open_array(tmp_path, device="cpu")
    results, _ = read_on_device(a, [whole(a.shape)], emulated())
    assert_same_bits(results[0], values)
    change(shard, 6, 1)  # the last block's stream ends the frame
    with pytest.raises(gpushard.CorruptShardError) as host:
        a[...]
    with pytest.raises(gpushard.CorruptShardError) as device:
        read_on_device(a, [whole(a.shape)], emulated())
    assert_same_failure(device.value, host.value)
    assert device.value.inner_chunk == (1, 2)


def test_rows_without_bytes_leave_room_for_the_streams_in_their_place(tmp_path):
    values = np.random.default_rng(1).integers(0, 9, (64, 64)).astype("u1")
    made = zarr.create_array(
        tmp_path,
        shape=values.shape,
        chunks=(4, 4),
        shards=(64, 64),
        dtype="u1",
        compressors=[codec("numcodecs.zlib", level=1)],
    )
    made[...] = values
    shard = tmp_path / "c/0/0"
    n_entries = 256
    index = np.zeros((n_entries, 2), "<u8")
    index[:, 0] = 1
    data = index.tobytes()
    data += crc32c.crc32c(data).to_bytes(4, "little")
    shard.write_bytes(b"x" + data)
    a = gpushard.open_array(tmp_path, device="cpu")
    with pytest.raises(gpushard.CorruptShardError):
        read_on_device(a, [whole(a.shape)], emulated())
