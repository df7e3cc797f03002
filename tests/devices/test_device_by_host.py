"""Small reads to a device, which the host does before a device would have begun."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

import gpushard
from device_fetch_cases import emulated
from flipped_bytes import damage_inner_chunks
from gpushard.device_reading import by_host, host_rows, read
from gpushard.device_reading.by_host import suits_host
from gpushard.devices.placement import RATES, Rates
from gpushard.errors import DeviceError, UnsupportedError
from gpushard.options import MIB, Options
from gpushard.selecting import expressions
from gpushard.selecting.selection import whole
from loader_data import ORDERS, images, labels
from v3_documents import document, rectilinear
from zarr_oracle import assert_same_bits

VALUES = np.arange(64 * 48, dtype="i4").reshape(64, 48)
SMALL = np.s_[3:20, 5]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("small")
    store(path, VALUES, [ZstdCodec()])
    return path


def store(path, values, compressors, chunks=(8, 8), shards=(32, 16)):
    zarr.create_array(
        path,
        shape=values.shape,
        dtype=values.dtype,
        chunks=chunks,
        shards=shards,
        compressors=compressors,
        fill_value=0,
    )[...] = values


def asked(device):
    """What copies and kernels a device was asked for."""
    return [kind for _, kind, _ in device.log if kind != "event"]


def suits(path, key, **options):
    source = gpushard.open_array(path, options=Options(**options)).source
    return suits_host(source, [expressions.orthogonal(key, source.layout.shape)], RATES)


def test_a_small_read_is_one_copy_of_what_the_host_read(place):
    device = emulated()
    a = gpushard.open_array(place, device=device)
    assert_same_bits(a[SMALL].get(), VALUES[SMALL])
    assert asked(device) == ["upload"]


@given(st.data())
def test_the_host_and_the_kernels_give_the_same_bits(place, data):
    keys = data.draw(st.lists(_keys(), min_size=1, max_size=3))
    dtype = data.draw(st.sampled_from(["i4", "f4", "f8"]))
    few, all_of_it = emulated(), emulated()
    by_the_host = gpushard.open_array(place, device=few)
    options = Options(placement="device")
    by_kernels = gpushard.open_array(place, device=all_of_it, options=options)
    found = by_the_host.read_many(keys, dtype=dtype)
    wanted = by_kernels.read_many(keys, dtype=dtype)
    for one, other, key in zip(found, wanted, keys, strict=True):
        assert_same_bits(one.get(), other.get())
        assert_same_bits(one.get(), VALUES[key].astype(dtype))
    assert "kernel" not in asked(few)


def _keys():
    step = st.sampled_from([1, 3, -2])
    ends = st.integers(-70, 70)
    axis = st.integers(-48, 47) | st.builds(slice, ends, ends, step)
    return st.tuples(axis, axis)


@pytest.mark.parametrize(
    ("key", "is_small"),
    [
        (np.s_[5], True),
        (np.s_[:], False),
        ((slice(0, 8 * 12), slice(None)), True),  # 144 inner chunks
        ((slice(0, 8 * 13), slice(None)), False),  # 156
        ((slice(8 * 80, 8 * 92), slice(None)), True),
        ((slice(4, 8 * 13), slice(None)), False),
        ([*range(0, 800, 8)], False),
        ([5] * 12, True),
    ],
)
def test_a_read_is_small_by_the_number_of_inner_chunks_that_it_touches(
    tmp_path, key, is_small, monkeypatch
):
    monkeypatch.setattr(by_host, "_COMPILED_ROW_S", by_host._ROW_S)
    values = np.zeros((800, 96), "i4")
    store(tmp_path, values, [ZstdCodec()], shards=(80, 96))
    key = key if isinstance(key, tuple) else (key,)
    assert suits(tmp_path, key) == is_small


@pytest.mark.parametrize(("n", "is_small"), [(144, True), (156, False)])
def test_points_count_as_an_inner_chunk_each(place, n, is_small, monkeypatch):
    monkeypatch.setattr(by_host, "_COMPILED_ROW_S", by_host._ROW_S)
    source = gpushard.open_array(place).source
    points = expressions.points(([5] * n, [7] * n), VALUES.shape)
    assert suits_host(source, [points], RATES) == is_small


def test_inner_chunks_of_different_lengths_are_not_counted(tmp_path):
    grid = rectilinear([4, 6], 6)
    nothing = document(shape=[10, 12], chunk_grid=grid)
    (tmp_path / "zarr.json").write_text(json.dumps(nothing))
    assert not suits(tmp_path, (slice(2, 9), slice(None)))


@pytest.mark.parametrize(
    ("compressors", "n_small"),
    [
        (None, 17),
        (ZstdCodec(), 5),
        (GzipCodec(), 2),
        ([ZstdCodec(), Crc32cCodec()], 5),
        (BloscCodec(cname="lz4"), 17),
        (BloscCodec(cname="blosclz"), 0),
    ],
)
def test_a_read_is_small_by_the_time_of_its_slowest_codec(
    tmp_path, compressors, n_small, monkeypatch
):
    for name in ("_ROW_S", "_COMPILED_ROW_S"):
        monkeypatch.setattr(by_host, name, 0.0)
    monkeypatch.setattr(host_rows, "libdeflate", SimpleNamespace(find=object))
    values = np.zeros((64, 1 << 17), "i4")
    store(tmp_path, values, compressors, (1, 1 << 17), (64, 1 << 17))
    found = [suits(tmp_path, (slice(n), slice(None))) for n in range(1, 65)]
    assert found == [n <= n_small for n in range(1, 65)]


def test_less_gzip_is_small_where_zlib_decodes_it(tmp_path, monkeypatch):
    store(
        tmp_path, np.zeros((2, 1 << 17), "i4"), GzipCodec(), (1, 1 << 17), (2, 1 << 17)
    )
    found = []
    for find in (object, lambda: None):
        library = SimpleNamespace(find=find)
        monkeypatch.setattr(host_rows, "libdeflate", library)
        found.append(suits(tmp_path, (slice(None), slice(None))))
    assert found == [True, False]


def test_small_results_of_many_sizes_are_copied_through_memory_of_few(place):
    device, sizes = emulated(), set()
    allocate_pinned = device.allocate_pinned

    def noting(nbytes):
        sizes.add(nbytes)
        return allocate_pinned(nbytes)

    device.allocate_pinned = noting
    a = gpushard.open_array(place, device=device)
    for n in range(1, 60):
        assert_same_bits(a[:n, 5].get(), VALUES[:n, 5])
    assert 1 < len(sizes) <= 14
    assert max(sizes) >= 4 * 59


def test_of_plain_elements_only_those_that_are_wanted_count(tmp_path):
    store(tmp_path, np.zeros((8, 1 << 20), "i4"), None, (8, 1 << 20), (8, 1 << 20))
    assert suits(tmp_path, (slice(None), slice(100)))
    assert not suits(tmp_path, (slice(None), slice(None)))


def test_rates_of_the_device_decide(place):
    source = gpushard.open_array(place).source
    selections = [whole(VALUES.shape)]
    assert suits_host(source, selections, RATES)
    slow = {**RATES, "zstd": Rates(1e9, 1e9, 1e6)}
    assert not suits_host(source, selections, slow)


@pytest.mark.parametrize("placement", ["device", "host"])
def test_who_says_where_to_decode_gets_that(place, placement):
    device = emulated()
    options = Options(placement=placement)
    a = gpushard.open_array(place, device=device, options=options)
    assert_same_bits(a[SMALL].get(), VALUES[SMALL])
    assert "kernel" in asked(device)


def test_elements_apart_in_the_callers_array_are_scattered_by_the_device(place):
    device = emulated()
    a = gpushard.open_array(place, device=device)
    out = device.empty((17, 2), np.dtype("i4"))
    interface = out.__cuda_array_interface__ | {"shape": (17,), "strides": (8,)}
    out.__cuda_array_interface__ = interface
    out.shape = (17,)
    a.read(SMALL, out=out)
    assert "kernel" in asked(device)


@pytest.mark.parametrize("seed", range(5))
def test_the_copy_comes_after_what_the_callers_stream_does_first(place, seed):
    device = emulated(seed=seed)
    a = gpushard.open_array(place, device=device)
    out = device.empty((17,), np.dtype("i4"))
    stream = device.create_stream()
    for _ in range(20):  # so that no order of streams is kind by chance
        device.clear(out.buffer.address, 68, stream)
    assert a.read(SMALL, out=out, stream=stream) is out
    assert asked(device) == ["clear"] * 20 + ["upload"]
    assert_same_bits(out.get(), VALUES[SMALL])


def test_explain_says_that_the_host_read_it_and_why(place):
    a = gpushard.open_array(place, device=emulated())
    report = a.explain(SMALL)
    assert "sooner" in report.fetch
    assert (report.n_decoded_on_host, report.n_decoded_on_device) == (3, 0)
    assert {codec.where for codec in report.codecs} == {"host"}


@pytest.mark.parametrize("options", [{}, {"memory_limit": MIB}])
def test_results_on_the_host_count_against_its_limit(place, options, monkeypatch):
    limits = []
    read_on_host = read.read_on_host

    def noting(source, request):
        limits.append(source.options.bound_nbytes)
        return read_on_host(source, request)

    monkeypatch.setattr(read, "read_on_host", noting)
    a = gpushard.open_array(place, device=emulated(), options=Options(**options))
    assert_same_bits(a[...].get(), VALUES)
    assert limits == [a.source.beside(2 * VALUES.nbytes).options.bound_nbytes]
    assert limits < [a.source.options.bound_nbytes]


def test_damage_is_told_or_filled_as_on_the_host(tmp_path):
    store(tmp_path, VALUES, [ZstdCodec(checksum=True)], shards=(16, 16))
    damage_inner_chunks(tmp_path / "c/0/0", [0])
    device = emulated()
    a = gpushard.open_array(tmp_path, device=device)
    with pytest.raises(gpushard.CorruptShardError, match="inner chunk"):
        a[:8, :8]
    damage = []
    found = a.read(np.s_[:8, :10], errors=damage.append).get()
    assert len(damage) == 1
    assert_same_bits(found[:, 8:], VALUES[:8, 8:10])
    assert not found[:, :8].any()
    assert device.is_idle


def test_a_device_that_breaks_during_the_copy_says_so(place):
    device = emulated(breaks=lambda n: n == 1)
    a = gpushard.open_array(place, device=device)
    with pytest.raises(DeviceError, match="broken"):
        a[SMALL]


def test_what_the_host_has_to_read_needs_a_contiguous_output(place, monkeypatch):
    """As for an array that no kernel can scatter."""
    monkeypatch.setattr(read, "choose_chain", lambda _: (None, "no reason"))
    device = emulated()
    a = gpushard.open_array(place, device=device, options=Options(placement="host"))
    out = device.empty((64, 48), np.dtype("i4"))
    out.__cuda_array_interface__ |= {"strides": (4, 256)}
    with pytest.raises(UnsupportedError, match="contiguous"):
        a.read(out=out)


@pytest.mark.parametrize("order", ORDERS)
def test_a_loader_has_the_host_read_little_beside_what_the_device_reads(order):
    """Labels, say: a read by the device would take it as long as one of the images."""
    source = images().source
    options = source.options.but(placement="device")
    by_device = gpushard.Array(replace(source, options=options))
    arrays = {"images": by_device, "labels": labels()}
    options = ORDERS[order] | {"batch_size": 8}
    device = emulated()
    there = gpushard.Loader(arrays, device=device, **options)
    here = gpushard.Loader(arrays, device="cpu", **options)
    for got, wanted in zip(there, here, strict=True):
        for name, values in wanted.items():
            assert_same_bits(got[name].get(), values)
    alone = emulated()
    for _ in gpushard.Loader(by_device, device=alone, **options):
        pass
    assert asked(device).count("kernel") == asked(alone).count("kernel") > 0
