"""One array's share of a read: the array, what to read, and where to write it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpushard.damage import ENDS_READ, Damage, at_inner_chunk
from gpushard.errors import CorruptShardError, GpushardError
from gpushard.fetching.ranged import CacheSlots, RangedBlock
from gpushard.options import KIB
from gpushard.planning.blocks import Block, LargeShard, ShardBlock
from gpushard.planning.plan import ReadPlan
from gpushard.report import Tally
from gpushard.selecting.selection import Ints
from gpushard.source import Source
from gpushard.stores.base import ByteRequest
from gpushard.threads.work_queue import Task

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

# Batches of each worker: the last ones end at about the same time.
_TURNS = 4
# However many requests are under way, each batch waits for the network once. So batches
# over a network are larger, and fewer.
_WAITED_TIMES, _WAITED_TURNS = 8, 2
# Batches of a device that are planned while others are fetched.
_N_AHEAD = 2
# A share is at least this large: a smaller one is read before a thread has started.
SMALLEST_SHARE_NBYTES = 256 * KIB


Answer = tuple[int, Any]
"""Number of a request in its block, and what `Sink.fetch` returned for it."""


RequestsDone = Callable[[range, Sequence[tuple[int, Task]]], None]
"""Called when a range of requests has been read by a sink itself.

