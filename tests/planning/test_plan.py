"""Plans against a plain enumeration, one inner chunk after another."""

from __future__ import annotations

import tracemalloc
from bisect import bisect_right
from itertools import product
from time import perf_counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies as sts
from gpushard.layout import GridAxis
from gpushard.planning import blocks, plan
from gpushard.planning.grid import GridPart
from gpushard.planning.plan import plan_read
from gpushard.selecting.expressions import basic, orthogonal, points
from gpushard.selecting.selection import Orthogonal, whole, with_columns


@st.composite
def planned(draw, max_selections=1):
    """A layout and selections of it."""
    layout = draw(sts.layouts())
    n = draw(st.integers(1, max_selections))
    return layout, [draw(sts.selections(layout.shape)) for _ in range(n)]


def cell_of(axis, element):
    """Cell that holds an element, its start and its length."""
    if axis.boundaries is None:
        cell = element // axis.cell
        return cell, cell * axis.cell, axis.cell
    ends = axis.boundaries.tolist()
    cell = bisect_right(ends, element) - 1
    return cell, ends[cell], ends[cell + 1] - ends[cell]


def located(layout, element):
    """``(shard, place in the index at each level, inner chunk)`` of one element."""
    along = [cell_of(axis, e) for axis, e in zip(layout.axes, element, strict=True)]
    shard = tuple(cell for cell, _, _ in along)
    if not layout.levels:
        return shard, (), shard
    offset = [e - start for e, (_, start, _) in zip(element, along, strict=True)]
    parent = [length for _, _, length in along]
    entries = []
    for level in layout.levels:
        entry = 0
        for d in level.axis_order:
            n = level.chunk_shape[d]
            entry = entry * (parent[d] // n) + offset[d] // n
        entries.append(entry)
        offset = [o % n for o, n in zip(offset, level.chunk_shape, strict=True)]
        parent = level.chunk_shape
    innermost = layout.levels[-1].chunk_shape
    chunk = tuple(e // n for e, n in zip(element, innermost, strict=True))
    return shard, tuple(entries), chunk


def enumerated(layout, selection):
    """Every inner chunk wanted, as `located` tells it."""
    if not isinstance(selection, Orthogonal):
        rows = [c.tolist() for c in selection.coordinates]
        elements = zip(*rows, strict=True) if rows else [()] * selection.n_points
        return sorted({located(layout, element) for element in elements})
    along = []
    for axis, inner in zip(selection.axes, layout.inner_axes, strict=True):
        elements = {cell_of(inner, e)[0]: e for e in sts.elements_of(axis)}
        along.append(elements.values())
    return sorted(located(layout, element) for element in product(*along))


def rows_of(plan, block, with_part=False):
    """Rows of a block, as `located` tells them."""
    for i, shard in enumerate(block.shard.tolist()):
        part = int(block.part[i])
        row = (
            tuple(block.shard_coords[shard].tolist()),
            tuple(int(entry[i]) for entry in block.entry),
            plan.parts[part].chunk_coordinate(block.position[:, i]),
        )
        yield (part, row) if with_part else row


@given(planned())
def test_a_plan_wants_exactly_the_inner_chunks_that_hold_wanted_elements(planned):
    layout, (selection,) = planned
    plan = plan_read(layout, [selection])
    found = [row for block in sts.pieces_of(plan) for row in rows_of(plan, block)]
    assert sorted(found) == enumerated(layout, selection)
    assert plan.n_chunks == len(found)


@given(planned(max_selections=3), st.integers(1, 6), st.integers(1, 3))
def test_blocks_are_bounded_ordered_and_hold_each_shard_once(
    planned, block_chunks, block_shards
):
    layout, selections = planned
    plan = plan_read(layout, selections)
    with (
        mock.patch.object(blocks, "BLOCK_CHUNKS", block_chunks),
        mock.patch.object(blocks, "BLOCK_SHARDS", block_shards),
    ):
        planned_blocks = list(plan.blocks())
        made = [piece for block in planned_blocks for piece in block.pieces()]
    met = [tuple(c) for b in planned_blocks for c in b.shard_coords.tolist()]
    n_chunks = [b.n_chunks_of_shards().sum() for b in planned_blocks]
    assert n_chunks == [b.n_chunks for b in planned_blocks]
    assert sum(n_chunks) == plan.n_chunks
    for block in made:
        n_shards = len(block.shard_coords)
        assert np.all(np.diff(block.shard) >= 0)
        assert np.unique(block.shard).tolist() == list(range(n_shards))
        assert n_shards <= block_shards
        assert len(block.shard) <= block_chunks
    assert met == sorted(set(met))
    wanted = [
        (k, row) for k, s in enumerate(selections) for row in enumerated(layout, s)
    ]
    found = [row for block in made for row in rows_of(plan, block, with_part=True)]
    assert sorted(found) == wanted


@given(planned(max_selections=3), st.integers(1, 6), st.integers(1, 20))
def test_parts_are_planned_one_after_the_other_where_they_are_large_together(
    planned, block_chunks, merged_chunks
):
    layout, selections = planned
    read_plan = plan_read(layout, selections)
    with (
        mock.patch.object(blocks, "BLOCK_CHUNKS", block_chunks),
        mock.patch.object(plan, "MERGED_CHUNKS", merged_chunks),
    ):
        made = sts.pieces_of(read_plan)
    found = [row for b in made for row in rows_of(read_plan, b, with_part=True)]
    assert sorted(found) == [
        (k, row) for k, s in enumerate(selections) for row in enumerated(layout, s)
    ]
    for block in made:
        parts = set(block.part.tolist())
        n_chunks = sum(read_plan.parts[k].n_chunks for k in parts)
        assert len(parts) == 1 or n_chunks <= merged_chunks


@given(planned())
def test_columns_of_a_block_are_int64_and_of_one_length(planned):
    layout, selections = planned
    for block in sts.pieces_of(plan_read(layout, selections)):
        n = len(block.shard)
        assert block.shard_coords.shape[1] == layout.ndim
        assert len(block.entry) == len(layout.levels)
        columns = [block.shard, block.part, *block.entry, *block.position]
        assert {column.shape for column in columns} == {(n,)}
        assert {c.dtype for c in (*columns, block.shard_coords)} == {np.dtype("int64")}


@given(sts.layouts())
def test_an_empty_selection_wants_no_inner_chunk(layout):
    if not layout.shape:
        return
    nothing = basic((slice(0, 0),), layout.shape)
    nowhere = points(tuple(np.empty(0, int) for _ in layout.shape), layout.shape)
    for selections in ([nothing], [nowhere], [nothing, nowhere], []):
        plan = plan_read(layout, selections)
        assert plan.n_chunks == 0
        assert sum(len(block.shard) for block in sts.pieces_of(plan)) == 0


def test_parts_that_want_the_same_inner_chunk_stand_side_by_side():
    axes = (GridAxis(12, 6),)
    layout = sts.make_layout((12,), axes, (sts.make_level((2,)),))
    selections = [basic(slice(0, 8), (12,)), points(([7, 1],), (12,))]
    (block,) = sts.pieces_of(plan_read(layout, selections))
    assert block.shard_coords.tolist() == [[0], [1]]
    assert block.shard.tolist() == [0, 0, 0, 0, 1, 1]
    assert sorted(zip(block.part.tolist(), block.entry[0].tolist(), strict=True)) == [
        (0, 0),
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 0),
    ]


def test_the_index_of_a_transposed_shard_counts_along_its_stored_axes():
    axes = (GridAxis(4, 4), GridAxis(6, 6))
    layout = sts.make_layout((4, 6), axes, (sts.make_level((2, 2), (1, 0)),))
    part = GridPart.lay(whole((4, 6)), layout)
    (block,) = sts.pieces_of(part)
    coordinates = [part.chunk_coordinate(column) for column in block.position.T]
    assert coordinates == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert block.entry[0].tolist() == [0, 2, 4, 1, 3, 5]


def test_shards_of_a_rectilinear_grid_count_by_their_own_shape():
    axes = (GridAxis(6, 6), GridAxis(10, 0, np.array([0, 2, 8, 12])))
    layout = sts.make_layout((6, 10), axes, (sts.make_level((2, 2)),))
    rows = enumerated(layout, whole((6, 10)))
    plan = plan_read(layout, [whole((6, 10))])
    found = [row for block in sts.pieces_of(plan) for row in rows_of(plan, block)]
    assert sorted(found) == rows
    assert max(row[1] for row in rows if row[0] == (0, 0)) == (2,)
    assert max(row[1] for row in rows if row[0] == (0, 1)) == (8,)
    # Of the last shard's second column there is nothing in the array.
    assert sorted(row[1] for row in rows if row[0] == (0, 2)) == [(0,), (2,), (4,)]


def test_points_of_one_inner_chunk_keep_their_order():
    layout = sts.make_layout((8,), (GridAxis(8, 4),), (sts.make_level((2,)),))
    part = plan_read(layout, [points(([5, 0, 4, 5, 1],), (8,))]).parts[0]
    assert part.bounds.tolist() == [0, 2, 5]
    assert part.in_index.tolist() == [[0, 1, 1, 0, 1]]
    assert part.out_index.tolist() == [1, 4, 0, 2, 3]


def test_points_are_grouped_by_shard_before_inner_chunk():
    axes = (GridAxis(4, 4), GridAxis(8, 4))
    layout = sts.make_layout((4, 8), axes, (sts.make_level((2, 2)),))
    selection = points(([0, 0, 3, 3], [0, 7, 7, 0]), (4, 8))
    (block,) = sts.pieces_of(plan_read(layout, [selection]))
    assert block.shard_coords.tolist() == [[0, 0], [0, 1]]
    assert block.shard.tolist() == [0, 0, 1, 1]
    assert block.entry[0].tolist() == [0, 2, 1, 3]


N = 1000  # inner chunks along each of two axes
MILLION = {
    "grid": [(slice(None), slice(None))],
    "gather": [(np.arange(4 * N)[::-1], slice(None))],
    "two grids": [
        (slice(0, 2 * N), slice(None)),
        (slice(2 * N, None), slice(None, None, -1)),
    ],
}


@pytest.mark.parametrize("name", MILLION)
def test_a_million_inner_chunks_are_planned_in_bounded_memory(name):
    shape = (4 * N, 4 * N)
    axes = (GridAxis(4 * N, 40), GridAxis(4 * N, 40))
    layout = sts.make_layout(shape, axes, (sts.make_level((4, 4)),))
    selections = [orthogonal(key, shape) for key in MILLION[name]]
    n_chunks, nbytes = walked(layout, selections)
    assert n_chunks == N * N
    assert nbytes < 200e6


def test_a_million_points_are_planned_in_bounded_memory():
    rows, columns = np.divmod(np.arange(N * N), N)
    shape = (4 * N, 4 * N)
    axes = (GridAxis(4 * N, 40), GridAxis(4 * N, 40))
    layout = sts.make_layout(shape, axes, (sts.make_level((4, 4)),))
    selection = with_columns(points((4 * rows, 4 * columns), shape))
    n_chunks, nbytes = walked(layout, [selection])
    assert n_chunks == N * N
    assert nbytes < 200e6


def walked(layout, selections):
    """Inner chunks met on the way through a plan, and the peak of memory."""
    start = perf_counter()
    n_timed = sum(len(b.shard) for b in sts.pieces_of(plan_read(layout, selections)))
    seconds = perf_counter() - start
    tracemalloc.start()
    try:
        n_chunks = sum(
            len(b.shard) for b in sts.pieces_of(plan_read(layout, selections))
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert n_timed == n_chunks
    print(f"{n_chunks} inner chunks: {seconds:.2f} s, {peak / 1e6:.0f} MB")  # noqa: T201
    return n_chunks, peak
