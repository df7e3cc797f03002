"""A selection over concatenated arrays -> the selection of each array."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from gpushard.selecting.listing import clipped
from gpushard.selecting.selection import (
    AxisSelection,
    IndexAxis,
    Ints,
    Listed,
    Orthogonal,
    ParsedSelection,
    Points,
    Selection,
)


def shares_of(
    wanted: ParsedSelection, axis: int, starts: Ints
) -> Iterator[ParsedSelection | None]:
    """Selection of each array; None for an array without a selected element.

    `wanted` is of all arrays as one. They are joined along `axis`, where each begins,
    and the last one ends, at `starts`: int64, shape (n_arrays + 1,).
    """
    ranges = pairwise(starts.tolist())
    if not isinstance(wanted, Listed):
        for start, stop in ranges:
            yield share_of(wanted, axis, start, stop)
    elif wanted.around is None or wanted.axis == axis:
        along = axis if wanted.around is None else 0
        for listing in clipped(wanted.listing, along, starts):
            yield wanted._replace(listing=listing) if listing else None
    else:
        for start, stop in ranges:
            around = _share_of_axes(wanted.around, axis, start, stop)
            yield wanted._replace(around=around) if around else None


def share_of(
    selection: Selection, axis: int, start: int, stop: int
) -> Selection | None:
    """The part of a selection that lies in elements ``start:stop`` of an axis."""
    if isinstance(selection, Points):
        return _share_of_points(selection, axis, start, stop)
    return _share_of_axes(selection, axis, start, stop)


def _share_of_axes(
    selection: Orthogonal, axis: int, start: int, stop: int
) -> Orthogonal | None:
    taken = _clipped(selection.axes[axis], start, stop)
    if taken is None:
        return None
    axes = (*selection.axes[:axis], taken, *selection.axes[axis + 1 :])
    return selection._replace(axes=axes)


def _share_of_points(
    selection: Points, axis: int, start: int, stop: int
) -> Points | None:
    along = selection.coordinates[axis]
    mine = np.flatnonzero((along >= start) & (along < stop))
    if not len(mine):
        return None
    coordinates = tuple(
        c[mine] - start if d == axis else c[mine]
        for d, c in enumerate(selection.coordinates)
    )
    return Points(coordinates, selection.out_index[mine], selection.shape)


def _clipped(axis: AxisSelection, start: int, stop: int) -> AxisSelection | None:
    """The part of one axis in elements ``start:stop``, counted from `start`."""
    if isinstance(axis, IndexAxis):
        mine = np.flatnonzero((axis.element >= start) & (axis.element < stop))
        if not len(mine):
            return None
        return IndexAxis(axis.element[mine] - start, axis.out_index[mine])
    return axis.within(start, stop)
