"""Reads on a real CUDA device: `pytest -m gpu`. The host's path is the oracle."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from threading import Thread
from unittest import mock

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

import array_strategies as arrays
import gpushard
from benchmarks.gpu.gpu import fetched
from cuda_host.reads import read_by_either
from flipped_bytes import damage_inner_chunks
from gpushard.device_reading import sink
from gpushard.device_reading.read import DeviceRead
from gpushard.devices.output import DeviceOutput
from gpushard.report import Tally
from gpushard.selecting import expressions
from gpushard.selecting.selection import whole
from places import INTEROP
from real_gpu import cuda_device
from selection_strategies import basic_keys, masks, orthogonal_keys, point_keys
from v3_documents import document, rectilinear
from zarr_oracle import assert_same_bits

pytestmark = pytest.mark.gpu

MANIFEST = json.loads((INTEROP / "manifest.json").read_text())
CHAINS = {
    "none": None,
    "crc32c": [Crc32cCodec()],
    "zstd": [ZstdCodec()],
    "zstd-checksum": [ZstdCodec(checksum=True)],
    "zstd-level-19": [ZstdCodec(level=19)],
    "zstd-crc32c": [ZstdCodec(), Crc32cCodec()],
    "crc32c-zstd": [Crc32cCodec(), ZstdCodec()],
    "gzip": [GzipCodec()],
    "zlib": [arrays.codec("numcodecs.zlib", level=1)],
    "lz4": [arrays.codec("numcodecs.lz4", acceleration=1)],
    "shuffle-zstd": [arrays.codec("numcodecs.shuffle", elementsize=4), ZstdCodec()],
    "blosc-lz4": [BloscCodec(cname="lz4", shuffle="shuffle")],
    "blosc-lz4hc": [BloscCodec(cname="lz4hc", shuffle="noshuffle")],
    "blosc-zstd": [BloscCodec(cname="zstd", shuffle="bitshuffle")],
    "blosc-zlib": [BloscCodec(cname="zlib", shuffle="shuffle")],
    "blosclz": [BloscCodec(cname="blosclz")],
}
BOTH = (False, True), (False, True)
FILTERS = {
    "delta": ("i4", arrays.codec("numcodecs.delta", dtype="<i4")),
    "narrow delta": ("i8", arrays.codec("numcodecs.delta", dtype="<i8", astype="<i2")),
    "delta of floats": ("f4", arrays.codec("numcodecs.delta", dtype="<f4")),
    "delta of doubles": (
        "f8",
        arrays.codec("numcodecs.delta", dtype="<f8", astype="<f4"),
    ),
    "scaled": (
        "f4",
        arrays.codec(
            "numcodecs.fixedscaleoffset",
            dtype="<f4",
            astype="<i2",
            scale=10,
            offset=3,
        ),
    ),
    "packed": ("bool", arrays.codec("numcodecs.packbits")),
}


@pytest.fixture(scope="module")
def device():
    return cuda_device()


def read_on_gpu(a, selections, device, dtype=None):
    """Results of the selections, read into the device's memory and copied back.

    bfloat16 and its like, which CuPy lacks, go as the integers of their bits.
    """
    wanted = a.dtype if dtype is None else np.dtype(dtype)
    results = []
    outputs, buffers = [], []
    for selection in selections:
        shape = selection.shape
        strides = np.empty(shape, wanted).strides
        buffer = device.allocate(max(int(np.prod(shape)) * wanted.itemsize, 1))
        buffers.append(buffer)
        outputs.append(DeviceOutput(buffer.address, shape, strides, wanted))
    # Where the host would be faster the device is what is tested all the same.
    source = replace(a.source, options=a.source.options.but(placement="device"))
    job = read_by_either(DeviceRead(source, selections, outputs, device, Tally()))
    stream = device.create_stream()
    for buffer, output in zip(buffers, outputs, strict=True):
        nbytes = int(np.prod(output.shape)) * wanted.itemsize
        host = device.allocate_pinned(max(nbytes, 1))[:nbytes]
        if nbytes:
            device.download(host, buffer.address, stream)
            device.wait(device.record(stream))
        results.append(host.copy().view(wanted).reshape(output.shape))
    return results, job


def batches_of(max_rows):
    """Batches have so many rows at most."""
    return mock.patch.object(sink, "MAX_ROWS", max_rows)


@pytest.mark.parametrize("chunk", [(8, 10), (128, 256), (512, 1024)])
@pytest.mark.parametrize("chain", CHAINS)
def test_every_chain_is_decoded_on_the_device(tmp_path, device, chain, chunk):
    shape = tuple(4 * c + 1 for c in chunk)
    made = zarr.create_array(
        tmp_path,
        shape=shape,
        chunks=chunk,
        shards=tuple(2 * c for c in chunk),
        dtype="i4",
        compressors=CHAINS[chain],
        fill_value=7,
    )
    values = np.random.default_rng(5).integers(0, 50, shape).astype("i4")
    made[: 3 * chunk[0]] = values[: 3 * chunk[0]]
    values[3 * chunk[0] :] = 7
    a = gpushard.open_array(tmp_path, device="cpu")
    rows = [3, 1, shape[0] - 1]
    selections = [
        whole(a.shape),
        expressions.basic((slice(None, 2, -3), 5, None), a.shape),
        expressions.orthogonal((rows, slice(None)), a.shape),
        expressions.points((rows, [2, 9, 0]), a.shape),
    ]
    results, job = read_on_gpu(a, selections, device)
    assert_same_bits(results[0], values)
    assert_same_bits(results[1], values[:2:-3, 5, None])
    assert_same_bits(results[2], values[rows])
    assert_same_bits(results[3], values[rows, [2, 9, 0]])
    if chain != "blosclz":
        assert "n_refused_inner_chunks" not in job.tally.counts


@pytest.mark.parametrize("name", MANIFEST["valid"])
def test_interop_samples_are_read_as_on_the_host(device, name):
    entry = MANIFEST["valid"][name]
    a = gpushard.open_array(INTEROP / entry["path"], device="cpu")
    results, _ = read_on_gpu(a, [whole(a.shape)], device)
    assert_same_bits(results[0], np.load(INTEROP / entry["expected"]))


@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data(), max_rows=st.sampled_from([3, sink.MAX_ROWS]))
def test_any_array_is_read_as_on_the_host(device, data, max_rows):
    stored = data.draw(arrays.stored_arrays()).placed("memory", None)
    a = gpushard.open_array(stored, device="cpu")  # the oracle, too
    assume(not a.dtype.hasobject and a.dtype.kind != "T")  # no device has those
    selections = [
        expressions.basic(data.draw(basic_keys(a.shape)), a.shape),
        expressions.orthogonal(data.draw(orthogonal_keys(a.shape)), a.shape),
    ]
    if a.shape and 0 not in a.shape:
        selections += [
            expressions.points(data.draw(point_keys(a.shape)), a.shape),
            expressions.points((data.draw(masks(a.shape)),), a.shape),
        ]
    with batches_of(max_rows):
        results, _ = read_on_gpu(a, selections, device)
    for got, want in zip(results, a.read_many(selections), strict=True):
        assert_same_bits(got, want)


@pytest.mark.parametrize("max_rows", [2, 64, sink.MAX_ROWS])
@pytest.mark.parametrize("chain", ["none", "zstd-crc32c", "gzip", "blosc-lz4"])
def test_lanes_that_overlap_change_nothing(tmp_path, device, chain, max_rows):
    shape = (512, 640)
    made = zarr.create_array(
        tmp_path,
        shape=shape,
        chunks=(16, 20),
        shards=(128, 160),
        dtype="i4",
        compressors=CHAINS[chain],
    )
    values = np.random.default_rng(5).integers(0, 50, shape).astype("i4")
    made[...] = values
    a = gpushard.open_array(tmp_path, device="cpu")
    # Every inner chunk in a batch with few others: some 500 batches at the least rows.
    wanted, found = [whole(a.shape)], []

    def read():
        for _ in range(3):
            results, _ = read_on_gpu(a, wanted, device)
            found.append(np.array_equal(results[0], values))

    with batches_of(max_rows):
        threads = [Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [True] * 9


def damaged(place, chain, victims):
    """Array with one byte changed in some inner chunks of its first shard."""
    made = zarr.create_array(
        place,
        shape=(32, 40),
        chunks=(8, 10),
        shards=(16, 20),
        dtype="i4",
        compressors=CHAINS[chain],
    )
    made[...] = np.random.default_rng(5).integers(0, 50, (32, 40)).astype("i4")
    damage_inner_chunks(place / "c/0/0", victims)
    return gpushard.open_array(place, device="cpu")


@pytest.mark.parametrize("chain", ["crc32c", "zstd-crc32c"])
def test_damage_is_refused_with_its_place(tmp_path, device, chain):
    a = damaged(tmp_path, chain, [1])
    with pytest.raises(gpushard.CorruptShardError) as host:
        a[...]
    with pytest.raises(gpushard.CorruptShardError) as there, batches_of(3):
        read_on_gpu(a, [whole(a.shape)], device)
    assert there.value.what == host.value.what
    assert there.value.inner_chunk == host.value.inner_chunk == (0, 1)
    device.check()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i8"])
def test_values_are_cast_on_the_way(tmp_path, device, dtype):
    values = np.random.default_rng(5).integers(0, 50, (64, 64)).astype("u1")
    how = {"shape": values.shape, "chunks": (8, 8), "shards": (32, 32)}
    zarr.create_array(tmp_path, dtype=values.dtype, **how)[...] = values
    a = gpushard.open_array(tmp_path, device="cpu")
    results, _ = read_on_gpu(a, [whole(a.shape)], device, dtype)
    assert_same_bits(results[0], values.astype(dtype))


@pytest.mark.parametrize("name", FILTERS)
def test_filters_are_undone_as_on_the_host(tmp_path, device, name):
    """In inner chunks of many tiles. Of a NaN only the host has the bits of a sum."""
    dtype, codec = FILTERS[name]
    values = np.random.default_rng(5).integers(0, 2, 4 * 4099).astype(dtype)
    is_sum = name in ("delta of floats", "delta of doubles")
    if is_sum:
        values[5000] = np.nan
    how = {"shape": values.shape, "chunks": (4099,), "shards": (2 * 4099,)}
    how |= {"dtype": dtype, "filters": [codec], "compressors": ZstdCodec()}
    zarr.create_array(tmp_path, **how)[...] = values
    a = gpushard.open_array(tmp_path, device="cpu")
    results, job = read_on_gpu(a, [whole(a.shape)], device)
    assert_same_bits(results[0], a[...])
    assert job.tally.counts.get("n_refused_inner_chunks", 0) == is_sum


def odd_outputs(device, shape, dtype):
    """Outputs at several bytes, whose axes may be turned, reversed and apart.

    Each with its memory, and what it is an array over, as NumPy's views are made.
    """
    for first, gap, is_turned, is_reversed in product((0, 1, 4, 8), (0, 2, 16), *BOTH):
        inner, outer = (0, 1) if is_turned else (1, 0)
        strides = [dtype.itemsize, dtype.itemsize]
        strides[outer] = dtype.itemsize * shape[inner] + gap
        nbytes, at = first + strides[outer] * shape[outer], first
        if is_reversed:
            at += strides[1] * (shape[1] - 1)
            strides[1] = -strides[1]
        buffer = device.allocate(nbytes)
        output = DeviceOutput(buffer.address + at, shape, tuple(strides), dtype)
        yield output, buffer, (nbytes, at)


@pytest.mark.parametrize("dtype", ["i4", "f8"])
@pytest.mark.parametrize("chain", ["none", "zstd", "shuffle-zstd", "blosc-lz4"])
def test_outputs_may_lie_at_any_byte(tmp_path, device, chain, dtype):
    """A GPU faults at a word whose address is no multiple of its size."""
    values = np.random.default_rng(5).integers(0, 50, (160, 140)).astype("i4")
    how = {"shape": values.shape, "chunks": (80, 70), "shards": values.shape}
    how |= {"dtype": "i4", "compressors": CHAINS[chain], "fill_value": 7}
    zarr.create_array(tmp_path, **how)[:80] = values[:80]
    values[80:] = 7
    a = gpushard.open_array(tmp_path, device="cpu")
    source = a.source.with_options(a.source.options.but(placement="device"))
    for output, buffer, (nbytes, at) in odd_outputs(device, a.shape, np.dtype(dtype)):
        outputs = [output]
        read = DeviceRead(source, [whole(a.shape)], outputs, device, Tally())
        read_by_either(read)
        memory = fetched(device, buffer.address, nbytes)
        found = np.ndarray(a.shape, dtype, memory, at, output.strides)
        assert_same_bits(found, values.astype(dtype))


def test_what_no_kernel_scatters_is_read_by_the_host(tmp_path, device):
    """Inner chunks of several lengths: few of the arrays that are drawn have them."""
    grid = rectilinear([4, 6], 6)
    nothing = document(shape=[10, 12], chunk_grid=grid, fill_value=7)
    (tmp_path / "zarr.json").write_text(json.dumps(nothing))
    a = gpushard.open_array(tmp_path, device="cpu")
    results, _ = read_on_gpu(a, [whole(a.shape)], device)
    assert_same_bits(results[0], np.full(a.shape, 7, "i4"))


def test_what_is_handed_out_and_taken_are_cupys_arrays(tmp_path, device):
    values = np.random.default_rng(5).integers(0, 50, (64, 64)).astype("i4")
    how = {"chunks": (8, 8), "shards": (32, 32), "compressors": ZstdCodec()}
    how |= {"shape": values.shape, "dtype": "i4"}
    zarr.create_array(tmp_path / "a", **how)[...] = values
    options = gpushard.Options(placement="device")
    a = gpushard.open_array(tmp_path / "a", device=device.label, options=options)
    assert_same_bits(a[3:50:2, ::-1].get(), values[3:50:2, ::-1])
    out = device.empty((64, 64), np.dtype("f4"))
    assert a.read(out=out, stream=device.create_stream()) is out
    assert_same_bits(out.get(), values.astype("f4"))
    b = gpushard.create_array(tmp_path / "b", device=device.label, **how)
    b[...] = a[...]
    assert_same_bits(zarr.open_array(tmp_path / "b")[...], values)
