"""A point selection, sorted by shard and inner chunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpushard.layout import ArrayLayout
from gpushard.planning.blocks import (
    ShardBlock,
    SortedChunks,
    blocks_of,
    by_chunk,
    chunk_entries,
)
from gpushard.selecting.selection import Ints, Points


@dataclass(frozen=True, slots=True)
class PointPart(SortedChunks):
    """A point selection sorted by shard and inner chunk.

    Attributes
    ----------
    in_index
        int64, shape (ndim, n_points). Coordinates of each point within its chunk.
    out_index
        int64, shape (n_points,). Where each point lands in the flattened result.
    """

    selection: Points
    in_index: Ints
    out_index: Ints

    @classmethod
    def lay(cls, selection: Points, layout: ArrayLayout) -> PointPart:
        """Part of a plan, from a selection and the layout of its array."""
        n_points, ndim = selection.n_points, layout.ndim
        order, starts = by_chunk(selection.coordinates, n_points, layout)
        # With very many points every column counts, so columns are changed in place if
        # possible.
        in_index = np.empty((ndim, n_points), np.int64)
        cell = np.empty((ndim, len(starts)), np.int64)
        shard = np.empty((ndim, len(starts)), np.int64)
        for d, (inner, outer) in enumerate(
            zip(layout.inner_axes, layout.axes, strict=True)
        ):
            along = in_index[d]
            if order is None:
                along[:] = selection.coordinates[d]
            else:
                # Without "clip" NumPy fills a column of its own first.
                selection.coordinates[d].take(order, out=along, mode="clip")
            cell[d] = inner.cell_at(along[starts])
            shard[d] = outer.cell_at(along[starts])
            if inner.boundaries is None:
                along %= inner.cell
            else:
                along -= inner.start_of(inner.cell_at(along))
        out_index = selection.out_index
        return cls(
            cell,
            shard,
            chunk_entries(cell, shard, layout),
            np.append(starts, n_points).astype(np.int64),
            selection,
            in_index,
            out_index if order is None else out_index[order],
        )

    def blocks(self) -> Iterator[ShardBlock]:
        """All columns, a bounded number of inner chunks at a time."""
        return blocks_of(self.shard_cell, self.entry)
