"""Portions of listed elements: all of them, each with inner chunks of its own."""

from __future__ import annotations

import weakref
from collections import Counter, deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies as sts
from gpushard import SelectionError
from gpushard.layout import GridAxis
from gpushard.planning.plan import plan_read
from gpushard.selecting import portions, sorting_out
from gpushard.selecting.expressions import orthogonal, points
from gpushard.selecting.listing import IndexArrays
from gpushard.selecting.portions import groups_of, objects_of
from gpushard.selecting.selection import Listed, with_columns
from gpushard.selecting.sorting_out import Room
from tiny_bounds import tiny_bounds


@st.composite
def listed(draw):
    """A layout, and a key that lists at least two elements; whether it is of points."""
    layout = draw(sts.layouts().filter(lambda made: made.shape and 0 not in made.shape))
    n = draw(st.integers(2, 40))

    def index(extent):
        some = st.integers(-extent, extent - 1)
        values = draw(st.lists(some, min_size=n, max_size=n))
        return np.array(sorted(values) if draw(st.booleans()) else values)

    def mask(shape):
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        made = rng.random(shape) < draw(st.sampled_from([0.1, 0.9]))
        made.reshape(-1)[:2] = True
        return made

    if draw(st.booleans()):
        if layout.size > 1 and draw(st.booleans()):
            return layout, points, (mask(layout.shape),)
        return layout, points, tuple(map(index, layout.shape))
    axis = draw(st.integers(0, layout.ndim - 1))
    key = [draw(sts.slices(extent)) for extent in layout.shape]
    extent = layout.shape[axis]
    is_mask = extent > 1 and draw(st.booleans())
    key[axis] = mask((extent,)) if is_mask else index(extent)
    return layout, orthogonal, tuple(key)


def columns(selection, axis):
    """Coordinates along the listed axes, one row each, and where elements land."""
    if axis is None:
        return np.stack(selection.coordinates), selection.out_index
    taken = selection.axes[axis]
    return taken.element[np.newaxis], taken.out_index


def cells(coordinates, grid):
    """Cell of each element, as tuples."""
    along = [g.cell_at(c) for c, g in zip(coordinates, grid, strict=True)]
    return list(zip(*[a.tolist() for a in along], strict=True))


@given(listed(), st.integers(1, 9), st.integers(1, 7), st.integers(1, 4))
def test_portions_are_the_elements_each_once_by_shard(drawn, most, size, counts_log2):
    layout, parse, key = drawn
    with tiny_bounds(block=size, counts_log2=counts_log2):
        selection = parse(key, layout.shape)
        assert isinstance(selection, Listed)
        expected = with_columns(selection)
        groups = [
            (list(group.portions()), group.is_split)
            for group in groups_of(selection, layout, most)
        ]
    axis = None if selection.around is None else selection.axis
    axes = range(layout.ndim) if axis is None else [axis]
    whole, _ = columns(expected, axis)
    in_chunk = Counter(cells(whole, [layout.inner_axes[d] for d in axes]))
    seen, shards, chunks = [], Counter(), Counter()
    for some, is_split in groups:
        assert is_split == (len(some) > 1)
        mine = set()
        for portion in some:
            coordinates, out_index = columns(portion, axis)
            assert 0 < len(out_index) <= most
            np.testing.assert_array_equal(coordinates, whole[:, out_index])
            seen.extend(out_index.tolist())
            mine.update(cells(coordinates, [layout.axes[d] for d in axes]))
            chunks.update(set(cells(coordinates, [layout.inner_axes[d] for d in axes])))
        assert not is_split or len(mine) == 1
        shards.update(mine)
    assert sorted(seen) == list(range(whole.shape[1]))
    assert set(shards.values()) == {1}
    for chunk, n_portions in chunks.items():
        assert n_portions == 1 or in_chunk[chunk] > most


@given(listed(), st.integers(1, 9))
def test_the_objects_of_a_split_group_are_those_that_its_plan_reads(drawn, most):
    layout, parse, key = drawn
    with tiny_bounds(block=3, counts_log2=2):
        for group in groups_of(parse(key, layout.shape), layout, most):
            if group.is_split:
                planned = sts.pieces_of(plan_read(layout, list(group.portions())))
                read = {tuple(row) for b in planned for row in b.shard_coords.tolist()}
                found = list(objects_of(group, layout))
                assert set(found) == read
                assert len(found) == len(read)


