"""Listed elements, block by block, against NumPy's own conversion of the whole."""

from __future__ import annotations

import tracemalloc
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushard import SelectionError
from gpushard.selecting import index_arrays, listing
from gpushard.selecting.clipping import clipped
from gpushard.selecting.index_arrays import (
    KEPT_ELEMENTS,
    along_axis,
    of_coordinates,
    of_mask,
)
from gpushard.selecting.listing import (
    IndexArrays,
    ListedBlock,
    TrueElements,
    all_of,
    join_blocks,
)
from gpushard.selecting.selection import IndexAxis, Listed, Points, with_columns
from listings import listings, same
from strategies import masks


@given(listings(), st.integers(1, 9))
def test_blocks_together_are_what_numpy_makes_of_the_whole(drawn, size):
    make, expected = drawn
    with mock.patch.object(listing, "BLOCK_ELEMENTS", size):
        listed = make()
        sizes = [len(listed.block(k).out_index) for k in range(listed.n_blocks)]
        whole = all_of(listed)
    assert max(sizes) <= size
    assert listed.n_elements == len(expected[0])
    same(whole, expected, np.arange(listed.n_elements))


@given(listings(), st.integers(1, 9), st.data())
def test_ranges_of_an_axis_have_the_elements_that_lie_in_them(drawn, size, data):
    make, expected = drawn
    axis = data.draw(st.integers(0, len(expected) - 1))
    cuts = data.draw(st.lists(st.integers(0, 7), max_size=3))
    starts = np.array([0, *sorted(cuts), 7])
    with mock.patch.object(listing, "BLOCK_ELEMENTS", size):
        parts = list(clipped(make(), axis, starts))
        wholes = [part and all_of(part) for part in parts]
    for whole, start, stop in zip(wholes, starts, starts[1:], strict=False):
        mine = np.flatnonzero((expected[axis] >= start) & (expected[axis] < stop))
        assert (whole is None) == (len(mine) == 0)
        if whole is not None:
            shifted = [c[mine] - start * (d == axis) for d, c in enumerate(expected)]
            same(whole, shifted, mine)


def test_only_many_elements_stay_what_the_user_gave():
    n = KEPT_ELEMENTS
    index = np.zeros(n + 1, np.int64)
    assert isinstance(along_axis(index[1:], 1, 0), IndexAxis)
    assert isinstance(along_axis(index, 1, 0), IndexArrays)
    mask = np.ones(n + 1, bool)
    assert isinstance(along_axis(mask, n + 1, 0), TrueElements)
    assert isinstance(of_mask(mask, (n + 1,)), Listed)
    mask[7] = False
    assert isinstance(along_axis(mask, n + 1, 0), IndexAxis)
    assert isinstance(of_mask(mask, (n + 1,)), Points)
    assert isinstance(of_coordinates([index[1:], 0], (1, 1)), Points)
    assert isinstance(of_coordinates([index, 0], (1, 1)), Listed)


def test_a_listing_takes_no_memory_of_its_own():
    index = np.zeros((1 << 10, 1 << 10), np.int32)
    tracemalloc.start()
    try:
        listed = of_coordinates([index, index.T, 0], (1, 1, 1))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert listed.shape == index.shape
    assert peak < 1 << 17


def test_neither_does_a_mask_among_coordinates():
    mask = np.ones(1 << 20, bool)
    index = np.zeros((2, 1), np.int32)
    tracemalloc.start()
    try:
        listed = of_coordinates([index, mask], (1, 1 << 20))
        assert isinstance(listed, Listed)
        block = listed.listing.block(listed.listing.n_blocks - 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert listed.shape == (2, 1 << 20)
    assert block.coordinates[1][-1] == (1 << 20) - 1
    assert peak < 4 << 20  # positions take 8 MiB


@given(masks((9,)), st.integers(1, 3), st.integers(1, 7), st.integers(0, 9))
def test_a_mask_among_coordinates_lists_its_true_elements(mask, n_rows, size, kept):
    rows = np.arange(n_rows)[:, np.newaxis]
    with (
        mock.patch.object(listing, "BLOCK_ELEMENTS", size),
        mock.patch.object(index_arrays, "KEPT_ELEMENTS", kept),
    ):
        found = with_columns(of_coordinates([rows, mask], (3, 9)))
    expected = np.broadcast_arrays(rows, np.flatnonzero(mask))
    assert isinstance(found, Points)
    assert found.shape == expected[0].shape
    same(found, [e.reshape(-1) for e in expected], np.arange(expected[0].size))


def test_a_mask_among_coordinates_that_changes_is_an_error():
    mask = np.ones(5, bool)
    listed = IndexArrays([np.zeros(5, np.int64), mask], [1, 5])
    mask[3] = False
    with pytest.raises(SelectionError, match="was changed"):
        listed.block(0)


def test_any_array_that_lists_elements_may_be_overlapped():
    index, mask = np.zeros(5, np.int64), np.ones(5, bool)
    listed = IndexArrays([index, mask], [1, 5])
    assert listed.overlaps(index[1:])
    assert listed.overlaps(mask[:2])
    assert not listed.overlaps(np.zeros(5))


@pytest.mark.parametrize("value", [3, -4, 2**40])
def test_an_index_array_that_changes_to_what_is_out_of_bounds_is_an_error(value):
    index = np.zeros(5, np.int64)
    listed = IndexArrays([index], [3])
    index[4] = value
    with pytest.raises(SelectionError, match="was changed"):
        listed.block(0)


@pytest.mark.parametrize("value", [True, False])
def test_a_mask_that_changes_is_an_error(value):
    mask = np.full(5, not value)
    mask[2] = not value
    listed = TrueElements(mask)
    mask[4] = value
    with pytest.raises(SelectionError, match="was changed"):
        listed.block(0)


@pytest.mark.parametrize("n_now", [1, 3])
def test_elements_that_are_more_or_fewer_than_were_counted_are_an_error(n_now):
    block = ListedBlock((np.zeros(n_now, np.int64),), np.arange(n_now))
    with pytest.raises(SelectionError, match="was changed"):
        join_blocks([block], 1, 2)
