"""Filters of numcodecs in a chain, undone on the emulated device as on the host."""

from __future__ import annotations

import json

import crc32c
import numpy as np
import pytest
import zarr

import gpushard
from array_strategies import codec
from cuda_host.device import EmulatedDevice
from cuda_host.launch import SCHEDULES, Kernels
from cuda_host.reads import read_on_device
from cuda_host.standin import load_standin
from gpushard.devices.decoding.chain import compile_device_chain
from gpushard.errors import UnsupportedError
from gpushard.selecting.selection import whole
from spec_shards import document, opened, sharding
from zarr_oracle import assert_same_bits

KERNELS = Kernels()
SHAPE = (20, 27)
CHUNK = (5, 9)
LITTLE, BIG = codec("bytes", endian="little"), codec("bytes", endian="big")
ZSTD = codec("zstd", level=1)
TURNED = codec("transpose", order=[1, 0])


def delta(dtype, astype=None):
    given = {} if astype is None else {"astype": astype}
    return codec("numcodecs.delta", dtype=dtype, **given)


def scaled(dtype, astype, scale=10, offset=3):
    numbers = {"scale": scale, "offset": offset}
    return codec("numcodecs.fixedscaleoffset", dtype=dtype, astype=astype, **numbers)


PACKBITS = codec("numcodecs.packbits")
ROUNDED = codec("numcodecs.bitround", keepbits=4)
SHUFFLED = codec("numcodecs.shuffle", elementsize=4)
ON_DEVICE = {
    "delta": ("i4", [delta("<i4"), LITTLE, ZSTD]),
    "delta without compressor": ("i8", [delta("<i8"), LITTLE]),
    "narrow delta": ("i4", [delta("<i4", "|i1"), LITTLE, ZSTD]),
    "delta of uint64": ("u8", [delta("<u8"), LITTLE, ZSTD]),
    "delta of floats": ("f4", [delta("<f4"), LITTLE, ZSTD]),
    "delta of doubles": ("f8", [delta("<f8", "<f4"), LITTLE, ZSTD]),
    "scaled": ("f4", [scaled("<f4", "<i2"), LITTLE, ZSTD]),
    "scaled to bytes": ("f8", [scaled("<f8", "|u1", 2.5, -1.25), BIG, ZSTD]),
    "turned, delta": ("i2", [TURNED, delta("<i2"), LITTLE, ZSTD]),
    "scaled, delta": ("f4", [scaled("<f4", "<i4"), delta("<i4"), LITTLE, ZSTD]),
    "delta, shuffled": ("i4", [delta("<i4"), LITTLE, SHUFFLED, ZSTD]),
    "delta, checksum": ("i4", [delta("<i4"), LITTLE, {"name": "crc32c"}]),
    "packbits": ("bool", [PACKBITS, LITTLE]),
    "packbits, gzip": ("bool", [PACKBITS, LITTLE, codec("gzip", level=1)]),
    "rounded": ("f4", [ROUNDED, LITTLE, ZSTD]),
    "rounded, big-endian": ("f8", [ROUNDED, BIG, ZSTD]),
}
ON_HOST = {
    "delta, big-endian": ("i4", [delta("<i4"), BIG, ZSTD]),
    "delta to a narrower type": ("i2", [delta("<i2", "<i4"), LITTLE, ZSTD]),
    "delta of halves": ("f2", [delta("<f2"), LITTLE, ZSTD]),
    "delta from long integers to floats": ("f4", [delta("<f4", "<i4"), LITTLE]),
    "big-endian items": ("i4", [delta("<i4", ">i4"), LITTLE, ZSTD]),
    "scaled integers": ("i4", [scaled("<i4", "<i2", 1, 0), LITTLE, ZSTD]),
    "quantized": ("f4", [codec("numcodecs.quantize", digits=1, dtype="<f4"), LITTLE]),
}
# zarr-python reads and writes none of these.
UNWRITABLE = {
    "delta, turned": ("i4", [delta("<i4"), TURNED, LITTLE, ZSTD]),
    "scaled by nothing": ("f4", [scaled("<f4", "<i2", 0, 0), LITTLE, ZSTD]),
    "scaled by nothing in float32": ("f4", [scaled("<f4", "<f4", 1e-50, 0), LITTLE]),
    "scaled by infinity in float32": ("f4", [scaled("<f4", "<f4", 1e39, 0), LITTLE]),
    "moved by infinity in float32": ("f4", [scaled("<f4", "<f4", 1, -1e39), LITTLE]),
    "scaled by too much": ("f4", [scaled("<f4", "<i2", 2**60 + 1), LITTLE, ZSTD]),
}

pytestmark = pytest.mark.filterwarnings("ignore")


def described(place, dtype, codecs):
    """Sharded array behind a chain of codecs, without inner chunks."""
    sharding = codec(
        "sharding_indexed",
        chunk_shape=CHUNK,
        codecs=codecs,
        index_codecs=[LITTLE, {"name": "crc32c"}],
    )
    zarr.create_array(place, shape=SHAPE, chunks=(10, 27), dtype=dtype)
    document = json.loads((place / "zarr.json").read_text())
    document["codecs"] = [sharding]
    (place / "zarr.json").write_text(json.dumps(document))
    return gpushard.open_array(place, device="cpu")


