"""One axis of a selection -> columns over the cells that it touches."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from gpushard.fused.boxes import Landing, runs
from gpushard.fused.columns import CELL_ROWS, INNER, LENGTH, LIST, ORDINAL, OUTER
from gpushard.layout import ArrayLayout
from gpushard.selecting.selection import Ints


class AxisCells(NamedTuple):
    """Cells that a selection touches along one axis, grouped by shard.

    Attributes
    ----------
    columns
        int64, shape (CELL_ROWS, n_cells). The rows are: this axis' contribution to the
        place in the index; the first wanted element's place in the inner chunk and in
        the output, in bytes; the number of wanted elements; the address of a list of
        these (`boxes.Lists`), or 0. If an index takes elements and there is no list,
        each run of them is a separate cell.
    bounds
        int64, shape (n_shards + 1,). The cells of the s-th shard along the axis are
        ``bounds[s]:bounds[s + 1]``.
    """

    columns: Ints
    bounds: Ints


def axis_cells(
    landing: Landing, chunk_strides: tuple[int, ...], layout: ArrayLayout
) -> list[AxisCells]:
    """Cells of each axis, for an array with one sharding level and a regular grid."""
    return [
        _cells_of(landing, axis, chunk_strides[axis], index_stride(layout, axis))
        for axis in range(layout.ndim)
    ]


def index_stride(layout: ArrayLayout, axis: int) -> int:
    """Number of index entries between neighbours along an axis."""
    (level,) = layout.levels
    order = level.axis_order
    later = order[order.index(axis) + 1 :]
    return prod(layout.axes[a].cell // level.chunk_shape[a] for a in later)


def _cells_of(
    landing: Landing, axis: int, chunk_stride: int, index_stride: int
) -> AxisCells:
    projection = landing.part.projections[axis]
    sharded = landing.part.sharded[axis]
    out_stride = landing.strides[axis]
    position = np.arange(projection.n_cells)
    ordinal = sharded.in_index(position)[0][0] * index_stride
    shard_bounds = np.append(0, sharded.bounds_at(np.arange(sharded.n_shards))[1])
    members = projection.members
    lists = landing.lists
    if members is not None and lists is None:
        cell = np.repeat(np.arange(len(ordinal)), np.diff(members.bounds))
        starts, length = runs(cell, members.in_index, members.out_index)
        columns = np.zeros((CELL_ROWS, len(starts)), np.int64)
        columns[ORDINAL] = ordinal[cell[starts]]
        columns[INNER] = members.in_index[starts] * chunk_stride
        columns[OUTER] = members.out_index[starts] * out_stride
        columns[LENGTH] = length
        bounds = np.searchsorted(starts, members.bounds)
        return AxisCells(columns, bounds[shard_bounds])
    columns = np.zeros((CELL_ROWS, len(ordinal)), np.int64)
    columns[ORDINAL] = ordinal
    if members is not None and lists is not None:
        columns[INNER] = lists.first * chunk_stride
        columns[LENGTH], columns[LIST] = lists.reach, lists.address
        return AxisCells(columns, shard_bounds)
    in_start, length, out_start = projection.takings(position)
    columns[INNER] = in_start * chunk_stride
    if projection.out_step < 0:
        out_start = landing.extents[axis] - 1 - out_start
    columns[OUTER] = out_start * out_stride
    columns[LENGTH] = length
    return AxisCells(columns, shard_bounds)
