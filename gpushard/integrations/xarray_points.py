"""xarray's points, which are listed or picked from a grid around them.

Of stations, each with a time series, a grid would be of all their rows and columns, so
that maps are decoded to give a list. But a regridded map is as good as a grid itself,
and its elements lie in rows, which takes an eighth of the time of a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.array import Array
from gpushard.errors import GpushardError
from gpushard.layout import GridAxis
from gpushard.reading.surrounded import is_surrounded
from gpushard.selecting import expressions, numbering

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
    if array.device == "cpu":
        shape = np.broadcast_shapes(*(indices.shape for indices in listed))
        distinct = [_without_repetition(indices) for indices in listed]
        if _is_grid_better(array, distinct, prod(shape)):
            # Damage elsewhere in the grid is no matter of the points.
            with suppress(GpushardError):
                return _picked(array, distinct, shape)
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


def _without_repetition(indices: NDArray[Any]) -> NDArray[Any]:
    """One of each of several equal parts: xarray hands out what it has broadcast."""
    for d, n in enumerate(indices.shape):
        if n < 2:
            continue
        first, last = indices.take([0], d), indices.take([-1], d)
        if np.array_equal(first, last) and bool((indices == first).all()):
            indices = first
    return indices


def _picked(array: Array, distinct: Arrays, shape: tuple[int, ...]) -> Any:
    """The points, from a grid of their elements along each axis."""
    along: list[Any] = []
    nth: list[NDArray[Any]] = []
    for indices, n in zip(distinct, array.shape, strict=True):
        taken = _as_slice(_different(indices, n))
        along.append(taken)
        nth.append(np.broadcast_to(_numbers_in(taken, indices), shape))
    grid = array.read(expressions.orthogonal(tuple(along), array.shape))
    return grid[tuple(nth)]


def _different(numbers: NDArray[Any], end: int) -> NDArray[Any]:
    """The different ones of `numbers`, which are from 0 on and below `end`, ascending.

    Without sorting, unless a mark for each possible number takes more memory.
    """
    if end > numbers.nbytes:
        return numbering.distinct(numbers)
    is_there = np.zeros(end, bool)
    is_there[numbers] = True
    return np.flatnonzero(is_there)


def _as_slice(elements: NDArray[Any]) -> slice | NDArray[Any]:
    """Ascending elements as a slice, if they lie at one distance."""
    first, last = int(elements[0]), int(elements[-1])
    step = int(elements[1]) - first if len(elements) > 1 else 1
    is_even = bool((np.diff(elements) == step).all())
    return slice(first, last + 1, step) if is_even else elements


def _numbers_in(
    taken: slice | NDArray[Any], indices: NDArray[Any]
) -> NDArray[np.integer[Any]]:
    """Which of the elements taken along an axis each of `indices` is."""
    if isinstance(taken, slice):  # a search takes ten times as long
        return (indices - taken.start) // taken.step
    return np.searchsorted(taken, indices)


def _is_grid_better(array: Array, distinct: Arrays, n_points: int) -> bool:
    """Whether points are picked from a grid here, and not from a box by the read.

    A box is as good a grid, and takes no look at what is in it. But points that repeat
    what they take along some axes are more than is listed along any of them.
    """
    repeats = all(indices.size < n_points for indices in distinct)
    if not repeats and is_surrounded(array.source, n_points):
        return False
    return _is_quicker_as_grid(array, distinct, n_points)


def _is_quicker_as_grid(array: Array, distinct: Arrays, n_points: int) -> bool:
    """Whether reading a grid around points, and picking them, takes less time.

    The grid must fit the memory limit.
    """
    source = array.source
    axes = source.layout.inner_axes
    along = zip(distinct, array.shape, strict=True)
    n_grid = prod(len(_different(indices, n)) for indices, n in along)
    if n_grid * array.dtype.itemsize > source.options.memory_limit:
        return False
    more_ns = n_grid * _GRID_NS - n_points * _POINT_NS
    if more_ns >= 0:  # the grid has no fewer inner chunks
        return False
    n_cells, n_grid_cells = _counts(distinct, axes)
    cell_ns = prod(axis.longest for axis in axes) * array.dtype.itemsize * _BYTE_NS
    return more_ns + (n_grid_cells - n_cells) * cell_ns < 0


def _counts(distinct: Arrays, axes: Sequence[GridAxis]) -> tuple[int, int]:
    """Numbers of cells of points, and of their grid.

    Arrays that vary where no other does count by themselves: to combine a year of hours
    with a map would list all points.
    """
    n_cells = n_grid_cells = n_numbers = 1
    number = np.zeros(1, np.int64)
    for indices, axis in zip(distinct, axes, strict=True):
        cell = axis.cell_at(indices)
        n_own_cells = len(_different(cell, axis.n_cells))
        n_grid_cells *= n_own_cells
        if any(_vary_together(indices, o) for o in distinct if o is not indices):
            number = number * axis.n_cells + cell
            n_numbers *= axis.n_cells
        else:
            n_cells *= n_own_cells
    return n_cells * len(_different(number, n_numbers)), n_grid_cells


def _vary_together(one: NDArray[Any], other: NDArray[Any]) -> bool:
    pairs = zip(one.shape[::-1], other.shape[::-1], strict=False)
    return any(m != 1 and n != 1 for m, n in pairs)
