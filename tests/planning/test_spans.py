"""Byte spans within plain inner chunks, against the bytes of every wanted element."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies as sts
from gpushard.layout import GridAxis
from gpushard.planning import axes
from gpushard.planning.grid import GridPart
from gpushard.planning.plan import plan_read
from gpushard.planning.spans import byte_spans
from gpushard.selecting.expressions import basic, points
from gpushard.selecting.patches import Patches


def strides_of(chunk_shape, stored_order, itemsize):
    """Bytes between neighbours along each axis, elements stored in `stored_order`."""
    strides, step = [0] * len(chunk_shape), itemsize
    for axis in reversed(stored_order):
        strides[axis] = step
        step *= chunk_shape[axis]
    return (*strides, itemsize)


def elements_wanted(part, position):
    """Coordinates within its inner chunk of each element that one column wants."""
    if isinstance(part, GridPart):
        along = [sts.landings(p)[i].inside for p, i in zip(part.projections, position)]  # noqa: B905 - a plan's columns may have more rows than a part has axes
        return list(product(*along))
    first, last = part.bounds[position[0] : position[0] + 2]
    return list(part.in_index[:, first:last].T)


@st.composite
def plain_arrays(draw):
    """A layout of uniform inner chunks, a selection, and strides of its elements."""
    shape = draw(sts.shapes(max_side=9))
    axes = [draw(sts.grid_axes(n, may_be_rectilinear=False)) for n in shape]
    layout = sts.make_layout(shape, axes)
    order = draw(st.permutations(range(len(shape))))
    itemsize = draw(st.sampled_from([1, 2, 4, 16]))
    strides = strides_of([axis.cell for axis in axes], order, itemsize)
    return layout, draw(sts.selections(shape)), strides


@given(plain_arrays())
def test_a_span_is_the_hull_of_the_wanted_elements(plain):
    layout, selection, strides = plain
    part = plan_read(layout, [selection]).parts[0]
    for block in sts.pieces_of(part):
        start, stop = byte_spans(part, block.position, strides)
        for i in range(len(block.shard)):
            offsets = [
                int(np.dot(element, strides[:-1]))
                for element in elements_wanted(part, block.position[:, i])
            ]
            assert (start[i], stop[i]) == (min(offsets), max(offsets) + strides[-1])


@given(plain_arrays())
def test_spans_of_some_columns_are_those_of_all_columns(plain):
    layout, selection, strides = plain
    part = plan_read(layout, [selection]).parts[0]
    for block in sts.pieces_of(part):
        every = np.stack(byte_spans(part, block.position, strides))
        rows = np.arange(len(block.shard))
        for some in (rows[::-2], rows[:0]):
            found = np.stack(byte_spans(part, block.position[:, some], strides))
            np.testing.assert_array_equal(found, every[:, some])


@pytest.mark.parametrize(
    ("order", "span"), [((0, 1), (2 * 40, 3 * 40)), ((1, 0), (2 * 4, 9 * 32 + 3 * 4))]
)
def test_a_row_is_one_run_of_bytes_unless_the_inner_chunk_is_transposed(order, span):
    layout = sts.make_layout((8, 10), (GridAxis(8, 8), GridAxis(10, 10)))
    part = plan_read(layout, [basic(2, (8, 10))]).parts[0]
    (block,) = sts.pieces_of(part)
    spans = byte_spans(part, block.position, strides_of((8, 10), order, 4))
    assert tuple(int(column[0]) for column in spans) == span


@pytest.mark.parametrize("long_cells", [0, axes.LONG_CELLS])
@pytest.mark.parametrize(
    ("step", "starts", "stops"), [(3, [2, 0], [16, 20]), (5, [2, 2], [14, 14])]
)
def test_a_stride_spans_from_its_first_to_its_last_element_in_the_inner_chunk(
    step, starts, stops, long_cells, monkeypatch
):
    monkeypatch.setattr(axes, "LONG_CELLS", long_cells)
    layout = sts.make_layout((20,), (GridAxis(20, 10),))
    part = plan_read(layout, [basic(slice(1, None, step), (20,))]).parts[0]
    (block,) = sts.pieces_of(part)
    start, stop = byte_spans(part, block.position, (2, 2))
    assert (start.tolist(), stop.tolist()) == (starts, stops)


def test_points_span_from_the_first_to_the_last_of_them():
    layout = sts.make_layout((8,), (GridAxis(8, 4),))
    part = plan_read(layout, [points(([6, 1, 3, 2],), (8,))]).parts[0]
    (block,) = sts.pieces_of(part)
    start, stop = byte_spans(part, block.position, (2, 2))
    assert (start.tolist(), stop.tolist()) == ([2, 4], [8, 6])


@pytest.mark.parametrize("some", [[0, 1, 2], [2], [1, 2], [2, 0]])
def test_boxes_span_from_the_first_to_the_last_of_them_in_each_inner_chunk(some):
    layout = sts.make_layout((12, 4), (GridAxis(12, 4), GridAxis(4, 4)))
    rows, n_rows = np.array([1, 0, 5, 9]), np.array([2, 1, 2, 1])
    columns, n_columns = np.array([1]), np.array([2])
    landing = np.array([0, 2, 3, 5]), np.array([0])
    boxes = Patches(4, (rows, columns), (n_rows, n_columns), landing, (6, 2))
    part = plan_read(layout, [boxes]).parts[0]
    (block,) = sts.pieces_of(part)
    start, stop = byte_spans(part, block.position[:, some], (8, 2, 2))
    assert start.tolist() == [[2, 10, 10][i] for i in some]
    assert stop.tolist() == [[22, 22, 14][i] for i in some]


def test_the_padding_rows_of_a_shared_plan_do_not_count():
    layout = sts.make_layout((8, 8), (GridAxis(8, 4), GridAxis(8, 4)))
    selections = [basic((1, 1), (8, 8)), points(([5], [7]), (8, 8))]
    plan = plan_read(layout, selections)
    (block,) = sts.pieces_of(plan)
    assert block.position.shape == (2, 2)
    for p, span in enumerate([(5, 6), (7, 8)]):
        spans = byte_spans(plan.parts[p], block.position[:, block.part == p], (4, 1, 1))
        assert tuple(int(column[0]) for column in spans) == span
