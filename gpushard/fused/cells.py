"""One axis of a selection -> columns over the cells that it touches."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from gpushard.fused.boxes import GridLanding, cells_at
from gpushard.fused.columns import ORDINAL
from gpushard.layout import ArrayLayout
from gpushard.selecting.selection import Ints


class AxisCells(NamedTuple):
    """Cells that a selection touches along one axis, grouped by shard.

    Attributes
    ----------
    columns
        int64, shape (CELL_ROWS, n_cells). The row `columns.ORDINAL` has this axis'
        contribution to the place in the index, and `boxes.cells_at` describes the rows
        after it.
    bounds
        int64, shape (n_shards + 1,). The cells of the s-th shard along the axis are
        ``bounds[s]:bounds[s + 1]``.
    """

    columns: Ints
    bounds: Ints


def axis_cells(
    landing: GridLanding, chunk_strides: tuple[int, ...], layout: ArrayLayout
) -> list[AxisCells]:
    """Cells of each axis, for an array with one sharding level and a regular grid."""
    found: list[AxisCells] = []
    for axis, sharded in enumerate(landing.part.sharded):
        position = np.arange(landing.part.projections[axis].n_cells)
        columns, nth = cells_at(landing, axis, chunk_strides[axis], position)
        ordinal = sharded.in_index(position)[0][0] * index_stride(layout, axis)
        bounds = np.append(0, sharded.bounds_at(np.arange(sharded.n_shards))[1])
        if nth is not None:
            ordinal, bounds = ordinal[nth], np.searchsorted(nth, bounds)
        columns[ORDINAL] = ordinal
        found.append(AxisCells(columns, bounds))
    return found


def index_stride(layout: ArrayLayout, axis: int) -> int:
    """Number of index entries between neighbours along an axis.

    An unsharded array counts as one shard, in whose index inner chunks are in C order.
    """
    if not layout.levels:
        return prod(later.n_cells for later in layout.axes[axis + 1 :])
    (level,) = layout.levels
    order = level.axis_order
    later = order[order.index(axis) + 1 :]
    return prod(layout.axes[a].cell // level.chunk_shape[a] for a in later)
