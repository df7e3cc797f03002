"""A stored object -> what lies where in it, as figures and as bins to draw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.inspection.columns import ByteUse, StoredChunks, byte_use, holds_elements
from gpushard.inspection.contents import Contents, contents_of, whole_contents
from gpushard.inspection.findings import Finding
from gpushard.inspection.room import at_once, most_entries, refuse_large_index
from gpushard.layout import ArrayLayout, Coordinate
from gpushard.planning.index import MISSING, PRESENT
from gpushard.selecting.selection import Ints
from gpushard.source import Source
from gpushard.writing.order import payload_order

# Objects that are looked for in parallel, to find a stored one.
_AT_ONCE = 256

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ShardMap:
    """What lies where in a stored object.

    Attributes
    ----------
    chunks, use
        Its contents, and which of its bytes are used.
    grid_shape, origin
        Inner chunks along each axis of the shard, and the coordinate of the first.
    order_name
        Order in which inner chunks lie: "morton", "c", "f" or "other"; None if the
        shard is nested or has fewer than three.
    """

    key: str
    chunks: StoredChunks
    use: ByteUse
    decoded_nbytes: int
    grid_shape: tuple[int, ...]
    origin: tuple[int, ...]
    order_name: str | None
    findings: tuple[Finding, ...]

    def facts(self, layout: ArrayLayout) -> dict[str, Any]:
        """Figures, for text and JSON."""
        chunks, use = self.chunks, self.use
        n_stored, payload_nbytes = len(chunks.stored), chunks.payload_nbytes
        sizes = (chunks.stop - chunks.start)[chunks.stored]
        decoded = self.decoded_nbytes * n_stored
        return {
            "shard": self.key,
            "nbytes": chunks.end,
            "index_nbytes": chunks.index_nbytes,
            "payload_nbytes": payload_nbytes,
            "unused_nbytes": use.unused_nbytes,
            "n_gaps": len(use.gap_start),
            "n_stored": n_stored,
            "n_missing": chunks.n_missing(layout),
            "n_beyond_the_array": int(
                np.count_nonzero(~holds_elements(layout, chunks.coordinate))
            ),
            "n_overlapping": len(use.overlapping),
            "n_shared": use.n_shared,
            "order": self.order_name,
            "ratio": decoded / payload_nbytes if payload_nbytes else None,
            "smallest_nbytes": int(sizes.min()) if n_stored else None,
            "largest_nbytes": int(sizes.max()) if n_stored else None,
            "findings": [finding.as_dict() for finding in self.findings],
        }


def map_shard(source: Source, coordinate: tuple[int, ...]) -> ShardMap | Contents:
    """Map of the object at `coordinate`; its contents if nothing can be mapped.

    Raises `LimitError` if its indexes, or the whole object if it has to be fetched
    whole, exceed the memory limit, and `StoreError` if the store failed.
    """
    refuse_large_index(source)
    (contents,) = contents_of(source, [coordinate], most_entries(source))
    chunks = contents.chunks
    if chunks is not None and chunks.object_nbytes is None:
        # The whole object shows its size, and where an index at its end lies.
        whole = whole_contents(source, coordinate)
        contents = contents if whole.chunks is None else whole
        chunks = contents.chunks
    if chunks is None:
        return contents
    layout = source.layout
    shape = source.shape_of(coordinate)
    grid_shape, origin = (1,) * layout.ndim, coordinate
    if layout.levels:
        places = list(zip(layout.axes, coordinate, shape, strict=True))
        grid_shape = tuple(int(axis.length_of(at)) // n for axis, at, n in places)
        origin = tuple(int(axis.start_of(at)) // n for axis, at, n in places)
    use = byte_use(chunks)
    order = None
    if len(layout.levels) == 1:
        index_shape = source.chunks_per_shard(coordinate, 0)
        order = order_name(use.order, index_shape)
    return ShardMap(
        key=contents.key,
        chunks=chunks,
        use=use,
        decoded_nbytes=prod(shape) * layout.dtype.itemsize,
        grid_shape=grid_shape,
        origin=origin,
        order_name=order,
        findings=contents.findings,
    )


def first_stored(
    source: Source, coordinates: Iterator[Coordinate]
) -> Coordinate | None:
    """The first of some coordinates at which an object is stored.

    Raises `StoreError` if the store failed.
    """
    refuse_large_index(source)
    n_at_once = 1  # usually the first one is stored
    while some := list(islice(coordinates, n_at_once)):
        for contents in contents_of(source, some, most_entries(source)):
            if contents.exists:
                return contents.coordinate
        n_at_once = at_once(source, min(4 * n_at_once, _AT_ONCE))
    return None


def order_name(order: Ints, index_shape: tuple[int, ...]) -> str | None:
    """Name of the order in which the stored entries of an index lie."""
    if len(order) < 3:
        return None
    is_stored = np.zeros(prod(index_shape), bool)
    is_stored[order] = True
    entries = np.arange(len(is_stored)).reshape(index_shape)
    # In zarr-python's Morton order the first axis has the lowest bits.
    of_zarr = entries.T.reshape(-1)[payload_order(index_shape[::-1], "morton")]
    candidates = (
        ("c", entries.reshape(-1)),
        ("f", entries.ravel(order="F")),
        ("morton", payload_order(index_shape, "morton")),
        ("morton", of_zarr),
    )
    for name, laid in candidates:
        if np.array_equal(laid[is_stored[laid]], order):
            return name
    return "other"


@dataclass(frozen=True, slots=True)
class ByteBins:
    """The bytes of an object in equal bins.

    Attributes
    ----------
    edges
        float64, shape (n_bins + 1,). Where bins begin and end.
    index, unused
        float64, shape (n_bins,). Part of each bin that indexes use, and that nothing
        uses; inner chunks use the rest.
    n_chunks
        int64, shape (n_bins,). Inner chunks that begin in each bin.
    """

    edges: Floats
    index: Floats
    unused: Floats
    n_chunks: Ints


def byte_bins(shard: ShardMap, n_bins: int) -> ByteBins:
    """Bins over the bytes of an object, `n_bins` of them."""
    chunks, use = shard.chunks, shard.use
    edges = np.linspace(0, chunks.end, n_bins + 1)
    width = np.maximum(np.diff(edges), 1e-9)
    by_start = np.argsort(chunks.index_start)
    index = _covered(edges, chunks.index_start[by_start], chunks.index_stop[by_start])
    unused = _covered(edges, use.gap_start, use.gap_stop)
    n_chunks, _ = np.histogram(chunks.start[chunks.stored], edges)
    return ByteBins(edges, index / width, unused / width, n_chunks)


def _covered(edges: Floats, start: Ints, stop: Ints) -> Floats:
    """Bytes of each bin that lie in disjoint ascending ranges."""
    if not len(start):
        return np.zeros(len(edges) - 1)
    at = np.stack([start, stop], axis=1).reshape(-1).astype(np.float64)
    total = np.cumsum(stop - start)
    so_far = np.stack([np.append(0, total[:-1]), total], axis=1).reshape(-1)
    return np.diff(np.interp(edges, at, so_far.astype(np.float64)))


@dataclass(frozen=True, slots=True)
class GridBins:
    """A shard's inner chunks in a picture: rows are all axes but the last, in C order.

    Attributes
    ----------
    per_row, per_column
        Inner chunks per cell along the picture's axes.
    n_chunks, n_stored, n_missing, n_damaged, n_beyond
        int64, shape (n_rows, n_columns). Inner chunks of each cell: all, and of each
        kind; those beyond the array's edge count only as such.
    nbytes
        int64, same shape. Stored bytes of each cell.
    row
        int64, same shape. A row of the columns whose inner chunk is in the cell, or -1.
    """

    per_row: int
    per_column: int
    n_chunks: Ints
    n_stored: Ints
    n_missing: Ints
    n_damaged: Ints
    n_beyond: Ints
    nbytes: Ints
    row: Ints


def grid_bins(
    shard: ShardMap, layout: ArrayLayout, most_rows: int, most_columns: int
) -> GridBins:
    """Picture of at most `most_rows` by `most_columns` cells of a shard's grid."""
    chunks = shard.chunks
    shape = shard.grid_shape or (1,)
    n_rows, n_columns = prod(shape[:-1]), shape[-1]
    per_row, per_column = -(-n_rows // most_rows), -(-n_columns // most_columns)
    cells = (-(-n_rows // per_row), -(-n_columns // per_column))
    lead, last = _picture_place(shard)
    cell = (lead // per_row) * cells[1] + last // per_column
    n_cells = cells[0] * cells[1]

    def count(marked: NDArray[np.bool_]) -> Ints:
        return np.bincount(cell[marked], minlength=n_cells).reshape(cells)

    inside = holds_elements(layout, chunks.coordinate)
    stored, missing = chunks.state == PRESENT, chunks.state == MISSING
    nbytes = np.bincount(
        cell, weights=chunks.stop - chunks.start, minlength=n_cells
    ).astype(np.int64)
    row = np.full(n_cells, -1, np.int64)
    row[cell[::-1]] = np.arange(len(cell))[::-1]
    return GridBins(
        per_row,
        per_column,
        n_chunks=count(np.ones(len(cell), bool)),
        n_stored=count(stored),
        n_missing=count(missing & inside),
        n_damaged=count(~stored & ~missing),
        n_beyond=count(~stored & ~inside),
        nbytes=nbytes.reshape(cells),
        row=row.reshape(cells),
    )


def _picture_place(shard: ShardMap) -> tuple[Ints, Ints]:
    """Row and column of each inner chunk, before inner chunks are joined to cells."""
    shape, chunks = shard.grid_shape, shard.chunks
    if not shape:
        zero = np.zeros(len(chunks.state), np.int64)
        return zero, zero
    within = chunks.coordinate - np.array(shard.origin, np.int64)
    lead = np.zeros(len(within), np.int64)
    for d, n in enumerate(shape[:-1]):
        lead = lead * n + within[:, d]
    return lead, within[:, -1]
