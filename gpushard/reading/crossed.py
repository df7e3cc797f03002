"""Cross products of index arrays -> points, or a grid around them to pick from.

The loops take one index array, or points, which are a list for each inner chunk. Other
cross products would be left to Python, which goes to the inner chunks one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from gpushard.layout import GridAxis
from gpushard.options import KIB
from gpushard.planning.touched import open_mesh
from gpushard.selecting.numbering import distinct
from gpushard.selecting.selection import (
    AxisSelection,
    IndexAxis,
    Ints,
    Orthogonal,
    ParsedSelection,
    Points,
    SliceAxis,
)
from gpushard.source import Source

# Elements of an inner chunk from which on it takes longer to list them than to go to
# the inner chunk: 0.12 us for each, and 60 us.
_MANY_PER_CHUNK = 256
# Points up to which it takes as long to look for a grid around them as to list them.
_FEW_POINTS = 1 << 9
# Elements of a grid that are read and copied again in the time of one point.
_MANY_PER_POINT = 50
# Elements of a grid that take as long as Python needs to go to an inner chunk.
_MANY_AROUND = 40_000
# The part of the memory limit that a grid around the elements may take, and as much
# again what is picked from it.
_AROUND_SHARE = 4
# Grids up to this size are not cut: reading many parts takes longer than Python does.
_LEAST_CUT_NBYTES = 1 << 20
# Unwanted bytes between two plain elements that may be fetched, if the store does not
# say that more of them cost less than a request.
_LITTLE_ADDED = 64 * KIB
# Kinds of data types that all numbers can be cast to.
_NUMBERS = "biufc"
# Memory of the columns of a point, of which all points may take this part of the limit.
_POINT_NBYTES, _LIMIT_SHARE = 100, 16


def listed_as_points(source: Source, selection: ParsedSelection) -> ParsedSelection:
    """The selection, as points if that takes less time and little memory."""
    if not is_crossed(selection):
        return selection
    n_elements, n_chunks = prod(selection.grid_shape), _n_chunks(source, selection)
    if n_elements > _FEW_POINTS:
        around = Around.of(source, selection)
        if around is not None and around.n_elements <= _MANY_PER_POINT * n_elements:
            return selection
    is_little = n_elements * _POINT_NBYTES * _LIMIT_SHARE <= source.options.memory_limit
    if not is_little or n_elements > _MANY_PER_CHUNK * n_chunks:
        return selection
    return points_of(selection)


def is_crossed(selection: ParsedSelection) -> TypeGuard[Orthogonal]:
    """Whether a selection is a cross product of several index arrays."""
    if not isinstance(selection, Orthogonal):
        return False
    return sum([isinstance(axis, IndexAxis) for axis in selection.axes]) > 1


class Around(NamedTuple):
    """A grid around a cross product, which touches the same inner chunks.

    Of inner chunks of plain elements, it has few more bytes fetched.

    Attributes
    ----------
    grid
        What is read: at most one index array, with slices in place of the others.
    picked
        For each axis, which elements of the grid are wanted, in the order in which the
        selection has them; None for all.
    most_held
        Most elements of an array that picking makes: more than the grid has, if the
        selection repeats elements.
    """

    grid: Orthogonal
    picked: tuple[Ints | None, ...]
    most_held: int

    @property
    def n_elements(self) -> int:
        """Number of elements of the grid."""
        return prod(self.grid.shape)

    @classmethod
    def of(cls, source: Source, selection: Orthogonal) -> Around | None:
        """Grid around a selection of several index arrays.

        None if Python reads the selection faster, or the grid would touch more inner
        chunks or have much more fetched of them.
        """
        slices = {
            d: _slice_around(taken.element, source, d)
            for d, taken in enumerate(selection.axes)
            if isinstance(taken, IndexAxis)
        }
        scattered = [d for d, dense in slices.items() if dense is None]
        if len(scattered) > 1:
            return None
        # Elements of the first axis are followed by the longest runs of bytes.
        kept = min(scattered or slices)
        axes: list[AxisSelection] = []
        picked: list[Ints | None] = []
        for d, taken in enumerate(selection.axes):
            nth: Ints | None = None
            dense = slices.get(d)
            if isinstance(taken, SliceAxis):
                dense = SliceAxis(taken.start, taken.step, taken.length)
            elif d == kept or dense is None:
                dense = IndexAxis(taken.element, np.arange(taken.length))
            else:
                nth = (taken.element - dense.start) // dense.step
            axes.append(dense)
            picked.append(nth)
        shape = tuple(axis.length for axis in axes)
        if not 0 < prod(shape) <= _MANY_AROUND * _n_chunks(source, selection):
            return None
        most_held = prod(map(max, shape, selection.grid_shape))
        return cls(Orthogonal(tuple(axes), shape), tuple(picked), most_held)

    def put(
        self, found: NDArray[Any], selection: Orthogonal, out: NDArray[Any]
    ) -> None:
        """Copy the wanted elements of the grid to where the selection has them."""
        for axis, nth in enumerate(self.picked):
            if nth is not None:
                found = found.take(nth, axis)
        landing = tuple(map(_landing, selection.axes))
        is_plain = all(isinstance(one, slice) for one in landing)
        selection.on_grid(out)[landing if is_plain else open_mesh(landing)] = found


def with_grids(
    source: Source, selection: Orthogonal, dtype: np.dtype[Any]
) -> Iterator[tuple[Orthogonal, Around | None]]:
    """The selection in parts of whole shards, each with the grid that is read for it.

    There is no grid if that is slower, if that of a single shard, or what is picked
    from it, does not fit its part of the memory limit, if elements take more memory
    than their size tells, or if one that is not wanted might refuse to be cast.

    Parameters
    ----------
    dtype
        Data type of the grid.
    """
    if not takes_others(source, dtype):
        yield selection, None
        return
    waiting = [selection]
    while waiting:
        part = waiting.pop()
        around = Around.of(source, part)
        most_nbytes = source.options.memory_limit // _AROUND_SHARE
        if around is not None and around.most_held * dtype.itemsize > most_nbytes:
            is_large = around.n_elements * dtype.itemsize > _LEAST_CUT_NBYTES
            halves = _halves(source, part) if is_large else []
            if halves:
                waiting += halves
                continue
            around = None
        yield part, around


def takes_others(source: Source, dtype: np.dtype[Any]) -> bool:
    """Whether elements that nobody wants can be read, too, into memory of `dtype`.

    Others might refuse to be cast, or have memory of their own.
    """
    is_cast = dtype != source.layout.dtype and dtype.kind not in _NUMBERS
    return not (is_cast or dtype.hasobject)


def _most_added_nbytes(source: Source) -> int:
    """Unwanted bytes between two plain elements that may be fetched."""
    return max(source.store.costs.gap_nbytes, _LITTLE_ADDED)


def _halves(source: Source, selection: Orthogonal) -> list[Orthogonal]:
    """Two parts of whole shards; none if all is in one shard."""
    for d, (taken, cells) in enumerate(
        zip(selection.axes, source.layout.axes, strict=True)
    ):
        if isinstance(taken, SliceAxis):
            first, last = cells.cell_at(taken.start), cells.cell_at(taken.last)
        else:
            ends = taken.element.min(), taken.element.max()
            first, last = map(cells.cell_at, ends)
        if first < last:
            middle = int(cells.start_of((int(first) + int(last) + 1) // 2))
            axes = selection.axes
            return [
                selection._replace(axes=(*axes[:d], part, *axes[d + 1 :]))
                for part in _cut_at(taken, middle)
            ]
    return []


def _cut_at(taken: AxisSelection, border: int) -> tuple[AxisSelection, AxisSelection]:
    """The elements before a border, and those from there on: some of each."""
    if isinstance(taken, SliceAxis):
        n = int(taken.n_before(border))
        before = taken._replace(length=n)
        behind = taken._replace(
            start=taken.start + n * taken.step,
            length=taken.length - n,
            out_start=taken.out_start + n * taken.out_step,
        )
        return before, behind
    is_before = taken.element < border
    before, behind = (
        IndexAxis(taken.element[rows], taken.out_index[rows])
        for rows in (is_before, ~is_before)
    )
    return before, behind


def _landing(taken: AxisSelection) -> slice | Ints:
    if isinstance(taken, SliceAxis):
        return taken.landing
    first = int(taken.out_index[0])
    is_run = bool((np.diff(taken.out_index) == 1).all())
    return slice(first, first + taken.length) if is_run else taken.out_index


def _slice_around(element: Ints, source: Source, axis: int) -> SliceAxis | None:
    """Slice with all of the elements, if it touches no other cells than they do.

    None, too, if it would have much more of plain elements fetched.
    """
    wanted = distinct(element)
    if not len(wanted):
        return None
    gaps = np.diff(wanted)
    step = int(np.gcd.reduce(gaps, initial=0)) or 1
    first = int(wanted[0])
    around = SliceAxis(first, step, (int(wanted[-1]) - first) // step + 1)
    cell_steps = np.diff(source.layout.inner_axes[axis].cell_at(wanted))
    if (cell_steps > 1).any():
        return None
    if source.raw_strides is not None:
        # The slice reaches up to the borders that lie between two elements.
        between = gaps[cell_steps == 1]
        added = int((between - step).sum()) * source.raw_strides[axis]
        if added > _most_added_nbytes(source) * (len(between) + 1):
            return None
    return around


def _n_chunks(source: Source, selection: Orthogonal) -> int:
    axes = zip(selection.axes, source.layout.inner_axes, strict=True)
    return prod(_n_touched(taken, cells) for taken, cells in axes)


def _n_touched(taken: AxisSelection, cells: GridAxis) -> int:
    """Number of inner chunks that are touched along an axis, at most."""
    if isinstance(taken, IndexAxis):
        return len(distinct(cells.cell_at(taken.element)))
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
