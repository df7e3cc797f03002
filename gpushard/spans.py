"""Wanted elements of an uncompressed inner chunk -> the byte span that holds them.

Where an inner chunk is stored as its plain elements, only the bytes between the first
and the last wanted element need to be fetched: for whole rows these are the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpushard.grid import GridPart
from gpushard.plan import Part
from gpushard.points import PointPart
from gpushard.selection import Ints, Projection


def byte_spans(part: Part, position: Ints, strides: Sequence[int]) -> tuple[Ints, Ints]:
    """Half-open byte spans within each inner chunk that hold the wanted elements.

    Parameters
    ----------
    part
        The part of a plan that wants them.
    position
        int64, shape (n_rows, n_chunks). Columns of a `ShardBlock` for that part.
    strides
        Bytes between neighbours along each axis of the array; the last entry is the
        item size.

    Returns
    -------
    start, stop
        int64, shape (n_chunks,). Bytes from the start of the inner chunk.
    """
    *along, itemsize = strides
    if isinstance(part, PointPart):
        low, high = _point_span(part, position[0], along)
    else:
        low, high = _grid_span(part, position, along)
    return low, high + itemsize


def _grid_span(
    part: GridPart, position: Ints, strides: Sequence[int]
) -> tuple[Ints, Ints]:
    low = np.zeros(position.shape[1], np.int64)
    high = np.zeros(position.shape[1], np.int64)
    for projection, at, stride in zip(
        part.projections, position, strides, strict=False
    ):
        first, last = _extremes(projection)
        low += first[at] * stride
        high += last[at] * stride
    return low, high


def _extremes(projection: Projection) -> tuple[Ints, Ints]:
    """First and last wanted element within each touched cell."""
    members = projection.members
    if members is None:
        span = (projection.length - 1) * projection.step
        return projection.in_start, projection.in_start + span
    starts = members.bounds[:-1]
    return (
        np.minimum.reduceat(members.in_index, starts),
        np.maximum.reduceat(members.in_index, starts),
    )


def _point_span(
    part: PointPart, chunk: Ints, strides: Sequence[int]
) -> tuple[Ints, Ints]:
    offset = np.zeros(len(part.out_index), np.int64)
    for index, stride in zip(part.in_index, strides, strict=True):
        offset += index * stride
    starts = part.bounds[:-1]
    low = np.minimum.reduceat(offset, starts)
    high = np.maximum.reduceat(offset, starts)
    return low[chunk], high[chunk]
