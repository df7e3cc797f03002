"""Index expressions -> normalised selections -> per-dimension projections.

A selection says which elements of the array are wanted and where each lands in the
output. An *orthogonal* selection is one `AxisSelection` per dimension; the wanted
elements are their cross product. A *point* selection is a list of coordinates.

`project` lays one axis of an orthogonal selection over the cells of a `GridAxis`: the
columns it returns say, for each cell touched, which of its elements are wanted and
where they land. docs/selection.md derives the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.layout import GridAxis
from gpushard.selecting.listing import ListedBlock, Listing, all_of
from gpushard.selecting.numbering import Ints, stable_order

_ALL = slice(None)


class SliceAxis(NamedTuple):
    """`length` elements from `start` every `step`, landing every `out_step`.

    `step` is positive; a negative step of the index expression becomes a negative
    `out_step`. `drop` marks an integer index, whose axis the result does not have.
    """

    start: int
    step: int
    length: int
    out_start: int = 0
    out_step: int = 1
    drop: bool = False


class IndexAxis(NamedTuple):
    """Elements `element` landing at `out_index`: int64, shape (length,)."""

    element: Ints
    out_index: Ints
    drop = False  # an index array keeps its axis in the result

    @property
    def length(self) -> int:
        """Number of elements taken."""
        return len(self.element)


AxisSelection = SliceAxis | IndexAxis


class Orthogonal(NamedTuple):
    """Cross product of one `AxisSelection` per dimension.

    Attributes
    ----------
    shape
        Shape of the result as NumPy gives it: without the dropped axes, with the new
        axes.
    new_axes
        Positions of new axes in `shape`.
    """

    axes: tuple[AxisSelection, ...]
    shape: tuple[int, ...]
    new_axes: tuple[int, ...] = ()
    scalar: bool = False

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of elements taken along every axis, dropped axes included."""
        return tuple(axis.length for axis in self.axes)

    def on_grid(self, out: NDArray[np.generic]) -> NDArray[np.generic]:
        """View of `out`, which has `shape`, with exactly one axis per dimension."""
        if not self.new_axes and out.ndim == len(self.axes):
            return out
        # The ellipsis keeps a 0-d result an array that can be written through.
        kept = out
        if self.new_axes:
            at = [0 if i in self.new_axes else _ALL for i in range(out.ndim)]
            kept = out[(*at, ...)]
        return kept[(*[None if axis.drop else _ALL for axis in self.axes], ...)]


@dataclass(frozen=True, slots=True)
class Points:
    """A list of elements.

    Attributes
    ----------
    coordinates
        int64, one array per dimension, each of shape (n_points,).
    out_index
        int64, shape (n_points,). Where each element lands in the flattened result.
    """

    coordinates: tuple[Ints, ...]
    out_index: Ints
    shape: tuple[int, ...]
    scalar: bool = False

    @property
    def n_points(self) -> int:
        """Number of elements taken."""
        return len(self.out_index)


Selection = Orthogonal | Points


class Listed(NamedTuple):
    """A selection that lists very many elements, which are read a block at a time.

    Attributes
    ----------
    around
        If the elements are listed along one axis, what is taken along all axes, with a
        stand-in for this axis. None for points.
    """

    listing: Listing
    shape: tuple[int, ...]
    around: Orthogonal | None = None
    axis: int = 0
    scalar = False  # many elements are not one

    def taking(self, block: ListedBlock) -> Selection:
        """Selection of one block, which lands as it does in the whole selection."""
        if self.around is None:
            return Points(block.coordinates, block.out_index, self.shape)
        axes = list(self.around.axes)
        axes[self.axis] = IndexAxis(block.coordinates[0], block.out_index)
        return self.around._replace(axes=tuple(axes))


Wanted = Selection | Listed
"""The kinds of selection that an index expression can become."""


def laid_out(wanted: Wanted) -> Selection:
    """Selection with columns over all its elements."""
    if not isinstance(wanted, Listed):
        return wanted
    return wanted.taking(all_of(wanted.listing))


def crossed(along: Sequence[AxisSelection | Listing]) -> Orthogonal | Listed:
    """Cross product of what is taken along each axis; one axis may stay listed.

    If several axes are long, the result has so many elements that columns over all axes
    but the longest need little memory beside it.
    """
    axes: list[AxisSelection] = []
    lengths: list[int] = []
    longest: tuple[int, Listing] | None = None
    for d, taken in enumerate(along):
        if isinstance(taken, SliceAxis | IndexAxis):
            axes.append(taken)
        else:
            if longest is None or taken.n_elements > longest[1].n_elements:
                longest = d, taken
            axes.append(SliceAxis(0, 1, taken.n_elements))
        if not axes[d].drop:
            lengths.append(axes[d].length)
    shape = tuple(lengths)
    for d, taken in enumerate(along):
        if not isinstance(taken, SliceAxis | IndexAxis) and longest != (d, taken):
            block = all_of(taken)
            axes[d] = IndexAxis(block.coordinates[0], block.out_index)
    whole = Orthogonal(tuple(axes), shape, scalar=not shape)
    return whole if longest is None else Listed(longest[1], shape, whole, longest[0])


class Takings(NamedTuple):
    """Columns of a `Projection` over some touched cells: int64, shape (n,)."""

    in_start: Ints
    length: Ints
    out_start: Ints


