"""Written parts of a region: cut into cells, and copied into arrays.

A region is the array, a shard or an inner chunk. A part says which elements of a region
are written, in the region's own coordinates, and which value each of them gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.layout import GridAxis
from gpushard.options import MIB
from gpushard.selecting.numbering import distinct
from gpushard.selecting.portions import CellGroup
from gpushard.selecting.selection import (
    AxisSelection,
    IndexAxis,
    Ints,
    Orthogonal,
    Selection,
    SliceAxis,
)
from gpushard.writing.crossing import crossed_cells
from gpushard.writing.masked import Masked

Cell = tuple[int, ...]

# Values that index arrays name are copied this many bytes at a time.
_COPIED_NBYTES = MIB


@dataclass(frozen=True, slots=True)
class Box:
    """Cross product of the elements written along each axis."""

    axes: tuple[AxisSelection, ...]

    @property
    def columns_nbytes(self) -> int:
        """Memory of its columns."""
        return sum(16 * p.length for p in self.axes if isinstance(p, IndexAxis))

    @property
    def ranges(self) -> tuple[SliceAxis, ...] | None:
        """Its axes, if each is a range of neighbours; None if any is not."""
        axes = tuple(p for p in self.axes if isinstance(p, SliceAxis) and p.step == 1)
        return axes if len(axes) == len(self.axes) else None

    def cells(self, grid: tuple[GridAxis, ...]) -> Iterator[tuple[Cell, Box]]:
        """Cells of `grid` with written elements, in C order, each with its part."""
        for cuts in crossed_cells(self.axes, grid):
            yield tuple(cell for cell, _ in cuts), Box(tuple(p for _, p in cuts))

    def moved(self, origin: Sequence[int]) -> Box:
        """The same elements, counted from `origin`."""
        pairs = zip(self.axes, origin, strict=True)
        return Box(tuple(_moved(part, start) for part, start in pairs))

    def within(self, axis: int, begin: int, end: int) -> Box:
        """Those at ``begin:end`` along an axis, of which there must be some."""
        part: AxisSelection | None = self.axes[axis]
        if isinstance(part, IndexAxis):
            some = (begin <= part.element) & (part.element < end)
            part = IndexAxis(part.element[some], part.out_index[some])
        elif part is not None:
            part = part.within(begin, end)
            part = part and _moved(part, -begin)
        assert part is not None  # noqa: S101 - as the caller promises
        return Box((*self.axes[:axis], part, *self.axes[axis + 1 :]))

    def covers(self, extents: tuple[int, ...]) -> bool:
        """Whether every element of a region of `extents` is written."""
        return all(
            _covers_axis(part, extent)
            for part, extent in zip(self.axes, extents, strict=True)
        )

    def assign(self, region: NDArray[Any], values: NDArray[Any]) -> None:
        """Copy the values into their elements of `region`."""
        if any(isinstance(part, IndexAxis) for part in self.axes):
            for box in self._pieces(region.itemsize):
                to, of = _indices(box.axes)
                region[to] = values[of]
            return
        slices = [_slices(part) for part in self.axes if isinstance(part, SliceAxis)]
        region[tuple(s for s, _ in slices)] = values[tuple(s for _, s in slices)]

    def _pieces(self, itemsize: int) -> Iterator[Box]:
        """Boxes in order, each with few elements unless the other axes have many."""
        listed = [d for d, p in enumerate(self.axes) if isinstance(p, IndexAxis)]
        longest = max(listed, key=lambda d: self.axes[d].length)
        lengths = [part.length for part in self.axes]
        part, n_others = self.axes[longest], prod(lengths) // max(1, lengths[longest])
        assert isinstance(part, IndexAxis)  # noqa: S101 - one of those listed
        for some in _runs(part.length, itemsize * n_others):
            cut = IndexAxis(part.element[some], part.out_index[some])
            yield Box((*self.axes[:longest], cut, *self.axes[longest + 1 :]))


@dataclass(frozen=True, slots=True)
class Scattered:
    """A list of elements: int64, shape (n_points,), one array per axis."""

    coordinates: tuple[Ints, ...]
    out_index: Ints

    @property
    def columns_nbytes(self) -> int:
        """Memory of its columns."""
        return 8 * (len(self.coordinates) + 1) * len(self.out_index)

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

    def moved(self, origin: Sequence[int]) -> Scattered:
        """The same elements, counted from `origin`."""
        pairs = zip(self.coordinates, origin, strict=True)
        return Scattered(tuple(c - start for c, start in pairs), self.out_index)

    def covers(self, extents: tuple[int, ...]) -> bool:
        """Whether every element of a region of `extents` is written."""
        n_elements = int(np.prod(extents, dtype=np.int64))
        if len(self.out_index) < n_elements:
            return False
        flat = np.ravel_multi_index(self.coordinates, extents)
        return len(distinct(flat)) == n_elements

    def assign(self, region: NDArray[Any], values: NDArray[Any]) -> None:
        """Copy the values into their elements of `region`."""
        for some in _runs(len(self.out_index), region.itemsize):
            at = tuple(along[some] for along in self.coordinates)
            region[at] = values[self.out_index[some]]


@dataclass(frozen=True)
class InPortions:
    """Listed elements of a region, too many for columns over all of them.

    Attributes
    ----------
    groups
        Yields the elements by the cells of the region's grid, as often as it is called;
        nothing if no grid cuts the region.
    portions
        Yields some elements at a time, in the array's coordinates, as often as it is
        called. The last of equal ones comes last.
    n_elements
        Number of listed elements of all portions.
    origin
        Where the region begins in the array.
    extents
        Elements of the region along each axis, within the array.
    around
        If the elements are listed along `axis` only, what is taken of the region along
        all axes, with a stand-in for this axis. None for points.
    are_distinct
        Whether no element comes twice.
    """

    groups: Callable[[], Iterator[CellGroup]]
    portions: Callable[[], Iterator[Selection]]
    n_elements: int
    origin: tuple[int, ...]
    extents: tuple[int, ...]
    around: tuple[AxisSelection, ...] | None = None
    axis: int = 0
    are_distinct: bool = False

    @property
    def columns_nbytes(self) -> int:
        """Memory of its columns, of which none are kept."""
        return 0

    def cells(self, grid: tuple[GridAxis, ...]) -> Iterator[tuple[Cell, Part]]:
        """Cells of `grid` with written elements, each with its part."""
        for group in self.groups():
            if group.is_split:
                yield from self._split(group, grid)
            else:
                for portion in group.portions():
                    yield from self._part(portion).cells(grid)

    def covers(self, extents: tuple[int, ...]) -> bool:
        """Whether every element of the region, of `extents`, is written."""
        if self.around is not None:
            others = self._with(SliceAxis(0, 1, extents[self.axis]))
            if not others.covers(extents):
                return False
        return self._n_distinct == self._n_listable

    def assign(self, region: NDArray[Any], values: NDArray[Any]) -> None:
        """Copy the values into their elements of `region`."""
        for portion in self.portions():
            self._part(portion).assign(region, values)

    def _split(
        self, group: CellGroup, grid: tuple[GridAxis, ...]
    ) -> Iterator[tuple[Cell, Part]]:
        """Cells of a group whose elements share a cell along the listed axes."""
        if self.around is None:
            yield group.cell, self._inside(group, grid, group.cell, None)
            return
        (at,) = group.cell
        start = int(grid[self.axis].start_of(at))
        for cell, box in self._with(SliceAxis(start, 1, 1)).cells(grid):
            yield cell, self._inside(group, grid, cell, box.axes)

    def _inside(
        self,
        group: CellGroup,
        grid: tuple[GridAxis, ...],
        cell: Cell,
        around: tuple[AxisSelection, ...] | None,
    ) -> InPortions:
        """The elements of a group in one cell."""
        starts = [int(axis.start_of(i)) for axis, i in zip(grid, cell, strict=True)]
        ends = [
            start + int(axis.length_of(i))
            for start, axis, i in zip(starts, grid, cell, strict=True)
        ]
        extents = (
            min(end, most) - start
            for start, end, most in zip(starts, ends, self.extents, strict=True)
        )
        return replace(
            self,
            groups=group.finer,
            portions=group.portions,
            n_elements=group.n_elements,
            origin=tuple(map(sum, zip(self.origin, starts, strict=True))),
            extents=tuple(extents),
            around=around,
        )

    def _part(self, portion: Selection) -> Box | Scattered:
        """A portion, in the coordinates of the region."""
        if isinstance(portion, Orthogonal):
            taken = _listed_axis(portion, self.axis)
            inside = taken.element - self.origin[self.axis]
            return self._with(IndexAxis(inside, taken.out_index))
        return Scattered(portion.coordinates, portion.out_index).moved(self.origin)

    def _with(self, listed: AxisSelection) -> Box:
        """What is taken of the region, with `listed` along the listed axis."""
        around = self.around or ()
        return Box((*around[: self.axis], listed, *around[self.axis + 1 :]))

    @cached_property
    def _n_distinct(self) -> int:
        """Number of listed elements; if not all are listed, possibly too high."""
        if self.are_distinct or self.n_elements < self._n_listable:
            return self.n_elements
        return _n_distinct(self.groups, self.portions, self.axis)

    @property
    def _n_listable(self) -> int:
        """Number of elements of the region along the listed axes."""
        return prod(self.extents) if self.around is None else self.extents[self.axis]


def _n_distinct(
    groups: Callable[[], Iterator[CellGroup]],
    portions: Callable[[], Iterator[Selection]],
    axis: int,
) -> int:
    """Number of different listed elements, from groups that share none."""
    n = 0
    for group in groups():
        if group.is_split:
            n += _n_distinct(group.finer, group.portions, axis)
        else:
            (portion,) = group.portions()
            number = _numbers(portion, axis, *_bounds(portion, axis))
            number.sort()
            n += 1 + int(np.count_nonzero(number[1:] != number[:-1]))
    return n or _n_marked(portions, axis)


def _n_marked(portions: Callable[[], Iterator[Selection]], axis: int) -> int:
    """Number of different elements that portions list in one inner chunk."""
    bounds = [_bounds(portion, axis) for portion in portions()]
    low = np.min([low for low, _ in bounds], axis=0)
    high = np.max([high for _, high in bounds], axis=0)
    is_listed = np.zeros(prod((high - low + 1).tolist()), bool)
    for portion in portions():
        is_listed[_numbers(portion, axis, low, high)] = True
    return int(np.count_nonzero(is_listed))


def _listed(portion: Selection, axis: int) -> tuple[Ints, ...]:
    """Coordinates of the elements along the listed axes."""
    if isinstance(portion, Orthogonal):
        return (_listed_axis(portion, axis).element,)
    return portion.coordinates


def _listed_axis(portion: Orthogonal, axis: int) -> IndexAxis:
    taken = portion.axes[axis]
    assert isinstance(taken, IndexAxis)  # noqa: S101 - the axis of a listing
    return taken


def _bounds(portion: Selection, axis: int) -> tuple[Ints, Ints]:
    """Lowest and highest coordinate along each listed axis."""
    listed = _listed(portion, axis)
    return np.array([c.min() for c in listed]), np.array([c.max() for c in listed])


def _numbers(portion: Selection, axis: int, low: Ints, high: Ints) -> Ints:
    """Number of each element among those from `low` to `high`."""
    inside = tuple(c - n for c, n in zip(_listed(portion, axis), low, strict=True))
    number: Any = np.ravel_multi_index(inside, (high - low + 1).tolist())
    return number


Part = Box | Scattered | InPortions | Masked


def _runs(n: int, each_nbytes: int) -> Iterator[slice]:
    """Slices of `n` elements of so many bytes, which are copied one after the other."""
    step = max(1, _COPIED_NBYTES // max(1, each_nbytes))
    return (slice(first, first + step) for first in range(0, n, step))


def part_of(selection: Selection, values: NDArray[Any]) -> tuple[Part, NDArray[Any]]:
    """Part of the whole array, and the values in the layout that its parts use."""
    if isinstance(selection, Orthogonal):
        return Box(selection.axes), selection.on_grid(values)
    if not selection.coordinates and len(selection.out_index):
        # Without axes, every point is the only element.
        return Box(()), values.reshape(-1)[-1:].reshape(())
    part = Scattered(selection.coordinates, selection.out_index)
    return part, values.reshape(-1)


def _moved(part: AxisSelection, start: int) -> AxisSelection:
    """Elements along an axis, counted from `start`."""
    if isinstance(part, IndexAxis):
        return IndexAxis(part.element - start, part.out_index)
    return part._replace(start=part.start - start)


def _covers_axis(part: AxisSelection, extent: int) -> bool:
    if isinstance(part, IndexAxis):
        return part.length >= extent and len(distinct(part.element)) == extent
    return part.length == extent


def _slices(part: SliceAxis) -> tuple[slice, slice]:
    """Slices of the region and of the values; the latter may have a negative step."""
    stop = part.start + part.step * part.length
    return slice(part.start, stop, part.step), part.landing


def _indices(
    axes: tuple[AxisSelection, ...],
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Indices of the region and of the values, slices where slices are taken."""
    listed = [part for part in axes if isinstance(part, IndexAxis)]
    # Wherever NumPy puts the axes of index arrays, it does so on both sides.
    crossed = zip(
        np.ix_(*(part.element for part in listed)),
        np.ix_(*(part.out_index for part in listed)),
        strict=True,
    )
    pairs = [_slices(p) if isinstance(p, SliceAxis) else next(crossed) for p in axes]
    return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
