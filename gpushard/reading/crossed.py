"""Cross products of index arrays -> points, where inner chunks give few elements each.

The loops take one index array, or points, which are a list for each inner chunk. Other
cross products are left to Python, which goes to the inner chunks one by one.
"""

from __future__ import annotations

from math import prod

import numpy as np

from gpushard.layout import GridAxis
from gpushard.selecting.selection import (
    AxisSelection,
    IndexAxis,
    Ints,
    Orthogonal,
    Points,
    Wanted,
)
from gpushard.source import Source

# Elements of an inner chunk from which on it takes longer to list them than to go to
# the inner chunk: 0.12 us for each, and 60 us.
_MANY_PER_CHUNK = 256
# Memory of the columns of a point, of which all points may take this part of the limit.
_POINT_NBYTES, _LIMIT_SHARE = 100, 16


def listed_as_points(source: Source, selection: Wanted) -> Wanted:
    """The selection, as points if that takes less time and little memory."""
    if not isinstance(selection, Orthogonal):
        return selection
    if sum([isinstance(axis, IndexAxis) for axis in selection.axes]) <= 1:
        return selection
    n_elements = prod(selection.grid_shape)
    axes = zip(selection.axes, source.layout.inner_axes, strict=True)
    n_chunks = prod(_n_touched(taken, cells) for taken, cells in axes)
    is_little = n_elements * _POINT_NBYTES * _LIMIT_SHARE <= source.options.memory_limit
    if not is_little or n_elements > _MANY_PER_CHUNK * n_chunks:
        return selection
    return points_of(selection)


def _n_touched(taken: AxisSelection, cells: GridAxis) -> int:
    """Number of inner chunks that are touched along an axis, at most."""
    if isinstance(taken, IndexAxis):
        return len(np.unique(cells.cell_at(taken.element)))
    if not taken.length:
        return 0
    reach = int(cells.cell_at(taken.last)) - int(cells.cell_at(taken.start)) + 1
    return min(taken.length, reach)


def points_of(selection: Orthogonal) -> Points:
    """The elements of a cross product, one by one, in the order of its result."""
    elements: list[Ints] = []
    out_index = np.zeros((1,) * len(selection.axes), np.int64)
    grid_shape = selection.grid_shape
    for d, taken in enumerate(selection.axes):
        shape = [1] * len(grid_shape)
        shape[d] = -1
        if isinstance(taken, IndexAxis):
            element, out = taken
        else:
            nth = np.arange(taken.length)
            element = taken.start + taken.step * nth
            out = taken.out_start + taken.out_step * nth
        elements.append(element.reshape(shape))
        out_index = out_index + (out * prod(grid_shape[d + 1 :])).reshape(shape)
    coordinates = [np.broadcast_to(e, grid_shape).ravel() for e in elements]
    return Points(tuple(coordinates), out_index.ravel(), selection.shape)