class Projection(NamedTuple):
    """One axis of a selection, laid over the cells of the grid.

    Attributes
    ----------
    cell
        int64, shape (n_cells_touched,). Cells that hold wanted elements, ascending.
    in_start, length, out_start
        int64, same shape. First wanted element within the cell, number of wanted
        elements, and where the first one lands in the output.
    step, out_step
        Distance of neighbouring elements in the cell and in the output.
    members
        Only for an `IndexAxis`, whose elements have no constant step: `length` elements
        from ``bounds[i]`` on belong to touched cell i, and `in_start` and `out_start`
        are 0.
    """

    cell: Ints
    in_start: Ints
    length: Ints
    out_start: Ints
    step: int = 1
    out_step: int = 1
    members: Members | None = None

    @property
    def n_cells(self) -> int:
        """Number of touched cells."""
        return len(self.cell)

    def cell_at(self, position: Ints) -> Ints:
        """Touched cells at these positions among the touched cells."""
        return self.cell[position]

    def takings(self, position: Ints) -> Takings:
        """What is taken of the touched cells at these positions."""
        return Takings(
            self.in_start[position], self.length[position], self.out_start[position]
        )


class Members(NamedTuple):
    """Elements of an `IndexAxis` sorted by cell.

    Attributes
    ----------
    bounds
        int64, shape (n_cells_touched + 1,). Elements of touched cell i are
        ``bounds[i]:bounds[i + 1]``.
    in_index, out_index
        int64, shape (n_elements,). Position within the cell, and in the output.
    """

    bounds: Ints
    in_index: Ints
    out_index: Ints


def project(selection: AxisSelection, axis: GridAxis) -> Projection:
    """Columns over the touched cells of `axis`, from one axis of a selection."""
    if isinstance(selection, IndexAxis):
        return _project_index(selection, axis)
    _, step, length, _, out_step, _ = selection
    if length == 0:
        empty = np.empty(0, np.int64)
        return Projection(empty, empty, empty, empty, step, out_step)
    cell = cells_of_slice(selection, axis)
    return Projection(cell, *takings_of(selection, axis, cell), step, out_step)


def takings_of(selection: SliceAxis, axis: GridAxis, cell: Ints) -> Takings:
    """What a slice takes of cells that it touches."""
    start, step, length, out_start, out_step, _ = selection
    cell_start = axis.start_of(cell)
    # Elements first..last of the slice (half-open) lie in each cell.
    first = np.maximum(-((start - cell_start) // step), 0)
    last = np.minimum(-((start - cell_start - axis.length_of(cell)) // step), length)
    return Takings(
        start + first * step - cell_start, last - first, out_start + first * out_step
    )


def cells_of_slice(selection: SliceAxis, axis: GridAxis) -> Ints:
    """Cells that hold an element of the slice, without those that a stride skips."""
    start, step, length, *_ = selection
    first = int(axis.cell_at(start))
    last = int(axis.cell_at(start + (length - 1) * step))
    if axis.boundaries is None and step <= axis.cell:
        return np.arange(first, last + 1, dtype=np.int64)
    if last - first < length:
        cell = np.arange(first, last + 1, dtype=np.int64)
        begin = axis.start_of(cell)
        nth = np.maximum(-((start - begin) // step), 0)
        return cell[start + nth * step < begin + axis.length_of(cell)]
    # The elements ascend, so all repetitions are neighbours.
    cell = axis.cell_at(start + step * np.arange(length, dtype=np.int64))
    return cell[np.append(True, cell[1:] != cell[:-1])]


def _project_index(selection: IndexAxis, axis: GridAxis) -> Projection:
    element, out_index = selection
    # With very many elements every column counts, so none is kept longer than needed.
    cell_of = axis.cell_at(element)
    order = stable_order(cell_of)
    if order is not None:
        cell_of = cell_of[order]
    starts = np.flatnonzero(
        np.append(True, cell_of[1:] != cell_of[:-1])[: len(cell_of)]
    )
    cell = cell_of[starts]
    bounds = np.append(starts, len(element)).astype(np.int64)
    if order is not None:
        element, out_index = element[order], out_index[order]
    in_index = axis.start_of(cell_of)
    del cell_of
    np.subtract(element, in_index, out=in_index)
    members = Members(bounds, in_index, out_index)
    zeros = np.zeros(len(cell), np.int64)
    return Projection(cell, zeros, np.diff(bounds), zeros, members=members)


def project_cell(
    selection: SliceAxis, axis: GridAxis, cell: int
) -> tuple[int, int, int]:
    """``(in_start, length, out_start)`` of one cell: `project` for small reads.

    `length` is not positive for a cell that the stride skips.
    """
    start, step, length, out_start, out_step, _ = selection
    offset = start - int(axis.start_of(cell))
    first = max(-(offset // step), 0)
    last = min(-((offset - int(axis.length_of(cell))) // step), length)
    return offset + first * step, last - first, out_start + first * out_step


@lru_cache(maxsize=128)
def whole_axes(shape: tuple[int, ...]) -> tuple[SliceAxis, ...]:
    """All of each axis; cached, since most keys leave out most axes."""
    return tuple(SliceAxis(0, 1, extent) for extent in shape)


def whole(shape: tuple[int, ...]) -> Orthogonal:
    """Selection of every element of an array of `shape`."""
    return Orthogonal(whole_axes(shape), shape)


def n_elements(selection: Wanted) -> int:
    """Number of elements in the result of `selection`."""
    return prod(selection.shape)
