"""One array's share of a read: what to read, of what, and where it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpushard.damage import ENDS_READ, Damage, at_inner_chunk
from gpushard.errors import CorruptShardError, GpushardError
from gpushard.fetching.ranged import Places, RangedBlock
from gpushard.options import KIB
from gpushard.planning.blocks import LargeShard, Planned, ShardBlock
from gpushard.planning.plan import ReadPlan
from gpushard.report import Tally
from gpushard.selecting.selection import Ints
from gpushard.source import Source
from gpushard.stores.base import ByteRequest

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

# A share is not cut smaller: below, a read is over before a thread has started.
SMALLEST_SHARE_NBYTES = 256 * KIB
# Requests over a network keep a worker waiting, not computing.
_REMOTE_WORKERS = 8


Answer = tuple[int, Any]
"""A request, by its number in the block, and what `Sink.fetch` gave for it."""


RequestReader = Callable[[range], None]
"""Fetches some requests of a block, and lets the inner chunks that they hold land."""


KeptPlacer = Callable[["Job", ShardBlock, Ints, Places], None]
"""Lets some inner chunks of a block land, from the places where they are kept."""


class SelfReader(Protocol):
    """Reads all of a job that it can, without the stages between plan and placing."""

    def tasks(self, n_workers: int) -> Iterator[Callable[[], None]]:
        """Tasks that read all but what is left over."""
        ...

    @property
    def seen(self) -> set[str]:
        """Keys of left over shards that were there when their index was read."""
        ...

    def left_over(self) -> Iterator[Planned]:
        """Blocks of what is left over, once all tasks have run."""
        ...


class Sink(Protocol):
    """Where inner chunks are decoded and written; called from several threads."""

    def direct(self, job: Job) -> SelfReader | None:
        """What reads the job, where the sink can do it all by itself."""
        ...

    def reader(self, job: Job, ranged: RangedBlock) -> RequestReader | None:
        """What reads a block's requests, where the sink fetches by itself."""
        ...

    @property
    def batch_nbytes(self) -> int | None:
        """Bytes it wants fetched as one task; None: as suits store and threads.

        If None, answers stay valid when the context of `fetch` has ended, and are
        uint8, shape (n_bytes,), host: several tasks may place what they hold.
        """
        ...

    def fetch(
        self, job: Job, requests: Sequence[ByteRequest]
    ) -> AbstractContextManager[Sequence[Any]]:
        """Fetch payload to where it is decoded, and keep it while the context lasts.

        Gives one answer a request; None where an unsharded array has no such chunk.
        """
        ...

    @property
    def place_kept(self) -> KeptPlacer | None:
        """What lets inner chunks land that are kept decoded; None on a device."""
        ...

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
    damage
        What becomes of damaged inner chunks.
    seen
        Keys of shards that were there a moment ago: to be gone now is an error.
    """

    source: Source
    plan: ReadPlan
    sink: Sink
    tally: Tally
    damage: Damage = ENDS_READ
    seen: frozenset[str] = frozenset()

    @property
    def n_workers(self) -> int:
        """Threads that the job's work is worth."""
        source, n_chunks = self.source, self.plan.n_chunks
        if n_chunks <= 1 or n_chunks * source.chunk_nbytes < SMALLEST_SHARE_NBYTES:
            return 1
        n_workers = source.options.threads
        if source.store.costs.prefers_whole_objects:
            n_workers = max(n_workers, _REMOTE_WORKERS)
        return min(n_workers, source.room.most_workers)

    def batch_nbytes(self, wanted_nbytes: int, n_workers: int) -> int:
        """Bytes to fetch as one task, of `wanted_nbytes` that `n_workers` share."""
        if self.sink.batch_nbytes is not None:
            return self.sink.batch_nbytes
        options = self.source.options
        bound = max(1, options.memory_limit // (2 * n_workers))
        if self.source.room.is_tight:
            bound = max(1, min(bound, self.source.room.most_stored_nbytes))
        if n_workers == 1:
            return min(options.batch_nbytes, bound)
        share = max(wanted_nbytes // (4 * n_workers), SMALLEST_SHARE_NBYTES)
        return min(share, options.batch_nbytes, bound)

    @property
    def most_fetched_nbytes(self) -> int:
        """Fetched bytes that may wait to be decoded; the rest is for decoded ones."""
        return self.source.room.most_fetched_nbytes

    @property
    def max_request_nbytes(self) -> int:
        """Size at which a request to the store is cut."""
        source = self.source
        most = min(
            source.store.costs.max_request_nbytes, source.room.most_request_nbytes
        )
        return max(1, most)

    def byte_request(self, ranged: RangedBlock, r: int) -> ByteRequest:
        """What to ask the store for request `r` of a block."""
        requests, block = ranged.requests, ranged.block
        shard = int(requests.source[r])
        return ByteRequest(
            self.source.key(tuple(block.shard_coords[shard].tolist())),
            int(requests.start[r]),
            int(requests.stop[r]),
            ranged.located.versions[shard],
            is_indexed=bool(self.source.layout.levels),
        )

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

    def give_up(self, error: CorruptShardError, block: ShardBlock, rows: Ints) -> None:
        """Say that `error` costs the inner chunks `rows`, or raise it.

        Raises
        ------
        CorruptShardError
            `error`, where damage ends the read.
        """
        if not self.damage.replaces:
            raise error
        for row in rows.tolist():
            coordinate = self.chunk_coordinate(block, row)
            said = at_inner_chunk(error, coordinate)
            self.name_place(said, block, row)
            self.damage.note(said)


def rows_of(block: Planned, shards: NDArray[np.bool_]) -> Planned:
    """The part of a block that lies in the marked shards, one at least.

    `shards`: bool, shape (n_shards,).
    """
    if shards.all() or isinstance(block, LargeShard):
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
