"""Columns over inner chunks, and what the parts of a plan need to make them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gpushard.layout import GridAxis, ShardLevel
from gpushard.selection import Ints

# Inner chunks a block holds at most (unless one shard has more): their columns take
# about 100 bytes each, and a block is planned while the one before it is read.
BLOCK_CHUNKS = 1 << 14
BLOCK_SHARDS = 1 << 10


class ShardBlock(NamedTuple):
    """Columns over the inner chunks wanted from a few shards, ordered by shard.

    Attributes
    ----------
    shard_coords
        int64, shape (n_shards, ndim). Coordinates of the stored objects.
    shard
        int64, shape (n_chunks,). Row of `shard_coords`, ascending.
    entry
        One int64 array of shape (n_chunks,) a sharding level, from the outside in:
        the inner chunk's place in the index.
    part
        int64, shape (n_chunks,). Which of the plan's parts wants it.
    position
        int64, shape (n_rows, n_chunks). Where it lands: for a `GridPart` one row an
        axis, the position in that axis' projection; for a `PointPart` row 0 is the
        ordinal of the inner chunk in the part.
    """

    shard_coords: Ints
    shard: Ints
    entry: tuple[Ints, ...]
    part: Ints
    position: Ints


def index_coordinates(
    cell: Ints, shard: Ints, inner: GridAxis, outer: GridAxis, lengths: Sequence[int]
) -> tuple[tuple[Ints, ...], tuple[Ints | int, ...]]:
    """Per sharding level: coordinate of each cell in its parent, and how many fit."""
    if not lengths:
        return (), ()
    coordinates: list[Ints] = []
    per_parent: list[Ints | int] = []
    offset = inner.start_of(cell) - outer.start_of(shard)
    parent = outer.length_of(shard)
    for length in lengths:
        coordinates.append(offset // length)
        per_parent.append(parent // length)
        offset = offset % length
        parent = length
    return tuple(coordinates), tuple(per_parent)


def ordinal_in_index(
    level: ShardLevel,
    coordinate: Sequence[Ints],
    per_parent: Sequence[Ints | int],
) -> Ints:
    """Place in the index: C order over the stored axes (`ShardLevel.axis_order`)."""
    if not level.axis_order:
        return np.zeros(1, np.int64)
    first, *rest = level.axis_order
    ordinal = coordinate[first]
    for axis in rest:
        ordinal = ordinal * per_parent[axis] + coordinate[axis]
    return ordinal


def order_by(*keys: Ints) -> Ints:
    """Stable order of columns by the rows of each key, the first row first."""
    rows = [row for key in keys for row in key]
    if not rows:
        return np.arange(keys[0].shape[1], dtype=np.int64)
    return np.lexsort(rows[::-1])


def run_starts(columns: Ints) -> Ints:
    """Where a run of equal columns starts."""
    changes = np.any(columns[:, 1:] != columns[:, :-1], axis=0)
    return np.flatnonzero(np.append(columns.shape[1] > 0, changes))


def cut_blocks(starts: Ints, n_chunks: int) -> Iterator[tuple[int, int]]:
    """Runs of whole shards, each of at most a block's size where a shard allows it."""
    ends = np.append(starts[1:], n_chunks)
    first = 0
    while first < len(starts):
        begin = int(starts[first])
        last = int(np.searchsorted(ends, begin + BLOCK_CHUNKS, side="right"))
        last = min(max(last, first + 1), first + BLOCK_SHARDS)
        yield begin, int(ends[last - 1])
        first = last


def shards_of(shard_cell: Ints) -> tuple[Ints, Ints]:
    """Coordinates of the distinct shards of sorted columns, and each column's row."""
    starts = run_starts(shard_cell)
    marks = np.zeros(shard_cell.shape[1], np.int64)
    marks[starts[1:]] = 1
    return np.ascontiguousarray(shard_cell[:, starts].T), np.cumsum(marks)
