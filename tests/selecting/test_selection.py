"""Projections of one axis over the cells of a grid, against a plain enumeration."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies as sts
from gpushard.layout import GridAxis
from gpushard.selecting.projection import project
from gpushard.selecting.selection import (
    IndexAxis,
    Orthogonal,
    Points,
    SliceAxis,
    n_elements,
    whole,
)


@st.composite
def slice_axes(draw, extent):
    """Any `SliceAxis` that fits an axis, as a basic key would make it."""
    if not extent or draw(st.integers(0, 9)) == 0:
        return SliceAxis(0, 1, 0)
    start = draw(st.integers(0, extent - 1))
    step = draw(st.integers(1, extent))
    length = draw(st.integers(1, 1 + (extent - 1 - start) // step))
    if draw(st.booleans()):
        return SliceAxis(start, step, length)
    return SliceAxis(start, step, length, length - 1, -1)


@st.composite
def index_axes(draw, extent):
    index = draw(sts.index_lists(extent)).astype(np.int64) % max(extent, 1)
    return IndexAxis(
        index, np.array(draw(st.permutations(range(len(index)))), np.int64)
    )


@st.composite
def laid_axes(draw, axes_of=lambda n: slice_axes(n) | index_axes(n), max_extent=30):
    """An axis and what is selected of it."""
    extent = draw(st.integers(0, max_extent))
    return draw(axes_of(extent)), draw(sts.grid_axes(extent))


def wanted_of(selection, axis):
    """``(cell, position in the cell, place in the output)`` of each wanted element."""
    ends = (
        axis.boundaries[1:].tolist()
        if axis.boundaries is not None
        else list(range(axis.cell, axis.extent + axis.cell, axis.cell))
    )
    starts = [0, *ends[:-1]]
    found = []
    for place, element in enumerate(sts.elements_of(selection)):
        cell = next(i for i, end in enumerate(ends) if element < end)
        found.append((cell, element - starts[cell], place))
    return sorted(found)


@given(laid_axes())
def test_a_projection_tells_cell_position_and_place_of_every_wanted_element(laid):
    selection, axis = laid
    found = sorted(
        (landing.cell, int(inside), int(out))
        for landing in sts.landings(project(selection, axis))
        for inside, out in zip(landing.inside, landing.out, strict=True)
    )
    assert found == wanted_of(selection, axis)


@given(laid_axes())
def test_touched_cells_ascend_and_each_holds_a_wanted_element(laid):
    projection = project(*laid)
    assert np.all(np.diff(projection.cell) > 0)
    assert np.all(projection.length > 0)
    assert projection.cell.tolist() == sorted({c for c, *_ in wanted_of(*laid)})


@given(laid_axes())
def test_columns_of_a_projection_are_int64_and_of_one_length(laid):
    projection = project(*laid)
    columns = projection[:4]
    assert {column.dtype for column in columns} == {np.dtype(np.int64)}
    assert len({len(column) for column in columns}) == 1
    if projection.members is not None:
        assert {column.dtype for column in projection.members} == {np.dtype(np.int64)}
        assert len(projection.members.bounds) == len(projection.cell) + 1


@given(laid_axes(slice_axes))
def test_the_part_of_a_slice_within_a_cell_is_its_column_of_the_projection(laid):
    selection, axis = laid
    projection = project(selection, axis)
    at = {cell: i for i, cell in enumerate(projection.cell.tolist())}
    for cell in range(axis.n_cells):
        begin = int(axis.start_of(cell))
        found = selection.within(begin, begin + int(axis.length_of(cell)))
        if cell in at:
            assert found is not None
            column = tuple(int(column[at[cell]]) for column in projection[1:4])
            assert (found.start, found.length, found.out_start) == column
            assert found.step == projection.step
            assert found.out_step == projection.out_step
        else:
            assert found is None


@given(laid_axes(slice_axes))
def test_a_slice_lands_where_its_elements_do(laid):
    selection, _ = laid
    ends = selection.out_start + selection.out_step * np.arange(selection.length)
    assert np.arange(1000)[selection.landing].tolist() == ends.tolist()


def test_a_stride_of_several_cells_touches_only_those_it_lands_in():
    projection = project(SliceAxis(1, 25, 4), GridAxis(100, 10))
    assert projection.cell.tolist() == [0, 2, 5, 7]
    assert projection.in_start.tolist() == [1, 6, 1, 6]


def test_a_stride_jumps_over_rectilinear_cells_too():
    axis = GridAxis(20, 0, np.array([0, 1, 2, 12, 13, 20]))
    projection = project(SliceAxis(0, 6, 4), axis)
    assert projection.cell.tolist() == [0, 2, 3, 4]
    assert projection.length.tolist() == [1, 1, 1, 1]


def test_a_reversed_slice_lands_backwards():
    projection = project(SliceAxis(0, 2, 4, 3, -1), GridAxis(8, 3))
    assert projection.out_start.tolist() == [3, 1, 0]
    assert projection.out_step == -1


HUGE = 2**40


@pytest.mark.parametrize(
    ("selection", "axis", "n_touched"),
    [
        (SliceAxis(HUGE - 50, 1, 20), GridAxis(HUGE, 7), 3),
        (SliceAxis(3, HUGE // 4, 4), GridAxis(HUGE, 7), 4),
        (SliceAxis(0, 1, HUGE), GridAxis(HUGE, HUGE // 3), 4),
        (SliceAxis(0, 3, HUGE // 3), GridAxis(HUGE, HUGE // 2), 2),
        (SliceAxis(0, 1, HUGE), GridAxis(HUGE, 0, np.array([0, 5, HUGE + 9])), 2),
        (SliceAxis(1, 7, HUGE // 7), GridAxis(HUGE, 0, np.array([0, 9, 11, HUGE])), 2),
        (IndexAxis(np.array([5, HUGE - 1]), np.arange(2)), GridAxis(HUGE, 7), 2),
    ],
)
def test_a_projection_costs_what_is_touched_and_not_what_the_array_has(
    selection, axis, n_touched
):
    tracemalloc.start()
    try:
        projection = project(selection, axis)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(projection.cell) == n_touched
    assert peak < 64 * 1024


@given(sts.shapes())
def test_whole_takes_every_element_once_and_in_place(shape):
    array = sts.numbered(shape)
    selection = whole(shape)
    assert selection.shape == selection.grid_shape == shape
    assert n_elements(selection) == array.size
    assert not selection.scalar
    np.testing.assert_array_equal(sts.expected_of(selection, array), array)


def test_a_selection_of_points_counts_its_points():
    points = Points((np.array([1, 1, 2]),), np.arange(3), (3,))
    assert (points.n_points, n_elements(points)) == (3, 3)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_grid_view_of_an_output_gets_dropped_axes_back_and_new_ones_out(count):
    axes = (SliceAxis(0, 1, count), SliceAxis(2, 1, 1, drop=True), SliceAxis(0, 1, 4))
    selection = Orthogonal(axes, (1, count, 1, 4), new_axes=(0, 2))
    out = np.zeros(selection.shape)
    view = selection.on_grid(out)
    assert view.shape == selection.grid_shape == (count, 1, 4)
    view[...] = np.arange(count * 4).reshape(view.shape)
    np.testing.assert_array_equal(out.ravel(), np.arange(count * 4))


def test_the_grid_view_of_a_0d_output_can_be_written_through():
    out = np.zeros(())
    selection = Orthogonal((SliceAxis(3, 1, 1, drop=True),) * 2, ())
    selection.on_grid(out)[...] = 7
    assert out == 7
    Orthogonal((), ()).on_grid(out)[...] = 8
    assert out == 8
