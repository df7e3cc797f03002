"""One axis of an orthogonal selection, laid over inner chunks and shards.

Most axes keep their columns, 80 bytes per inner chunk. The cells of a slice can be
computed, so a slice over very many inner chunks keeps none: `LongSlice` and
`LongShards` have the methods of `Projection` and `ShardedAxis`, and compute the
positions that are asked for. docs/selection.md derives the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gpushard.layout import GridAxis
from gpushard.planning.blocks import index_coordinates
from gpushard.planning.stepped import SteppedCells
from gpushard.selecting.projection import (
    Members,
    Projection,
    Takings,
    project,
    takings_of,
)
from gpushard.selecting.selection import AxisSelection, Ints, SliceAxis

# Slices of up to so many elements are cached with their columns, 20 KiB at the most.
_KEPT_LENGTH = 512
# Cells of an axis whose columns are kept: 5 MiB.
LONG_CELLS = 1 << 16


class LongSlice:
    """A slice over very many cells; see `Projection`.

    Attributes
    ----------
    step, out_step
        Distance of neighbouring elements in the cell and in the output.
    """

    __slots__ = ("_axis", "_cells", "_first", "_is_each", "_selection", "n_cells")
    members: Members | None = None

    def __init__(self, selection: SliceAxis, axis: GridAxis) -> None:
        step = selection.step
        self._selection, self._axis = selection, axis
        self._first = int(axis.cell_at(selection.start))
        # These cells cannot be computed.
        self._cells: SteppedCells | None = None
        # Whether each element has a cell of its own.
        self._is_each = axis.boundaries is None and step > axis.cell
        if self._is_each:
            self.n_cells = selection.length
        elif axis.boundaries is None or step == 1:
            self.n_cells = int(axis.cell_at(selection.last)) - self._first + 1
        else:
            self._cells = SteppedCells(selection, axis)
            self.n_cells = self._cells.n_cells

    @property
    def step(self) -> int:
        """Distance of neighbouring elements in the cell."""
        return self._selection.step

    @property
    def out_step(self) -> int:
        """Distance of neighbouring elements in the output."""
        return self._selection.out_step

    def cell_at(self, position: Ints) -> Ints:
        """Touched cells at these positions among the touched cells."""
        if self._cells is not None:
            return self._cells.cell_at(position)
        if self._is_each:
            start, step, *_ = self._selection
            return self._axis.cell_at(start + position * step)
        return self._first + position

    def takings(self, position: Ints) -> Takings:
        """What is taken of the touched cells at these positions."""
        return takings_of(self._selection, self._axis, self.cell_at(position))

    def position_of(self, nth: Ints) -> Ints:
        """Position of the cell that holds the nth element; not in rectilinear axes."""
        if self._is_each:
            return nth
        start, step, *_ = self._selection
        return self._axis.cell_at(start + nth * step) - self._first

    @property
    def common_length(self) -> int | None:
        """Elements taken of each cell; None if the numbers differ, or are unknown."""
        axis, step = self._axis, self._selection.step
        is_ruled = self._is_each or (axis.boundaries is None and axis.cell % step == 0)
        ends = self.takings(np.array([0, 1, -1]) % self.n_cells).length
        return int(ends[0]) if is_ruled and np.all(ends == ends[0]) else None

    @property
    def most_taken(self) -> int:
        """Most elements that are taken of any cell."""
        return min(-(-self._axis.longest // self.step), self._selection.length)


Projected = Projection | LongSlice
"""One axis of a selection over the cells of the grid."""


class ShardedAxis(NamedTuple):
    """The cells touched along one axis, grouped by shard, with their index coordinates.

    `cell` of shape (n,): positions ``bounds[s]:bounds[s + 1]`` lie in shard cell
    ``shard_cell[s]``. Per sharding level: the coordinate of each cell within its
    parent, and the number of inner chunks of that parent along the axis.
    """

    shard_cell: Ints
    bounds: Ints
    coordinate: tuple[Ints, ...]
    per_parent: tuple[Ints | int, ...]

    @classmethod
    def lay(
        cls, cell: Ints, inner: GridAxis, outer: GridAxis, lengths: Sequence[int]
    ) -> ShardedAxis:
        """Touched inner chunks along one axis, grouped by shard.

        `lengths`: of the inner chunks of each level.
        """
        shard = outer.cell_at(inner.start_of(cell)) if lengths else cell
        is_first = np.append(True, shard[1:] != shard[:-1])[: len(shard)]
        bounds = np.append(np.flatnonzero(is_first), len(shard)).astype(np.int64)
        coordinate, per_parent = index_coordinates(cell, shard, inner, outer, lengths)
        return cls(shard[is_first], bounds, coordinate, per_parent)

    @property
    def n_shards(self) -> int:
        """Number of touched shard cells."""
        return len(self.shard_cell)

    @property
    def most_cells(self) -> int:
        """Most cells that are touched of any shard."""
        return int(np.diff(self.bounds).max(initial=0))

    def shards_at(self, nth: Ints) -> Ints:
        """Touched shard cells at these positions among the touched shard cells."""
        return self.shard_cell[nth]

    def bounds_at(self, nth: Ints) -> tuple[Ints, Ints]:
        """Positions of the first cell of each shard, and behind its last."""
        return self.bounds[nth], self.bounds[nth + 1]

    def in_index(self, position: Ints) -> tuple[list[Ints], list[Ints | int]]:
        """Per level: coordinates of cells in their parents, and how many fit there."""
        return (
            [coordinate[position] for coordinate in self.coordinate],
            [n if isinstance(n, int) else n[position] for n in self.per_parent],
        )


class LongShards:
    """The same as a `ShardedAxis`, for a `LongSlice` over the inner chunks.

    It takes the selection and the grid of `cells`, the grid of shards, and the lengths
    of the inner chunks of each level.
    """

    __slots__ = (
        "_cells", "_inner", "_lengths", "_outer", "_selection", "_shards", "n_shards"
    )  # fmt: skip

    def __init__(
        self,
        cells: LongSlice,
        selection: SliceAxis,
        inner: GridAxis,
        outer: GridAxis,
        lengths: Sequence[int],
    ) -> None:
        self._cells, self._selection = cells, selection
        self._inner, self._outer, self._lengths = inner, outer, lengths
        self._shards = LongSlice(selection, outer) if lengths else cells
        self.n_shards = self._shards.n_cells

    @property
    def most_cells(self) -> int:
        """Most cells that are touched of any shard."""
        if not self._lengths:
            return 1
        apart = max(self._selection.step, self._inner.cell)
        return min(-(-self._outer.longest // apart), self._cells.n_cells)

    def shards_at(self, nth: Ints) -> Ints:
        """Touched shard cells at these positions among the touched shard cells."""
        return self._shards.cell_at(nth)

    def bounds_at(self, nth: Ints) -> tuple[Ints, Ints]:
        """Positions of the first cell of each shard, and behind its last."""
        if not self._lengths:
            return nth, nth + 1
        after = self._start_at(np.minimum(nth + 1, self.n_shards - 1))
        is_last = nth == self.n_shards - 1
        return self._start_at(nth), np.where(is_last, self._cells.n_cells, after)

    def _start_at(self, nth: Ints) -> Ints:
        shard_start = self._outer.start_of(self.shards_at(nth))
        first = np.maximum(self._selection.n_before(shard_start), 0)
        return self._cells.position_of(first)

    def in_index(self, position: Ints) -> tuple[Sequence[Ints], Sequence[Ints | int]]:
        """Per level: coordinates of cells in their parents, and how many fit there."""
        if not self._lengths:
            return (), ()
        cell = self._cells.cell_at(position)
        shard = self._outer.cell_at(self._inner.start_of(cell))
        return index_coordinates(cell, shard, self._inner, self._outer, self._lengths)


Sharded = ShardedAxis | LongShards


def lay_axis(
    selection: AxisSelection, inner: GridAxis, outer: GridAxis, lengths: tuple[int, ...]
) -> tuple[Projected, Sharded]:
    """One axis of a selection over the grids of inner chunks and of shards.

    `lengths`: of the inner chunks of each level.
    """
    if isinstance(selection, SliceAxis):
        is_regular = inner.boundaries is None and outer.boundaries is None
        if is_regular and selection.length <= min(_KEPT_LENGTH, LONG_CELLS):
            return _lay_slice(selection, inner, outer, lengths)
        if selection.length > LONG_CELLS:
            cells = LongSlice(selection, inner)
            if cells.n_cells > LONG_CELLS:
                return cells, LongShards(cells, selection, inner, outer, lengths)
    return _lay_columns(selection, inner, outer, lengths)


@lru_cache(maxsize=512)
def _lay_slice(
    selection: SliceAxis, inner: GridAxis, outer: GridAxis, lengths: tuple[int, ...]
) -> tuple[Projection, ShardedAxis]:
    """As `lay_axis`, cached: most reads take the same slices along most axes."""
    projection, sharded = _lay_columns(selection, inner, outer, lengths)
    for column in (*projection[:4], *sharded.coordinate, *sharded[:2]):
        column.flags.writeable = False
    return projection, sharded


def _lay_columns(
    selection: AxisSelection, inner: GridAxis, outer: GridAxis, lengths: tuple[int, ...]
) -> tuple[Projection, ShardedAxis]:
    projection = project(selection, inner)
    return projection, ShardedAxis.lay(projection.cell, inner, outer, lengths)
