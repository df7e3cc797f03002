"""An orthogonal selection laid over shards: one projection per axis, by shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from gpushard.layout import ArrayLayout, ShardLevel
from gpushard.planning import blocks
from gpushard.planning.axes import Projected, Sharded, lay_axis
from gpushard.planning.blocks import Block, LargeShard, ShardBlock, ordinal_in_index
from gpushard.selecting.selection import Ints, Orthogonal

_Columns = tuple[Ints, tuple[Ints, ...], Ints]


@dataclass(frozen=True, slots=True)
class GridPart:
    """An orthogonal selection laid over the grid of inner chunks."""

    selection: Orthogonal
    projections: tuple[Projected, ...]
    sharded: tuple[Sharded, ...]
    levels: tuple[ShardLevel, ...]

    @classmethod
    def lay(cls, selection: Orthogonal, layout: ArrayLayout) -> GridPart:
        """Part of a plan, from a selection and the layout of its array."""
        laid = [
            lay_axis(s, inner, outer, tuple(lv.chunk_shape[d] for lv in layout.levels))
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
        return tuple(axis.n_shards for axis in self.sharded)

    @property
    def n_shards(self) -> int:
        """Stored objects touched."""
        return prod(self.shard_grid)

    @property
    def n_chunks(self) -> int:
        """Inner chunks wanted."""
        return prod(p.n_cells for p in self.projections)

    def chunk_coordinate(self, position: Ints) -> tuple[int, ...]:
        """Coordinate in the array's grid of inner chunks of one column of positions."""
        return tuple(
            int(p.cell_at(i)) for p, i in zip(self.projections, position, strict=False)
        )

    def block(self, first: int, last: int) -> ShardBlock:
        """Columns of shards ``first:last``, in C order over `shard_grid`."""
        grid = self.shard_grid
        at = np.unravel_index(np.arange(first, last), grid) if grid else ()
        bounds = [a.bounds_at(i) for a, i in zip(self.sharded, at, strict=True)]
        coords = np.empty((last - first, len(grid)), np.int64)
        for d, axis in enumerate(self.sharded):
            coords[:, d] = axis.shards_at(at[d])
        counts = [stop - start for start, stop in bounds]
        starts = [start for start, _ in bounds]
        shard, entry, position = self._columns(starts, counts, last - first)
        return ShardBlock(coords, shard, entry, np.zeros_like(shard), position)

    def _columns(
        self, starts: Sequence[Ints], counts: Sequence[Ints], n_shards: int
    ) -> _Columns:
        """Columns `shard`, `entry` and `position` of a `ShardBlock`.

        The shards have ``counts[d]`` wanted cells along axis d, which begin at the
        positions ``starts[d]``.
        """
        n_chunks = np.ones(n_shards, np.int64)
        for count in counts:
            n_chunks *= count
        shard = np.repeat(np.arange(n_shards), n_chunks)
        local = np.arange(len(shard)) - (np.cumsum(n_chunks) - n_chunks)[shard]
        position = np.zeros((max(len(counts), 1), len(shard)), np.int64)
        for d in reversed(range(len(counts))):
            count = counts[d]
            # Most divisors are scalars, and dividing by a scalar is several times
            # faster.
            uniform = count.min() == count.max()
            divisor = int(count[0]) if uniform else count[shard]
            local, position[d] = np.divmod(local, divisor)
            position[d] += starts[d][shard]
        return shard, self._entries(position), position

    def _entries(self, position: Ints) -> tuple[Ints, ...]:
        along = [
            axis.in_index(at) for axis, at in zip(self.sharded, position, strict=False)
        ]
        return tuple(
            ordinal_in_index(level, [c[k] for c, _ in along], [n[k] for _, n in along])
            for k, level in enumerate(self.levels)
        )

    def shard(self, number: int) -> Block:
        """Shard `number`, in C order over `shard_grid`."""
        grid = self.shard_grid
        at = np.unravel_index([number], grid) if grid else ()
        bounds = [a.bounds_at(i) for a, i in zip(self.sharded, at, strict=True)]
        counts = tuple(int(stop[0] - start[0]) for start, stop in bounds)
        if prod(counts) <= blocks.BLOCK_CHUNKS:
            return self.block(number, number + 1)
        starts = np.stack([start for start, _ in bounds])
        cells = [a.shards_at(i) for a, i in zip(self.sharded, at, strict=True)]
        coords = np.stack(cells, axis=1)

        def cut(first: int, last: int) -> ShardBlock:
            position = np.array(np.unravel_index(np.arange(first, last), counts))
            position += starts
            nothing = np.zeros(last - first, np.int64)
            entries = self._entries(position)
            return ShardBlock(coords, nothing, entries, nothing, position)

        return LargeShard(coords, prod(counts), cut)

    def blocks(self) -> Iterator[Block]:
        """All shards, a bounded number of inner chunks at a time."""
        n_shards = self.n_shards
        largest = prod(axis.most_cells for axis in self.sharded)
        if largest > blocks.BLOCK_CHUNKS:
            yield from map(self.shard, range(n_shards))
            return
        step = min(blocks.BLOCK_CHUNKS // max(largest, 1), blocks.BLOCK_SHARDS)
        for first in range(0, n_shards, step):
            yield self.block(first, min(first + step, n_shards))
