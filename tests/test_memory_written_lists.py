"""A write to very many listed elements takes no columns over all of them."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import gpushard
from device_fetch_cases import emulated
from gpushard.options import KIB, MIB, Options
from gpushard.selecting import index_arrays, listing
from gpushard.writing import listed
from gpushard.writing.assign import WriteSession
from gpushard.writing.regions import InPortions, Scattered

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
}


@pytest.mark.parametrize("key", KEYS)
def test_a_write_to_listed_elements_stays_within_the_memory_limit(key, tmp_path):
    name, kind, chosen = KEYS[key]
    shape, cut = ARRAYS[name]
    zarr.create_array(tmp_path, shape=shape, dtype="u1", compressors=None, **cut)
    options = Options(memory_limit=LIMIT, threads=1)
    a = gpushard.open_array(tmp_path, device="cpu", options=options)
    getattr(a, kind)[(0,) * a.ndim] = 0  # what is loaded once
    expected = np.zeros(shape, "u1")
    at = np.ix_([1, 2], MASK) if name == "columns" else chosen
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
    at = np.ix_([1, 2], MASK) if name == "columns" else chosen
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
    chunks = tuple(draw(st.integers(1, 5)) for _ in shape)
    shards = tuple(n * draw(st.integers(1, 5)) for n in chunks)
    cut = {"chunks": chunks, "shards": shards} if draw(st.booleans()) else {}
    n_points = draw(st.integers(4, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if draw(st.booleans()):
        mask = rng.random(shape) < draw(st.sampled_from([0.3, 0.9, 1.1]))
        return shape, cut or {"chunks": chunks}, "vindex", mask
    index = tuple(rng.integers(-n, n, n_points) for n in shape)
    if ndim == 2 and draw(st.booleans()):
        index = (index[0], slice(None, None, 2))
        return shape, cut or {"chunks": chunks}, "oindex", index
    return shape, cut or {"chunks": chunks}, "vindex", index


@given(writes(), st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=25)
def test_writes_in_portions_are_those_of_numpy(write, n_block, most):
    shape, cut, kind, key = write
    store = zarr.storage.MemoryStore()
    expected = np.full(shape, -1, "i4")  # which no fill value is
    made = zarr.create_array(store, shape=shape, dtype="i4", compressors=None, **cut)
    made[...] = expected
    values = np.arange(1, expected[key].size + 1, dtype="i4")
    expected[key] = values.reshape(expected[key].shape)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(index_arrays, "KEPT_ELEMENTS", 3)
        patched.setattr(listing, "BLOCK_ELEMENTS", n_block)
        patched.setattr(listed, "_LEAST_ELEMENTS", most)
        options = Options(memory_limit=1)
        a = gpushard.open_array(store, device="cpu", options=options)
        getattr(a, kind)[key] = values.reshape(expected[key].shape)
    np.testing.assert_array_equal(made[...], expected)


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


def test_equal_elements_do_not_make_a_whole_region():
    def portions():
        yield Scattered((np.array([0, 1, 1]),), np.arange(3))
        yield Scattered((np.array([3, 3]),), np.arange(3, 5))

    assert not InPortions(portions, (4,), 5).covers((4,))
    assert not InPortions(portions, (6,), 5).covers((6,))

    def all_of_them():
        yield from portions()
        yield Scattered((np.array([2]),), np.array([5]))

    assert InPortions(all_of_them, (4,), 6).covers((4,))