def stored(place, dtype, codecs):
    """The same, where some inner chunks are missing and the others are not."""
    described(place, dtype, codecs)
    values = np.random.default_rng(8).integers(0, 2 if dtype == "bool" else 60, SHAPE)
    values = values.astype(dtype)
    values[15:] = 0
    zarr.open_array(place, mode="r+")[:15] = values[:15]
    return gpushard.open_array(place, device="cpu")


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ON_DEVICE)
def test_a_filter_is_undone_on_the_device(tmp_path, name, schedule):
    a = stored(tmp_path, *ON_DEVICE[name])
    device = EmulatedDevice(KERNELS, load_standin(), seed=schedule, schedule=schedule)
    results, job = read_on_device(a, [whole(a.shape)], device, max_rows=5)
    assert job.sink.decodes
    assert "n_refused_inner_chunks" not in job.tally.counts
    assert_same_bits(results[0], a[...])


@pytest.mark.parametrize("name", ["delta of floats", "delta of doubles"])
def test_sums_that_are_no_numbers_have_the_hosts_bits(tmp_path, name):
    stored(tmp_path, *ON_DEVICE[name])
    values = np.full(SHAPE, 1.5, "f4")
    values[7, 11], values[12, 4] = np.nan, np.inf
    with np.errstate(all="ignore"):
        zarr.open_array(tmp_path, mode="r+")[...] = values
    a = gpushard.open_array(tmp_path, device="cpu")
    results, job = read_on_device(
        a, [whole(a.shape)], EmulatedDevice(KERNELS, load_standin()), max_rows=5
    )
    assert job.tally.counts["n_refused_inner_chunks"] == 2
    assert_same_bits(results[0], a[...])


@pytest.mark.parametrize("name", ON_HOST)
def test_what_no_kernel_calculates_as_numpy_does_the_host_undoes(tmp_path, name):
    a = stored(tmp_path, *ON_HOST[name])
    with pytest.raises(UnsupportedError):
        compile_device_chain(a.source.layout, a.source.chunk_shape)
    device = EmulatedDevice(KERNELS, load_standin())
    results, job = read_on_device(a, [whole(a.shape)], device, max_rows=5)
    assert not job.sink.decodes
    assert_same_bits(results[0], a[...])


@pytest.mark.parametrize("name", UNWRITABLE)
def test_a_chain_whose_order_or_numbers_no_kernel_keeps_is_refused(tmp_path, name):
    a = described(tmp_path, *UNWRITABLE[name])
    with pytest.raises(UnsupportedError):
        compile_device_chain(a.source.layout, a.source.chunk_shape)


def test_shuffled_blocks_have_as_many_bytes_as_the_kernels_count():
    def chain(nbytes):
        shard = sharding((nbytes,), codecs=[LITTLE, SHUFFLED])
        a = opened(document((nbytes,), (nbytes,), shard))
        return compile_device_chain(a.source.layout, (nbytes,))

    assert chain(2**31 - 4).decoded_nbytes == 2**31 - 4
    for nbytes in (2**31, 2**32, 2**32 + 8):
        with pytest.raises(UnsupportedError, match="larger than a device decodes"):
            chain(nbytes)


@pytest.mark.parametrize("name", ["delta without compressor", "packbits"])
@pytest.mark.parametrize("change", [-1, 1])
def test_an_inner_chunk_of_another_size_is_refused(tmp_path, name, change):
    a = stored(tmp_path, *ON_DEVICE[name])
    shard = tmp_path / "c/1/0"
    data = bytearray(shard.read_bytes())
    index = np.frombuffer(bytes(data[-100:-4]), "<i8").reshape(-1, 2).copy()
    index[0, 1] += change
    content = index.tobytes()
    data[-100:] = content + crc32c.crc32c(content).to_bytes(4, "little")
    shard.write_bytes(bytes(data))
    device = EmulatedDevice(KERNELS, load_standin())
    with pytest.raises(gpushard.CorruptShardError) as found:
        read_on_device(a, [whole(a.shape)], device)
    assert found.value.inner_chunk == (2, 0)


def test_explain_names_what_undoes_each_filter(tmp_path):
    stored(tmp_path, *ON_DEVICE["scaled, delta"])
    device = EmulatedDevice(KERNELS, load_standin())
    options = gpushard.Options(placement="device")
    report = gpushard.open_array(tmp_path, device=device, options=options).explain()
    assert [(c.codec, c.where, c.library) for c in report.codecs] == [
        ("zstd", "device", "nvCOMP 6.0.0"),
        ("bytes", "scatter", "gpushard"),
        ("numcodecs.delta", "device", "gpushard"),
        ("numcodecs.fixedscaleoffset", "device", "gpushard"),
    ]
