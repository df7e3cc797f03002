"""Elements sorted out by group, against NumPy's own choice of them."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushard import SelectionError
from gpushard.selecting import listing
from gpushard.selecting.clipping import clipped
from gpushard.selecting.listing import IndexArrays, TrueElements, all_of
from gpushard.selecting.sorting_out import sort_out
from listings import listings, same
from strategies import masks


def sorted_by(listed, group_of, n_groups):
    """The elements of each group, by their coordinates along the first axis."""

    def groups_in(block):
        group = group_of[block.coordinates[0]]
        rows = np.flatnonzero(group < n_groups)
        return rows, group[rows]

    numbers = np.arange(listed.n_blocks)
    groups = [groups_in(listed.block(k))[1] for k in range(listed.n_blocks)]
    counts = np.bincount(np.concatenate(groups), minlength=n_groups)
    return list(sort_out(listed, numbers, counts, groups_in))


def groups_of_coordinates(n_groups):
    """The group of each coordinate; the last one is no group."""
    some = st.lists(st.integers(0, n_groups), min_size=7, max_size=7)
    return some.map(lambda drawn: np.array(drawn, np.uint16))


@given(listings(), st.integers(1, 9), groups_of_coordinates(3))
def test_each_group_has_its_elements_in_the_order_of_the_output(drawn, size, group_of):
    make, expected = drawn
    if not len(expected[0]):
        return
    with mock.patch.object(listing, "BLOCK_ELEMENTS", size):
        for g, found in enumerate(sorted_by(make(), group_of, 3)):
            mine = np.flatnonzero(group_of[expected[0]] == g)
            assert found.n_elements == len(mine)
            same(all_of(found), [c[mine] for c in expected], mine)


@given(listings(), st.integers(1, 9), st.data())
def test_what_was_sorted_out_may_be_sorted_out_again(drawn, size, data):
    make, expected = drawn
    if not len(expected[0]):
        return
    first, second = (data.draw(groups_of_coordinates(2)) for _ in range(2))
    with mock.patch.object(listing, "BLOCK_ELEMENTS", size):
        for g, some in enumerate(sorted_by(make(), first, 2)):
            for h, found in enumerate(
                sorted_by(some, second, 2) if some.n_blocks else []
            ):
                is_mine = (first[expected[0]] == g) & (second[expected[0]] == h)
                mine = np.flatnonzero(is_mine)
                same(all_of(found), [c[mine] for c in expected], mine)


@given(listings(), st.integers(1, 9), st.integers(1, 6), groups_of_coordinates(2))
def test_elements_in_a_range_of_an_axis_may_be_sorted_out(drawn, size, cut, group_of):
    make, expected = drawn
    with mock.patch.object(listing, "BLOCK_ELEMENTS", size):
        starts = np.array([0, cut, 7])
        for part, start, stop in zip(
            clipped(make(), 0, starts), starts, starts[1:], strict=False
        ):
            is_inside = (expected[0] >= start) & (expected[0] < stop)
            for g, found in enumerate(sorted_by(part, group_of, 2) if part else []):
                inside = expected[0] - start
                is_mine = is_inside & (group_of[np.maximum(inside, 0) % 7] == g)
                mine = np.flatnonzero(is_mine)
                same(
                    all_of(found),
                    [inside[mine], *(c[mine] for c in expected[1:])],
                    mine,
                )


@given(masks((7,)), st.integers(1, 9), groups_of_coordinates(2))
def test_coordinates_that_repeat_those_of_a_mask_may_be_sorted_out(
    mask, size, group_of
):
    mask[2] = True
    rows = np.arange(7)[:, np.newaxis]
    expected = [c.reshape(-1) for c in np.broadcast_arrays(rows, np.flatnonzero(mask))]
    with mock.patch.object(listing, "BLOCK_ELEMENTS", size):
        spread = np.broadcast_to(rows, (7, np.count_nonzero(mask)))
        listed = IndexArrays([mask, spread], [7, 7], spread.size)
        for g, found in enumerate(sorted_by(listed, group_of, 2)):
            mine = np.flatnonzero(group_of[expected[1]] == g)
            same(all_of(found), [expected[1][mine], expected[0][mine]], mine)


def changed_after_it_was_sorted_out(kind):
    """An element of what was sorted out, whose place in the user's array changed."""
    kept = np.ones(8, bool) if kind == "mask" else np.arange(8)
    listed = TrueElements(kept) if kind == "mask" else IndexArrays([kept], [8])
    if kind == "clipped":
        listed, _ = clipped(listed, 0, np.array([0, 4, 8]))
    (found,) = sorted_by(listed, np.zeros(8, np.uint16), 1)
    kept[1] = {"mask": False, "clipped": 6, "index": 8, "negative": -9}[kind]
    return found


@pytest.mark.parametrize("kind", ["mask", "clipped", "index", "negative"])
def test_elements_that_change_after_they_were_sorted_out_are_an_error(kind):
    found = changed_after_it_was_sorted_out(kind)
    with pytest.raises(SelectionError, match="was changed"):
        found.block(0)


@pytest.mark.parametrize("counted", [3, 5])
def test_more_or_fewer_elements_than_were_counted_are_an_error(counted):
    listed = IndexArrays([np.arange(4)], [4])
    every = np.arange(4), np.zeros(4, np.uint16)
    groups = sort_out(listed, np.arange(1), np.array([counted]), lambda _: every)
    with pytest.raises(SelectionError, match="was changed"):
        list(groups)


def test_a_mask_that_changes_before_its_range_is_sorted_out_is_an_error():
    index = np.arange(8)
    part, _ = clipped(IndexArrays([index], [8]), 0, np.array([0, 4, 8]))
    index[2] = 7
    with pytest.raises(SelectionError, match="was changed"):
        part.marks(0, np.arange(4))


def test_writing_to_the_index_array_may_change_what_was_sorted_out():
    index = np.arange(8)
    (found,) = sorted_by(IndexArrays([index], [8]), np.zeros(8, np.uint16), 1)
    assert found.overlaps(index[:1])
    assert not found.overlaps(np.arange(8))
