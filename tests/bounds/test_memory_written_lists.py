"""A write to very many listed elements takes no columns over all of them."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import ShardingCodec

import gpushard
import strategies as sts
from device_fetch_cases import emulated
from gpushard.layout import GridAxis
from gpushard.options import KIB, MIB, Options
from gpushard.selecting import index_arrays, listing
from gpushard.selecting.expressions import orthogonal
from gpushard.selecting.selection import Listed
from gpushard.writing import listed, masked, regions
from gpushard.writing.assign import WriteSession
from gpushard.writing.listed import written_parts
from tiny_bounds import tiny_bounds

SIDE = 640
N = SIDE * SIDE
LIMIT = 8 * MIB
RNG = np.random.default_rng(4)
MASK = RNG.random(N) < 0.9
ARRAYS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "row": ((N,), {"shards": (N // 8,), "chunks": (5 * KIB,)}),
    "one shard": ((N,), {"shards": (N,), "chunks": (5 * KIB,)}),
    "chunks": ((N,), {"chunks": (N // 2,)}),
    "square": ((SIDE, SIDE), {"shards": (320, 320), "chunks": (64, 64)}),
    "columns": ((4, N), {"shards": (4, N // 16), "chunks": (2, 5 * KIB)}),
    "whole portions": ((SIDE, SIDE), {"shards": (SIDE, SIDE), "chunks": (20, SIDE)}),
    "long row": ((4, N), {"shards": (2, N), "chunks": (1, 5 * KIB)}),
    "long chunk": ((4, N), {"shards": (2, N), "chunks": (1, N)}),
    "long point chunk": ((N,), {"shards": (N,), "chunks": (N,)}),
}
KEYS: dict[str, tuple[str, str, Any]] = {
    "mask": ("row", "oindex", MASK),
    "mask of one shard": ("one shard", "oindex", MASK),
    "all of a shard": ("one shard", "oindex", np.ones(N, bool)),
    "in any order": ("row", "vindex", RNG.integers(-N, N, N)),
    "in any order in one shard": ("one shard", "vindex", RNG.permutation(N)),
    "unsharded": ("chunks", "oindex", RNG.integers(0, N, N)),
    "points": ("square", "vindex", tuple(RNG.integers(0, SIDE, (2, N)))),
    "mask of all axes": ("square", "vindex", MASK.reshape(SIDE, SIDE)),
    "mask of an axis": ("columns", "oindex", (slice(1, 3), MASK)),
    "inner chunks of a portion each": (
        "whole portions",
        "vindex",
        MASK.reshape(SIDE, SIDE),
    ),
    "mask of one row of shards": ("long row", "oindex", (slice(1, 3), MASK)),
    "mask of a long inner chunk": ("long chunk", "oindex", (slice(1, 3), MASK)),
    "all of a long inner chunk, in any order": (
        "long point chunk",
        "vindex",
        RNG.permutation(N),
    ),
}


@pytest.mark.parametrize("key", KEYS)
def test_a_write_to_listed_elements_stays_within_the_memory_limit(key, tmp_path):
    name, kind, chosen = KEYS[key]
    shape, cut = ARRAYS[name]
    zarr.create_array(tmp_path, shape=shape, dtype="u1", compressors=None, **cut)
    # With more threads, more inner chunks of a shard are encoded together, and columns
    # of more shards are held.
    n_threads = 16 if name in {"whole portions", "row", "chunks"} else 1
    options = Options(memory_limit=LIMIT, threads=n_threads)
    a = gpushard.open_array(tmp_path, device="cpu", options=options)
    getattr(a, kind)[(0,) * a.ndim] = 0  # what is loaded once
    expected = np.zeros(shape, "u1")
    at = np.ix_([1, 2], MASK) if len(shape) == 2 and kind == "oindex" else chosen
    values = RNG.integers(1, 255, expected[at].shape, "u1")
    expected[at] = values
    tracemalloc.start()
    try:
        getattr(a, kind)[chosen] = values
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(a[...], expected)
    assert peak < LIMIT


class OnDevice:
    """Values that only a device can read, but for `get`."""

    def __init__(self, values: Any) -> None:
        self.dtype, self._values = values.dtype, values
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": values.shape,
            "typestr": values.dtype.str,
            "data": (0, False),
            "strides": None,
        }

    def get(self) -> Any:
        return self._values


@pytest.mark.parametrize("key", ["mask", "points", "mask of an axis"])
def test_so_does_a_write_of_values_that_lie_on_the_array_s_device(key, tmp_path):
    name, kind, chosen = KEYS[key]
    shape, cut = ARRAYS[name]
    zarr.create_array(tmp_path, shape=shape, dtype="u1", compressors=None, **cut)
    options = Options(memory_limit=LIMIT, threads=1)
    a = gpushard.open_array(tmp_path, device=emulated(), options=options)
    getattr(a, kind)[(0,) * a.ndim] = 0
    expected = np.zeros(shape, "u1")
    at = np.ix_([1, 2], MASK) if len(shape) == 2 and kind == "oindex" else chosen
    values = RNG.integers(1, 255, expected[at].shape, "u1")
    expected[at] = values
    tracemalloc.start()
    try:
        getattr(a, kind)[chosen] = OnDevice(values)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    written = gpushard.open_array(tmp_path, device="cpu")
    np.testing.assert_array_equal(written[...], expected)
    assert peak < LIMIT


@st.composite
def writes(draw):
    """How an array is cut, the indexes of its axes, and how they are meant."""
    ndim = draw(st.integers(1, 2))
    shape = tuple(draw(st.integers(1, 24)) for _ in range(ndim))
    cut = draw(cuts(ndim))
    n_points = draw(st.integers(4, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["mask", "points", "oindex", "two lists"]))
    if kind == "mask":
        mask = rng.random(shape) < draw(st.sampled_from([0.3, 0.9, 1.1]))
        return shape, cut, "vindex", mask
    index = [rng.integers(-n, n, n_points) for n in shape]
    if kind == "points" or ndim == 1:
        return shape, cut, "vindex", tuple(index)
    axis = draw(st.integers(0, 1))
    index[axis] = index[axis][:5] if kind == "two lists" else slice(None, None, 2)
    return shape, cut, "oindex", tuple(index)


@st.composite
def cuts(draw, ndim):
    """Inner chunks, in shards, in nested shards, or by themselves."""
    chunks = tuple(draw(st.integers(1, 5)) for _ in range(ndim))
    kind = draw(st.sampled_from(["chunks", "shards", "nested"]))
    if kind == "chunks":
        return {"chunks": chunks}
    shards = tuple(n * draw(st.integers(1, 5)) for n in chunks)
    if kind == "shards":
        return {"chunks": chunks, "shards": shards}
    outer = tuple(n * draw(st.integers(1, 3)) for n in shards)
    inner = ShardingCodec(chunk_shape=chunks)
    nested = ShardingCodec(chunk_shape=shards, codecs=[inner])
    return {"chunks": outer, "serializer": nested}


@given(writes(), st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=40)
def test_writes_in_portions_are_those_of_numpy(write, n_block, most):
    shape, cut, kind, key = write
    store = zarr.storage.MemoryStore()
    expected = np.full(shape, -1, "i4")  # which no fill value is
    zarr.create_array(store, shape=shape, dtype="i4", compressors=None, **cut)
    at = key
    if kind == "oindex":
        along = zip(key, shape, strict=True)
        at = np.ix_(*(np.arange(n)[k] for k, n in along))
    values = np.arange(1, expected[at].size + 1, dtype="i4")
    values = values.reshape(expected[at].shape)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(index_arrays, "KEPT_ELEMENTS", 3)
        patched.setattr(listing, "BLOCK_ELEMENTS", n_block)
        patched.setattr(listed, "_LEAST_ELEMENTS", most)
        patched.setattr(regions, "_COPIED_NBYTES", 4 * n_block)
        patched.setattr(masked, "_AROUND_PER_TRUE", 0)
        options = Options(memory_limit=1)
        a = gpushard.open_array(store, device="cpu", options=options)
        a[...] = expected
        getattr(a, kind)[key] = values
    expected[at] = values
    # Old releases of zarr read no nested shards.
    np.testing.assert_array_equal(a[...], expected)


@pytest.mark.parametrize("strategy", ["rewrite", "append_only"])
def test_a_shard_of_more_elements_than_fit_is_written_once(
    strategy, tmp_path, monkeypatch
):
    monkeypatch.setattr(index_arrays, "KEPT_ELEMENTS", 3)
    monkeypatch.setattr(listed, "_LEAST_ELEMENTS", 3)
    options = Options(memory_limit=1).but(write=gpushard.WriteOptions(strategy))
    kept = {"shards": (24,), "chunks": (4,), "compressors": None}
    zarr.create_array(tmp_path, shape=48, dtype="i4", **kept)
    a = gpushard.open_array(tmp_path, device="cpu", options=options)
    a[:] = np.arange(48)
    written: list[Any] = []
    real = WriteSession.write
    monkeypatch.setattr(
        WriteSession,
        "write",
        lambda self, at, change: written.append(at) or real(self, at, change),
    )
    mask = np.arange(48) % 5 > 0
    a[mask] = -1
    assert sorted(written) == [(0,), (1,)]
    np.testing.assert_array_equal(a[:], np.where(mask, -1, np.arange(48)))


def test_as_many_elements_as_a_shard_has_may_leave_some_as_they_were(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(index_arrays, "KEPT_ELEMENTS", 3)
    monkeypatch.setattr(listed, "_LEAST_ELEMENTS", 3)
    kept = {"shards": (8,), "chunks": (4,), "compressors": None}
    zarr.create_array(tmp_path, shape=8, dtype="i4", **kept)
    a = gpushard.open_array(tmp_path, device="cpu", options=Options(memory_limit=1))
    a[:] = -1
    a.vindex[[6, 0, 1, 1, 2, 3, 4, 5]] = np.arange(8)
    assert a[:].tolist() == [1, 3, 4, 5, 6, 7, 0, -1]


class Counted(listing.IndexArrays):
    """Index arrays that count how many of their blocks are looked at."""

    n_taken = 0

    def block(self, number):
        self.n_taken += 1
        return super().block(number)


@pytest.mark.parametrize(("shard", "chunk"), [(50, 5), (500, 5), (500, 250)])
def test_elements_in_any_order_are_looked_at_in_few_rounds(shard, chunk):
    axes = GridAxis(1000, shard), GridAxis(1, 1)
    layout = sts.make_layout((1000, 1), axes, (sts.make_level((chunk, 1)),))
    index = RNG.permutation(1000)
    around = orthogonal((slice(None), slice(None)), (1000, 1))
    values, region = np.arange(1000), np.zeros((1000, 1), int)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(listing, "BLOCK_ELEMENTS", 100)
        counted = Counted([index], [1000])
        selection = Listed(counted, (1000, 1), around)
        for (cell, _), part in written_parts(selection, layout, 80).cells(axes):
            shard_region = region[cell * shard :][:shard]
            assert part.covers(shard_region.shape)
            part.assign(shard_region, values[:, None])
    np.testing.assert_array_equal(region[index, 0], values)
    # One to count, and one to sort out what there is room for: 840 elements at least.
    assert counted.n_taken / counted.n_blocks <= 4


def whole_part(index, most):
    """The part of an array of one shard, of two axes, where `index` lists rows."""
    axes = GridAxis(8, 8), GridAxis(2, 2)
    layout = sts.make_layout((8, 2), axes, (sts.make_level((4, 1)),))
    selection = orthogonal((index, slice(None)), (8, 2))
    assert isinstance(selection, Listed)
    ((cell, part),) = written_parts(selection, layout, most).cells(axes)
    assert cell == (0, 0)
    return part


@pytest.mark.parametrize("most", [1, 3, 5])
def test_equal_elements_do_not_make_a_whole_region(most):
    with tiny_bounds():
        part = whole_part(np.array([0, 1, 1, 3, 3, 4, 5, 6, 7, 0]), most)
        assert not part.covers((8, 2))
        part = whole_part(np.array([0, 1, 1, 3, 3, 4, 5, 6, 7, 2]), most)
        assert part.covers((8, 2))
