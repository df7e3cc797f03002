"""Objects that are fetched whole, and then read like a store of their own.

In a store where each request has a price, a shard of which most is wanted costs one
request instead of two. Some objects are always fetched whole, because no range of them
can be decoded alone: chunks of an unsharded array with compression, and shards with
codecs around them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np
from numpy.typing import NDArray

from gpushard.codecs.wrapping import ObjectCodecs
from gpushard.damage import reported_afterwards
from gpushard.errors import CorruptShardError, LimitError
from gpushard.fetching.fetch import known_index
from gpushard.fetching.job import Job, rows_of
from gpushard.layout import Coordinate
from gpushard.memory.chunk_room import usual_stored
from gpushard.memory.freed import decode_in_turn
from gpushard.memory.known import IndexCache
from gpushard.memory.turns import turns
from gpushard.options import KIB
from gpushard.planning.blocks import Block
from gpushard.reading.ranges import range_tasks
from gpushard.reading.requests import objects_of_task
from gpushard.report import Tally
from gpushard.source import Source
from gpushard.stores.base import ByteRequest, Fetched
from gpushard.stores.held import HeldObjects
from gpushard.threads.work_queue import Spawner, Task, Work
from gpushard.threads.workers import run_tasks

# A shard is fetched whole if its decoded elements take at most 7/8 of what may be
# fetched: compressors and indexes add less than the remaining 1/8.
_LITTLE_LESS = 7
# A shard may have gaps of its own size, or of this one, and still be fetched whole.
_LEAST_GAPS_NBYTES = 64 * KIB


def fetched_whole(job: Job, block: Block) -> NDArray[np.bool_]:
    """Which shards of a block are fetched whole: bool, shape (n_shards,)."""
    source = job.source
    n_shards = len(block.shard_coords)
    layout, costs = source.layout, source.store.costs
    if layout.object_codecs or (not layout.levels and source.raw_strides is None):
        return np.ones(n_shards, bool)
    whole = np.zeros(n_shards, bool)
    if not (layout.levels and costs.prefers_whole_objects):
        return whole
    wanted = block.n_chunks_of_shards()
    most = most_whole_nbytes(source)
    for s, coordinate in enumerate(block.shard_coords.tolist()):
        whole[s] = suits_whole(source, tuple(coordinate), wanted[s], most)
    return whole


def most_whole_nbytes(source: Source) -> int:
    """Decoded size up to which shards are fetched whole, where ranges would do."""
    # A stored shard with its index takes little more than its decoded elements.
    fitting = source.room.most_fetched_nbytes * _LITTLE_LESS // (_LITTLE_LESS + 1)
    return min(source.options.whole_object_max_nbytes, fitting)


def suits_whole(
    source: Source, coordinate: Coordinate, n_wanted: int, most_nbytes: int
) -> bool:
    """Whether a shard is fetched whole, of which `n_wanted` inner chunks are wanted.

    In a store whose requests are expensive; `most_nbytes` as `most_whole_nbytes` says.
    """
    n_chunks = source.n_chunks_in(coordinate)
    return (
        n_wanted >= source.options.whole_object_fraction * n_chunks
        and n_chunks * source.chunk_nbytes <= most_nbytes
        and known_index(source, coordinate, source.key(coordinate)) is None
    )


def whole_tasks(job: Job, block: Block, n_workers: int) -> Iterator[Work]:
    """Work that reads the shards of a block, as many at a time as make a batch."""
    n_shards = len(block.shard_coords)
    largest = _largest_of(job.source, block)
    shard_nbytes = _shard_nbytes(job.source, largest)
    # Objects that are larger than they should be must stay within the limit, too.
    limit = most_fetched(job.source, largest)
    fitting = job.source.options.memory_limit // (2 * n_workers * max(limit, 1))
    suitable = objects_of_task(job, n_shards, shard_nbytes, n_workers)
    per_task = max(1, min(suitable, fitting))
    for first in range(0, n_shards, per_task):
        marked = np.zeros(n_shards, bool)
        marked[first : first + per_task] = True
        some = rows_of(block, marked)
        # The sizes of the objects are not known. Without sharding a worker has one
        # batch in hand, which has room. Shards, for which ranges would do, may not
        # take more than the limit allows.
        nbytes = per_task * limit if job.source.layout.levels else 0
        yield Spawner(partial(_read_whole, job, some, n_workers), nbytes)


def _largest_of(source: Source, block: Block) -> Coordinate:
    """Coordinate of the largest shard of a block."""
    coordinates = block.shard_coords
    sizes = np.ones(len(coordinates))  # of floats, which no size overflows
    for axis, at in zip(source.layout.axes, coordinates.T, strict=True):
        sizes *= axis.length_of(at)
    return tuple(coordinates[sizes.argmax()].tolist())


def _shard_nbytes(source: Source, coordinate: Coordinate) -> int:
    """Decoded size of a shard."""
    shape = source.layout.object_shape(coordinate)
    return prod(shape) * source.layout.dtype.itemsize


def _shard_limit(source: Source, coordinate: Coordinate) -> int:
    """Size above which a shard's bytes are inconsistent, or mostly gaps."""
    most = source.options.max_chunk_nbytes
    if source.layout.dtype.kind in "OT":
        return most  # the metadata does not say how large strings are
    shape = source.layout.object_shape(coordinate)
    limit = 2 * _shard_nbytes(source, coordinate) + source.added_nbytes(shape)
    limit = min(limit, most)
    for level in source.layout.levels[:1]:
        n_entries = prod(source.chunks_per_shard(coordinate, 0))
        limit += level.index_nbytes(n_entries)
    return limit


