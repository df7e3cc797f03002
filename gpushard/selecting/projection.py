"""One axis of a selection -> columns over the cells of a grid that it touches.

The columns say, for each touched cell, which of its elements are wanted and where they
land. docs/selection.md derives the formulas.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpushard.layout import GridAxis
from gpushard.selecting.numbering import Ints, stable_order
from gpushard.selecting.selection import AxisSelection, IndexAxis, SliceAxis


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
    cell = cells_of_slice(selection, axis)
    takings = takings_of(selection, axis, cell)
    return Projection(cell, *takings, selection.step, selection.out_step)


def takings_of(selection: SliceAxis, axis: GridAxis, cell: Ints) -> Takings:
    """What a slice takes of cells that it touches."""
    start, step, length, out_start, out_step, _ = selection
    begin = axis.start_of(cell)
    first = np.maximum(selection.n_before(begin), 0)
    last = np.minimum(selection.n_before(begin + axis.length_of(cell)), length)
    return Takings(
        start + first * step - begin, last - first, out_start + first * out_step
    )


def cells_of_slice(selection: SliceAxis, axis: GridAxis) -> Ints:
    """Cells that hold an element of the slice, without those that a stride skips."""
    start, step, length, *_ = selection
    if not length:
        return np.empty(0, np.int64)
    first = int(axis.cell_at(start))
    last = int(axis.cell_at(selection.last))
    if axis.boundaries is None and step <= axis.cell:
        return np.arange(first, last + 1, dtype=np.int64)
    if last - first < length:
        cell = np.arange(first, last + 1, dtype=np.int64)
        begin = axis.start_of(cell)
        nth = np.maximum(selection.n_before(begin), 0)
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
