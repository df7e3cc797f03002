"""An orthogonal selection, laid over shards: one projection an axis, grouped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from gpushard import blocks
from gpushard.blocks import (
    LargeShard,
    Planned,
    ShardBlock,
    index_coordinates,
    ordinal_in_index,
)
from gpushard.layout import ArrayLayout, GridAxis, ShardLevel
from gpushard.selection import (
    AxisSelection,
    Ints,
    Orthogonal,
    Projection,
    SliceAxis,
    project,
)

# Slices of so many elements are kept laid out: their columns take 20 KiB at the most.
_KEPT_LENGTH = 512


class _ShardedAxis(NamedTuple):
    """The cells touched along one axis, grouped by shard, with their index coordinates.

    `cell` of shape (n,): positions ``bounds[s]:bounds[s + 1]`` lie in shard cell
    ``shard_cell[s]``. Per level: the coordinate of each within its parent, and the
    number of inner chunks of that parent along the axis.
    """

    shard_cell: Ints
    bounds: Ints
    coordinate: tuple[Ints, ...]
    per_parent: tuple[Ints | int, ...]


def _shard_axis(
    cell: Ints, inner: GridAxis, outer: GridAxis, lengths: Sequence[int]
) -> _ShardedAxis:
    shard = outer.cell_at(inner.start_of(cell)) if lengths else cell
    is_first = np.append(True, shard[1:] != shard[:-1])[: len(shard)]
    bounds = np.append(np.flatnonzero(is_first), len(shard)).astype(np.int64)
    coordinate, per_parent = index_coordinates(cell, shard, inner, outer, lengths)
    return _ShardedAxis(shard[is_first], bounds, coordinate, per_parent)


def _lay_axis(
    selection: AxisSelection, inner: GridAxis, outer: GridAxis, lengths: tuple[int, ...]
) -> tuple[Projection, _ShardedAxis]:
    """One axis of a selection, laid over the cells and grouped by shard."""
    if (
        isinstance(selection, SliceAxis)
        and selection.length <= _KEPT_LENGTH
        and inner.boundaries is None
        and outer.boundaries is None
    ):
        return _lay_slice(selection, inner, outer, lengths)
    projection = project(selection, inner)
    return projection, _shard_axis(projection.cell, inner, outer, lengths)


@lru_cache(maxsize=512)
def _lay_slice(
    selection: SliceAxis, inner: GridAxis, outer: GridAxis, lengths: tuple[int, ...]
) -> tuple[Projection, _ShardedAxis]:
    """As `_lay_axis`: most reads take the same slices along most axes."""
    projection = project(selection, inner)
    sharded = _shard_axis(projection.cell, inner, outer, lengths)
    for column in (*projection[:4], *sharded.coordinate, *sharded[:2]):
        column.flags.writeable = False
    return projection, sharded


@dataclass(frozen=True, slots=True)
class GridPart:
    """An orthogonal selection laid over the grid of inner chunks."""

    selection: Orthogonal
    projections: tuple[Projection, ...]
    sharded: tuple[_ShardedAxis, ...]
    levels: tuple[ShardLevel, ...]

    @classmethod
    def lay(cls, selection: Orthogonal, layout: ArrayLayout) -> GridPart:
        """Part of a plan, from a selection and the layout of its array."""
        laid = [
            _lay_axis(s, inner, outer, tuple(lv.chunk_shape[d] for lv in layout.levels))
            for d, (s, inner, outer) in enumerate(
                zip(selection.axes, layout.inner_axes, layout.axes, strict=True)
            )
        ]
        projections = tuple(projection for projection, _ in laid)
        sharded = tuple(sharded for _, sharded in laid)
        return cls(selection, projections, sharded, layout.levels)

    @property
    def shard_grid(self) -> tuple[int, ...]:
        """Shards touched along each axis; all combinations are touched."""
        return tuple(len(axis.shard_cell) for axis in self.sharded)

    @property
    def n_chunks(self) -> int:
        """Inner chunks wanted."""
        return prod(len(p.cell) for p in self.projections)

    def chunk_coordinate(self, position: Ints) -> tuple[int, ...]:
        """Coordinate in the array's grid of inner chunks of one column of positions."""
        return tuple(
            int(p.cell[i]) for p, i in zip(self.projections, position, strict=False)
        )

    def block(self, first: int, last: int) -> ShardBlock:
        """Columns of shards ``first:last``, in C order over `shard_grid`."""
        grid = self.shard_grid
        at = np.unravel_index(np.arange(first, last), grid) if grid else ()
        counts = [np.diff(a.bounds)[i] for a, i in zip(self.sharded, at, strict=True)]
        n_chunks = np.ones(last - first, np.int64)
        for count in counts:
            n_chunks *= count
        shard = np.repeat(np.arange(last - first), n_chunks)
        local = np.arange(len(shard)) - (np.cumsum(n_chunks) - n_chunks)[shard]
        position = np.empty((max(len(grid), 1), len(shard)), np.int64)
        for d in reversed(range(len(grid))):
            count = counts[d]
            # A scalar divisor is several times faster, and the usual case.
            uniform = count.size and count.min() == count.max()
            divisor = int(count[0]) if uniform else count[shard]
            local, position[d] = np.divmod(local, divisor)
            position[d] += self.sharded[d].bounds[at[d]][shard]
        if not grid:
            position[0] = 0
        coords = np.empty((last - first, len(grid)), np.int64)
        for d, axis in enumerate(self.sharded):
            coords[:, d] = axis.shard_cell[at[d]]
        return ShardBlock(
            coords, shard, self._entries(position), np.zeros_like(shard), position
        )

    def _entries(self, position: Ints) -> tuple[Ints, ...]:
        return tuple(
            ordinal_in_index(
                level,
                [
                    a.coordinate[k][p]
                    for a, p in zip(self.sharded, position, strict=False)
                ],
                [
                    _pick(a.per_parent[k], p)
                    for a, p in zip(self.sharded, position, strict=False)
                ],
            )
            for k, level in enumerate(self.levels)
        )

    def shard(self, number: int) -> Planned:
        """Shard `number`, in C order over `shard_grid`."""
        grid = self.shard_grid
        at = np.unravel_index(number, grid) if grid else ()
        bounds = [a.bounds[i : i + 2] for a, i in zip(self.sharded, at, strict=True)]
        counts = tuple(int(stop - start) for start, stop in bounds)
        if prod(counts) <= blocks.BLOCK_CHUNKS:
            return self.block(number, number + 1)
        starts = np.array([start for start, _ in bounds])[:, np.newaxis]
        cells = [a.shard_cell[i] for a, i in zip(self.sharded, at, strict=True)]
        coords = np.array([cells], np.int64)

        def cut(first: int, last: int) -> ShardBlock:
            position = np.array(np.unravel_index(np.arange(first, last), counts))
            position += starts
            nothing = np.zeros(last - first, np.int64)
            entries = self._entries(position)
            return ShardBlock(coords, nothing, entries, nothing, position)

        return LargeShard(coords, prod(counts), cut)

    def blocks(self) -> Iterator[Planned]:
        """All shards, a bounded number of inner chunks at a time."""
        grid = self.shard_grid
        largest = prod(int(np.diff(a.bounds).max(initial=0)) for a in self.sharded)
        step = min(max(1, blocks.BLOCK_CHUNKS // max(largest, 1)), blocks.BLOCK_SHARDS)
        n_shards = prod(grid)
        if largest > blocks.BLOCK_CHUNKS:
            yield from map(self.shard, range(n_shards))
            return
        for first in range(0, n_shards, step):
            yield self.block(first, min(first + step, n_shards))


def _pick(per_parent: Ints | int, position: Ints) -> Ints | int:
    return per_parent if isinstance(per_parent, int) else per_parent[position]
