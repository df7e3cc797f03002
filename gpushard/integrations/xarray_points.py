"""xarray's points, which are listed or picked from a grid around them.

Of stations, each with a time series, a grid would be of all their rows and columns, so
that maps are decoded to give a list. But a regridded map is as good as a grid itself,
and its elements lie in rows, which takes an eighth of the time of a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.array import Array
from gpushard.layout import GridAxis
from gpushard.selecting import expressions

# Nanoseconds for an element as one of many points, or of a grid that it is picked from;
# and for a byte of an inner chunk: docs/decisions/2026-11-27-points-from-grids.md.
_POINT_NS, _GRID_NS, _BYTE_NS = 120, 15, 1

Arrays = Sequence[NDArray[Any]]
"""An integer array for each axis; they broadcast against one another."""


def read_points(array: Array, key: Sequence[Any]) -> Any:
    """Elements of `array` at points, by whichever way takes less time.

    Parameters
    ----------
    key
        For each axis an integer array or a slice. The arrays broadcast against one
        another; the axes of slices follow theirs in the result.
    """
    listed = _all_listed(key, array.shape)
    if array.device == "cpu" and _is_quicker_as_grid(array, listed):
        return _picked(array, listed)
    return array.read(expressions.points(tuple(listed), array.shape))


def _all_listed(key: Sequence[Any], shape: Sequence[int]) -> Arrays:
    """The key with slices as arrays."""
    n_slices = sum(isinstance(k, slice) for k in key)
    listed: list[NDArray[Any]] = []
    nth = 0
    for k, n in zip(key, shape, strict=True):
        if isinstance(k, slice):
            nth += 1
            elements = np.arange(*k.indices(n))
            listed.append(elements.reshape((-1,) + (1,) * (n_slices - nth)))
        else:
            listed.append(k.reshape(k.shape + (1,) * n_slices))
    return listed


def _picked(array: Array, listed: Arrays) -> Any:
    """The points, from a grid of their elements along each axis."""
    along: list[Any] = []
    nth: list[NDArray[Any]] = []
    for indices in listed:
        elements, places = np.unique(indices, return_inverse=True)
        along.append(_as_slice(elements))
        nth.append(places.reshape(indices.shape))
    grid = array.read(expressions.orthogonal(tuple(along), array.shape))
    return grid[tuple(nth)]


def _as_slice(elements: NDArray[Any]) -> slice | NDArray[Any]:
    """Ascending elements as a slice, if they lie at one distance."""
    first, last = int(elements[0]), int(elements[-1])
    step = int(elements[1]) - first if len(elements) > 1 else 1
    is_even = bool((np.diff(elements) == step).all())
    return slice(first, last + 1, step) if is_even else elements


def _is_quicker_as_grid(array: Array, listed: Arrays) -> bool:
    """Whether reading a grid around points, and picking them, takes less time.

    The grid must fit the memory limit.
    """
    source = array.source
    axes = source.layout.inner_axes
    n_points, n_cells, n_grid, n_grid_cells = _counts(listed, axes)
    if n_grid * array.dtype.itemsize > source.options.memory_limit:
        return False
    cell_ns = prod(axis.longest for axis in axes) * array.dtype.itemsize * _BYTE_NS
    as_points = n_points * _POINT_NS + n_cells * cell_ns
    return n_grid * _GRID_NS + n_grid_cells * cell_ns < as_points


def _counts(listed: Arrays, axes: Sequence[GridAxis]) -> tuple[int, int, int, int]:
    """Numbers of points, of their cells, and of elements and cells of their grid.

    Arrays that vary where no other does count by themselves: to combine a year of hours
    with a map would list all points.
    """
    n_points = n_cells = n_grid = n_grid_cells = 1
    number = np.zeros(1, np.int64)
    for indices, axis in zip(listed, axes, strict=True):
        cell = axis.cell_at(indices)
        n_own_cells = len(np.unique(cell))
        n_grid *= len(np.unique(indices))
        n_grid_cells *= n_own_cells
        if any(_vary_together(indices, o) for o in listed if o is not indices):
            number = number * axis.n_cells + cell
        else:
            n_points *= indices.size
            n_cells *= n_own_cells
    n_together = len(np.unique(number))
    return n_points * number.size, n_cells * n_together, n_grid, n_grid_cells


def _vary_together(one: NDArray[Any], other: NDArray[Any]) -> bool:
    pairs = zip(one.shape[::-1], other.shape[::-1], strict=False)
    return any(m != 1 and n != 1 for m, n in pairs)
