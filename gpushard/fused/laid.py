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
from gpushard.fused.columns import CELL, END, FIRST_LENGTH, PER_SHARD
from gpushard.layout import ArrayLayout
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
    from gpushard.fused.loading import Compiled

# For a larger read, setting up the general path takes a hundredth of the time.
MOST_BOXES, MOST_SHARDS = 1024, 32
_NO_ELEMENTS = np.empty((2, 0), np.int64)

Coordinate = tuple[int, ...]
Grid = Sequence[tuple[int, int, int, int]]
"""For each axis, the values of `columns.CELL` and the three rows after it."""


class Boxes(NamedTuple):
    """Boxes to place; fewer than wanted if an index is damaged or unusual.

    Attributes
    ----------
    columns
        int64, shape (n_boxes, FIRST_LENGTH + n_axes).
    strides
        Bytes between wanted neighbours, as `BoxPlacer` takes them.
    n_wanted
        Number of boxes of the selection.
    """

    columns: Ints
    strides: Ints
    n_wanted: int


class Mesh(NamedTuple):
    """A selection with one selector per axis.

    Attributes
    ----------
    columns
        For each axis its rows (from `columns.INNER_STEP` on).
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
        """Rows of each axis: int64, shape (12, n_axes)."""
        return np.array(self.columns, np.int64).T.copy()

    def plan(self, compiled: Compiled, planned: Any, rows: Ints) -> Boxes:
        """Boxes, given the rows of the shards (from `columns.OFFSETS` on)."""
        axes = self.axes
        boxes = _room(self.n_most, axes)
        strides = axes[:2].reshape(2, 1, -1)
        n_wanted = compiled.plan_axes(
            planned, strides, axes, self.elements, rows, boxes
        )
        return Boxes(boxes[: rows.item(-1, END)], strides, n_wanted)


class Scattered(NamedTuple):
    """A selection of points.

    Attributes
    ----------
    axes
        As in `Mesh`, with only the rows of the grid set.
    points
        For each point, sorted by shard: its place in `shards`, its place in the
        flattened output, its coordinates: int64, shape (2 + n_axes, n_points).
    shards
        Coordinates of the shards that are touched.
    """

    axes: Ints
    points: Ints
    shards: Sequence[Coordinate]

    def plan(self, compiled: Compiled, planned: Any, rows: Ints) -> Boxes:
        """Boxes, given the rows of the shards (from `columns.OFFSETS` on)."""
        n_points = self.points.shape[1]
        boxes = _room(n_points, self.axes)
        strides = np.zeros((2, 1, self.axes.shape[1]), np.int64)
        compiled.plan_points(planned, self.axes, self.points, rows, boxes)
        return Boxes(boxes[: rows.item(-1, END)], strides, n_points)


def _room(n_boxes: int, axes: Ints) -> Ints:
    return np.empty((n_boxes, FIRST_LENGTH + axes.shape[1]), np.int64)


class _Along(NamedTuple):
    """One axis: its column of `Mesh.axes`, the shards along it, and its cells.

    `n_inside` and `entry` are its share of those of `Mesh`.
    """

    column: tuple[int, ...]
    shards: Sequence[int]
    n_most: int
    n_inside: int
    entry: int
    elements: Ints | None = None


def grid_of(layout: ArrayLayout, chunk_strides: Sequence[int]) -> Grid:
    """Grid of an array with one sharding level and cells of a single shape."""
    return [
        (inner.cell, outer.cell // inner.cell, index_stride(layout, axis), stride)
        for axis, (inner, outer, stride) in enumerate(
            zip(layout.inner_axes, layout.axes, chunk_strides, strict=True)
        )
    ]


def laid(
    selection: Selection, grid: Grid, out: NDArray[Any]
) -> Mesh | Scattered | None:
    """A selection over the grid; None if it is empty, too large, or of a rare kind.

    Parameters
    ----------
    out
        Host array of the selection's shape.
    """
    if isinstance(selection, Points):
        return _scattered(selection, grid, out)
    return _mesh(selection, grid, out)


def _mesh(selection: Orthogonal, grid: Grid, out: NDArray[Any]) -> Mesh | None:
    strides = [s for i, s in enumerate(out.strides) if i not in selection.new_axes]
    strides.reverse()
    along: list[_Along] = []
    taken: list[Ints] = []
    n_most, n_taken = 1, 0
    for axis, known in zip(selection.axes, grid, strict=True):
        if isinstance(axis, SliceAxis):
            one = _along_slice(axis, known, 0 if axis.drop else strides.pop())
        else:
            one = _along_index(axis, known, strides.pop(), n_taken)
        if one is None:
            return None
        n_most *= one.n_most
        if n_most > MOST_BOXES:
            return None
        if one.elements is not None:
            taken.append(one.elements)
            n_taken += one.n_most
        along.append(one)
    if prod([len(one.shards) for one in along]) > MOST_SHARDS:
        return None
    return Mesh(
        [one.column for one in along],
        np.concatenate(taken, axis=1) if taken else _NO_ELEMENTS,
        list(product(*[one.shards for one in along])),
        n_most,
        prod([one.n_inside for one in along]),
        sum([one.entry for one in along]),
    )


def _along_slice(
    axis: SliceAxis, known: tuple[int, int, int, int], stride: int
) -> _Along | None:
    start, step, length, out_start, out_step, _ = axis
    if not length:
        return None
    cell, per_shard, index_stride, chunk_stride = known
    first, last = start // cell, (start + (length - 1) * step) // cell
    n_cells = min(last - first + 1, length)
    if n_cells > MOST_BOXES or step > per_shard * cell:
        return None  # a step longer than a shard may skip shards
    shards = range(first // per_shard, last // per_shard + 1)
    steps = chunk_stride * step, stride * out_step
    wanted = start, step, length, out_start * stride
    column = *steps, *wanted, *known, n_cells, len(shards)
    n_inside = min(length, -(-cell // step))
    entry = first % per_shard * index_stride
    return _Along(column, shards, n_cells, n_inside, entry)


def _along_index(
    axis: IndexAxis, known: tuple[int, int, int, int], stride: int, n_before: int
) -> _Along | None:
    """`n_before`: number of elements that the indexes of earlier axes take."""
    n_elements = axis.length
    if not 0 < n_elements <= MOST_BOXES:
        return None
    cell, per_shard, index_stride, chunk_stride = known
    order = axis.element.argsort(kind="stable")
    elements = np.array((axis.element, axis.out_index)).take(order, axis=1)
    shards = sorted(set((elements[0] // (per_shard * cell)).tolist()))
    wanted = n_before, 0, n_elements, 0
    column = chunk_stride, stride, *wanted, *known, n_elements, len(shards)
    entry = elements.item(0, 0) // cell % per_shard * index_stride
    return _Along(column, shards, n_elements, 1, entry, elements)


def _scattered(selection: Points, grid: Grid, out: NDArray[Any]) -> Scattered | None:
    if not 0 < selection.n_points <= MOST_BOXES or not out.flags.c_contiguous:
        return None
    coordinates = np.array(selection.coordinates)
    axes = np.zeros((12, len(grid)), np.int64)
    axes[CELL : CELL + 4] = np.array(grid).T
    shard = coordinates // (axes[CELL] * axes[PER_SHARD])[:, np.newaxis]
    order = order_by(shard)
    shards, number = shards_of(shard[:, order])
    if len(shards) > MOST_SHARDS:
        return None
    points = np.empty((2 + len(grid), len(order)), np.int64)
    points[0], points[1] = number, selection.out_index[order]
    coordinates.take(order, axis=1, out=points[2:])
    return Scattered(axes, points, [tuple(c) for c in shards.tolist()])