def largest_object(source: Source, coordinate: Coordinate) -> int:
    """Largest size at which a stored object is fetched whole."""
    layout = source.layout
    if not layout.levels:
        return source.pipeline.encoded_limit(source.shape_of(coordinate))
    limit = _shard_limit(source, coordinate)
    return ObjectCodecs(layout.object_codecs).encoded_limit(limit)


def beyond_limit(
    source: Source, limit: int, nbytes: int, hint: str | None = None
) -> CorruptShardError:
    """Error of an object of `nbytes`, above the `limit` of `largest_object`."""
    return CorruptShardError(
        "a stored object is larger than any encoding of its elements needs",
        array_path=source.layout.path,
        expected=f"at most {limit} bytes",
        got=f"{nbytes} bytes",
        hint=hint,
    )


def _read_whole(job: Job, block: Block, n_workers: int) -> Sequence[Task]:
    """Fetch the shards of a block; return tasks that read the block from them."""
    answers, is_large = _fetch(job, block, is_usual=True)
    layout = job.source.layout
    if is_large.any() and not layout.levels:
        del answers
        with reported_afterwards(), turns.padded:
            answers, _ = _fetch(job, block, is_usual=False)
            run_tasks(_reading(job, block, answers, n_workers), 1)
        return ()
    if is_large.any() and not layout.object_codecs:
        # Such a shard is mostly gaps, so only its wanted ranges are read.
        run_tasks(range_tasks(job, rows_of(block, is_large), n_workers=1), 1)
        if is_large.all():
            return ()
        answers = [a for a, large in zip(answers, is_large, strict=True) if not large]
        block = rows_of(block, ~is_large)
    return _reading(job, block, answers, n_workers)


def _fetch(
    job: Job, block: Block, *, is_usual: bool
) -> tuple[list[Fetched | None], NDArray[np.bool_]]:
    """The objects of a block, and which of them are larger than expected.

    Larger ones are cut off one byte after the largest size to expect. If `is_usual`,
    that is the largest size that compressors make of a chunk.

    Raises
    ------
    LimitError
        An object does not fit the memory limit.
    """
    source = job.source
    requests: list[ByteRequest] = []
    for row in block.shard_coords.tolist():
        # One byte more than allowed is requested, to detect an object that is too
        # large.
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
    """Most bytes to fetch of an object; `is_usual`: as large as compressors make it."""
    most, layout = largest_object(source, coordinate), source.layout
    if layout.levels and not layout.object_codecs:
        # If a shard is larger, only its wanted ranges are read.
        most = min(most, _usual_shard(source, coordinate))
        return min(most, source.room.most_fetched_nbytes)
    if is_usual and not layout.levels:
        most = min(most, usual_stored(_shard_nbytes(source, coordinate)))
    return max(0, min(most, _most_stored(source)))


def _usual_shard(source: Source, coordinate: Coordinate) -> int:
    """Largest size to expect of a shard that can also be read in ranges.

    What may come counts as if it came. With gaps as for a large shard, small ones could
    not be fetched side by side.
    """
    if source.layout.dtype.kind in "OT":
        return source.options.max_chunk_nbytes
    nbytes = _shard_nbytes(source, coordinate)
    entries = prod(source.chunks_per_shard(coordinate, 0))
    index_nbytes = source.layout.levels[0].index_nbytes(entries)
    return usual_stored(nbytes) + max(nbytes, _LEAST_GAPS_NBYTES) + index_nbytes


def _most_stored(source: Source) -> int:
    """Largest size of a stored object that leaves room to decode its contents."""
    room = source.room.most_stored_nbytes
    return room - source.whole_nbytes if source.layout.object_codecs else room


