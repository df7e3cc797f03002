"""Objects fetched whole, then read like a store of their own.

Where each request has a price, a shard that is mostly wanted costs one request instead
of two. Objects that no range can be cut from always come whole: chunks of an unsharded
array with compression, and shards with codecs around them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod

import numpy as np
from numpy.typing import NDArray

from gpushard.codecs.wrapping import (
    decode_object_bytes,
    encoded_object_limit,
    object_copies,
)
from gpushard.errors import CorruptShardError, LimitError
from gpushard.fetching.fetch import known_index
from gpushard.fetching.job import Job, rows_of
from gpushard.memory.chunk_room import usual_stored
from gpushard.memory.known import IndexCache
from gpushard.memory.turns import turns
from gpushard.planning.blocks import Planned
from gpushard.reading.ranges import range_tasks
from gpushard.report import Tally
from gpushard.source import Source
from gpushard.stores.base import ByteRequest, Fetched
from gpushard.stores.held import HeldObjects
from gpushard.workers import Opener, Task, Work, run_tasks

Coordinate = tuple[int, ...]

# Objects fetched whole have elements of so much of what may be fetched: compressors
# and indexes add less than one part more.
_LITTLE_LESS = 7


def fetched_whole(job: Job, block: Planned) -> NDArray[np.bool_]:
    """Which shards of a block are fetched whole: bool, shape (n_shards,)."""
    source = job.source
    n_shards = len(block.shard_coords)
    layout, options, costs = source.layout, source.options, source.store.costs
    if layout.object_codecs or (not layout.levels and source.raw_strides is None):
        return np.ones(n_shards, bool)
    whole = np.zeros(n_shards, bool)
    if not (layout.levels and costs.prefers_whole_objects):
        return whole
    wanted = block.n_chunks_of_shards()
    # Stored, with its index, it takes little more.
    fitting = source.room.most_fetched_nbytes * _LITTLE_LESS // (_LITTLE_LESS + 1)
    most = min(options.whole_object_max_nbytes, fitting)
    for s, coordinate in enumerate(block.shard_coords.tolist()):
        n_chunks = _chunks_in_shard(source, coordinate)
        if (
            wanted[s] >= options.whole_object_fraction * n_chunks
            and n_chunks * source.chunk_nbytes <= most
        ):
            key = source.key(tuple(coordinate))
            whole[s] = known_index(source, tuple(coordinate), key) is None
    return whole


def _chunks_in_shard(source: Source, coordinate: list[int]) -> int:
    """Inner chunks of a shard that meet the array."""
    n_chunks = 1
    layout = source.layout
    for axis, inner, at in zip(layout.axes, layout.inner_axes, coordinate, strict=True):
        start = int(axis.start_of(at))
        stop = min(start + int(axis.length_of(at)), axis.extent)
        n_chunks *= -(-(stop - start) // inner.cell)
    return n_chunks


def whole_tasks(job: Job, block: Planned, n_workers: int) -> Iterator[Work]:
    """Work that reads the shards of a block: each takes as many as make a batch."""
    n_shards = len(block.shard_coords)
    first_shard = (0,) * job.source.layout.ndim
    shard_nbytes = _shard_nbytes(job.source, first_shard)
    budget = job.batch_nbytes(shard_nbytes * n_shards, n_workers)
    # Bytes that lie about their size must not take more than the limit either.
    bound = job.source.options.memory_limit // (2 * n_workers)
    limit = most_fetched(job.source, first_shard)
    fitting = bound // max(limit, 1)
    per_task = max(1, min(budget // max(shard_nbytes, 1), fitting))
    for first in range(0, n_shards, per_task):
        marked = np.zeros(n_shards, bool)
        marked[first : first + per_task] = True
        some = rows_of(block, marked)
        # How large they are is not known. Others of which a worker has one batch in
        # hand have room for it; where ranges would do, they may not take more.
        nbytes = per_task * limit if job.source.layout.levels else 0
        yield Opener(partial(_read_whole, job, some, n_workers), nbytes)


def _shard_nbytes(source: Source, coordinate: Coordinate) -> int:
    """Decoded size of a shard."""
    axes = zip(source.layout.axes, coordinate, strict=True)
    lengths = (int(axis.length_of(at)) for axis, at in axes)
    return prod(lengths) * source.layout.dtype.itemsize


def _shard_limit(source: Source, coordinate: Coordinate) -> int:
    """Size of a shard above which its bytes lie, or hold mostly gaps."""
    most = source.options.max_chunk_nbytes
    if source.layout.dtype.kind in "OT":
        return most  # strings have no size that the metadata tells
    # Gaps make a shard larger than its inner chunks, but not without end.
    limit = 2 * _shard_nbytes(source, coordinate) + source.options.batch_nbytes
    limit = min(limit, most)
    for level in source.layout.levels[:1]:
        n_entries = prod(source.chunks_per_shard(coordinate, 0))
        limit += level.index_nbytes(n_entries)
    return limit


def largest_object(source: Source, coordinate: Coordinate) -> int:
    """Size of a stored object above which it is not fetched whole."""
    layout = source.layout
    if not layout.levels:
        return source.pipeline.encoded_limit(source.shape_of(coordinate))
    limit = _shard_limit(source, coordinate)
    return encoded_object_limit(layout.object_codecs, limit)


def _read_whole(job: Job, block: Planned, n_workers: int) -> Sequence[Task]:
    """Fetch the shards of a block; gives the tasks that read it from them."""
    answers, is_large = _fetch(job, block, is_usual=True)
    layout = job.source.layout
    if is_large.any() and not layout.levels:
        del answers
        with turns.padded:
            answers, _ = _fetch(job, block, is_usual=False)
            run_tasks(_reading(job, block, answers, n_workers), 1)
        return ()
    if is_large.any() and layout.levels and not layout.object_codecs:
        # Much of such shards is gaps: only what is wanted of them is read.
        run_tasks(range_tasks(job, rows_of(block, is_large), n_workers=1), 1)
        if is_large.all():
            return ()
        answers = [a for a, large in zip(answers, is_large, strict=True) if not large]
        block = rows_of(block, ~is_large)
    return _reading(job, block, answers, n_workers)


def _fetch(
    job: Job, block: Planned, *, is_usual: bool
) -> tuple[list[Fetched | None], NDArray[np.bool_]]:
    """Objects of a block, cut behind the largest sane size, and which are larger.

    `is_usual`: chunks that are larger than compressors make them are cut, too.

    Raises
    ------
    LimitError
        One does not fit the memory limit.
    """
    source = job.source
    requests: list[ByteRequest] = []
    for row in block.shard_coords.tolist():
        # One byte more than there should be tells an object that is too large.
        limit = most_fetched(source, tuple(row), is_usual=is_usual) + 1
        requests.append(ByteRequest(source.key(tuple(row)), max_nbytes=limit))
    with job.tally.stage("fetch"):
        answers = source.read(requests)
    is_large = [
        answer is not None and len(answer.data) == request.max_nbytes
        for answer, request in zip(answers, requests, strict=True)
    ]
    if not is_usual or source.layout.object_codecs:
        for row, large in zip(block.shard_coords.tolist(), is_large, strict=True):
            error = beyond_room(source, tuple(row)) if large else None
            if error is not None:
                raise error
    return answers, np.array(is_large, np.bool_)


def most_fetched(
    source: Source, coordinate: Coordinate, *, is_usual: bool = False
) -> int:
    """Size above which an object is cut; `is_usual`: as compressors make them."""
    most, layout = largest_object(source, coordinate), source.layout
    if layout.levels and not layout.object_codecs:
        # Of larger ones only what is wanted is read.
        return min(most, source.room.most_fetched_nbytes)
    if is_usual and not layout.levels:
        most = min(most, usual_stored(_shard_nbytes(source, coordinate)))
    return max(0, min(most, _most_stored(source)))


def _most_stored(source: Source) -> int:
    """Size of a stored object that leaves room to decode what is in it."""
    room = source.room.most_stored_nbytes
    return room - source.whole_nbytes if source.layout.object_codecs else room


def beyond_room(source: Source, coordinate: Coordinate) -> LimitError | None:
    """Error of an object that is cut as there is no more room; None: it is too large.

    Honest ones may be larger than there is room for.
    """
    most = _most_stored(source)
    if most >= largest_object(source, coordinate):
        return None
    # How large it is was not asked: as a rule no larger than compressors make it.
    least = max(max(0, most) + 1, usual_stored(source.whole_nbytes))
    needed = least + source.room.alone_nbytes - most
    error = source.room.beyond("a stored object", needed)
    error.add_context(shard_key=source.key(coordinate))
    return error


@dataclass
class _HeldTally(Tally):
    """Counts a read of fetched objects: what they are asked is no request of the store.

    What is read of them leaves so much less of what was fetched to be gaps.
    """

    of_store: Tally = field(default_factory=Tally)

    def add(self, **counts: int) -> None:
        nbytes = counts.pop("payload_nbytes", 0) - counts.pop("gap_nbytes", 0)
        passed = {k: n for k, n in counts.items() if k.startswith("n_missing")}
        self.of_store.add(gap_nbytes=-nbytes, **passed)

    def add_seconds(self, stage: str, seconds: float) -> None:
        self.of_store.add_seconds(stage, seconds)


def _reading(
    job: Job, block: Planned, answers: Sequence[Fetched | None], n_workers: int
) -> Sequence[Task]:
    """Tasks that read a block from its objects."""
    source = job.source
    objects: dict[str, Fetched | None] = {}
    for s, (row, answer) in enumerate(
        zip(block.shard_coords.tolist(), answers, strict=True)
    ):
        key = source.key(tuple(row))
        try:
            objects[key] = unwrapped(source, tuple(row), answer)
        except CorruptShardError as error:
            # Nothing of the object can be read: filled, if the read goes on.
            for piece in block.pieces():
                job.give_up(error, piece, np.flatnonzero(piece.shard == s))
            objects[key] = None
    fetched_nbytes = sum(len(a.data) for a in answers if a is not None)
    job.tally.add(
        n_payload_requests=len(answers),
        payload_nbytes=fetched_nbytes,
        gap_nbytes=fetched_nbytes,
    )
    inner = replace(
        job,
        source=held(source, objects),
        tally=_HeldTally(is_wanted=job.tally.is_wanted, of_store=job.tally),
    )
    works = range_tasks(inner, block, n_workers)
    return [partial(run_tasks, [work], 1) for work in works]


def held(source: Source, objects: dict[str, Fetched | None]) -> Source:
    """The same array, read from objects in memory."""
    wrapped = bool(source.layout.object_codecs)
    return replace(
        source,
        store=HeldObjects(objects, source.store.url),
        layout=replace(source.layout, object_codecs=()),
        # Ranges of an unwrapped object mean nothing in the stored one.
        indexes=IndexCache(0) if wrapped else source.indexes,
        chunks=None,
    )


def unwrapped(
    source: Source, coordinate: Coordinate, answer: Fetched | None
) -> Fetched | None:
    """The shard in an object with codecs around it."""
    codecs = source.layout.object_codecs
    if answer is None or not codecs:
        return answer
    limit = _shard_limit(source, coordinate)
    room = source.room.most_stored_nbytes - len(answer.data)
    most = min(limit, max(0, room // object_copies(codecs)))
    try:
        data = decode_object_bytes(codecs, answer.data, most)
    except CorruptShardError as error:
        if most < limit and error.expected == f"at most {most} bytes":
            needed = source.room.alone_nbytes - room + limit
            raise source.room.beyond("a shard with codecs around it", needed) from error
        error.add_context(
            array_path=source.layout.path, shard_key=source.key(coordinate)
        )
        raise
    return Fetched(np.frombuffer(data, np.uint8), None, None)
