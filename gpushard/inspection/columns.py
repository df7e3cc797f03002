"""Columns over the contents of a stored object -> order, gaps, overlaps and sums.

`map` draws these results, `verify` reports them, and `info` counts with them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpushard.layout import ArrayLayout, ShardLevel
from gpushard.planning.index import MISSING, PRESENT
from gpushard.selecting.selection import Ints


@dataclass(frozen=True, slots=True)
class StoredChunks:
    """The inner chunks and the indexes of one stored object.

    Attributes
    ----------
    coordinate
        int64, shape (n_chunks, ndim). Coordinate of each inner chunk in the array's
        grid of inner chunks. Inner chunks of missing or out-of-bounds nested shards
        have no row.
    state
        uint8, shape (n_chunks,). `PRESENT`, `MISSING` or `CORRUPT`.
    start, stop
        int64, shape (n_chunks,). Byte range of each present inner chunk; 0 for others.
    index_start, index_stop
        int64, shape (n_indexes,). Byte range of each index, the outermost first.
    object_nbytes
        Size of the object, or None if unknown.
    n_nested_missing
        Inner chunks of missing nested shards that hold elements of the array.
    """

    coordinate: Ints
    state: NDArray[np.uint8]
    start: Ints
    stop: Ints
    index_start: Ints
    index_stop: Ints
    object_nbytes: int | None
    n_nested_missing: int

    @property
    def stored(self) -> Ints:
        """Rows of the inner chunks that are stored."""
        # As `flatnonzero`, which takes several times as long for a few rows.
        return (self.state == PRESENT).nonzero()[0]

    @property
    def n_stored(self) -> int:
        """Number of the inner chunks that are stored."""
        return int(np.count_nonzero(self.state == PRESENT))

    @property
    def payload_nbytes(self) -> int:
        """Bytes of all inner chunks; shared bytes count several times."""
        return int((self.stop - self.start).sum())

    @property
    def end(self) -> int:
        """Size of the object; if unknown, the end of the last piece."""
        if self.object_nbytes is not None:
            return self.object_nbytes
        ends = self.stop.max(initial=0), self.index_stop.max(initial=0)
        return int(max(ends))

    @property
    def index_nbytes(self) -> int:
        """Bytes of all indexes."""
        return int((self.index_stop - self.index_start).sum())

    def n_missing(self, layout: ArrayLayout) -> int:
        """Number of missing inner chunks that hold elements of the array."""
        is_missing = self.state == MISSING
        if not is_missing.any():
            return self.n_nested_missing
        is_missing &= holds_elements(layout, self.coordinate)
        return int(np.count_nonzero(is_missing)) + self.n_nested_missing


@dataclass(frozen=True, slots=True)
class ByteUse:
    """Which bytes of a stored object are used, by what, and in which order.

    Attributes
    ----------
    order
        int64, shape (n_stored,). Rows of the stored inner chunks by offset.
    gap_start, gap_stop
        int64, shape (n_gaps,). Byte ranges that no index and no inner chunk uses.
    overlapping, overlapped
        int64, shape (n_overlaps,). Rows of inner chunks that overlap another piece, and
        the rows of those pieces; -1 is an index. Overlaps are legal, but rarely
        intended.
    n_shared
        Inner chunks stored in exactly the bytes of another one, which is legal and
        useful.
    """

    order: Ints
    gap_start: Ints
    gap_stop: Ints
    overlapping: Ints
    overlapped: Ints
    n_shared: int

    @property
    def unused_nbytes(self) -> int:
        """Bytes in all gaps."""
        return int((self.gap_stop - self.gap_start).sum())


def byte_use(chunks: StoredChunks) -> ByteUse:
    """Which bytes of the object are used, and by what."""
    stored = chunks.stored
    start = np.concatenate([chunks.index_start, chunks.start[stored]])
    stop = np.concatenate([chunks.index_stop, chunks.stop[stored]])
    row = np.concatenate([np.full(len(chunks.index_start), -1, np.int64), stored])
    by_start = np.lexsort((stop, start))
    # One after the other: with very many pieces every column counts.
    start = start[by_start]
    stop = stop[by_start]
    row = row[by_start]
    del by_start, stored
    # Where all earlier pieces end, for each piece and behind the last one.
    reach = np.zeros(len(stop) + 1, np.int64)
    np.maximum.accumulate(stop, out=reach[1:])
    is_gap = start > reach[:-1]
    gap_start, gap_stop = reach[:-1][is_gap], start[is_gap]
    if chunks.object_nbytes is not None and chunks.object_nbytes > reach[-1]:
        gap_start = np.append(gap_start, reach[-1])
        gap_stop = np.append(gap_stop, chunks.object_nbytes)
    order = row[row >= 0]
    first, other, n_shared = _overlaps(start, stop, reach)
    if not len(first):
        return ByteUse(order, gap_start, gap_stop, first, other, n_shared)
    # If an index and an inner chunk overlap, the inner chunk is reported.
    by_chunk = (row[first] >= 0) | (row[other] >= 0)
    first, other = first[by_chunk], other[by_chunk]
    begins = row[first] >= 0
    return ByteUse(
        order=order,
        gap_start=gap_start,
        gap_stop=gap_stop,
        overlapping=np.where(begins, row[first], row[other]),
        overlapped=np.where(begins, row[other], row[first]),
        n_shared=n_shared,
    )


def _overlaps(start: Ints, stop: Ints, reach: Ints) -> tuple[Ints, Ints, int]:
    """Pieces that overlap an earlier one, that piece, and how many are equal.

    Pieces are sorted by start, then by stop.
    """
    n = len(start)
    equal = np.zeros(n, bool)
    equal[1:] = (start[1:] == start[:-1]) & (stop[1:] == stop[:-1])
    equal &= stop > start
    begins_inside = np.zeros(n, bool)
    begins_inside[1:] = (start[1:] < reach[1:-1]) & (stop[1:] > start[1:])
    # Of pieces with the same bytes, only the first can overlap an earlier piece.
    rows = (begins_inside & ~equal).nonzero()[0]
    n_equal = int(np.count_nonzero(equal))
    if not len(rows):
        return rows, rows, n_equal
    # The last piece so far that reaches as far as any.
    farthest = np.arange(n)
    farthest[stop != reach[1:]] = 0
    np.maximum.accumulate(farthest, out=farthest)
    return rows, farthest[rows - 1], n_equal


def cells_of(level: ShardLevel, index_shape: tuple[int, ...]) -> Ints:
    """Position of each entry's inner chunk within its shard, in array axes.

    `index_shape` has the inner chunks along each stored axis. The result is int64,
    shape (n_entries, ndim), host.
    """
    n_entries = int(np.prod(index_shape, dtype=np.int64))
    cells = np.zeros((n_entries, len(index_shape)), np.int64)
    if index_shape:
        at = np.unravel_index(np.arange(n_entries), index_shape)
        for column, axis in zip(at, level.axis_order, strict=True):
            cells[:, axis] = column
    return cells


def holds_elements(layout: ArrayLayout, coordinate: Ints) -> NDArray[np.bool_]:
    """Which inner chunks hold elements of the array: bool, shape (n_chunks,)."""
    inside = np.ones(len(coordinate), bool)
    for d, axis in enumerate(layout.inner_axes):
        inside &= axis.start_of(coordinate[:, d]) < axis.extent
    return inside
