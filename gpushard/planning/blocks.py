"""Columns over inner chunks, and what the parts of a plan need to make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gpushard.layout import ArrayLayout, GridAxis, ShardLevel
from gpushard.selecting.numbering import (
    chunk_digits,
    distinct,
    numbers_of,
    shard_digits,
    stable_order,
)
from gpushard.selecting.selection import Ints

# Inner chunks a block holds at most: their columns take about 100 bytes each, and a
# block is planned while the one before it is read.
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
        One int64 array of shape (n_chunks,) per sharding level, from the outside in:
        the inner chunk's place in the index.
    part
        int64, shape (n_chunks,). Which of the plan's parts wants it.
    position
        int64, shape (n_rows, n_chunks). Where the inner chunk lands. A `GridPart` has
        one row per axis, the position in the axis' projection. In the other parts row 0
        is the ordinal of the inner chunk in the part; a `PatchPart` has as many rows as
        axes.
    """

    shard_coords: Ints
    shard: Ints
    entry: tuple[Ints, ...]
    part: Ints
    position: Ints

    @property
    def n_chunks(self) -> int:
        """Inner chunks wanted."""
        return len(self.shard)

    def n_chunks_of_shards(self) -> Ints:
        """Number of inner chunks wanted of each shard: int64, shape (n_shards,)."""
        return np.bincount(self.shard, minlength=len(self.shard_coords))

    def at(self, rows: slice | Ints) -> ShardBlock:
        """Some inner chunks, of the same shards, in their order."""
        return ShardBlock(
            self.shard_coords,
            self.shard[rows],
            tuple(entry[rows] for entry in self.entry),
            self.part[rows],
            self.position[:, rows],
        )

    def only(self, rows: Ints) -> ShardBlock:
        """Some inner chunks, given in any order, and their shards alone."""
        some = self.at(distinct(rows))
        shards, shard = np.unique(some.shard, return_inverse=True)
        return some._replace(shard_coords=self.shard_coords[shards], shard=shard)

    def pieces(self, most: int | None = None) -> Iterator[ShardBlock]:
        """Blocks of the same shards, with at most `most` inner chunks, or a block's."""
        most = most or BLOCK_CHUNKS
        if self.n_chunks <= most:
            yield self
            return
        for first in range(0, self.n_chunks, most):
            yield self.at(slice(first, first + most))

    def of_part(self, part: int) -> ShardBlock:
        """The same inner chunks, wanted by another part of the plan."""
        return self._replace(part=np.full_like(self.part, part))


@dataclass(frozen=True, slots=True)
class LargeShard:
    """A shard with more wanted inner chunks than a block holds.

    Its columns are made piece by piece, because the small indexes of nested shards may
    together have more entries than fit in memory.

    Attributes
    ----------
    shard_coords
        int64, shape (1, ndim). Coordinates of the stored object.
    cut
        Returns the columns of the wanted inner chunks ``first:last``.
    """

    shard_coords: Ints
    n_chunks: int
    cut: Callable[[int, int], ShardBlock]

    def n_chunks_of_shards(self) -> Ints:
        """Inner chunks wanted of each shard: int64, shape (1,)."""
        return np.array([self.n_chunks])

    def pieces(self) -> Iterator[ShardBlock]:
        """Blocks of the shard, with a bounded number of inner chunks."""
        for first in range(0, self.n_chunks, BLOCK_CHUNKS):
            yield self.cut(first, min(first + BLOCK_CHUNKS, self.n_chunks))

    def of_part(self, part: int) -> LargeShard:
        """The same inner chunks, wanted by another part of the plan."""

        def cut(first: int, last: int) -> ShardBlock:
            return self.cut(first, last).of_part(part)

        return replace(self, cut=cut)


Block = ShardBlock | LargeShard
"""What a plan yields for some shards; every shard is in exactly one."""


def index_coordinates(
    cell: Ints, shard: Ints, inner: GridAxis, outer: GridAxis, lengths: Sequence[int]
) -> tuple[tuple[Ints, ...], tuple[Ints | int, ...]]:
    """Per level: coordinates of cells in their parents, and cells per parent."""
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
    """Stable order of columns by the rows of the keys; the first row counts most."""
    rows = [row for key in keys for row in key]
    if not rows:
        return np.arange(keys[0].shape[1], dtype=np.int64)
    return np.lexsort(rows[::-1])


