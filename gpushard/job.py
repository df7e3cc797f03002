"""One array's share of a read: what to read, of what, and where it goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpushard.blocks import ShardBlock
from gpushard.errors import GpushardError
from gpushard.options import KIB
from gpushard.plan import ReadPlan
from gpushard.ranged import RangedBlock
from gpushard.report import Tally
from gpushard.selection import Ints
from gpushard.source import Source

# A share is not cut smaller: below, a read is over before a thread has started.
SMALLEST_SHARE_NBYTES = 256 * KIB
# Requests over a network keep a worker waiting, not computing.
_REMOTE_WORKERS = 8


Answer = tuple[int, NDArray[np.uint8]]
"""A request, by its number in the block, and the bytes it was answered."""


class Sink(Protocol):
    """Where inner chunks are decoded and written; called from several threads."""

    def fill(self, job: Job, block: ShardBlock, rows: Ints) -> None:
        """Let the fill value land where the missing inner chunks `rows` would."""
        ...

    def place(self, job: Job, ranged: RangedBlock, fetched: Sequence[Answer]) -> None:
        """Let the inner chunks that requests hold be decoded and land."""
        ...

    def finish(self) -> None:
        """Return when all that was asked for has landed, or raise what prevents it."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """One array's share of a read.

    Attributes
    ----------
    source
        The array.
    plan
        What to read of it, one part a selection.
    sink
        What decodes and writes it.
    tally
        What was done for it.
    """

    source: Source
    plan: ReadPlan
    sink: Sink
    tally: Tally

    @property
    def n_workers(self) -> int:
        """Threads that the job's work is worth."""
        source, n_chunks = self.source, self.plan.n_chunks
        if n_chunks <= 1 or n_chunks * source.chunk_nbytes < SMALLEST_SHARE_NBYTES:
            return 1
        if source.store.costs.prefers_whole_objects:
            return max(source.options.threads, _REMOTE_WORKERS)
        return source.options.threads

    def batch_nbytes(self, wanted_nbytes: int, n_workers: int) -> int:
        """Bytes to fetch as one task, of `wanted_nbytes` that `n_workers` share."""
        options = self.source.options
        bound = max(1, options.memory_limit // (2 * n_workers))
        if n_workers == 1:
            return min(options.batch_nbytes, bound)
        share = max(wanted_nbytes // (4 * n_workers), SMALLEST_SHARE_NBYTES)
        return min(share, options.batch_nbytes, bound)

    def chunk_coordinate(self, block: ShardBlock, row: int) -> tuple[int, ...]:
        """Coordinate of an inner chunk of a block in the grid of inner chunks."""
        part = self.plan.parts[int(block.part[row])]
        return part.chunk_coordinate(block.position[:, row])

    def name_place(self, error: GpushardError, block: ShardBlock, row: int) -> None:
        """Say in `error` which inner chunk of a block it is about."""
        shard = tuple(block.shard_coords[block.shard[row]].tolist())
        error.add_context(
            array_path=self.source.layout.path,
            shard_key=self.source.key(shard),
            inner_chunk=self.chunk_coordinate(block, row),
        )


def rows_of(block: ShardBlock, shards: NDArray[np.bool_]) -> ShardBlock:
    """The part of a block that lies in the marked shards: bool, shape (n_shards,)."""
    if shards.all():
        return block
    rows = shards[block.shard]
    renumbered = np.cumsum(shards) - 1
    return ShardBlock(
        block.shard_coords[shards],
        renumbered[block.shard[rows]],
        tuple(entry[rows] for entry in block.entry),
        block.part[rows],
        block.position[:, rows],
    )
