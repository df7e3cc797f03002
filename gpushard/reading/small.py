"""Small reads: a few inner chunks, without columns, tasks or threads.

These functions run the same stages as `read`, with plain integers: a read of one inner
chunk is done before the general path would have built its columns. Only common cases
are read here; all others are declined and take the general path.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.codecs.base import PART_SHARE
from gpushard.errors import CorruptShardError, LimitError, ObjectChangedError
from gpushard.fetching.entries import Known, Range, known_indexes, located, name_place
from gpushard.fetching.fetch import fetch_objects, fetch_payload
from gpushard.fetching.gone import deleted, forget, refuse_replaced
from gpushard.layout import Coordinate
from gpushard.memory.chunk_cache import ChunkCache
from gpushard.memory.misses import SPENT_PART, SPENT_WHOLE
from gpushard.placing.keeping import (
    file_version_of,
    find_current,
    first_key,
    fits_cache,
    keep_chunk,
    kept_elements,
)
from gpushard.placing.place import completed
from gpushard.planning.touched import TouchedChunk
from gpushard.reading.few import few_chunks
from gpushard.selecting.selection import Points, Selection
from gpushard.source import Source
from gpushard.stores.base import ByteRequest, FetchCosts, Fetched, end_of


class _ToRead(NamedTuple):
    """An inner chunk to read, and whether to keep it.

    Attributes
    ----------
    start, stop
        Bytes to fetch of the stored object: all or part of its `whole` range.
    key
        Key under which the decoded inner chunk is kept; None: it is not kept.
    may_drop
        Whether other inner chunks may be dropped to make room for it.
    version
        Version of its file, if the key does not tell it.
    """

    chunk: TouchedChunk
    start: int
    stop: int
    whole: Range
    key: int | None = None
    may_drop: bool = False
    version: bytes = b""


def read_small(
    source: Source,
    selection: Selection,
    out: NDArray[Any],
    limit: int | None = None,
) -> bool:
    """Read a selection of few inner chunks into `out`; False if the read is declined.

    Parameters
    ----------
    out
        Host array of the selection's shape.
    limit
        As `few.few_chunks` takes it.

    Raises
    ------
    CorruptShardError, LimitError, StoreError
        As for any read.
    """
    has_points = isinstance(selection, Points)
    if has_points and not out.flags.c_contiguous:
        return False
    chunks = few_chunks(source, selection, out, limit)
    if chunks is None:
        return False
    if chunks and not source.room.has_any:
        _refuse_large(source, chunks)
    view = out.reshape(-1) if has_points else selection.on_grid(out)
    if out.dtype == source.layout.dtype:
        _read_twice_at_most(source, chunks, view)
    else:
        # NumPy need not warn of a cast that overflows: the caller asked for the cast.
        with np.errstate(all="ignore"):
            _read_twice_at_most(source, chunks, view)
    return True


def _refuse_large(source: Source, chunks: Sequence[TouchedChunk]) -> None:
    """Refuse inner chunks that exceed the limits, unless decoding a part may do."""
    is_in_part = all(_is_in_part(source, chunk) for chunk in chunks)
    if not is_in_part or source.whole_nbytes > source.options.max_chunk_nbytes:
        source.room.refuse_large()


def _is_in_part(source: Source, chunk: TouchedChunk) -> bool:
    """Whether so little of an inner chunk is wanted that decoding a part may do."""
    strides = source.range_strides
    if strides is None or not source.pipeline.holds_ranges:
        return False
    low, high = chunk.extent(strides)
    return PART_SHARE * (high - low) <= source.chunk_nbytes


def _most_stored(source: Source, chunk: TouchedChunk) -> int:
    """Most stored bytes that leave room to decode the wanted part of an inner chunk."""
    room = source.room
    return room.alone_nbytes if _is_in_part(source, chunk) else room.most_stored_nbytes


def _read_twice_at_most(
    source: Source, chunks: Sequence[TouchedChunk], view: NDArray[Any]
) -> None:
    """Read; read once more if a shard is replaced between its index and its payload."""
    if not source.layout.levels:
        _read_unsharded(source, chunks, view)
        return
    began_at_s = monotonic()
    try:
        _read(source, chunks, view, began_at_s)
    except ObjectChangedError as error:
        shards = {chunk.shard for chunk in chunks}
        seen = forget(source, shards, [error.shard_key or ""], began_at_s)
        _read(source, chunks, view, began_at_s, seen)


def _read_unsharded(
    source: Source, chunks: Sequence[TouchedChunk], view: NDArray[Any]
) -> None:
    """Read inner chunks that are stored as separate objects."""
    whole = 0, source.chunk_nbytes
    is_raw = source.raw_strides is not None
    wanted = [
        _narrowed(source, chunk, whole) if is_raw else _ToRead(chunk, 0, 0, whole)
        for chunk in chunks
    ]
    if source.chunks is not None:
        wanted = _not_kept(source, source.chunks, wanted, {}, view)
    requests = [
        ByteRequest(
            source.key(to_read.chunk.shard),
            to_read.start,
            to_read.stop if is_raw else None,
            max_nbytes=None if is_raw else _most_fetched(source, to_read.chunk),
        )
        for to_read in wanted
    ]
    try:
        answers = fetch_objects(source, requests) if requests else []
    except CorruptShardError as error:
        for to_read, request in zip(wanted, requests, strict=True):
            if request.key == error.shard_key:
                name_place(error, source, to_read.chunk)
        raise
    for to_read, answer in zip(wanted, answers, strict=True):
        if answer is None:
            view[to_read.chunk.out] = source.layout.fill_value
        elif is_raw:
            _place(source, to_read, answer.data, view)
        else:
            _place(source, _whole(source, to_read, answer), answer.data, view)


def _whole(source: Source, wanted: _ToRead, answer: Fetched) -> _ToRead:
    """A whole object that was fetched, to be kept if its version is recognisable."""
    fetched = _narrowed(source, wanted.chunk, (0, len(answer.data)))
    if wanted.key is None:  # other stores have versions of other kinds
        return fetched
    version = file_version_of(answer.version)
    if version is None:
        return fetched
    return fetched._replace(key=wanted.key, may_drop=wanted.may_drop, version=version)


def _read(
    source: Source,
    chunks: Sequence[TouchedChunk],
    view: NDArray[Any],
    began_at_s: float,
    seen: Collection[str] = (),
) -> None:
    """Read once; `seen` are the keys of shards that existed a moment ago.

    An index that was kept before `began_at_s` may belong to a replaced shard.
    """
    keys = {chunk.shard: source.key(chunk.shard) for chunk in chunks}
    known = known_indexes(source, keys)
    for shard, index in known.items() if seen else ():
        if index is None and keys[shard] in seen:
            raise deleted(source, keys[shard])
    ranges = located(source, chunks, known)
    found = list(zip(chunks, ranges, strict=True))
    if None in ranges:
        # Requests for payload name a version; shards without any are checked here.
        fetched = {chunk.shard for chunk, whole in found if whole}
        unchecked = ((keys[s], k) for s, k in known.items() if k and s not in fetched)
        refuse_replaced(source, unchecked, began_at_s)
    for chunk in [chunk for chunk, whole in found if whole is None]:
        view[chunk.out] = source.layout.fill_value
    wanted = [_narrowed(source, chunk, whole) for chunk, whole in found if whole]
    if source.chunks is not None:
        wanted = _not_kept(source, source.chunks, wanted, known, view)
    if wanted:
        _read_wanted(source, wanted, keys, known, view)


def _read_wanted(
    source: Source,
    wanted: Sequence[_ToRead],
    keys: Mapping[Coordinate, str],
    known: Known,
    view: NDArray[Any],
) -> None:
    """Fetch inner chunks, neighbours with one request, and place them."""
    costs = source.store.costs
    groups = [wanted] if len(wanted) == 1 else _grouped(wanted, costs)
    requests: list[ByteRequest] = []
    for group in groups:
        start, shard = group[0].start, group[0].chunk.shard
        stop = max([to_read.stop for to_read in group])
        version = (index := known[shard]) and index.version
        requests.append(ByteRequest(keys[shard], start, stop, version, is_indexed=True))
    try:
        answers = fetch_payload(source, requests)
    except CorruptShardError as error:
        _name_cut_off(error, source, groups, requests)
        raise
    for group, request, answer in zip(groups, requests, answers, strict=True):
        for to_read in group:
            span = answer[to_read.start - request.start : to_read.stop - request.start]
            _place(source, to_read, span, view)


def _not_kept(
    source: Source,
    cache: ChunkCache,
    wanted: Sequence[_ToRead],
    known: Known,
    view: NDArray[Any],
) -> list[_ToRead]:
    """Place inner chunks that are kept decoded; return the others, with their keys."""
    left: list[_ToRead] = []
    may_drop = fits_cache(source, len(wanted))
    takes_all = len(wanted) > 1 and not cache.is_sparing
    for to_read in wanted:
        key = _key_of(source, to_read.chunk, known)
        if key is None:
            left.append(to_read)
            continue
        hold = find_current(source, cache, key, to_read.chunk.shard)
        if hold is not None:
            view[to_read.chunk.out] = kept_elements(source, hold.bytes_of(0))[
                to_read.chunk.inside
            ]
        elif takes_all or cache.should_keep(key, _weight(source, to_read)):
            left.append(to_read._replace(key=key, may_drop=may_drop))
        else:
            left.append(to_read)
    return left


def _key_of(source: Source, chunk: TouchedChunk, known: Known) -> int | None:
    """Key of an inner chunk, whose shard has an index in `known`; None: not kept."""
    if not source.layout.levels:
        return source.number_of(chunk.shard)
    first = first_key(source, known[chunk.shard])
    return None if first is None else first + chunk.entries[0]


def _weight(source: Source, wanted: _ToRead) -> int:
    """What the read spends on an inner chunk that is not kept."""
    return SPENT_PART if _is_in_part(source, wanted.chunk) else SPENT_WHOLE


def _name_cut_off(
    error: CorruptShardError,
    source: Source,
    groups: Sequence[Sequence[_ToRead]],
    requests: Sequence[ByteRequest],
) -> None:
    """Name in `error` the first inner chunk that extends past the end of its object."""
    for group, request in zip(groups, requests, strict=True):
        if request.key == error.shard_key:
            end = end_of(source.store, request)
            for to_read in group:
                if to_read.stop > end:
                    name_place(error, source, to_read.chunk)
                    return


def _grouped(wanted: Sequence[_ToRead], costs: FetchCosts) -> list[list[_ToRead]]:
    """Runs of neighbours in one object that are cheaper to fetch together."""
    groups: list[list[_ToRead]] = []
    reach = 0
    # There are no more requests than may run side by side (`Source.few`).
    gap_nbytes = costs.idle_gap_nbytes or costs.gap_nbytes
    for to_read in sorted(wanted, key=lambda one: (one.chunk.shard, one.start)):
        group = groups[-1] if groups else []
        is_far = to_read.start > reach + gap_nbytes
        if costs.bounds_requests and group:
            joined_nbytes = max(reach, to_read.stop) - group[0].start
            is_far = is_far or joined_nbytes > costs.max_request_nbytes
        if group and not is_far and to_read.chunk.shard == group[0].chunk.shard:
            group.append(to_read)
            reach = max(reach, to_read.stop)
        else:
            groups.append([to_read])
            reach = to_read.stop
    return groups


def _refuse_oversized(source: Source, chunk: TouchedChunk, nbytes: int) -> None:
    try:
        source.pipeline.refuse_oversized(nbytes, source.chunk_shape or ())
    except CorruptShardError as error:
        name_place(error, source, chunk)
        raise


def _narrowed(source: Source, chunk: TouchedChunk, whole: Range) -> _ToRead:
    """The bytes to read: for plain elements, those with the wanted ones; else all."""
    start, stop = whole
    nbytes = stop - start
    if nbytes > source.largest_chunk_nbytes:
        _refuse_oversized(source, chunk, nbytes)
    strides = source.raw_strides
    if strides is None and nbytes > source.room.most_stored_nbytes:
        _refuse_stored(source, chunk, nbytes)
    if strides is None or nbytes != source.chunk_nbytes:
        return _ToRead(chunk, start, stop, whole)
    low, high = chunk.extent(strides)
    try:
        source.room.refuse_span(high - low)
    except LimitError as error:
        name_place(error, source, chunk)
        raise
    return _ToRead(chunk, start + low, start + high, whole)


def _refuse_stored(source: Source, chunk: TouchedChunk, nbytes: int) -> None:
    if nbytes > _most_stored(source, chunk):
        error = source.room.beyond("an inner chunk", nbytes + source.work_nbytes)
        name_place(error, source, chunk)
        raise error


def _most_fetched(source: Source, chunk: TouchedChunk) -> int:
    """Most bytes to fetch of a stored object that is one inner chunk."""
    most = min(source.largest_chunk_nbytes, _most_stored(source, chunk))
    return most + 1  # one byte more than allowed detects an object that is too large


def _place(
    source: Source, wanted: _ToRead, span: NDArray[np.uint8], view: NDArray[Any]
) -> None:
    """Decode an inner chunk and write the wanted part of it."""
    chunk, start, _, (first, stop), key, may_drop, version = wanted
    nbytes = stop - first
    if len(span) != nbytes:
        span = completed(source.room, span, start - first, nbytes)
    strides = source.range_strides if key is None else None
    wanted_bytes = None if strides is None else chunk.extent(strides)
    try:
        decoded = source.decode(span, source.chunk_shape or (), wanted_bytes)
    except CorruptShardError as error:
        name_place(error, source, chunk)
        raise
    view[chunk.out] = decoded[chunk.inside]
    if key is not None:
        keep_chunk(source, key, decoded, may_drop=may_drop, version=version)
