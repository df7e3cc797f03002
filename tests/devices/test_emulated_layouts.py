"""On the emulated device: what is decoded into the output, and what scatter undoes."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import zarr
from crc32c import crc32c
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec

import gpushard
from cuda_host.device import EmulatedDevice
from cuda_host.launch import SCHEDULES, Kernels
from cuda_host.reads import read_on_device
from cuda_host.standin import load_standin
from gpushard.device_reading.read import DeviceRead, read_to_device
from gpushard.devices.output import DeviceOutput
from gpushard.report import Tally
from gpushard.selecting import expressions
from gpushard.selecting.selection import whole
from zarr_oracle import assert_same_bits

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")

KERNELS = Kernels()
SHUFFLE = {"name": "numcodecs.shuffle", "configuration": {"elementsize": 4}}
PLAIN = {
    "zstd": [ZstdCodec()],
    "gzip": [GzipCodec()],
    "blosc": [BloscCodec(cname="lz4", shuffle="noshuffle", blocksize=256)],
    "blosc-bits": [BloscCodec(cname="zstd", shuffle="bitshuffle")],
}
VERIFIED = {chain: [*codecs, Crc32cCodec()] for chain, codecs in PLAIN.items()}
SHUFFLED = {
    "blosc": [BloscCodec(cname="lz4", shuffle="shuffle", blocksize=256)],
    "shuffle": [SHUFFLE],
    "shuffle-zstd-crc32c": [SHUFFLE, ZstdCodec(), Crc32cCodec()],
}


def emulated(seed=0, schedule=0):
    return EmulatedDevice(KERNELS, load_standin(), seed=seed, schedule=schedule)


def stored(place, compressors, *, chunks=(2, 40), shape=(30, 40), **kept):
    made = zarr.create_array(
        place,
        shape=shape,
        chunks=chunks,
        shards=(10, 40),
        dtype=kept.pop("dtype", "i4"),
        compressors=compressors,
        fill_value=9,
        **kept,
    )
    values = np.random.default_rng(3).integers(0, 99, shape).astype(made.dtype)
    values[20:] = 9
    made[:20] = values[:20]
    return values


def launched(device):
    return [what for _, kind, what in device.log if kind == "kernel"]


class DeafDevice(EmulatedDevice):
    """A device that does not run the kernels whose names begin so."""

    deaf_to = "gs_scatter_copy"

    def launch(self, kernel, grid, parameters, stream):
        if not kernel.startswith(self.deaf_to):
            super().launch(kernel, grid, parameters, stream)


# ---- decoded into the output


@pytest.mark.parametrize("chain", VERIFIED)
def test_inner_chunks_that_land_whole_are_decoded_there(tmp_path, chain):
    values = stored(tmp_path, VERIFIED[chain])
    a = gpushard.open_array(tmp_path)
    device = DeafDevice(KERNELS, load_standin(), seed=1)
    with mock.patch.object(DeafDevice, "deaf_to", "gs_scatter"):
        results, _ = read_on_device(a, [whole(a.shape)], device, max_rows=4)
    assert_same_bits(results[0][:20], values[:20])
    results, _ = read_on_device(a, [whole(a.shape)], emulated(), max_rows=4)
    assert_same_bits(results[0], values)


@pytest.mark.parametrize("chain", PLAIN)
def test_streams_that_nothing_verified_are_never_decoded_there(tmp_path, chain):
    """The vendor's decoder writes behind its output if a stream is damaged."""
    values = stored(tmp_path, PLAIN[chain])
    a = gpushard.open_array(tmp_path)
    device = DeafDevice(KERNELS, load_standin(), seed=1)
    with mock.patch.object(DeafDevice, "deaf_to", "gs_scatter"):
        results, _ = read_on_device(a, [whole(a.shape)], device, max_rows=4)
    assert np.all(results[0].view("u1") == 0xCB)
    results, _ = read_on_device(a, [whole(a.shape)], emulated(), max_rows=4)
    assert_same_bits(results[0], values)


@pytest.mark.parametrize("chain", VERIFIED)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_only_whole_rows_of_a_selection_are_decoded_there(tmp_path, chain, schedule):
    values = stored(tmp_path, VERIFIED[chain], chunks=(5, 40))
    a = gpushard.open_array(tmp_path)
    picked = [
        expressions.basic((slice(3, 17),), a.shape),
        expressions.basic((slice(0, 20), slice(0, 39)), a.shape),
        expressions.basic((slice(None, None, -1),), a.shape),
        expressions.orthogonal(([4, 3, 2, 1, 0, 11],), a.shape),
    ]
    results, _ = read_on_device(a, picked, emulated(schedule, schedule), max_rows=3)
    wanted = [values[3:17], values[:20, :39], values[::-1], values[[4, 3, 2, 1, 0, 11]]]
    for got, want in zip(results, wanted, strict=True):
        assert_same_bits(got, want)


@pytest.mark.parametrize(
    ("kept", "dtype"),
    [
        ({}, "f4"),
        ({"serializer": zarr.codecs.BytesCodec(endian="big")}, "i4"),
        ({"filters": [TransposeCodec(order=(1, 0))]}, "i4"),
        ({"dtype": "bool"}, "?"),
    ],
    ids=["cast", "swap", "transpose", "bool"],
)
def test_what_has_to_change_on_the_way_is_scattered(tmp_path, kept, dtype):
    values = stored(tmp_path, VERIFIED["zstd"], **kept)
    a = gpushard.open_array(tmp_path)
    device = DeafDevice(KERNELS, load_standin())
    with mock.patch.object(DeafDevice, "deaf_to", "gs_scatter"):
        results, _ = read_on_device(a, [whole(a.shape)], device, dtype=dtype)
    assert np.all(results[0].view("u1") == 0xCB)  # nobody wrote there
    results, _ = read_on_device(a, [whole(a.shape)], emulated(), dtype=dtype)
    assert_same_bits(results[0], values.astype(dtype))


