"""Many patches of an array, laid over its inner chunks.

A patch is cut where inner chunks end. What it takes of one inner chunk is a *box*;
boxes are sorted by inner chunk, so that each is fetched and decoded once for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpushard.layout import ArrayLayout, GridAxis
from gpushard.planning.blocks import (
    ShardBlock,
    SortedChunks,
    blocks_of,
    by_chunk,
    chunk_entries,
)
from gpushard.selecting.patches import Patches, entries_of
from gpushard.selecting.selection import Ints

Columns = tuple[Ints, ...]

# Patches that are cut together: what that takes besides is small.
_PORTION = 1 << 15


@dataclass(frozen=True, slots=True)
class PatchPart(SortedChunks):
    """Patches cut into boxes, sorted by shard and inner chunk.

    Attributes
    ----------
    in_first, length, out_first
        For each axis int64, shape (n_boxes,), or (1,) where all have the same. First
        element of each box within its inner chunk, how many there are, and where the
        first lands in the output.
    """

    in_first: Columns
    length: Columns
    out_first: Columns

    @classmethod
    def lay(cls, selection: Patches, layout: ArrayLayout, *, apart: bool) -> PatchPart:
        """Part of a plan, from patches and the layout of their array.

        `apart` tells that an inner chunk is wanted by each of its boxes for itself:
        where of plain elements only what lies in the boxes is read, or where each box
        is placed by its position.
        """
        n_boxes, boxes = _cut(selection, layout)
        order, starts = by_chunk([box.first for box in boxes], n_boxes, layout)
        if apart:
            starts = np.arange(n_boxes, dtype=np.int64)
        shape = (layout.ndim, len(starts))
        cell, shard = np.empty(shape, np.int64), np.empty(shape, np.int64)
        columns: list[Columns] = []
        for d, inner in enumerate(layout.inner_axes):
            # Of very many boxes each column counts: none is kept unsorted any longer.
            first, length, out_first = (_ordered(c, order) for c in boxes.pop(0))
            at = entries_of(first, starts)
            cell[d], shard[d] = inner.cell_at(at), layout.axes[d].cell_at(at)
            start = inner.cell_at(first)
            start = inner.start_of(start)
            columns.append((first - start, length, out_first))
        in_first, length, out_first = zip(*columns, strict=True)
        entry = chunk_entries(cell, shard, layout)
        bounds = np.append(starts, n_boxes).astype(np.int64)
        return cls(cell, shard, entry, bounds, in_first, length, out_first)

    @property
    def n_boxes(self) -> int:
        """What all patches take of one inner chunk each."""
        return int(self.bounds[-1])

    @property
    def nbytes(self) -> int:
        """Memory of the columns."""
        columns = (*self.in_first, *self.length, *self.out_first, *self.entry)
        held = (self.cell, self.shard_cell, self.bounds, *columns)
        return sum(column.nbytes for column in held)

    def boxes_at(self, chunk: Ints) -> tuple[Ints, Ints]:
        """Boxes of inner chunks by their ordinals, and the entry of `chunk` each is of.

        Both are int64, of shape (n,).
        """
        first = self.bounds[chunk]
        count = self.bounds[chunk + 1] - first
        nth = np.repeat(np.arange(len(chunk)), count)
        before = np.cumsum(count) - count
        return np.arange(len(nth)) + (first - before)[nth], nth

    def blocks(self) -> Iterator[ShardBlock]:
        """All columns, a bounded number of inner chunks at a time."""
        return blocks_of(self.shard_cell, self.entry, len(self.cell))


class _Along(NamedTuple):
    """What boxes take along one axis, as `Patches` tells it of patches."""

    first: Ints
    length: Ints
    out_first: Ints


def _cut(patches: Patches, layout: ArrayLayout) -> tuple[int, list[_Along]]:
    """Boxes of all patches, patch by patch: how many, and along each axis."""
    n = patches.n_patches
    portions = [
        _cut_some(patches.between(first, min(first + _PORTION, n)), layout)
        for first in range(0, max(n, 1), _PORTION)
    ]
    if len(portions) == 1:
        return portions[0]
    counts = [n_boxes for n_boxes, _ in portions]
    axes: list[_Along] = []
    while portions[0][1]:
        some = [boxes.pop(0) for _, boxes in portions]
        joined = (_joined(columns, counts) for columns in zip(*some, strict=True))
        axes.append(_Along(*joined))
    return sum(counts), axes


def _joined(columns: Sequence[Ints], counts: Sequence[int]) -> Ints:
    """Column of all portions, which have so many boxes."""
    if all(len(c) == 1 and c[0] == columns[0][0] for c in columns):
        return columns[0]
    each = zip(columns, counts, strict=True)
    return np.concatenate([np.broadcast_to(c, n) for c, n in each])


def _cut_some(patches: Patches, layout: ArrayLayout) -> tuple[int, list[_Along]]:
    lows: list[Ints] = []
    counts: list[Ints] = []
    n_each = np.ones(patches.n_patches, np.int64)
    for first, length, inner in zip(
        patches.first, patches.length, layout.inner_axes, strict=True
    ):
        low = inner.cell_at(first)
        lows.append(low)
        counts.append(inner.cell_at(first + (length - 1)) - low + 1)
        n_each *= counts[-1]
    patch = np.repeat(np.arange(patches.n_patches), n_each)
    nth = np.arange(len(patch)) - (np.cumsum(n_each) - n_each)[patch]
    boxes: list[_Along] = []
    for d in reversed(range(layout.ndim)):
        columns = patches.first[d], patches.length[d], patches.out_first[d]
        along = _Along(*(entries_of(column, patch) for column in columns))
        most = counts[d].max(initial=1)
        if most > 1:
            # A scalar divisor is several times faster.
            is_same = most == counts[d].min()
            divisor = int(most) if is_same else entries_of(counts[d], patch)
            nth, at = np.divmod(nth, divisor)
            cell = entries_of(lows[d], patch) + at
            along = _within_cells(along, cell, layout.inner_axes[d])
        boxes.append(along)
    return len(patch), boxes[::-1]


def _within_cells(along: _Along, cell: Ints, axis: GridAxis) -> _Along:
    """What of it lies in one cell of the axis each."""
    first, length, out_first = along
    start = axis.start_of(cell)
    begin = np.maximum(first, start)
    end = np.minimum(first + length, start + axis.length_of(cell))
    return _Along(begin, end - begin, out_first + (begin - first))


def _ordered(column: Ints, order: Ints | None) -> Ints:
    return column if order is None else entries_of(column, order)
