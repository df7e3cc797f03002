"""Written parts of a region: cut into cells, and copied into arrays.

A region is the array, a shard or an inner chunk. A part says which elements of a region
are written, in the region's own coordinates, and which value each of them gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise, product
from math import prod
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.layout import GridAxis
from gpushard.selecting.selection import (
    AxisSelection,
    IndexAxis,
    Ints,
    Orthogonal,
    Selection,
    SliceAxis,
    project,
)

Cell = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """Cross product of the elements written along each axis."""

    axes: tuple[AxisSelection, ...]

    def cells(self, grid: tuple[GridAxis, ...]) -> Iterator[tuple[Cell, Box]]:
        """Cells of `grid` with written elements, in C order, each with its part."""
        columns = [
            list(_cut(part, axis)) for part, axis in zip(self.axes, grid, strict=True)
        ]
        for choice in product(*columns):
            yield tuple(cell for cell, _ in choice), Box(tuple(p for _, p in choice))

    def covers(self, extents: tuple[int, ...]) -> bool:
        """Whether every element of a region of `extents` is written."""
        return all(
            _covers_axis(part, extent)
            for part, extent in zip(self.axes, extents, strict=True)
        )

    def assign(self, region: NDArray[Any], values: NDArray[Any]) -> None:
        """Copy the values into their elements of `region`."""
        if any(isinstance(part, IndexAxis) for part in self.axes):
            pairs = [_indices(part) for part in self.axes]
            inside = np.ix_(*(pair[0] for pair in pairs))
            region[inside] = values[np.ix_(*(pair[1] for pair in pairs))]
            return
        slices = [_slices(part) for part in self.axes if isinstance(part, SliceAxis)]
        region[tuple(s for s, _ in slices)] = values[tuple(s for _, s in slices)]


@dataclass(frozen=True, slots=True)
class Scattered:
    """A list of elements: int64, shape (n_points,), one array per axis."""

    coordinates: tuple[Ints, ...]
    out_index: Ints

    def cells(self, grid: tuple[GridAxis, ...]) -> Iterator[tuple[Cell, Scattered]]:
        """Cells of `grid` with written elements, each with its part."""
        if not len(self.out_index):
            return
        cells = np.stack(
            [
                axis.cell_at(points)
                for points, axis in zip(self.coordinates, grid, strict=True)
            ]
        )
        # The sort is stable, so the last of several values for an element wins, as in
        # NumPy.
        order = np.lexsort(cells[::-1])
        cells = cells[:, order]
        is_first = np.append(True, np.any(cells[:, 1:] != cells[:, :-1], axis=0))
        bounds = np.append(np.flatnonzero(is_first), len(order))
        for start, stop in pairwise(bounds.tolist()):
            cell = tuple(int(i) for i in cells[:, start])
            members = order[start:stop]
            inside = tuple(
                points[members] - axis.start_of(i)
                for points, axis, i in zip(self.coordinates, grid, cell, strict=True)
            )
            yield cell, Scattered(inside, self.out_index[members])

    def covers(self, extents: tuple[int, ...]) -> bool:
        """Whether every element of a region of `extents` is written."""
        n_elements = int(np.prod(extents, dtype=np.int64))
        if len(self.out_index) < n_elements:
            return False
        flat = np.ravel_multi_index(self.coordinates, extents)
        return len(np.unique(flat)) == n_elements

    def assign(self, region: NDArray[Any], values: NDArray[Any]) -> None:
        """Copy the values into their elements of `region`."""
        region[self.coordinates] = values[self.out_index]


@dataclass(frozen=True)
class InPortions:
    """A list of elements of one region, too many for columns over all of them.

    Attributes
    ----------
    portions
        Yields some elements at a time, as often as it is called. The elements of an
        inner chunk come one after the other, and the last of equal ones comes last.
    extents
        Elements of the region along each axis.
    n_elements
        Number of elements of all portions.
    are_distinct
        Whether no element comes twice.
    """

    portions: Callable[[], Iterator[Scattered]]
    extents: tuple[int, ...]
    n_elements: int
    are_distinct: bool = False

    def cells(self, grid: tuple[GridAxis, ...]) -> Iterator[tuple[Cell, Scattered]]:
        """Cells of `grid` with written elements, each with its part."""
        cut = (found for part in self.portions() for found in part.cells(grid))
        for cell, found in groupby(cut, key=itemgetter(0)):
            yield cell, _joined([part for _, part in found])

    def covers(self, extents: tuple[int, ...]) -> bool:
        """Whether every element of the region, of `extents`, is written."""
        return self._n_distinct == prod(extents)

    def assign(self, region: NDArray[Any], values: NDArray[Any]) -> None:
        """Copy the values into their elements of `region`."""
        for part in self.portions():
            part.assign(region, values)

    @cached_property
    def _n_distinct(self) -> int:
        """Number of written elements; if not all are written, possibly too high."""
        if self.are_distinct or self.n_elements < prod(self.extents):
            return self.n_elements
        is_written = np.zeros(self.extents, bool)
        for part in self.portions():
            is_written[part.coordinates] = True
        return int(np.count_nonzero(is_written))


def _joined(parts: list[Scattered]) -> Scattered:
    if len(parts) == 1:
        return parts[0]
    along = zip(*(part.coordinates for part in parts), strict=True)
    coordinates = tuple(np.concatenate(column) for column in along)
    return Scattered(coordinates, np.concatenate([part.out_index for part in parts]))


Part = Box | Scattered | InPortions


def part_of(selection: Selection, values: NDArray[Any]) -> tuple[Part, NDArray[Any]]:
    """Part of the whole array, and the values in the layout that its parts use.

    Parameters
    ----------
    values
        Values of the selection's shape.
    """
    if isinstance(selection, Orthogonal):
        return Box(selection.axes), selection.on_grid(values)
    part = Scattered(selection.coordinates, selection.out_index)
    return part, values.reshape(-1)


def _cut(part: AxisSelection, axis: GridAxis) -> Iterator[tuple[int, AxisSelection]]:
    found = project(part, axis)
    members = found.members
    for i, cell in enumerate(found.cell.tolist()):
        if members is not None:
            inside = slice(int(members.bounds[i]), int(members.bounds[i + 1]))
            yield cell, IndexAxis(members.in_index[inside], members.out_index[inside])
        elif found.length[i] > 0:
            start, length = int(found.in_start[i]), int(found.length[i])
            out_start = int(found.out_start[i])
            yield (
                cell,
                SliceAxis(start, found.step, length, out_start, found.out_step),
            )


def _covers_axis(part: AxisSelection, extent: int) -> bool:
    if isinstance(part, IndexAxis):
        return part.length >= extent and len(np.unique(part.element)) == extent
    return part.length == extent


def _slices(part: SliceAxis) -> tuple[slice, slice]:
    """Slices of the region and of the values; the latter may have a negative step."""
    start, step, length, out_start, out_step, _ = part
    out_stop = out_start + out_step * length
    return (
        slice(start, start + step * length, step),
        slice(out_start, None if out_stop < 0 else out_stop, out_step),
    )


def _indices(part: AxisSelection) -> tuple[Ints, Ints]:
    if isinstance(part, IndexAxis):
        return part.element, part.out_index
    steps = np.arange(part.length, dtype=np.int64)
    return part.start + part.step * steps, part.out_start + part.out_step * steps