@pytest.mark.parametrize("chain", ["zstd", "gzip", "blosc"])
@pytest.mark.parametrize("max_rows", [1, 3, 99])
def test_an_error_leaves_no_garbage_where_a_decoder_failed(tmp_path, chain, max_rows):
    values = stored(tmp_path, VERIFIED[chain])
    options = gpushard.Options(placement="device")
    a = gpushard.open_array(tmp_path, options=options)
    device = emulated(max_rows)
    broken = iter([None, 12, None, None, 12] + [None] * 999)
    device.standin.intercept = lambda *_: next(broken)
    out = device.allocate(values.nbytes)
    output = DeviceOutput(out.address, a.shape, values.strides, a.dtype)
    refused = gpushard.CorruptShardError("planted")
    with (
        mock.patch("gpushard.device_reading.batch.put_rows", side_effect=refused),
        mock.patch("gpushard.device_reading.sink.MAX_ROWS", max_rows),
        pytest.raises(gpushard.CorruptShardError),
    ):
        read_to_device(
            DeviceRead(a.source, [whole(a.shape)], [output], device, Tally())
        )
    got = out.read().view(values.dtype).reshape(values.shape)
    untouched = np.int32(np.uint32(0xCBCBCBCB))
    allowed = (got == values) | (got == 0) | (got == untouched)
    assert allowed.all()
    assert (got == 0).any()


def test_what_a_decoder_failed_at_is_filled_by_the_host(tmp_path):
    values = stored(tmp_path, VERIFIED["zstd"])
    a = gpushard.open_array(tmp_path)
    device = emulated()
    broken = iter([None, 12, 12] + [None] * 999)
    device.standin.intercept = lambda *_: next(broken)
    results, job = read_on_device(a, [whole(a.shape)], device)
    assert job.tally.counts["n_refused_inner_chunks"] == 2
    assert_same_bits(results[0], values)


# ---- shuffles that the scatter undoes


@pytest.mark.parametrize("chain", SHUFFLED)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_last_byte_shuffle_is_undone_by_the_scatter(tmp_path, chain, schedule):
    values = stored(tmp_path, SHUFFLED[chain], chunks=(5, 8))
    a = gpushard.open_array(tmp_path)
    device = emulated(schedule, schedule)
    selections = [
        whole(a.shape),
        expressions.basic((slice(17, 2, -3), slice(5, 30)), a.shape),
        expressions.points(([3, 1, 19], [2, 39, 0]), a.shape),
    ]
    results, _ = read_on_device(a, selections, device, max_rows=3)
    assert_same_bits(results[0], values)
    assert_same_bits(results[1], values[17:2:-3, 5:30])
    assert_same_bits(results[2], values[[3, 1, 19], [2, 39, 0]])
    names = launched(device)
    assert not {"gs_unshuffle", "gs_unfilter"} & set(names)
    assert "gs_scatter_planes_2" in names


@pytest.mark.parametrize("chain", SHUFFLED)
def test_shuffled_numbers_are_cast_and_turned(tmp_path, chain):
    shape = (64, 64)
    turn = {"filters": [TransposeCodec(order=(1, 0))]}
    made = zarr.create_array(
        tmp_path,
        shape=shape,
        chunks=(32, 32),
        dtype="i4",
        compressors=SHUFFLED[chain],
        **turn,
    )
    values = np.random.default_rng(3).integers(0, 99, shape).astype("i4")
    made[...] = values
    a = gpushard.open_array(tmp_path)
    for dtype, kernel in (("i4", "gs_scatter_turn_4"), ("f8", "gs_scatter_castturn_4")):
        device = emulated()
        results, _ = read_on_device(a, [whole(a.shape)], device, dtype=dtype)
        assert_same_bits(results[0], values.astype(dtype))
        assert kernel in launched(device)


@pytest.mark.parametrize("dtype", ["i2", "f8", "u1"])
def test_items_of_another_size_take_the_pass_of_their_own(tmp_path, dtype):
    values = stored(tmp_path, [SHUFFLE, ZstdCodec()], dtype=dtype)
    a = gpushard.open_array(tmp_path)
    device = emulated()
    results, _ = read_on_device(a, [whole(a.shape)], device)
    assert_same_bits(results[0], values)
    assert "gs_unshuffle" in launched(device)


def test_a_shuffled_inner_chunk_that_is_cut_short_is_refused(tmp_path):
    stored(tmp_path, [SHUFFLE])
    shard = tmp_path / "c/1/0"
    data = bytearray(shard.read_bytes())
    index = np.frombuffer(bytes(data[-84:-4]), "<u8").copy()
    index[3] -= 4
    index_bytes = index.tobytes()

    data[-84:] = index_bytes + crc32c(index_bytes).to_bytes(4, "little")
    shard.write_bytes(bytes(data))
    a = gpushard.open_array(tmp_path)
    with pytest.raises(gpushard.CorruptShardError):
        read_on_device(a, [whole(a.shape)], emulated())