@given(
    listed(),
    st.integers(4, 9),
    st.integers(1, 7),
    st.integers(1, 4),
    st.sampled_from([50, 10**6]),
)
def test_portions_of_what_was_sorted_out_are_those_of_what_was_not(
    drawn, most, size, counts_log2, element_nbytes
):
    layout, parse, key = drawn
    with tiny_bounds(block=size, counts_log2=counts_log2):
        selection = parse(key, layout.shape)
        axis = None if selection.around is None else selection.axis
        found = [
            [
                (group[3:7], [columns(p, axis) for p in group.portions()])
                for group in some
            ]
            for some in (
                groups_of(selection, layout, most),
                # A quarter is for marks.
                groups_of(selection, layout, most * 4 // 3, room=Room(element_nbytes)),
            )
        ]
    for (place, expected), (mine, some) in zip(*found, strict=True):
        assert mine == place
        for (coordinates, out_index), (theirs, where) in zip(
            some, expected, strict=True
        ):
            np.testing.assert_array_equal(out_index, where)
            np.testing.assert_array_equal(coordinates, theirs)


class Counted(IndexArrays):
    """Index arrays that count how many of their blocks are looked at."""

    n_taken = 0

    def block(self, number):
        self.n_taken += 1
        return super().block(number)


def n_looks(index, most, element_nbytes=0, block=10, cut=(20, 5), n_passes=1):
    """How often each block of an index array is looked at, on the average."""
    shard, chunk = cut
    layout = sts.make_layout(
        (1000,), (GridAxis(1000, shard),), (sts.make_level((chunk,)),)
    )
    with tiny_bounds(block=block, counts_log2=16, few_more=3):
        around = orthogonal((slice(None),), (1000,))
        counted = Counted([index], [1000])
        selection = Listed(counted, (len(index),), around)
        groups = groups_of(
            selection, layout, most, room=Room(element_nbytes, n_passes=n_passes)
        )
        n_portions = 0
        for group in groups:
            for _ in range(n_passes):
                n_portions += len(list(group.portions()))
    return counted.n_taken / counted.n_blocks, n_portions


def test_blocks_of_an_ascending_array_are_looked_at_about_twice():
    index = np.arange(1000)
    assert n_looks(index, 100) == (2, 10)
    looks, n_portions = n_looks(index, 7)  # each inner chunk by itself
    assert (looks, n_portions) == (4, 200)
    assert n_looks(index[::-1], 100) == (2, 10)


def test_blocks_of_other_arrays_are_looked_at_once_a_portion():
    index = np.random.default_rng(0).permutation(1000)
    looks, n_portions = n_looks(index, 100)
    assert n_portions == 10
    assert looks <= 1 + n_portions


@pytest.mark.parametrize("most", [134, 54, 8])  # of shards, and of parts of shards
def test_blocks_are_looked_at_twice_where_there_is_room_to_sort_them_out(most):
    index = np.random.default_rng(0).permutation(1000)
    looks, n_portions = n_looks(index, most, element_nbytes=10**6 // most)
    assert n_portions >= 10
    assert looks == 2


def test_with_less_room_blocks_are_looked_at_once_for_all_that_has_room():
    index = np.random.default_rng(0).permutation(1000)
    looks, n_portions = n_looks(index, 134, element_nbytes=4000 // 134, block=200)
    assert n_portions == 10
    assert looks == 4  # one to count, and three for up to 480 elements each


def test_marks_of_shards_and_of_their_parts_are_held_in_the_room_for_them(monkeypatch):
    held, most_held = [], []

    def sort_out(listing, numbers, counts, groups_in):
        held.append(2 * int(counts.sum()))
        most_held.append(list(held))
        yield from sorting_out.sort_out(listing, numbers, counts, groups_in)
        held.pop()

    monkeypatch.setattr(portions, "sort_out", sort_out)
    layout = sts.make_layout((1000,), (GridAxis(1000, 500),), (sts.make_level((5,)),))
    index = np.random.default_rng(0).permutation(1000)
    with tiny_bounds(block=500, counts_log2=16):
        selection = orthogonal((index,), (1000,))
        groups = groups_of(selection, layout, 8, room=Room(700))
        assert sum(len(list(group.portions())) for group in groups) == 200
    assert {len(nbytes) for nbytes in most_held} == {1, 2}
    assert max(map(sum, most_held)) <= 8 // 4 * 700


@pytest.mark.parametrize("shard", [20, 100, 500])
@pytest.mark.parametrize("n_kept", [0, 1, 3])
def test_marks_that_kept_groups_need_are_held_in_the_room_of_all(
    n_kept, shard, monkeypatch
):
    alive: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
    most_held = 0

    def sort_out(*given):
        nonlocal most_held
        for found in sorting_out.sort_out(*given):
            marks = found._marks
            alive[id(marks)] = marks
            most_held = max(most_held, sum(m.nbytes for m in alive.values()))
            del marks
            yield found

    monkeypatch.setattr(portions, "sort_out", sort_out)
    layout = sts.make_layout((1000,), (GridAxis(1000, shard),), (sts.make_level((5,)),))
    index = np.random.default_rng(0).permutation(1000)
    kept: deque[Any] = deque(maxlen=n_kept)
    with tiny_bounds(block=500, counts_log2=16):
        selection = orthogonal((index,), (1000,))
        groups = groups_of(selection, layout, 40, room=Room(70, n_kept))
        for group in groups:
            blocks = group.blocks()
            next(blocks)
            kept.append(blocks if group.is_split else None)
            del group, blocks
    room = 40 // 4 * 70
    assert room // 4 <= most_held <= (1 + n_kept) * room


def test_blocks_are_sorted_out_sooner_where_portions_are_gone_through_again():
    index = np.random.default_rng(0).permutation(1000)
    few = {"element_nbytes": 10**4, "cut": (500, 250)}
    looks, n_portions = n_looks(index, 100, **few)
    assert n_portions == 4 * 3
    assert looks > 6  # to count, for each shard, and for each inner chunk
    # A quarter of the 100 is for marks.
    assert n_looks(index, 100, **few, n_passes=4) == (2, 4 * 4 * 4)


def test_cells_that_are_counted_together_are_sorted_out_together():
    layout = sts.make_layout((1000,), (GridAxis(1000, 20),), (sts.make_level((5,)),))
    index = np.random.default_rng(0).permutation(1000)
    with tiny_bounds(block=100, counts_log2=3):  # fifty shards, eight to a count
        selection = orthogonal((index,), (1000,))
        groups = groups_of(selection, layout, 268, room=Room(10**4))
        found = [columns(p, 0)[0] for group in groups for p in group.portions()]
    assert [len(np.unique(f // 20)) for f, *_ in found] == [8] * 5 + [10]


def test_blocks_in_order_are_not_sorted_out():
    index = np.arange(1000)
    assert n_looks(index, 100, element_nbytes=1000) == (2, 10)


@pytest.mark.parametrize("value", [0, 999])
def test_an_index_array_that_changes_while_it_is_sorted_out_is_an_error(value):
    layout = sts.make_layout((1000,), (GridAxis(1000, 20),), (sts.make_level((5,)),))
    index = np.random.default_rng(0).permutation(1000)
    with tiny_bounds(block=500, counts_log2=16):
        selection = orthogonal((index,), (1000,))
        groups = groups_of(selection, layout, 50, room=Room(50))
        next(groups)  # of a third of the elements
        index[:] = value
        with pytest.raises(SelectionError, match="was changed"):
            list(groups)


def test_points_of_a_grid_that_cannot_be_counted_are_cut_all_the_same():
    extent = 1 << 40
    axes = (GridAxis(extent, 4),) * 2
    layout = sts.make_layout((extent, extent), axes, (sts.make_level((2, 2)),))
    rows = np.array([0, extent - 1, 5, 0, extent - 2, 1])
    key = (rows, rows[::-1])
    with tiny_bounds():
        selection = points(key, layout.shape)
        cut = list(groups_of(selection, layout, 2))
        groups = [list(group.portions()) for group in cut]
        planned = sts.pieces_of(plan_read(layout, [with_columns(selection)]))
        for group, some in zip(cut, groups, strict=True):
            touched = [c for one in some for c in cells(one.coordinates, axes)]
            assert set(objects_of(group, layout)) == set(touched)
    assert sum(block.n_chunks for block in planned) == 4
    found = [
        (out_index, *coordinates)
        for group in groups
        for portion in group
        for out_index, *coordinates in np.stack(
            [portion.out_index, *portion.coordinates], axis=1
        ).tolist()
    ]
    expected = np.stack([np.arange(len(rows)), *key], axis=1).tolist()
    assert sorted(map(list, found)) == expected
    assert all(portion.n_points <= 2 for group in groups for portion in group)
