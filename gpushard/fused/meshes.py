"""Small selections, laid over the grid of shards for the compiled loops to plan.

The loops take slices as they are. Elements of indexes are sorted before, and points are
sorted by shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.fused.cells import index_stride
from gpushard.fused.columns import (
    AXIS_ROWS,
    CELL,
    END,
    FIRST_LENGTH,
    N_CELLS,
    PER_SHARD,
)
from gpushard.layout import ArrayLayout, Coordinate
from gpushard.planning.blocks import order_by, shards_of
from gpushard.selecting.selection import (
    IndexAxis,
    Ints,
    Orthogonal,
    Points,
    Selection,
    SliceAxis,
)

if TYPE_CHECKING:
    from gpushard.fused.code.loading import CompiledLoops

# For a larger read, setting up the general path takes a hundredth of the time.
MOST_BOXES, MOST_SHARDS = 1024, 32
_NO_ELEMENTS = np.empty((2, 0), np.int64)

AxisGrid = tuple[int, int, int, int]
"""Rows of an axis that its array determines: `columns.CELL` to `CHUNK_STRIDE`."""
Grid = Sequence[AxisGrid]
"""One for each axis."""


class PlannedBoxes(NamedTuple):
    """Boxes to place; fewer than wanted if an index is damaged or unusual.

    Attributes
    ----------
    boxes
        int64, shape (n_boxes, FIRST_LENGTH + n_axes).
    strides
        Bytes between wanted neighbours, as `BoxPlacer` takes them.
    n_wanted
        Number of boxes of the selection.
    """

    boxes: Ints
    strides: Ints
    n_wanted: int


class Mesh(NamedTuple):
    """A selection with one selector per axis.

    Attributes
    ----------
    columns
        The columns of `axes`, one for each axis.
    elements
        Elements that indexes take, axis by axis and ascending, and where each lands
        along its axis: int64, shape (2, n_elements).
    shards
        Coordinates of the shards that are touched.
    n_most
        Upper bound of the number of boxes.
    n_inside
        Number of elements that a box has, or somewhat more.
    entry
        Place of the first inner chunk in the index of the first shard.
    """

    columns: Sequence[tuple[int, ...]]
    elements: Ints
    shards: Sequence[Coordinate]
    n_most: int
    n_inside: int
    entry: int

    @property
    def axes(self) -> Ints:
        """Rows of all axes, from `INNER_STEP` on: int64, shape (AXIS_ROWS, n_axes)."""
        return np.array(self.columns, np.int64).T.copy()

    def plan(self, compiled: CompiledLoops, planned: Any, rows: Ints) -> PlannedBoxes:
        """Boxes, given the rows of the shards (from `columns.OFFSETS` on)."""
        axes = self.axes
        boxes = _empty_boxes(self.n_most, axes)
        strides = axes[:2].reshape(2, 1, -1)
        n_wanted = compiled.plan_axes(
            planned, strides, axes, self.elements, rows, boxes
        )
        return PlannedBoxes(boxes[: rows.item(-1, END)], strides, n_wanted)


class ScatteredPoints(NamedTuple):
    """A selection of points.

    Attributes
    ----------
    axes
        As in `Mesh`, with only the rows of the grid set.
    points
        For each point, sorted by shard: its place in `shards`, its place in the
        output in bytes, its coordinates: int64, shape (2 + n_axes, n_points).
    shards
        Coordinates of the shards that are touched.
    """

    axes: Ints
    points: Ints
    shards: Sequence[Coordinate]

    def plan(self, compiled: CompiledLoops, planned: Any, rows: Ints) -> PlannedBoxes:
        """Boxes, given the rows of the shards (from `columns.OFFSETS` on)."""
        n_points = self.points.shape[1]
        boxes = _empty_boxes(n_points, self.axes)
        strides = np.zeros((2, 1, self.axes.shape[1]), np.int64)
        compiled.plan_points(planned, self.axes, self.points, rows, boxes)
        return PlannedBoxes(boxes[: rows.item(-1, END)], strides, n_points)


def _empty_boxes(n_boxes: int, axes: Ints) -> Ints:
    return np.empty((n_boxes, FIRST_LENGTH + axes.shape[1]), np.int64)


class _MeshAxis(NamedTuple):
    """One axis of a `Mesh`.

    Attributes
    ----------
    column
        Its column of `Mesh.axes`.
    shards
        Places along the axis of the shards that are touched.
    n_most, n_inside, entry
        Factors of `Mesh.n_most` and `Mesh.n_inside`, and a summand of `Mesh.entry`.
    elements
        Its columns of `Mesh.elements`; None if a slice takes the axis.
    """

    column: tuple[int, ...]
    shards: Sequence[int]
    n_most: int
    n_inside: int
    entry: int
    elements: Ints | None = None


def grid_of(layout: ArrayLayout, chunk_strides: Sequence[int]) -> Grid:
    """Grid of an array with cells of a single shape, and at most one sharding level.

    An unsharded array counts as one shard (see `cells.index_stride`).
    """
    axes = zip(layout.inner_axes, layout.axes, chunk_strides, strict=True)
    return [
        (
            inner.cell,
            outer.cell // inner.cell if layout.levels else outer.n_cells,
            index_stride(layout, axis),
            stride,
        )
        for axis, (inner, outer, stride) in enumerate(axes)
    ]


def lay_over(
    selection: Selection, grid: Grid, out: NDArray[Any], limit: int | None = None
) -> Mesh | ScatteredPoints | None:
    """A selection, laid over the grid; None if it is empty, too large, or rare.

    Parameters
    ----------
    out
        Host array of the selection's shape.
    limit
        Largest number of boxes that is not too large, if less than `MOST_BOXES`.
    """
    most = min(MOST_BOXES, limit or MOST_BOXES)
    if isinstance(selection, Points):
        return _points(selection, grid, out, most)
    return _mesh(selection, grid, out, most)


def _mesh(
    selection: Orthogonal, grid: Grid, out: NDArray[Any], most: int
) -> Mesh | None:
    strides = [s for i, s in enumerate(out.strides) if i not in selection.new_axes]
    strides.reverse()
    along: list[_MeshAxis] = []
    taken: list[Ints] = []
    n_most, n_taken = 1, 0
    for axis, axis_grid in zip(selection.axes, grid, strict=True):
        if isinstance(axis, SliceAxis):
            mesh_axis = _along_slice(axis, axis_grid, 0 if axis.drop else strides.pop())
        else:
            mesh_axis = _along_index(axis, axis_grid, strides.pop(), n_taken)
        if mesh_axis is None:
            return None
        n_most *= mesh_axis.n_most
        if n_most > most:
            return None
        if mesh_axis.elements is not None:
            taken.append(mesh_axis.elements)
            n_taken += mesh_axis.n_most
        along.append(mesh_axis)
    if prod([len(axis.shards) for axis in along]) > MOST_SHARDS:
        return None
    return Mesh(
        [axis.column for axis in along],
        np.concatenate(taken, axis=1) if taken else _NO_ELEMENTS,
        list(product(*[axis.shards for axis in along])),
        n_most,
        prod([axis.n_inside for axis in along]),
        sum([axis.entry for axis in along]),
    )


def _along_slice(axis: SliceAxis, axis_grid: AxisGrid, stride: int) -> _MeshAxis | None:
    start, step, length, out_start, out_step, _ = axis
    if not length:
        return None
    cell, per_shard, index_stride, chunk_stride = axis_grid
    first, last = start // cell, (start + (length - 1) * step) // cell
    n_cells = min(last - first + 1, length)
    if n_cells > MOST_BOXES or step > per_shard * cell:
        return None  # a step longer than a shard may skip shards
    shards = range(first // per_shard, last // per_shard + 1)
    steps = chunk_stride * step, stride * out_step
    wanted = start, step, length, out_start * stride
    column = *steps, *wanted, *axis_grid, n_cells, len(shards)
    n_inside = min(length, -(-cell // step))
    entry = first % per_shard * index_stride
    return _MeshAxis(column, shards, n_cells, n_inside, entry)


def _along_index(
    axis: IndexAxis, axis_grid: AxisGrid, stride: int, n_before: int
) -> _MeshAxis | None:
    """`n_before`: number of elements that the indexes of earlier axes take."""
    n_elements = axis.length
    if not 0 < n_elements <= MOST_BOXES:
        return None
    cell, per_shard, index_stride, chunk_stride = axis_grid
    order = axis.element.argsort(kind="stable")
    elements = np.array((axis.element, axis.out_index)).take(order, axis=1)
    shards = sorted(set((elements[0] // (per_shard * cell)).tolist()))
    wanted = n_before, 0, n_elements, 0
    column = chunk_stride, stride, *wanted, *axis_grid, n_elements, len(shards)
    entry = elements.item(0, 0) // cell % per_shard * index_stride
    return _MeshAxis(column, shards, n_elements, 1, entry, elements)


def _points(
    selection: Points, grid: Grid, out: NDArray[Any], most: int
) -> ScatteredPoints | None:
    if not 0 < selection.n_points <= most or not out.flags.c_contiguous:
        return None
    coordinates = np.array(selection.coordinates)
    axes = np.zeros((AXIS_ROWS, len(grid)), np.int64)
    axes[CELL:N_CELLS] = np.array(grid).T
    shard = coordinates // (axes[CELL] * axes[PER_SHARD])[:, np.newaxis]
    order = order_by(shard)
    shards, number = shards_of(shard[:, order])
    if len(shards) > MOST_SHARDS:
        return None
    points = np.empty((2 + len(grid), len(order)), np.int64)
    points[0], points[1] = number, selection.out_index[order] * out.itemsize
    coordinates.take(order, axis=1, out=points[2:])
    return ScatteredPoints(axes, points, [tuple(c) for c in shards.tolist()])