def run_starts(columns: Ints) -> Ints:
    """Positions at which a run of equal columns starts."""
    changes = np.any(columns[:, 1:] != columns[:, :-1], axis=0)
    return np.flatnonzero(np.append(columns.shape[1] > 0, changes))


def cut_blocks(starts: Ints, n_chunks: int) -> Iterator[tuple[int, int]]:
    """Runs of whole shards, each of at most a block's size or one shard."""
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


def chunk_entries(cell: Ints, shard: Ints, layout: ArrayLayout) -> tuple[Ints, ...]:
    """Place of inner chunks in the index of each level, by their coordinates.

    `cell`, `shard`: int64, shape (ndim, n_chunks), of each and of its shard.
    """
    along = [
        index_coordinates(
            cell[d],
            shard[d],
            layout.inner_axes[d],
            layout.axes[d],
            [level.chunk_shape[d] for level in layout.levels],
        )
        for d in range(layout.ndim)
    ]
    entries = (
        ordinal_in_index(level, [c[k] for c, _ in along], [n[k] for _, n in along])
        for k, level in enumerate(layout.levels)
    )
    return tuple(np.broadcast_to(entry, cell.shape[1:]) for entry in entries)


@dataclass(frozen=True, slots=True)
class SortedChunks:
    """Inner chunks that a part of a plan touches, sorted by shard, and their elements.

    Attributes
    ----------
    cell, shard_cell
        int64, shape (ndim, n_chunks). Coordinates of each inner chunk, and of its
        shard.
    entry
        One int64 array of shape (n_chunks,) per sharding level.
    bounds
        int64, shape (n_chunks + 1,). Points or boxes of inner chunk i are
        ``bounds[i]:bounds[i + 1]``.
    """

    cell: Ints
    shard_cell: Ints
    entry: tuple[Ints, ...]
    bounds: Ints

    @property
    def n_shards(self) -> int:
        """Stored objects touched."""
        return len(run_starts(self.shard_cell))

    @property
    def n_chunks(self) -> int:
        """Inner chunks wanted; where boxes are kept apart, one a box."""
        return self.cell.shape[1]

    def chunk_coordinate(self, position: Ints) -> tuple[int, ...]:
        """Coordinate in the array's grid of inner chunks of one column of positions."""
        return tuple(int(c) for c in self.cell[:, position[0]])


def by_chunk(
    elements: Sequence[Ints], n: int, layout: ArrayLayout
) -> tuple[Ints | None, Ints]:
    """Order of `n` elements by shard and inner chunk, and where each chunk begins.

    `elements`: coordinates, int64, of shape (n,) for each axis, or (1,) where all are
    alike. The order is None if the elements are already in it.
    """
    digits = shard_digits(layout.axes)
    if layout.levels:
        digits += chunk_digits(layout.inner_axes, layout.axes)
    # Along the other axes all lie in the same cell.
    digits = [digit for digit in digits if len(elements[digit.axis]) > 1]
    numbers = [number.of(elements) for number in numbers_of(digits)]
    order = None
    if len(numbers) == 1:
        order = stable_order(numbers[0])
    elif numbers:  # a grid that is too large to be counted
        order = np.lexsort(numbers[::-1])
    is_first = np.zeros(n, bool)
    is_first[:1] = True
    for number in numbers:
        along = number if order is None else number[order]
        is_first[1:] |= along[1:] != along[:-1]
    return order, np.flatnonzero(is_first)


def blocks_of(
    shard_cell: Ints, entry: Sequence[Ints], n_rows: int = 1
) -> Iterator[ShardBlock]:
    """Blocks of inner chunks in the order of their shards, placed by their ordinals.

    `shard_cell`: int64, shape (ndim, n_chunks), coordinates of each one's shard.
    `n_rows` rows of positions are all alike.
    """
    n_chunks = shard_cell.shape[1]
    for first, last in cut_blocks(run_starts(shard_cell), n_chunks):
        coords, shard = shards_of(shard_cell[:, first:last])
        ordinal = np.arange(first, last, dtype=np.int64)
        yield ShardBlock(
            coords,
            shard,
            tuple(column[first:last] for column in entry),
            np.zeros(last - first, np.int64),
            np.broadcast_to(ordinal, (n_rows, last - first)),
        )
