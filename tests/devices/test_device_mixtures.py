"""Arrays whose frames were written by all compressors: a batch of them on a device."""

from __future__ import annotations

import json
from functools import partial

import crc32c
import numpy as np
import pytest

import blosc_frames
from array_strategies import codec
from blosc_frames import as_snappy, encode
from cuda_host.device import EmulatedDevice
from cuda_host.launch import Kernels
from cuda_host.reads import read_on_device
from cuda_host.standin import load_standin
from fuzz.shard_cases import CRC, LITTLE, OneObject, blosc, document, sharding
from gpushard import open_array
from gpushard.codecs import blosc_frame
from gpushard.selecting import expressions
from gpushard.selecting.selection import whole
from idle_device import idle, n_driver_calls
from zarr_oracle import assert_same_bits, native, write

SHAPE, SHARD = (16, 96), (16, 32)
PER_SHARD, N_CHUNKS = 4, 12  # inner chunks of 512 bytes
KERNELS = Kernels()
NONE, BYTES, BITS = range(3)
FRAMES = [
    ("lz4", BYTES),
    ("zstd", BITS),
    ("zlib", BYTES),
    ("snappy", BITS),
    ("zlib", NONE),
    ("snappy", BYTES),
    ("zstd", NONE),
    ("lz4", BITS),
]
SCALED = codec(
    "numcodecs.fixedscaleoffset", scale=1, offset=0, dtype="<f4", astype="<i4"
)
DELTA = codec("numcodecs.delta", dtype="<i4")
SHUFFLE = codec("numcodecs.shuffle", elementsize=4)
CHAINS = {
    "plain": ("int32", [LITTLE], []),
    "checksums": ("int32", [LITTLE, CRC], [CRC]),
    "filters": ("float32", [SCALED, DELTA, LITTLE, SHUFFLE, CRC], [CRC]),
}

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")


def framed(data, cname, shuffle):
    """A Blosc frame of blocks of 256 bytes, some streams of which are raw."""
    items = np.frombuffer(data[: len(data) & ~3], "<u4")
    if len(data) % 4:
        items = np.frombuffer(data, np.uint8)
    frame = encode(items, "lz4" if cname == "snappy" else cname, shuffle, 256)
    is_stored = frame[2] & blosc_frame.MEMCPYED
    return as_snappy(frame) if cname == "snappy" and not is_stored else frame


def mixed(chain, frames=FRAMES):
    """Array of which each inner chunk is another kind of frame, its values, its frames.

    One inner chunk is noise, and of others a block, which Blosc stores as it is.
    """
    dtype, ahead, behind = CHAINS[chain]
    rng = np.random.default_rng(7)
    values = rng.integers(0, 9, SHAPE).astype(dtype)
    most = 1 << (24 if dtype == "float32" else 31)  # and no fractions
    values[8:, 64:80] = rng.integers(-most, most, (8, 16))
    values[4:8, :80] = rng.integers(-most, most, (4, 80))
    plain = document([sharding(ahead)], SHAPE, SHARD) | {"data_type": dtype}
    stored = write(plain, [(..., values)])
    made, kinds = {}, iter(frames * N_CHUNKS)
    for key, shard in stored.objects.items():
        if key == "zarr.json":
            continue
        nbytes = (len(shard) - 16 * PER_SHARD - 4) // PER_SHARD
        index = np.frombuffer(shard[-16 * PER_SHARD - 4 : -4], "<u8").reshape(-1, 2)
        chunks = [framed(shard[at : at + nbytes], *next(kinds)) for at, _ in index]
        made[key] = chunks
    codecs = [*ahead, blosc("zstd"), *behind]
    metadata = document([sharding(codecs)], SHAPE, SHARD) | {"data_type": dtype}
    shards = {key: shard_of(chunks, behind) for key, chunks in made.items()}
    objects = {"zarr.json": json.dumps(metadata).encode(), **shards}
    frames = [frame for chunks in made.values() for frame in chunks]
    return open_array(OneObject(objects)), native(values), frames


