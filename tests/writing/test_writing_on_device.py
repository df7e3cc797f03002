"""Values in (emulated) device memory are compressed there, and read back everywhere."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorstore
import zarr

import gpushard
from array_strategies import codec
from cuda_host.device import EmulatedDevice
from cuda_host.launch import Kernels
from cuda_host.standin import load_standin
from gpushard.devices import compressing
from gpushard.writing import on_device as writing
from test_writing_peers import CRC, LITTLE, sharding
from written_on_device import CHUNKS, CODECS, SHAPE, new, numbers, on_device
from zarr_oracle import assert_same_bits, quiet_zarr

pytestmark = pytest.mark.usefixtures("device_begins_at_once")

KERNELS = Kernels()
ALGORITHM = {"lz4": "lz4", "gzip": "gzip", "zlib": "deflate"}

each_codec = pytest.mark.parametrize("name", CODECS)


@pytest.fixture
def device():
    device = EmulatedDevice(KERNELS, load_standin(), seed=5)
    yield device
    device.drain()
    assert device.standin.complaints == []


def assert_stored(place, want, *, by_zarr=True) -> None:
    assert_same_bits(gpushard.open_array(place, device="cpu")[...], want)
    if by_zarr:
        with quiet_zarr():
            assert_same_bits(zarr.open_array(place, mode="r")[...], want)


class NeverFetched:
    """A value that may only be read on its device."""

    def __init__(self, array) -> None:
        self.dtype = array.dtype
        self.array = array
        self.__cuda_array_interface__ = array.__cuda_array_interface__

    def get(self):
        raise AssertionError("the value was fetched")


# ---- compressed on the device


@each_codec
@pytest.mark.parametrize("others", [(), (CRC,)], ids=["alone", "crc32c"])
def test_whole_inner_chunks_are_compressed_where_they_lie(
    name, others, tmp_path, device
):
    a, values = new(tmp_path, device, CODECS[name], *others), numbers()
    a[...] = NeverFetched(on_device(device, values))
    assert device.standin.encoded == [ALGORITHM.get(name, "zstd")] * 24
    assert_stored(tmp_path, values)


@pytest.mark.parametrize("name", ["zstd", "gzip"])
def test_tensorstore_reads_what_the_device_compressed(name, tmp_path, device):
    values = numbers()
    a = new(tmp_path, device, CODECS[name], CRC)
    a[...] = NeverFetched(on_device(device, values))
    store = {"driver": "file", "path": str(tmp_path)}
    peer = tensorstore.open({"driver": "zarr3", "kvstore": store}).result()
    assert_same_bits(peer.read().result(), values)


@each_codec
def test_inner_chunks_that_end_beyond_the_array_are_filled_up(name, tmp_path, device):
    values = numbers((21, 33))
    a = new(tmp_path, device, CODECS[name], shape=(21, 33))
    a[...] = NeverFetched(on_device(device, values))
    assert len(device.standin.encoded) == 24
    assert_stored(tmp_path, values)
    # Beyond the array lies the fill value, not what the memory held before.
    wider = json.loads((tmp_path / "zarr.json").read_text()) | {"shape": [24, 40]}
    (tmp_path / "zarr.json").write_text(json.dumps(wider))
    assert_stored(tmp_path, np.pad(values, ((0, 3), (0, 7))))


def test_parts_of_strided_values_land_where_they_belong(tmp_path, device):
    a, want = new(tmp_path, device, CODECS["lz4"]), np.zeros(SHAPE, "f4")
    whole = numbers((50, 60))
    # Every second row of 8, from a wider array.
    rows = on_device(device, whole)
    rows.__cuda_array_interface__ |= {"shape": (8, 40), "strides": (480, 4)}
    a[4:12] = NeverFetched(rows)
    want[4:12] = whole[:16:2, :40]
    assert len(device.standin.encoded) == 8
    assert_stored(tmp_path, want)


def test_small_inner_chunks_of_transposed_values_are_put_together(tmp_path, device):
    a, values = new(tmp_path, device, CODECS["lz4"]), numbers()
    value = on_device(device, values.T)
    value.__cuda_array_interface__ |= {"shape": SHAPE, "strides": (4, 24 * 4)}
    a[...] = NeverFetched(value)
    assert_stored(tmp_path, values)


def test_dropped_and_new_axes_do_not_confuse_it(tmp_path, device):
    values = numbers((40,))
    a = gpushard.create_array(
        tmp_path,
        shape=(3, 40),
        dtype="f4",
        chunks=(1, 10),
        shards=(1, 20),
        compressors=zarr.codecs.ZstdCodec(level=1),
        device=device,
    )
    a[1] = NeverFetched(on_device(device, values))
    a[2, None] = NeverFetched(on_device(device, values[None] + 1))
    assert len(device.standin.encoded) == 8
    assert_stored(tmp_path, np.stack([np.zeros(40, "f4"), values, values + 1]))


CHAINS = {
    "unsharded": ([LITTLE, CODECS["gzip"]], 4),
    "index at the start": (
        [sharding(CHUNKS, LITTLE, CODECS["gzip"], location="start")],
        24,
    ),
    "nested": ([sharding([12, 10], sharding(CHUNKS, LITTLE, CODECS["gzip"]))], 24),
    "crc32c around": ([sharding(CHUNKS, LITTLE, CODECS["gzip"]), CRC], 24),
}


@pytest.mark.parametrize(("chain", "n"), CHAINS.values(), ids=CHAINS)
def test_every_way_of_cutting_an_array_has_inner_chunks(chain, n, tmp_path, device):
    values = numbers()
    a = new(tmp_path, device, chain=chain)
    a[...] = NeverFetched(on_device(device, values))
    assert len(device.standin.encoded) == n
    assert_stored(tmp_path, values)


@pytest.mark.parametrize("strategy", ["append_only", "fixed_order"])
def test_every_strategy_takes_what_the_device_compressed(strategy, tmp_path, device):
    a, values = new(tmp_path, device, CODECS["lz4"], strategy=strategy), numbers()
    a[...] = NeverFetched(on_device(device, values))
    a[4:8] = NeverFetched(on_device(device, values[:4]))
    values[4:8] = values[:4]
    assert_stored(tmp_path, values)


def test_what_one_array_reads_on_the_device_another_writes_there(tmp_path, device):
    a, values = new(tmp_path / "a", device, CODECS["zstd"]), numbers()
    a[...] = values
    b = new(tmp_path / "b", device, CODECS["lz4"])
    b[...] = NeverFetched(a[...])
    assert device.standin.encoded == ["lz4"] * 24
    assert_stored(tmp_path / "b", values)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_named", [False, True], ids=["current", "named"])
def test_what_the_callers_stream_does_first_is_waited_for(is_named, seed, tmp_path):
    device = EmulatedDevice(KERNELS, load_standin(), seed=seed)
    a = new(tmp_path, device, CODECS["zstd"])
    value, want = on_device(device, numbers()), numbers()
    want[:2] = 0
    stream = device.create_stream() if is_named else 0
    value.__cuda_array_interface__ |= {"stream": stream if is_named else None}
    for _ in range(20):  # all of it, not what the order happens to be kind to
        device.clear(value.buffer.address, 160, stream)
    device.clear(value.buffer.address + 160, 160, stream)
    a[...] = NeverFetched(value)
    device.drain()
    assert_stored(tmp_path, want)


@each_codec
def test_inner_chunks_of_fill_value_are_not_stored(name, tmp_path, device):
    values = numbers()
    values[4:8, 10:20], values[:4, :10] = 0, 0
    values[0, 0] = -0.0  # not the fill value, bit for bit
    a = new(tmp_path, device, CODECS[name])
    a[...] = NeverFetched(on_device(device, values))
    assert a.explain().n_missing_inner_chunks == 1
    assert_stored(tmp_path, values)
    a = new(tmp_path, device, CODECS[name], write_empty_chunks=True)
    a[...] = NeverFetched(on_device(device, values))
    assert a.explain().n_missing_inner_chunks == 0
    assert_stored(tmp_path, values)


def test_batches_are_cut_to_the_memory_there_is(tmp_path, device, monkeypatch):
    monkeypatch.setattr(compressing, "_MOST_ROWS", 2)
    values = numbers()
    a = new(tmp_path, device, CODECS["zstd"])
    a[...] = NeverFetched(on_device(device, values))
    assert len(device.standin.encoded) == 24
    assert_stored(tmp_path, values)


# ---- left to the host


def test_an_inner_chunk_that_the_encoder_refuses_is_encoded_by_the_host(
    tmp_path, device, caplog
):
    writing._tell_once.cache_clear()
    values = numbers()
    refused = np.ascontiguousarray(values[4:8, 10:20]).tobytes()
    device.standin.intercept_encoding = lambda _, data: 19 if data == refused else None
    a = new(tmp_path, device, CODECS["lz4"], CRC)
    a[...] = on_device(device, values)
    assert "nvCOMP's LZ4 refuses" in caplog.text
    assert_stored(tmp_path, values)


def test_partial_inner_chunks_are_merged_on_the_host_and_the_rest_is_not(
    tmp_path, device
):
    a, want = new(tmp_path, device, CODECS["zstd"]), numbers()
    a[...] = want
    want[2:20, 10:] += 50
    value = on_device(device, want[2:20, 10:])
    n_fetched = 0

    def fetch():
        nonlocal n_fetched
        n_fetched += 1
        return want[2:20, 10:].copy()

    value.get = fetch
    a[2:20, 10:] = value
    assert n_fetched == 1
    assert len(device.standin.encoded) == 12  # of 15 that are written to
    assert_stored(tmp_path, want)


def check_left_to_the_host(tmp_path, device, *codecs, dtype="f4", value=None):
    a, values = new(tmp_path, device, *codecs, dtype=dtype), numbers(dtype=dtype)
    a[...] = on_device(device, values) if value is None else value
    assert device.standin.encoded == []
    assert_stored(tmp_path, values)


HOST_CHAINS = {
    "no codec": (),
    "zstd with a checksum": (codec("zstd", level=1, checksum=True),),
    "two compressors": (CODECS["gzip"], CODECS["zstd"]),
    "crc32c first": (CRC, CODECS["zstd"]),
}


@pytest.mark.parametrize("codecs", HOST_CHAINS.values(), ids=HOST_CHAINS)
def test_other_codecs_are_left_to_the_host(codecs, tmp_path, device):
    check_left_to_the_host(tmp_path, device, *codecs)


def test_other_data_types_are_left_to_the_host(tmp_path, device):
    value = on_device(device, numbers(dtype="f4"))
    check_left_to_the_host(tmp_path, device, CODECS["lz4"], dtype="f8", value=value)


def test_values_that_lie_backwards_are_left_to_the_host(tmp_path, device):
    values = numbers()
    value = on_device(device, values[::-1])
    interface = value.__cuda_array_interface__
    last_row = interface["data"][0] + 23 * 160
    interface |= {"data": (last_row, False), "strides": (-160, 4)}
    value.get = values.copy
    check_left_to_the_host(tmp_path, device, CODECS["lz4"], value=value)


def test_broadcast_values_are_left_to_the_host(tmp_path, device):
    a, row = new(tmp_path, device, CODECS["zstd"]), numbers((40,))
    a[...] = on_device(device, row)
    assert device.standin.encoded == []
    assert_stored(tmp_path, np.broadcast_to(row, SHAPE).copy())


def test_points_and_steps_are_left_to_the_host(tmp_path, device):
    a, want = new(tmp_path, device, CODECS["zstd"]), np.zeros(SHAPE, "f4")
    rows = numbers((2, 40))
    a.oindex[[5, 1]] = on_device(device, rows)
    want[[5, 1]] = rows
    a.vindex[[0, 9], [3, 4]] = on_device(device, numbers((2,)))
    want[[0, 9], [3, 4]] = numbers((2,))
    a[12:24:3] = on_device(device, numbers((4, 40)))
    want[12:24:3] = numbers((4, 40))
    assert device.standin.encoded == []
    assert_stored(tmp_path, want)


def test_an_array_opened_on_the_host_fetches_the_values(tmp_path, device):
    values = numbers()
    new(tmp_path, device, CODECS["zstd"])
    gpushard.open_array(tmp_path, device="cpu")[...] = on_device(device, values)
    assert device.standin.encoded == []
    assert_stored(tmp_path, values)


def test_a_value_on_another_gpu_is_left_to_the_host(tmp_path, device):
    value = on_device(device, numbers())
    value.device = type("Device", (), {"id": 1})()
    check_left_to_the_host(tmp_path, device, CODECS["zstd"], value=value)


def test_a_value_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path, device
):
    a = new(tmp_path, device, CODECS["zstd"])
    with pytest.raises(gpushard.SelectionError, match="another shape"):
        a[...] = on_device(device, numbers((7, 3)))
    assert [p.name for p in tmp_path.iterdir()] == ["zarr.json"]
