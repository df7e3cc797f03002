"""Axes of which no columns are kept, against the columns of the same."""

from __future__ import annotations

import json
import tracemalloc
from itertools import islice
from unittest import mock

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import strategies as sts
from damaged_arrays import WAYS, on_host, opened
from gpushard.layout import GridAxis
from gpushard.options import MIB
from gpushard.planning import axes, stepped
from gpushard.planning.axes import LongShards, LongSlice, ShardedAxis, lay_axis
from gpushard.planning.plan import plan_read
from gpushard.selecting.expressions import basic
from gpushard.selecting.projection import Projection, cells_of_slice, project
from gpushard.selecting.selection import SliceAxis
from spec_shards import document, sharding

LIMIT = 8 * MIB
LONG = axes.LONG_CELLS


@st.composite
def sliced_axes(draw):
    """A slice, the grids of inner chunks and of shards, and lengths of the levels."""
    extent = draw(st.integers(1, 60))
    start = draw(st.integers(0, extent - 1))
    step = draw(st.integers(1, extent))
    length = draw(st.integers(1, 1 + (extent - 1 - start) // step))
    turn = draw(st.booleans())
    selection = SliceAxis(start, step, length, *((length - 1, -1) if turn else (0, 1)))
    lengths = [draw(st.integers(1, 4))]
    for _ in range(draw(st.integers(0, 2))):
        lengths.append(lengths[-1] * draw(st.integers(1, 4)))
    outer = draw(sts.grid_axes(extent, lengths[-1]))
    if draw(st.booleans()):
        return selection, outer, outer, ()
    return selection, GridAxis(extent, lengths[0]), outer, tuple(lengths[::-1])


def short_runs():
    """Runs of so few cells that an axis of several lengths has some."""
    return mock.patch.object(stepped, "_RUN_CELLS", 4)


@given(sliced_axes())
def test_a_long_slice_gives_what_its_columns_give(sliced):
    selection, inner, *_ = sliced
    columns = project(selection, inner)
    position = np.arange(columns.n_cells)
    with short_runs():
        computed = LongSlice(selection, inner)
        assert computed.n_cells == columns.n_cells
        assert (computed.step, computed.out_step) == (columns.step, columns.out_step)
        assert computed.members is None
        np.testing.assert_array_equal(computed.cell_at(position), columns.cell)
        np.testing.assert_array_equal(computed.takings(position), columns[1:4])
        some = position[::-2]  # any positions, in any order
        np.testing.assert_array_equal(computed.takings(some), columns.takings(some))
        assert computed.most_taken >= columns.length.max()
        if computed.common_length is not None:
            assert set(columns.length.tolist()) == {computed.common_length}


def test_runs_of_cells_that_a_step_jumps_over_have_none():
    axis = GridAxis(27, 0, np.arange(28))
    with short_runs():
        computed = LongSlice(SliceAxis(0, 9, 3), axis)
        assert computed.n_cells == 3
        assert computed.cell_at(np.array([2, 0, 1])).tolist() == [18, 0, 9]


@pytest.mark.parametrize("held", [1, 2, 3, 8])
def test_the_longest_cell_of_an_axis_is_found_in_any_run_of_them(held, monkeypatch):
    monkeypatch.setattr("gpushard.layout._HELD_CELLS", held)
    for nth in range(5):
        lengths = [9 if i == nth else 2 for i in range(5)]
        axis = GridAxis(17, 0, np.cumsum([0, *lengths]))
        assert axis.longest == 9
    assert GridAxis(0, 0, np.array([0])).longest == 0


@given(st.lists(st.integers(1, 5), min_size=9, max_size=20), st.data())
def test_cells_of_several_lengths_are_found_in_any_order_of_their_runs(lengths, data):
    ends = np.append(0, np.cumsum(lengths))
    axis = GridAxis(int(ends[-1]), 0, ends)
    start, step = data.draw(st.integers(0, 4)), data.draw(st.integers(2, 8))
    length = (axis.extent - 1 - start) // step + 1
    selection = SliceAxis(start, step, length)
    cells = cells_of_slice(selection, axis)
    position = np.array(data.draw(st.permutations(range(len(cells)))))
    with short_runs():
        computed = LongSlice(selection, axis)
        np.testing.assert_array_equal(computed.cell_at(np.arange(len(cells))), cells)
        for at in position:
            assert computed.cell_at(at) == cells[at]


@given(sliced_axes())
def test_a_long_slice_is_grouped_by_shard_as_its_columns_are(sliced):
    selection, inner, outer, lengths = sliced
    columns = ShardedAxis.lay(project(selection, inner).cell, inner, outer, lengths)
    with short_runs():
        long = LongSlice(selection, inner)
        computed = LongShards(long, selection, inner, outer, lengths)
        nth, position = np.arange(columns.n_shards), np.arange(long.n_cells)
        assert computed.n_shards == columns.n_shards
        np.testing.assert_array_equal(computed.shards_at(nth), columns.shard_cell)
        np.testing.assert_array_equal(computed.bounds_at(nth), columns.bounds_at(nth))
        assert computed.most_cells >= columns.most_cells
        # Then one of them, and they are all of a length, is touched from end to end.
        if columns.n_shards > 2 and outer.boundaries is None:
            assert computed.most_cells <= columns.most_cells + 1
        for mine, theirs in zip(
            computed.in_index(position), columns.in_index(position), strict=True
        ):
            for level, other in zip(mine, theirs, strict=True):
                np.testing.assert_array_equal(level, other)


def test_cells_of_any_run_are_found_after_those_of_another():
    axis = GridAxis(60, 0, np.append(0, np.cumsum([1, 2, 3] * 10)))
    selection = SliceAxis(2, 3, 20)
    cells = project(selection, axis).cell
    with short_runs():
        computed = stepped.SteppedCells(selection, axis)
        assert computed.n_cells == len(cells) > 2 * stepped._RUN_CELLS
        for position in (np.arange(20), np.array([19, 0, 7]), np.array([3])):
            np.testing.assert_array_equal(computed.cell_at(position), cells[position])


def test_slices_that_take_whole_cells_are_known_to_take_as_many_of_each():
    axis = GridAxis(60, 6)
    assert LongSlice(SliceAxis(0, 1, 60), axis).common_length == 6
    assert LongSlice(SliceAxis(1, 3, 20), axis).common_length == 2
    assert LongSlice(SliceAxis(2, 7, 8), axis).common_length == 1
    assert LongSlice(SliceAxis(1, 1, 59), axis).common_length is None
    assert LongSlice(SliceAxis(0, 4, 15), axis).common_length is None
    assert LongSlice(SliceAxis(0, 1, 59), axis).common_length is None
    # The first two and the last cell, or the ends alone, have as many; others do not.
    assert LongSlice(SliceAxis(2, 3, 16), GridAxis(50, 10)).common_length is None
    assert LongSlice(SliceAxis(4, 3, 4), GridAxis(18, 6)).common_length is None
    uneven = GridAxis(11, 0, np.array([0, 2, 4, 9, 11]))
    assert LongSlice(SliceAxis(0, 1, 11), uneven).common_length is None


def test_a_step_over_cells_makes_the_touched_cells_of_a_shard_fewer():
    inner, outer = GridAxis(160, 2), GridAxis(160, 16)
    selection = SliceAxis(0, 8, 20)
    cells = LongSlice(selection, inner)
    assert LongShards(cells, selection, inner, outer, (2,)).most_cells == 2


def test_only_slices_over_many_cells_are_long():
    axis = GridAxis(10 * LONG, 10)
    whole, short = SliceAxis(0, 1, 10 * LONG), SliceAxis(0, 1, LONG)
    assert isinstance(lay_axis(whole, axis, axis, ())[0], Projection)
    fine = GridAxis(10 * LONG, 9)
    assert isinstance(lay_axis(whole, fine, fine, ())[0], LongSlice)
    assert isinstance(lay_axis(short, fine, fine, ())[0], Projection)


@given(sts.layouts(), st.data())
def test_a_plan_over_long_axes_is_the_plan_over_columns(layout, data):
    selection = basic(data.draw(sts.basic_keys(layout.shape)), layout.shape)
    columns = plan_read(layout, [selection])
    with short_runs(), mock.patch.object(axes, "LONG_CELLS", 0):
        computed = plan_read(layout, [selection])
    with short_runs():
        assert computed.n_chunks == columns.n_chunks
        for mine, other in zip(
            sts.pieces_of(computed), sts.pieces_of(columns), strict=True
        ):
            for column, expected in zip(flat(mine), flat(other), strict=True):
                np.testing.assert_array_equal(column, expected)
            for position in mine.position.T:
                there = columns.parts[0].chunk_coordinate(position)
                assert computed.parts[0].chunk_coordinate(position) == there


def flat(block):
    """All columns of a block."""
    return [block.shard_coords, block.shard, *block.entry, block.part, block.position]


KEYS = [
    np.s_[...],
    np.s_[::-1, 3:],
    np.s_[1:-1:2, ::3],
    np.s_[::9, 5:60:4],
    np.s_[4, ::-5],
    np.s_[None, 2:, -7],
]


STORED = {
    "zstd": {"shards": (8, 20)},
    "plain elements": {"shards": (8, 20), "compressors": None},
    "unsharded": {},
}


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("way", WAYS)
def test_long_axes_are_read_as_others_are(way, stored, tmp_path):
    values = np.arange(21 * 67, dtype="i4").reshape(21, 67)
    kept = {"dtype": "i4", "chunks": (2, 5), "fill_value": -1, **STORED[stored]}
    made = zarr.create_array(tmp_path, shape=values.shape, **kept)
    made[:16] = values[:16]  # some shards are missing
    values[16:] = -1
    for key in KEYS:
        with mock.patch.object(axes, "LONG_CELLS", 3):
            found = on_host(opened(tmp_path, way).read(key))
        np.testing.assert_array_equal(found, values[key], err_msg=str(key))


N = 1 << 20


@pytest.mark.parametrize("key", [np.s_[:], np.s_[::-3], np.s_[5::7]], ids=str)
@pytest.mark.parametrize("per_shard", [1, 1 << 15])
def test_a_plan_keeps_nothing_of_a_long_axis(key, per_shard):
    levels = (sts.make_level((2,)),) if per_shard > 1 else ()
    layout = sts.make_layout((2 * N,), (GridAxis(2 * N, 2 * per_shard),), levels)
    selection = basic(key, layout.shape)
    tracemalloc.start()
    try:
        plan = plan_read(layout, [selection])
        n_chunks = sum(block.n_chunks for block in islice(plan.blocks(), 3))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert plan.n_chunks > N // 8
    assert n_chunks > 0
    assert peak < 8 * MIB


@pytest.mark.parametrize("per_shard", [0, 1 << 15])
def test_a_plan_keeps_nothing_of_a_stepped_slice_over_cells_of_several_lengths(
    per_shard,
):
    lengths = np.resize(2 * np.array([3, 1, 2, 6]), N) * max(per_shard, 1)
    axis = GridAxis(int(lengths.sum()), 0, np.append(0, np.cumsum(lengths)))
    levels = (sts.make_level((2,)),) if per_shard else ()
    layout = sts.make_layout((axis.extent,), (axis,), levels)
    selection = basic(np.s_[5 :: 7 * max(per_shard, 1)], layout.shape)
    del lengths
    tracemalloc.start()
    try:
        plan = plan_read(layout, [selection])
        n_chunks = sum(block.n_chunks for block in islice(plan.blocks(), 3))
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert plan.n_chunks > N // 2
    assert n_chunks > 0
    assert held < 2 * MIB
    assert peak < 8 * MIB


@pytest.mark.parametrize("way", ["plain", "compiled", "device"])
def test_a_read_of_a_long_axis_stays_within_the_memory_limit(way, tmp_path):
    n = N // 4
    meta = document((n,), (n // 16,), sharding((1,)))
    (tmp_path / "zarr.json").write_text(json.dumps(meta))
    a = opened(tmp_path, way, memory_limit=LIMIT)
    a.read(slice(0, n // 16))  # what is loaded once
    tracemalloc.start()
    try:
        found = a.read()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not on_host(found).any()
    assert peak < a.nbytes + LIMIT
