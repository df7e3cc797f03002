"""A write keeps what lies beyond the array that was opened, if others enlarged it."""

from __future__ import annotations

import json
import shutil
import time
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from gpushard.errors import NotFoundError, ObjectChangedError, UnsupportedError
from gpushard.stores.base import lasts
from gpushard.writing import enlarged

SHAPE, LARGER = (10, 7), (15, 13)
KINDS = {
    "sharded": {"chunks": (4, 3), "shards": (8, 6)},
    "one shard": {"chunks": (4, 3), "shards": (16, 15)},
    "unsharded": {"chunks": (4, 3)},
    "Zarr v2": {"chunks": (4, 3), "zarr_format": 2},
}
KEYS = [np.s_[:], np.s_[8:], np.s_[:, 6], np.s_[::-1, ::-1], np.s_[9, 6]]


def new(store: Any, shape: tuple[int, ...] = SHAPE, **how: Any) -> gpushard.Array:
    zarr.create_array(store, shape=shape, dtype="i4", overwrite=True, **how)
    a = gpushard.open_array(store, device="cpu")
    a[...] = 1
    return a


def enlarge(store: Any) -> np.ndarray:
    """Fill a larger array; its elements."""
    z = zarr.open_array(store)
    z.resize(LARGER)
    z[...] = 7
    return z[...]


@pytest.fixture
def looks(monkeypatch) -> list[str]:
    """Documents that writes have read."""
    found, load = [], enlarged.load_array

    def load_and_tell(store, path, options):
        found.append(path)
        return load(store, path, options)

    monkeypatch.setattr(enlarged, "load_array", load_and_tell)
    monkeypatch.setattr(enlarged, "lasts", lambda _: False)
    return found


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("kind", KINDS)
def test_elements_beyond_the_array_as_it_was_opened_stay(tmp_path, kind, key):
    place = str(tmp_path / "a")
    a = new(place, **KINDS[kind])
    want = enlarge(place)
    a[key] = 5
    want[: SHAPE[0], : SHAPE[1]][key] = 5
    assert np.array_equal(zarr.open_array(place)[...], want)
    assert np.array_equal(a[...], want[: SHAPE[0], : SHAPE[1]])


def test_elements_beyond_stay_in_a_zarr_store():
    store = zarr.storage.MemoryStore()
    a = new(store, chunks=(4, 3))
    want = enlarge(store)
    a[...] = 5
    want[: SHAPE[0], : SHAPE[1]] = 5
    assert np.array_equal(zarr.open_array(store)[...], want)


def test_a_refusal_of_a_part_of_a_shard_tells_that_the_array_was_enlarged(tmp_path):
    store = zarr.storage.WrapperStore(zarr.storage.LocalStore(tmp_path))
    a = new(store, **KINDS["sharded"])
    with pytest.raises(UnsupportedError) as caught:
        a[9, 6] = 5
    assert "enlarged" not in str(caught.value)
    want = enlarge(store)
    with pytest.raises(UnsupportedError) as caught:
        a[8:, 6:] = 5
    assert (
        "; others have enlarged the array to (15, 13): open it again, and write"
        in str(caught.value)
    )
    again = gpushard.open_array(store, device="cpu")
    again[8:, 6:12] = want[8:, 6:12] = 5
    assert np.array_equal(again[...], want)


def test_listed_elements_that_are_all_of_an_inner_chunk_leave_those_beyond(tmp_path):
    place = str(tmp_path / "a")
    a = new(place, chunks=(4, 3))
    want = enlarge(place)
    a.vindex[[8, 8, 9], [6, 5, 6]] = [2, 3, 4]
    a.oindex[[9, 8], [6]] = [[5], [6]]
    want[[8, 8, 9], [6, 5, 6]] = [2, 3, 4]
    want[[9, 8], 6] = [5, 6]
    assert np.array_equal(zarr.open_array(place)[...], want)


def test_an_array_that_was_cut_is_written_as_it_was_opened(tmp_path):
    place = str(tmp_path / "a")
    a = new(place, chunks=(4, 3))
    zarr.open_array(place).resize((5, 20))
    a[...] = 5
    assert zarr.open_array(place)[:5, :7].min() == 5
    assert not zarr.open_array(place)[:, 7:].any()
    assert a[...].min() == 5


