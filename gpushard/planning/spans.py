"""Wanted elements of an uncompressed inner chunk -> the byte span that holds them.

If an inner chunk is stored uncompressed, only the bytes from the first to the last
wanted element need to be fetched. For whole rows these are the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpushard.planning.axes import Projected
from gpushard.planning.grid import GridPart
from gpushard.planning.patches import PatchPart
from gpushard.planning.plan import Part
from gpushard.planning.points import PointPart
from gpushard.selecting.patches import entries_of
from gpushard.selecting.projection import Projection
from gpushard.selecting.selection import Ints


def byte_spans(part: Part, position: Ints, strides: Sequence[int]) -> tuple[Ints, Ints]:
    """Half-open byte spans within each inner chunk that hold the wanted elements.

    Parameters
    ----------
    position
        int64, shape (n_rows, n_chunks). Columns of a `ShardBlock` for that part.
    strides
        Bytes between neighbouring elements along each axis of the array; the last entry
        is the item size.

    Returns
    -------
    start, stop
        int64, shape (n_chunks,), read-only. Bytes from the start of the inner chunk.
    """
    *along, itemsize = strides
    if not position.shape[1]:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if isinstance(part, PointPart):
        low, high = _point_span(part, position[0], along)
    elif isinstance(part, PatchPart):
        low, high = _patch_span(part, position[0], along)
    else:
        low, high = _grid_span(part, position, along)
    return low, high + itemsize


def _grid_span(
    part: GridPart, position: Ints, strides: Sequence[int]
) -> tuple[Ints, Ints]:
    low = high = 0
    for projection, at, stride in zip(
        part.projections, position, strides, strict=False
    ):
        first, last = _extremes(projection, at)
        low += first * stride
        high += last * stride
    shape = position.shape[1:]
    return np.broadcast_to(low, shape), np.broadcast_to(high, shape)


def _extremes(projection: Projected, at: Ints) -> tuple[Ints | int, Ints | int]:
    """First and last wanted element within the touched cells at these positions.

    One number stands for all if it is the same in all cells.
    """
    members = projection.members
    if members is None:
        if isinstance(projection, Projection) and projection.n_cells <= len(at):
            # Most slices take the same of each cell.
            columns = projection.in_start, projection.length
            if all((column == column[0]).all() for column in columns):
                first, length = (int(column[0]) for column in columns)
                return first, first + (length - 1) * projection.step
        in_start, length, _ = projection.takings(at)
        return in_start, in_start + (length - 1) * projection.step
    run, starts, nth = between(members.bounds, at)
    return extremes_of(members.in_index[run], starts, nth)


def _point_span(
    part: PointPart, chunk: Ints, strides: Sequence[int]
) -> tuple[Ints, Ints]:
    run, starts, nth = between(part.bounds, chunk)
    offset = np.zeros(run.stop - run.start, np.int64)
    for index, stride in zip(part.in_index, strides, strict=True):
        offset += index[run] * stride
    return extremes_of(offset, starts, nth)


def _patch_span(
    part: PatchPart, chunk: Ints, strides: Sequence[int]
) -> tuple[Ints, Ints]:
    run, starts, nth = between(part.bounds, chunk)
    low = np.zeros(run.stop - run.start, np.int64)
    high = np.zeros_like(low)
    for first, length, stride in zip(part.in_first, part.length, strides, strict=True):
        begin = entries_of(first, run)
        low += begin * stride
        high += (begin + entries_of(length, run) - 1) * stride
    lowest, _ = extremes_of(low, starts, nth)
    _, highest = extremes_of(high, starts, nth)
    return lowest, highest


def between(bounds: Ints, at: Ints) -> tuple[slice, Ints, Ints]:
    """Elements of the cells from the first cell asked for to the last.

    The cells of a block are neighbours, so all other cells can be skipped. Returns the
    range of these elements, where each cell begins in it, and the number of each of
    `at` among these cells.
    """
    low, high = int(at.min()), int(at.max()) + 1
    first = int(bounds[low])
    return slice(first, int(bounds[high])), bounds[low:high] - first, at - low


def extremes_of(values: Ints, starts: Ints, nth: Ints) -> tuple[Ints, Ints]:
    """Least and largest of the values of some cells, by what `between` returns."""
    return (
        np.minimum.reduceat(values, starts)[nth],
        np.maximum.reduceat(values, starts)[nth],
    )
