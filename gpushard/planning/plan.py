"""Selections over one array -> which inner chunks of which shards, and where they land.

A plan is small, however many inner chunks it covers: a selection is a cross product, so
the plan keeps one projection per axis, grouped by shard. `ReadPlan.blocks` yields
columns over inner chunks block by block, ordered by shard. No Python object stands for
an inner chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpushard.layout import ArrayLayout
from gpushard.planning.blocks import (
    Block,
    ShardBlock,
    cut_blocks,
    order_by,
    run_starts,
    shards_of,
)
from gpushard.planning.grid import GridPart
from gpushard.planning.patches import PatchPart
from gpushard.planning.points import PointPart
from gpushard.selecting.patches import Patches, PlannableSelection
from gpushard.selecting.selection import Ints, Orthogonal

Part = GridPart | PointPart | PatchPart

# Inner chunks of several parts that are sorted together; each takes 300 bytes.
MERGED_CHUNKS = 1 << 17


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What to read of one array, with one part for each selection."""

    parts: tuple[Part, ...]

    @property
    def n_chunks(self) -> int:
        """Inner chunks wanted, counted once for each part that wants them."""
        return sum(part.n_chunks for part in self.parts)

    @property
    def n_shards(self) -> int:
        """Stored objects touched, counted once for each part that touches them."""
        return sum(part.n_shards for part in self.parts)

    def blocks(self, most_merged: int | None = None) -> Iterator[Block]:
        """All inner chunks; parts that are merged share the block of a shard.

        Parts of up to `most_merged` inner chunks together are merged.
        """
        if len(self.parts) == 1:
            yield from self.parts[0].blocks()
            return
        for parts in self._groups(most_merged or MERGED_CHUNKS):
            if len(parts) > 1:
                yield from _merged_blocks(parts)
                continue
            for k, part in parts:
                for block in part.blocks():
                    yield block.of_part(k)

    def _groups(self, most: int) -> Iterator[list[tuple[int, Part]]]:
        """Parts with their numbers, in groups of at most `most` inner chunks."""
        group: list[tuple[int, Part]] = []
        n_chunks = 0
        for k, part in enumerate(self.parts):
            n_chunks += part.n_chunks
            if group and n_chunks > most:
                yield group
                group, n_chunks = [], part.n_chunks
            group.append((k, part))
        if group:
            yield group


def plan_read(
    layout: ArrayLayout,
    selections: Sequence[PlannableSelection],
    *,
    apart: bool = False,
) -> ReadPlan:
    """Plan that reads `selections` of the array with `layout` in one batch.

    `apart` keeps boxes of patches apart (see `PatchPart.lay`).
    """
    return ReadPlan(tuple(_part(s, layout, apart=apart) for s in selections))


def _part(selection: PlannableSelection, layout: ArrayLayout, *, apart: bool) -> Part:
    if isinstance(selection, Orthogonal):
        return GridPart.lay(selection, layout)
    if isinstance(selection, Patches):
        return PatchPart.lay(selection, layout, apart=apart)
    return PointPart.lay(selection, layout)


def _merged_blocks(parts: Sequence[tuple[int, Part]]) -> Iterator[ShardBlock]:
    """Blocks of several parts, with the rows of one shard side by side."""
    planned = [(k, block) for k, part in parts for block in part.blocks()]
    blocks = [(k, p) for k, block in planned for p in block.pieces() if p.n_chunks]
    if not blocks:
        return
    n_rows = max(block.position.shape[0] for _, block in blocks)
    shard_cell = np.concatenate([b.shard_coords[b.shard].T for _, b in blocks], axis=1)
    order = order_by(shard_cell)
    shard_cell = shard_cell[:, order]
    part = np.concatenate([np.full(len(b.shard), k) for k, b in blocks])[order]
    position = np.concatenate([_padded(b.position, n_rows) for _, b in blocks], axis=1)
    position = position[:, order]
    entry = tuple(
        np.concatenate(columns)[order]
        for columns in zip(*(b.entry for _, b in blocks), strict=True)
    )
    for first, last in cut_blocks(run_starts(shard_cell), len(part)):
        coords, shard = shards_of(shard_cell[:, first:last])
        yield ShardBlock(
            coords,
            shard,
            tuple(e[first:last] for e in entry),
            part[first:last],
            position[:, first:last],
        )


def _padded(position: Ints, n_rows: int) -> Ints:
    missing = n_rows - position.shape[0]
    return np.pad(position, ((0, missing), (0, 0))) if missing else position
