"""Cross products of several index arrays, which are read as points where that pays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import gpushard
import selection_strategies as sts
from gpushard.options import MIB
from gpushard.reading import crossed
from gpushard.reading.crossed import Around, listed_as_points, points_of
from gpushard.selecting.expressions import orthogonal
from gpushard.selecting.selection import IndexAxis, Orthogonal, Points
from zarr_oracle import assert_same_bits

SHAPE = (23, 17, 6)
VALUES = np.arange(np.prod(SHAPE), dtype="i4").reshape(SHAPE)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("crossed")
    zarr.create_array(
        place, shape=SHAPE, dtype="i4", shards=(8, 8, 6), chunks=(4, 4, 3)
    )[...] = VALUES
    return place


def opened(place, **options):
    options = gpushard.Options(**options)
    return gpushard.open_array(place, device="cpu", options=options)


@given(key=sts.orthogonal_keys(SHAPE))
def test_points_of_a_cross_product_are_its_elements_in_their_order(key):
    selection = orthogonal(key, SHAPE)
    if not isinstance(selection, Orthogonal):
        return
    points = points_of(selection)
    expected = np.asarray(sts.take_orthogonal(VALUES, key))
    assert points.shape == expected.shape
    out = np.full(expected.size, -1, "i4")
    out[points.out_index] = VALUES[points.coordinates]
    assert_same_bits(out.reshape(expected.shape), expected.copy())


@st.composite
def crossed_keys(draw):
    """Two index arrays, and what is taken along the third axis."""
    rows = draw(st.lists(st.integers(0, 22), min_size=1, max_size=9))
    columns = draw(st.lists(st.integers(0, 16), min_size=1, max_size=9))
    return rows, columns, draw(sts.slices(6) | st.integers(0, 5))


@pytest.mark.parametrize("compile_nbytes", [0, 2**62])
@given(key=crossed_keys())
def test_cross_products_are_those_of_numpy(place, compile_nbytes, key):
    a = opened(place, compile_nbytes=compile_nbytes)
    expected = sts.take_orthogonal(VALUES, key)
    assert_same_bits(a.oindex[key], np.ascontiguousarray(expected))


@pytest.mark.parametrize(
    ("rows", "columns", "listed"),
    [([2, 1, 2], [16, 0], 1), ([22, 0], [3, 1], 0), ([3, 1], [5, 2], 0)],
)
def test_one_axis_may_have_elements_in_cells_that_are_far_apart(
    place, rows, columns, listed, monkeypatch
):
    key = rows, columns, slice(None)
    a = opened(place, small_read_chunks=0)
    around = Around.of(a.source, orthogonal(key, SHAPE))
    kinds = [isinstance(axis, IndexAxis) for axis in around.grid.axes]
    assert kinds == [listed == 0, listed == 1, False]
    monkeypatch.setattr(crossed, "_MANY_PER_CHUNK", 0)
    assert_same_bits(a.oindex[key], np.array(sts.take_orthogonal(VALUES, key)))


@pytest.mark.parametrize("small_read_chunks", [0, 100])
@settings(max_examples=15)
@given(key=crossed_keys())
def test_so_are_those_that_do_not_become_points(place, small_read_chunks, key):
    a = opened(place, compile_nbytes=2**62, small_read_chunks=small_read_chunks)
    expected = sts.take_orthogonal(VALUES, key)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crossed, "_MANY_PER_CHUNK", 0)
        found = a.oindex[key]
    assert_same_bits(found, np.ascontiguousarray(expected))


@pytest.mark.parametrize("memory_limit", [2**28, 600], ids=["whole", "in parts"])
@settings(max_examples=30)
@given(key=crossed_keys())
def test_so_are_those_that_are_picked_from_a_grid(place, memory_limit, key):
    a = opened(place, small_read_chunks=0, memory_limit=memory_limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crossed, "_FEW_POINTS", 0)
        patch.setattr(crossed, "_LEAST_CUT_NBYTES", 0)
        found = a.oindex[key]
        out = np.empty(found.shape, "f8")[..., ::-1]
        a.read(orthogonal(key, SHAPE), out=out)
    expected = np.ascontiguousarray(sts.take_orthogonal(VALUES, key))
    assert_same_bits(found, expected)
    assert_same_bits(out.copy(), expected.astype("f8"))


GRID_KEY = ([22, 0, 7, 9, 22], [0, 9, 5, 13, 16, 3], slice(None, None, -1))


def parts(a, key=GRID_KEY):
    selection = orthogonal(key, SHAPE)
    return list(crossed.with_grids(a.source, selection, a.dtype))


def test_a_grid_has_one_list_and_slices_around_the_others(place):
    ((_, around),) = parts(opened(place))
    rows, columns, _ = around.grid.axes
    assert rows.element.tolist() == GRID_KEY[0]
    assert columns == (0, 1, 17, 0, 1, False)
    ((_, around),) = parts(opened(place), ([1, 2], [14, 2, 8, 5], 1))
    assert around.grid.axes[1] == (2, 3, 5, 0, 1, False)


def test_a_grid_that_takes_much_memory_is_cut_between_shards(place, monkeypatch):
    monkeypatch.setattr(crossed, "_LEAST_CUT_NBYTES", 5 * 17 * 6 * 4 - 1)
    whole_nbytes = 5 * 17 * 6 * 4 * crossed._AROUND_SHARE
    assert len(parts(opened(place, memory_limit=whole_nbytes))) == 1
    halves = parts(opened(place, memory_limit=whole_nbytes - 1))
    assert [around is not None for _, around in halves] == [True, True]
    rows = [sorted(part.axes[0].element.tolist()) for part, _ in halves]
    assert sorted(rows) == [[0, 7], [9, 22, 22]]
    # Halves are not cut again, as they are small, and exceed so low a limit.
    halves = parts(opened(place, memory_limit=1))
    assert [around for _, around in halves] == [None, None]
    monkeypatch.setattr(crossed, "_LEAST_CUT_NBYTES", 5 * 17 * 6 * 4)
    assert [around for _, around in parts(opened(place, memory_limit=1))] == [None]


def test_what_is_picked_of_repeated_elements_takes_little_memory(place):
    key = [0, 1], [3, 4] * 100, 0
    ((_, around),) = parts(opened(place), key)
    assert (around.n_elements, around.most_held) == (2 * 2, 2 * 200)
    most_nbytes = 2 * 200 * 4 * crossed._AROUND_SHARE
    ((_, around),) = parts(opened(place, memory_limit=most_nbytes), key)
    assert around is not None
    ((_, around),) = parts(opened(place, memory_limit=most_nbytes - 1), key)
    assert around is None


def test_a_grid_adds_few_bytes_of_plain_elements(tmp_path):
    shape, chunks = (3, 2000, 400), (1, 1000, 400)
    how: Any = {"shape": shape, "chunks": chunks, "dtype": "i4"}
    zarr.create_array(tmp_path / "plain", compressors=None, **how)
    zarr.create_array(tmp_path / "zstd", **how)
    for name, extra, is_grid in [
        ("plain", 82, False),
        ("plain", 81, True),
        ("zstd", 82, True),
    ]:
        # 1,600 bytes a row; between the inner chunks, `extra` rows are not wanted.
        columns = [998 - extra, 999 - extra, 1000, 1001]
        selection = orthogonal(([0, 2], columns, 0), shape)
        a = opened(tmp_path / name)
        ((_, around),) = crossed.with_grids(a.source, selection, a.dtype)
        assert (around is not None) is is_grid


def test_times_beside_those_that_are_wanted_need_not_fit_the_output(tmp_path):
    times = np.full((9, 9), 1, "M8[s]")
    times[:, 1] = np.datetime64(2**60, "s")
    how: Any = {"shape": (9, 9), "chunks": (3, 3), "shards": (9, 9), "dtype": "M8[s]"}
    zarr.create_array(tmp_path, **how)[...] = times
    a, out = opened(tmp_path, small_read_chunks=0), np.empty((9, 8), "M8[ns]")
    key = range(9), [0, 2, 3, 4, 5, 6, 7, 8]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crossed, "_FEW_POINTS", 0)
        a.read(orthogonal(key, a.shape), out=out)
    assert_same_bits(out, np.full((9, 8), 10**9, "M8[ns]"))


def test_an_inner_chunk_need_not_fit_beside_a_grid(tmp_path, monkeypatch):
    monkeypatch.setattr(crossed, "_FEW_POINTS", 0)
    how: Any = {"shape": (4, 61, MIB), "chunks": (2, 61, MIB // 2), "dtype": "u1"}
    zarr.create_array(tmp_path, fill_value=3, **how)
    a = opened(tmp_path, memory_limit=64 * MIB, small_read_chunks=0)
    key = [0, 3], [5, 7, 8], slice(4)
    ((_, around),) = crossed.with_grids(a.source, orthogonal(key, a.shape), a.dtype)
    assert around is not None
    assert_same_bits(a.oindex[key], np.full((2, 3, 4), 3, "u1"))


@pytest.mark.parametrize(
    "key",
    [
        ([0, 22], [0, 16], 0),
        ([0, 1, 22], [0, 1, 16], 0),
        ([0, 1], [], 0),
        ([], [0, 1], 0),
        ([0, 1], [0, 1], slice(0)),
    ],
    ids=[
        "cells between",
        "cells between some",
        "none",
        "none first",
        "none of a slice",
    ],
)
def test_a_grid_that_would_touch_other_inner_chunks_is_not_read(place, key):
    assert {around for _, around in parts(opened(place), key)} == {None}


def test_only_several_index_arrays_become_points(place):
    source = opened(place).source
    for key in [(slice(2, 9), [1, 5]), ([3, 4], 2), (slice(None), slice(1, 3))]:
        selection = orthogonal(key, SHAPE)
        assert listed_as_points(source, selection) is selection
    assert isinstance(listed_as_points(source, orthogonal(([1], [2]), SHAPE)), Points)


def test_many_elements_of_each_inner_chunk_stay_a_cross_product(place, monkeypatch):
    source = opened(place).source
    key = [0, 1, 2, 20], [0, 1, 3, 13, 14], slice(0, 2)  # of 2 x 2 inner chunks
    selection = orthogonal(key, SHAPE)
    for most, becomes_points in [(10, True), (9, False)]:
        monkeypatch.setattr(crossed, "_MANY_PER_CHUNK", most)
        found = listed_as_points(source, selection)
        assert isinstance(found, Points) is becomes_points


def test_points_take_little_of_the_memory_limit(place):
    selection = orthogonal(([1, 2, 3], [4, 5]), SHAPE)
    nbytes = 3 * 2 * 6 * crossed._POINT_NBYTES * crossed._LIMIT_SHARE
    for limit, becomes_points in [(nbytes, True), (nbytes - 1, False)]:
        source = opened(place, memory_limit=limit).source
        found = listed_as_points(source, selection)
        assert isinstance(found, Points) is becomes_points


def test_damage_within_a_cross_product_is_named(place, tmp_path):
    verified = [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]
    zarr.create_array(
        tmp_path,
        shape=SHAPE,
        dtype="i4",
        shards=(8, 8, 6),
        chunks=(4, 4, 3),
        compressors=verified,
    )[...] = VALUES
    shard = tmp_path / "c/1/1/0"
    data = bytearray(shard.read_bytes())
    data[10] ^= 1
    shard.write_bytes(bytes(data))
    a = opened(tmp_path, compile_nbytes=0)
    key = [0, 9, 22], [9, 2], slice(None)
    with pytest.raises(gpushard.CorruptShardError) as caught:
        a.oindex[key]
    assert caught.value.shard_key == "c/1/1/0"
    assert caught.value.inner_chunk == (2, 2, 0)