The sequence has the numbers of requests of which the sink has left inner chunks over,
each with a task that reads these.
"""


RequestReader = Callable[[int, RequestsDone], Iterator[Task]]
"""Given a number of threads, makes tasks that read the requests of a block and place
their inner chunks.
"""


BatchCut = Callable[["Job", int, int], int]
"""Number of bytes to fetch as one task of a job, given its inner chunks and bytes."""


KeptPlacer = Callable[["Job", ShardBlock, Ints, CacheSlots], None]
"""Writes inner chunks of a block to the output, from where they are kept."""


class JobReader(Protocol):
    """Reads as much of a whole job as it can, in a shorter way than `reading.read`."""

    def tasks(self, n_workers: int) -> Iterator[Task]:
        """Tasks that read everything except what `left_over` then returns."""
        ...

    @property
    def seen(self) -> set[str]:
        """Keys of shards in `left_over` that existed when their index was read."""
        ...

    def left_over(self) -> Iterator[Block]:
        """Blocks that are still to be read, once all tasks have run."""
        ...


class Sink(Protocol):
    """Decodes inner chunks and writes them to the output; called from many threads."""

    def job_reader(self, job: Job) -> JobReader | None:
        """A reader for the whole job, if the sink has one; else None."""
        ...

    def request_reader(self, job: Job, ranged: RangedBlock) -> RequestReader | None:
        """A reader for a block's requests, if the sink fetches by itself; else None."""
        ...

    @property
    def batch_nbytes(self) -> int | None:
        """Bytes that the sink wants fetched as one task; None: as suits the store.

        If None, answers stay valid after the context of `fetch` has ended, and are
        uint8, shape (n_bytes,), host. So several tasks may place parts of one answer.
        """
        ...

    @property
    def batch_cut(self) -> BatchCut | None:
        """Says what batches are to be smaller than `batch_nbytes`; None: none."""
        ...

    def fetch(
        self, job: Job, requests: Sequence[ByteRequest], n_rows: int
    ) -> AbstractContextManager[Sequence[Any]]:
        """Fetch payload to where it is decoded; the answers last as the context does.

        The requests have `n_rows` inner chunks together. Returns one answer per
        request; None if an unsharded array has no such chunk.
        """
        ...

    @property
    def place_kept(self) -> KeptPlacer | None:
        """Writes inner chunks that are kept decoded; None on a device."""
        ...

    def fill(self, job: Job, block: ShardBlock, rows: Ints) -> None:
        """Write the fill value where the missing inner chunks `rows` would land."""
        ...

    def place(self, job: Job, ranged: RangedBlock, fetched: Sequence[Answer]) -> None:
        """Decode the inner chunks in some requests and write them."""
        ...

    def finish(self) -> None:
        """Return when all work is written, or raise the error that prevents it."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """One array's share of a read.

    Attributes
    ----------
    source
        The array.
    plan
        What to read of the array, one part per selection.
    sink
        Decodes inner chunks and writes them.
    tally
        Counts what the job does.
    damage
        What happens at damaged inner chunks.
    seen
        Keys of shards that existed a moment ago; an error if they are gone now.
    """

    source: Source
    plan: ReadPlan
    sink: Sink
    tally: Tally
    damage: Damage = ENDS_READ
    seen: frozenset[str] = frozenset()

    @property
    def n_workers(self) -> int:
        """Number of threads that suits the amount of work."""
        source, n_chunks = self.source, self.plan.n_chunks
        # Of a rectilinear grid, the first inner chunk may be far smaller than others.
        is_regular = source.chunk_shape is not None
        chunk_nbytes = source.chunk_nbytes if is_regular else source.whole_nbytes
        # Over a network even little work waits, and may as well wait side by side.
        is_little = n_chunks * chunk_nbytes < SMALLEST_SHARE_NBYTES
        is_near = not source.store.costs.prefers_whole_objects
        if n_chunks <= 1 or (is_little and is_near):
            return 1
        if self.sink.batch_nbytes is not None:
            # Workers that find no free slot have planned the next batches meanwhile.
            # More workers would have nothing to do.
            most = source.options.pinned_slots + _N_AHEAD
            return min(source.most_workers, most)
        return source.most_workers

    def batch_nbytes(self, wanted_nbytes: int, n_workers: int, n_rows: int = 0) -> int:
        """Bytes to fetch as one task if `n_workers` share `wanted_nbytes`.

        Of `n_rows` inner chunks, or 0 if that is not known yet.
        """
        if self.sink.batch_nbytes is not None:
            if not n_rows or self.sink.batch_cut is None:
                return self.sink.batch_nbytes
            return self.sink.batch_cut(self, n_rows, wanted_nbytes)
        options = self.source.options
        bound = max(1, options.memory_limit // (2 * n_workers))
        if self.source.room.is_tight:
            bound = max(1, min(bound, self.source.room.most_stored_nbytes))
        most, n_turns = options.batch_nbytes, _TURNS
        if self.source.store.costs.prefers_whole_objects:
            most, n_turns = most * _WAITED_TIMES, _WAITED_TURNS
        if n_workers == 1:
            return min(most, bound)
        share = max(wanted_nbytes // (n_turns * n_workers), SMALLEST_SHARE_NBYTES)
        return min(share, most, bound)

    @property
    def most_fetched_nbytes(self) -> int:
        """Most fetched bytes that may wait while inner chunks are decoded."""
        return self.source.room.most_fetched_nbytes

    @property
    def max_request_nbytes(self) -> int:
        """Largest size of a request to the store."""
        source = self.source
        most = min(
            source.store.costs.max_request_nbytes, source.room.most_request_nbytes
        )
        return max(1, most)

    def byte_requests(self, ranged: RangedBlock, some: range) -> list[ByteRequest]:
        """The requests to the store for neighbouring requests of a block."""
        among = slice(some.start, some.stop)
        requests, versions = ranged.requests, ranged.located.versions
        shards = requests.source[among].tolist()
        keys = {
            shard: self.source.key(tuple(ranged.block.shard_coords[shard].tolist()))
            for shard in set(shards)
        }
        is_indexed = bool(self.source.layout.levels)
        starts, stops = requests.start[among].tolist(), requests.stop[among].tolist()
        return [
            ByteRequest(
                keys[shard], start, stop, versions[shard], is_indexed=is_indexed
            )
            for shard, start, stop in zip(shards, starts, stops, strict=True)
        ]

    def chunk_coordinate(self, block: ShardBlock, row: int) -> tuple[int, ...]:
        """Coordinate of a block's inner chunk in the grid of inner chunks."""
        part = self.plan.parts[int(block.part[row])]
        return part.chunk_coordinate(block.position[:, row])

    def name_place(self, error: GpushardError, block: ShardBlock, row: int) -> None:
        """Name in `error` the inner chunk of a block that it is about."""
        shard = tuple(block.shard_coords[block.shard[row]].tolist())
        error.add_context(
            array_path=self.source.layout.path,
            shard_key=self.source.key(shard),
            inner_chunk=self.chunk_coordinate(block, row),
        )

    def give_up(self, error: CorruptShardError, block: ShardBlock, rows: Ints) -> None:
        """Note that the inner chunks `rows` are lost to `error`, or raise it.

        Raises
        ------
        CorruptShardError
            A copy of `error`, if damage ends the read: callers hold `error`, and must
            not be held by it.
        """
        if not self.damage.replaces:
            raise copy.copy(error) from error.__cause__
        for row in rows.tolist():
            coordinate = self.chunk_coordinate(block, row)
            said = at_inner_chunk(error, coordinate)
            self.name_place(said, block, row)
            self.damage.note(said)


def rows_of(block: Block, shards: NDArray[np.bool_]) -> Block:
    """The part of a block that lies in the marked shards (at least one).

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