def beyond_room(source: Source, coordinate: Coordinate) -> LimitError | None:
    """Error of an object that was cut for lack of room; None if its size is invalid.

    A valid object may be larger than the room for it.
    """
    most = _most_stored(source)
    if most >= largest_object(source, coordinate):
        return None
    # The object's size was not asked for. Compressors seldom make a larger one.
    least = max(max(0, most) + 1, usual_stored(source.whole_nbytes))
    needed = least + source.room.alone_nbytes - most
    error = source.room.beyond("a stored object", needed)
    error.add_context(shard_key=source.key(coordinate))
    return error


# Counters of what becomes of inner chunks, wherever their bytes come from.
_DONE = ("n_missing", "n_decoded", "n_refused", "n_memory")


@dataclass(kw_only=True)
class _HeldTally(Tally):
    """Counts a read from fetched objects, whose requests do not reach the store.

    Bytes that such a read uses are subtracted from the gaps among the fetched bytes.
    """

    of_store: Tally

    def add(self, **counts: int) -> None:
        nbytes = counts.pop("payload_nbytes", 0) - counts.pop("gap_nbytes", 0)
        passed = {k: n for k, n in counts.items() if k.startswith(_DONE)}
        self.of_store.add(gap_nbytes=-nbytes, **passed)

    def add_seconds(self, stage: str, seconds: float) -> None:
        self.of_store.add_seconds(stage, seconds)


def _reading(
    job: Job, block: Block, answers: Sequence[Fetched | None], n_workers: int
) -> Sequence[Task]:
    """Tasks that read a block from its fetched objects."""
    source = job.source
    objects: dict[str, Fetched | None] = {}
    for s, (row, answer) in enumerate(
        zip(block.shard_coords.tolist(), answers, strict=True)
    ):
        key = source.key(tuple(row))
        try:
            objects[key] = unwrapped(source, tuple(row), answer)
        except CorruptShardError as error:
            # Nothing of the object is readable. If the read continues, it is filled.
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
        # Byte ranges in an unwrapped shard do not apply to the stored object.
        indexes=IndexCache(0) if wrapped else source.indexes,
        chunks=None,
    )


def _refuse_cut_off(source: Source, coordinate: Coordinate, answer: Fetched) -> None:
    """Refuse an object with other bytes than its size tells, unless it was cut here.

    An index at its end would be read from the wrong place, and may have no checksum.
    """
    told, n_bytes = answer.object_nbytes, len(answer.data)
    if told is None or n_bytes == told:
        return
    if told > n_bytes > most_fetched(source, coordinate):
        return
    raise CorruptShardError(
        "the store answered with other bytes than a whole object",
        array_path=source.layout.path,
        shard_key=source.key(coordinate),
        expected=f"{told} bytes",
        got=f"{n_bytes} bytes",
        hint="read again; if that does not help, see what the store answers",
    )


def unwrapped(
    source: Source, coordinate: Coordinate, answer: Fetched | None
) -> Fetched | None:
    """The shard inside an object, with the codecs around it undone.

    Raises
    ------
    CorruptShardError
        The codecs refuse the bytes, or these are not as many as the object's size
        tells.
    """
    if answer is not None:
        _refuse_cut_off(source, coordinate, answer)
    if answer is None or not source.layout.object_codecs:
        return answer
    return Fetched(shard_inside(source, coordinate, answer.data), None, None)


def shard_inside(
    source: Source, coordinate: Coordinate, data: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Bytes of the shard in those of an object, with the codecs around it undone.

    Raises
    ------
    CorruptShardError
        The codecs refuse the bytes.
    LimitError
        The shard does not fit the memory limit.
    """
    limit = _shard_limit(source, coordinate)
    room = source.room.most_stored_nbytes - len(data)
    most, needed = limit, limit
    try:
        codecs = ObjectCodecs(source.layout.object_codecs)
        most = codecs.most_nbytes(data, limit, room)
        needed = codecs.needed_nbytes(data, limit)
        decode = partial(codecs.decode, data, most)
        extra = codecs.extra_nbytes(data, most)
        if extra and source.room.is_crowded_by(extra):
            return decode_in_turn(decode)
        return decode()
    except CorruptShardError as error:
        # The limits of all codecs follow from `most`.
        if most < limit and error.limit_nbytes is not None:
            needed += source.room.alone_nbytes - room
            raise source.room.beyond("a shard with codecs around it", needed) from error
        error.add_context(
            array_path=source.layout.path, shard_key=source.key(coordinate)
        )
        raise