def shard_of(chunks, behind):
    """Inner chunks one behind the other, and their index."""
    if behind:
        chunks = [data + crc32c.crc32c(data).to_bytes(4, "little") for data in chunks]
    nbytes = np.array([len(data) for data in chunks], "<u8")
    index = np.column_stack([np.cumsum(nbytes) - nbytes, nbytes]).tobytes()
    return b"".join(chunks) + index + crc32c.crc32c(index).to_bytes(4, "little")


def emulated(**knobs):
    return EmulatedDevice(KERNELS, load_standin(), **knobs)


def test_the_frames_are_of_all_kinds():
    _, _, frames = mixed("plain")
    parsed = [blosc_frames.parse(frame) for frame in frames]
    kinds = {(p.header.compressor, p.header.flags & 5) for p in parsed}
    assert len(kinds) == len(FRAMES)
    assert any(p.header.flags & blosc_frame.MEMCPYED for p in parsed)
    assert any(p.is_raw.any() and not p.is_raw.all() for p in parsed)


@pytest.mark.parametrize("chain", CHAINS)
def test_a_batch_of_all_kinds_of_frames_is_read_in_few_calls(chain):
    a, values, _ = mixed(chain)
    for seed in range(2):
        device = emulated(seed=seed)
        results, job = read_on_device(a, [whole(a.shape)], device)
        assert_same_bits(results[0], values)
        assert "n_refused_inner_chunks" not in job.tally.counts
        assert [kind for _, kind, _ in device.log].count("decode") == 4


@pytest.mark.parametrize("chain", CHAINS)
def test_a_device_that_decodes_them_is_asked_for_what_is_counted(chain):
    a, _, _ = mixed(chain)
    real, counted = (
        n_driver_calls(a, whole(a.shape), make(), max_rows=N_CHUNKS)
        for make in (emulated, partial(idle, "blosc any, any"))
    )
    assert real == counted


@pytest.mark.parametrize("n_rows", [1, 2, 5])
def test_smaller_batches_of_them_are_read_as_well(n_rows):
    a, values, _ = mixed("checksums")
    results, job = read_on_device(a, [whole(a.shape)], emulated(), max_rows=n_rows)
    assert_same_bits(results[0], values)
    assert "n_refused_inner_chunks" not in job.tally.counts


def test_frames_of_blosclz_among_them_are_decoded_on_the_host():
    a, values, frames = mixed("filters", [*FRAMES[:4], ("blosclz", BYTES)])
    parsed = [blosc_frames.parse(frame) for frame in frames]
    n_blosclz = sum(p.header.compressor == 0 and not p.is_raw.all() for p in parsed)
    assert n_blosclz
    results, job = read_on_device(a, [whole(a.shape)], emulated())
    assert_same_bits(results[0], values)
    assert job.tally.counts["n_refused_inner_chunks"] == n_blosclz


@pytest.mark.parametrize("first", [[], [("blosclz", BYTES)]], ids=["all", "but some"])
def test_each_launch_of_a_batch_goes_by_its_own_rows(first):
    """Of the same batch some rows are shuffled, or refused, and others are not."""
    a, values, _ = mixed("plain", [*first, *FRAMES])
    at = [9, 1, 15, 3, 12], [70, 30, 95, 50, 85]
    wanted = [whole(a.shape), expressions.points(at, a.shape)]
    device = emulated()
    results, job = read_on_device(a, wanted, device)
    assert_same_bits(results[0], values)
    assert_same_bits(results[1], values[at])
    n_refused = job.tally.counts.get("n_refused_inner_chunks", 0)
    assert bool(n_refused) == bool(first)
    scatters = [what for *_, what in device.log if what.startswith("gs_scatter")]
    assert len(scatters) == 2 + bool(first)
