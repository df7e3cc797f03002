"""The two passes over the store: shard indexes first, then payload.

The functions here return plain bytes or validated indexes. Other modules decide which
byte ranges are wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.damage import without_frames
from gpushard.errors import CorruptShardError, GpushardError
from gpushard.fetching.gone import deleted
from gpushard.fetching.index_room import need_pages
from gpushard.layout import Coordinate
from gpushard.memory.known import KnownIndex
from gpushard.memory.turns import turns
from gpushard.pages import pages_if_any
from gpushard.planning.index import CORRUPT, ShardIndex, parse_index
from gpushard.report import Tally
from gpushard.selecting.selection import Ints
from gpushard.source import Source
from gpushard.stores.base import ByteRequest, Fetched, lasts

_MEASURED_NBYTES = 1 << 24  # most to fetch only so that an error can tell a size
RESTORE = "restore it from a copy or write it again"


class Extent(NamedTuple):
    """Where a shard lies: its object, its first byte, and its size if known."""

    key: str
    start: int
    nbytes: int | None


def known_index(source: Source, coordinate: Coordinate, key: str) -> KnownIndex | None:
    """Index kept from an earlier read, unless the object is known to have changed."""
    known = source.indexes.get(coordinate)
    if known is None:
        return None
    is_known, version = source.store.current_version(key)
    if is_known and version != known.version:
        source.indexes.drop_shard(coordinate)
        return None
    return known


def fetch_indexes(
    source: Source, shard_coords: Ints, tally: Tally
) -> list[KnownIndex | CorruptShardError | None]:
    """Index of each shard at ``shard_coords[i]``; None if there is no such object.

    An error takes the place of an index if the object is too short to hold one, or if
    the index contradicts its codecs. Each unknown index takes one request, and all
    requests are made together.
    """
    coordinates: list[Coordinate] = [tuple(row) for row in shard_coords.tolist()]
    keys = [source.key(c) for c in coordinates]
    found: list[KnownIndex | CorruptShardError | None] = [
        known_index(source, c, k) for c, k in zip(coordinates, keys, strict=True)
    ]
    wanted = [i for i, known in enumerate(found) if known is None]
    tally.add(n_index_hits=len(found) - len(wanted))
    if not wanted:
        return found
    requests = [index_request(source, coordinates[i], keys[i]) for i in wanted]
    with tally.stage("index"):
        answers = source.read(requests)
    tally.add(n_index_requests=len(requests))
    del requests  # which have the memory of the answers
    for n, i in enumerate(wanted):
        # Dropping each answer once parsed means that one index at a time exists twice.
        answer, answers[n] = answers[n], None
        if answer is not None:
            tally.add(index_nbytes=len(answer.data))
            try:
                found[i] = keep_index(source, coordinates[i], keys[i], answer)
            except CorruptShardError as error:
                found[i] = without_frames(error)
    return found


def index_request(source: Source, coordinate: Coordinate, key: str) -> ByteRequest:
    """Request for the outermost index of a shard."""
    level = source.layout.levels[0]
    nbytes = level.index_nbytes(prod(source.chunks_per_shard(coordinate, 0)))
    memory = pages_if_any(nbytes) if need_pages(source, nbytes) else None
    if level.index_location == "end":
        return ByteRequest(key, -nbytes, into=memory)
    return ByteRequest(key, 0, nbytes, into=memory)


def keep_index(
    source: Source, coordinate: Coordinate, key: str, answer: Fetched
) -> KnownIndex:
    """Validated outermost index of a shard, kept for later reads if it has a version.

    An index with a damaged entry is not kept: a proxy may have reported a wrong size
    once.
    """
    shape = source.chunks_per_shard(coordinate, 0)
    extent = Extent(key, 0, answer.object_nbytes)
    index = decode_index(source, 0, answer.data, shape, extent)
    known = KnownIndex(index, answer.version)
    if lasts(answer.version) and not (index.state == CORRUPT).any():
        source.indexes.put(coordinate, known)
    return known


def decode_index(
    source: Source,
    level: int,
    encoded: NDArray[np.uint8],
    shape: tuple[int, ...],
    extent: Extent,
) -> ShardIndex:
    """Validated index, decoded from its bytes; chunks per shard have shape `shape`."""
    expected = source.layout.levels[level].index_nbytes(prod(shape))
    try:
        if len(encoded) != expected:
            raise CorruptShardError(
                "the shard is too short to hold its index",
                expected=f"{expected} bytes of index",
                got=f"{len(encoded)} bytes",
                hint=f"the object is truncated: {RESTORE}",
            )
        entries = source.index_pipelines[level].decode(encoded, (*shape, 2))
        return parse_index(
            np.ascontiguousarray(entries, np.uint64).reshape(-1, 2),
            base=extent.start,
            nbytes=extent.nbytes,
            is_paged=need_pages(source, expected),
        )
    except GpushardError as error:
        error.add_context(array_path=source.layout.path, shard_key=extent.key)
        raise


def fetch_payload(
    source: Source, requests: Sequence[ByteRequest]
) -> list[NDArray[np.uint8]]:
    """Bytes of each range, of objects that exist according to an index.

    Returns
    -------
    list of uint8 arrays, each of exactly the requested size, host.

    Raises
    ------
    ObjectChangedError
        An object was replaced or vanished since its index was read.
    CorruptShardError
        An object ends before the end of a range that its index names.
    """
    answers = source.read(requests)
    return [
        _exactly(source, request, answer)
        for request, answer in zip(requests, answers, strict=True)
    ]


def fetch_objects(
    source: Source, requests: Sequence[ByteRequest]
) -> list[Fetched | None]:
    """Bytes of each range, of objects that are one inner chunk each.

    None in place of an answer if there is no such object.

    Raises
    ------
    CorruptShardError
        An object of uncompressed elements has another size than these, or fewer bytes
        came than its size tells.
    """
    if source.raw_strides is None:
        return source.read(requests)
    # One byte more than expected is requested. If a store does not tell the size of an
    # object, the extra byte reveals an object that is too long, unless the byte may be
    # one of another object.
    end, reads_on = source.chunk_nbytes, source.store.costs.reads_on
    asked = [
        r._replace(stop=end + 1) if r.stop == end and not (reads_on and r.start) else r
        for r in requests
    ]
    return [
        None if answer is None else _checked_raw(source, request, answer)
        for request, answer in zip(requests, source.read(asked), strict=True)
    ]


def _checked_raw(source: Source, request: ByteRequest, answer: Fetched) -> Fetched:
    """Bytes of a range of an uncompressed chunk, whose size is checked."""
    wanted = (request.stop or 0) - request.start
    expected, got = source.chunk_nbytes, answer.object_nbytes
    if len(answer.data) != wanted if got is None else got != expected:
        if got is None:  # unknown size: fetch the object, up to a bound, to measure it
            got = _measured(source, request.key)
        raise CorruptShardError(
            "an uncompressed chunk has another size than its elements",
            array_path=source.layout.path,
            shard_key=request.key,
            expected=f"{expected} bytes",
            got="more bytes" if got is None else f"{got} bytes",
            hint=f"the object is damaged: {RESTORE}",
        )
    if len(answer.data) < wanted:  # of an object that is cut off just now, say
        what = "an uncompressed chunk ends before its last element"
        hint = "read again; if that does not help, see what the store answers"
        raise _cut_off(source, request, len(answer.data), what, hint)
    return answer._replace(data=answer.data[:wanted])


def _measured(source: Source, key: str) -> int | None:
    """Size of an object in a store that tells none, or the most that is fetched of it.

    One thread at a time: damage in many objects must not take more memory than in one.
    """
    with turns.measuring:
        (whole,) = source.read([ByteRequest(key, max_nbytes=_MEASURED_NBYTES)])
    return None if whole is None else whole.object_nbytes or len(whole.data)


def _exactly(
    source: Source, request: ByteRequest, answer: Fetched | None
) -> NDArray[np.uint8]:
    if answer is None:
        raise deleted(source, request.key)
    expected = (request.stop or 0) - request.start
    if len(answer.data) != expected:
        what = "the shard ends before an inner chunk that its index names"
        hint = f"the object is truncated: {RESTORE}"
        raise _cut_off(source, request, len(answer.data), what, hint)
    return answer.data


def _cut_off(
    source: Source, request: ByteRequest, n_bytes: int, what: str, hint: str
) -> CorruptShardError:
    """Error of an answer that has but `n_bytes` of the bytes that were asked for."""
    wanted = (request.stop or 0) - request.start
    return CorruptShardError(
        what,
        array_path=source.layout.path,
        shard_key=request.key,
        expected=f"bytes {request.start} to {request.stop}",
        got=f"{n_bytes} of {wanted} bytes",
        hint=hint,
    )


def fetch_wanted(
    source: Source, requests: Sequence[ByteRequest]
) -> list[NDArray[np.uint8] | None]:
    """Bytes of each request; None if an unsharded array has no such chunk.

    Raises
    ------
    ObjectChangedError
        As in `fetch_payload`.
    CorruptShardError
        As in `fetch_payload`, or an uncompressed chunk has another size than its
        elements.
    """
    if source.layout.levels or source.is_held:
        return [*fetch_payload(source, requests)]
    answers = fetch_objects(source, requests)
    return [None if answer is None else answer.data for answer in answers]