def test_a_write_that_ends_within_the_array_reads_no_document(tmp_path, looks):
    a = new(str(tmp_path / "a"), chunks=(4, 3))
    looks.clear()
    a[:9, :6] = 5
    a[8, 2] = 5
    a.oindex[[1, 3], [2]] = 5
    a.vindex[[0], [0]] = 5
    a[10:] = 5  # nothing
    assert looks == []
    a[:, 6] = 5
    a.oindex[[1, 9], [2]] = 5
    a.vindex[[2], [6]] = 5
    assert looks == [""] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_is_read_again_only_when_it_has_changed(
    tmp_path, kind, looks, monkeypatch
):
    monkeypatch.setattr(enlarged, "lasts", lasts)
    place = str(tmp_path / "a")
    a = new(place, **KINDS[kind])
    time.sleep(0.03)  # by then, another change gives the file another time
    looks.clear()
    for k in range(3):
        a[:, 6] = k
    n_before = len(looks)
    assert n_before <= 1  # 0 where it had settled while the array was made
    want = enlarge(place)
    for k in range(3):
        a[...] = k
    assert looks == [""] * (n_before + 3)
    want[: SHAPE[0], : SHAPE[1]] = 2
    assert np.array_equal(zarr.open_array(place)[...], want)


def test_arrays_of_the_draft_of_v3_are_looked_at_each_time(tmp_path, monkeypatch):
    """Their documents lie elsewhere; that none lies here tells nothing."""
    monkeypatch.setattr(enlarged, "lasts", lasts)
    how = {"chunks": (4, 3), "shards": (8, 6), "format": "v3-draft-transformer"}
    a = gpushard.create_array(tmp_path, "a", shape=SHAPE, dtype="i4", **how)
    a[...] = 1
    (document,) = (tmp_path / "meta").rglob("*array.json")
    made = json.loads(document.read_text())
    document.write_text(json.dumps(made | {"shape": LARGER}))
    larger = gpushard.open_array(tmp_path, "a", device="cpu")
    larger[...] = 7
    a[...] = 5
    want = np.full(LARGER, 7)
    want[: SHAPE[0], : SHAPE[1]] = 5
    assert np.array_equal(larger[...], want)


def test_an_array_of_whole_shards_is_written_without_its_document(tmp_path, looks):
    a = new(str(tmp_path / "a"), (16, 12), chunks=(4, 3), shards=(8, 6))
    a[...] = 5
    a[15, 11] = 6
    assert looks == []


def test_an_array_that_was_made_anew_is_not_written_to(tmp_path):
    place = tmp_path / "a"
    a = new(str(place), chunks=(4, 3))
    b = new(str(place), chunks=(5, 3))
    with pytest.raises(ObjectChangedError, match="open it again"):
        a[...] = 5
    assert b[...].max() == 1


def test_an_array_without_its_document_is_not_written_to(tmp_path):
    a = new(str(tmp_path / "a"), chunks=(4, 3))
    shutil.rmtree(tmp_path / "a" / "c")
    (tmp_path / "a" / "zarr.json").unlink()
    with pytest.raises(NotFoundError):
        a[...] = 5
    assert not [*(tmp_path / "a").iterdir()]


@st.composite
def histories(draw) -> tuple[dict[str, Any], tuple[int, ...], list[Any]]:
    """How an array is made, its first shape, and what happens to it then.

    That is lengths to add to each axis, or a write: how many enlargements ago the array
    was opened that is written to, and fractions of its axes.
    """
    n_axes = draw(st.integers(1, 2))
    inner = draw(st.tuples(*[st.integers(1, 4)] * n_axes))
    how: dict[str, Any] = {"chunks": inner}
    if draw(st.booleans()):
        how["shards"] = tuple(n * draw(st.integers(1, 3)) for n in inner)
    shape = draw(st.tuples(*[st.integers(1, 9)] * n_axes))
    longer = st.tuples(*[st.integers(0, 6)] * n_axes)
    fraction = st.sampled_from([0.0, 0.0, 0.4, 1.0, 1.0])
    bounds = st.tuples(*[st.tuples(fraction, fraction)] * n_axes)
    write = st.tuples(st.integers(0, 3), bounds, st.booleans())
    return how, shape, draw(st.lists(st.one_of(longer.map(list), write), max_size=8))


@given(histories())
def test_writes_through_arrays_of_any_age_change_their_elements_alone(history):
    how, shape, steps = history
    store = zarr.storage.MemoryStore()
    z = zarr.create_array(store, shape=shape, dtype="i4", fill_value=-1, **how)
    opened = [gpushard.open_array(store, device="cpu")]
    want = np.full(shape, -1, "i4")
    for number, step in enumerate(steps):
        if isinstance(step, list):
            want = np.pad(want, [(0, n) for n in step], constant_values=number)
            z.resize(want.shape)
            z[...] = want
            opened.append(gpushard.open_array(store, device="cpu"))
            continue
        age, bounds, is_listed = step
        a = opened[max(-1 - age, -len(opened))]
        ends = [
            sorted(int(f * n) for f in both)
            for both, n in zip(bounds, a.shape, strict=True)
        ]
        key = tuple(slice(*both) for both in ends)
        if is_listed:
            lists = [np.arange(*both) for both in ends]
            a.oindex[tuple(lists)] = number
        else:
            a[key] = number
        want[key] = number
        assert np.array_equal(z[...], want)
    assert np.array_equal(opened[-1][...], want)
