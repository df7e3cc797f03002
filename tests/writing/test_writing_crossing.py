"""The cells that a write cuts its region into are made few at a time."""

from __future__ import annotations

import tracemalloc
from itertools import islice, pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies as sts
from gpushard.layout import GridAxis
from gpushard.options import MIB
from gpushard.selecting.expressions import orthogonal
from gpushard.selecting.selection import IndexAxis, SliceAxis
from gpushard.writing import crossing
from gpushard.writing.regions import Box

N_CELLS = 500_000
LONG = GridAxis(4 * N_CELLS, 4)
SHORT = GridAxis(6, 2)
ALL = SliceAxis(0, 1, 4 * N_CELLS)
SOME = SliceAxis(0, 1, 6)
EVERY = np.arange(0, 4 * N_CELLS, 4)


@pytest.mark.parametrize(
    ("axes", "grid", "most_nbytes"),
    [
        pytest.param((ALL,), (LONG,), 3 * MIB, id="long"),
        pytest.param((SOME, ALL), (SHORT, LONG), 3 * MIB, id="short, long"),
        pytest.param((ALL, SOME), (LONG, SHORT), 3 * MIB, id="long, short"),
        pytest.param((ALL, ALL), (LONG, LONG), 5 * MIB, id="long, long"),
        pytest.param(  # which has columns, of 8 bytes each
            (IndexAxis(EVERY, EVERY // 4),), (LONG,), 100 * N_CELLS, id="index array"
        ),
    ],
)
def test_the_cells_of_a_long_axis_are_made_as_they_are_wanted(axes, grid, most_nbytes):
    tracemalloc.start()
    try:
        found = [cell for cell, _ in islice(Box(axes).cells(grid), 2_000)]
        nbytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert all(one < other for one, other in pairwise(found))
    assert nbytes < most_nbytes


@pytest.mark.parametrize("nothing", [
    SliceAxis(0, 1, 0), IndexAxis(np.empty(0, np.int64), np.empty(0, np.int64)),
])  # fmt: skip
def test_a_write_of_nothing_walks_along_no_axis(nothing, monkeypatch):
    def refuse(*_):
        raise AssertionError("cells were made of an axis")

    monkeypatch.setattr(crossing, "_cuts", refuse)
    assert not [*Box((ALL, nothing)).cells((LONG, SHORT))]


@st.composite
def boxes(draw):
    """A shape, its grid, and what is written along each axis."""
    shape = draw(sts.shapes(max_side=12))
    key = draw(sts.orthogonal_keys(shape))
    return shape, draw(sts.grids(shape)), orthogonal(key, shape)


@given(boxes(), st.integers(1, 4))
def test_cells_come_in_order_and_have_all_written_elements_once(box, n_most):
    shape, grid, selection = box
    expected = np.zeros(shape, np.int64)
    at = np.ix_(*(np.array(sts.elements_of(axis), int) for axis in selection.axes))
    values = 1 + np.arange(np.prod(selection.grid_shape, dtype=int))
    values = values.reshape(selection.grid_shape)
    expected[at] = values
    found = np.zeros(shape, np.int64)
    cells = []
    with mock.patch.object(crossing, "_MOST_CELLS", n_most):
        for cell, part in Box(selection.axes).cells(grid):
            cells.append(cell)
            starts = [int(a.start_of(i)) for a, i in zip(grid, cell, strict=True)]
            lengths = [int(a.length_of(i)) for a, i in zip(grid, cell, strict=True)]
            cuts = zip(starts, lengths, strict=True)
            inside = tuple(slice(first, first + n) for first, n in cuts)
            region = found[(*inside, ...)]
            part.assign(region, values)
    assert all(one < other for one, other in pairwise(cells))
    np.testing.assert_array_equal(found, expected)
