"""The two passes over the store: shard indexes first, then payload.

Everything here returns plain bytes or validated indexes; which ranges are wanted is
decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.coalesce import coalesce
from gpushard.errors import CorruptShardError, GpushardError, ObjectChangedError
from gpushard.index import ShardIndex, parse_index
from gpushard.report import Tally
from gpushard.selection import Ints
from gpushard.source import KnownIndex, Source
from gpushard.stores.base import ByteRequest, Fetched

Coordinate = tuple[int, ...]

_RESTORE = "restore it from a copy or write it again"


class NestedShard(NamedTuple):
    """A shard inside a stored object: the byte range that it fills.

    `parent` counts the stored objects that the caller named.
    """

    parent: int
    start: int
    stop: int


class Extent(NamedTuple):
    """Where a shard lies: in which object, from which byte on, how large if known."""

    key: str
    start: int
    nbytes: int | None


def known_index(source: Source, coordinate: Coordinate, key: str) -> KnownIndex | None:
    """Index kept from an earlier read, unless the object is known to be another now."""
    known = source.indexes.get(coordinate)
    if known is None:
        return None
    is_told, version = source.store.current_version(key)
    if is_told and version != known.version:
        source.indexes.drop_shard(coordinate)
        return None
    return known


def fetch_indexes(
    source: Source, shard_coords: Ints, tally: Tally
) -> list[KnownIndex | None]:
    """Index of each shard at ``shard_coords[i]``; None where there is no such object.

    One request a shard whose index is not known, all of them side by side.

    Raises
    ------
    CorruptShardError
        An object is too short to hold its index, or the index contradicts its codecs.
    """
    coordinates: list[Coordinate] = [tuple(row) for row in shard_coords.tolist()]
    keys = [source.key(c) for c in coordinates]
    found = [known_index(source, c, k) for c, k in zip(coordinates, keys, strict=True)]
    wanted = [i for i, known in enumerate(found) if known is None]
    if not wanted:
        return found
    requests = [index_request(source, coordinates[i], keys[i]) for i in wanted]
    with tally.stage("index"):
        answers = source.store.read(requests)
    tally.add(n_index_requests=len(requests))
    for i, answer in zip(wanted, answers, strict=True):
        if answer is not None:
            tally.add(index_nbytes=len(answer.data))
            found[i] = keep_index(source, coordinates[i], keys[i], answer)
    return found


def index_request(source: Source, coordinate: Coordinate, key: str) -> ByteRequest:
    """Request for the outermost index of a shard."""
    level = source.layout.levels[0]
    nbytes = level.index_nbytes(prod(source.chunks_per_shard(coordinate, 0)))
    if level.index_location == "end":
        return ByteRequest(key, -nbytes)
    return ByteRequest(key, 0, nbytes)


def keep_index(
    source: Source, coordinate: Coordinate, key: str, answer: Fetched
) -> KnownIndex:
    """Validated outermost index of a shard, kept for later reads if versioned."""
    shape = source.chunks_per_shard(coordinate, 0)
    extent = Extent(key, 0, answer.object_nbytes)
    index = _decode_index(source, 0, answer.data, shape, extent)
    known = KnownIndex(index, answer.version)
    if answer.version is not None:
        source.indexes.put(coordinate, known)
    return known


def _decode_index(
    source: Source,
    level: int,
    encoded: NDArray[np.uint8],
    shape: tuple[int, ...],
    extent: Extent,
) -> ShardIndex:
    """Validated index of chunks per shard `shape`, from its encoded bytes."""
    expected = source.layout.levels[level].index_nbytes(prod(shape))
    try:
        if len(encoded) != expected:
            raise CorruptShardError(
                "the shard is too short to hold its index",
                expected=f"{expected} bytes of index",
                got=f"{len(encoded)} bytes",
                hint=f"the object is truncated: {_RESTORE}",
            )
        entries = source.index_pipelines[level].decode(encoded, (*shape, 2))
        return parse_index(
            np.ascontiguousarray(entries, np.uint64).reshape(-1, 2),
            base=extent.start,
            nbytes=extent.nbytes,
        )
    except GpushardError as error:
        error.add_context(array_path=source.layout.path, shard_key=extent.key)
        raise


def fetch_nested_indexes(
    source: Source,
    level: int,
    nested: Sequence[NestedShard],
    parents: Sequence[tuple[Coordinate, KnownIndex | None]],
    tally: Tally,
) -> list[ShardIndex]:
    """Index of each nested shard of sharding level `level`, neighbours in one request.

    Parameters
    ----------
    nested
        Ascending by stored object and byte range.
    parents
        Coordinate and outermost index of each stored object.

    Raises
    ------
    CorruptShardError
        A nested shard is too short to hold its index, or the index contradicts its
        codecs.
    """
    shape = source.chunks_per_shard(parents[0][0], level)
    extents = [
        Extent(source.key(parents[n.parent][0]), n.start, n.stop - n.start)
        for n in nested
    ]
    # A nested shard is a byte range of its parent, and known under it.
    keys = [(*parents[n.parent][0], level, n.start, n.stop) for n in nested]
    versions = [known and known.version for _, known in parents]
    # A parent's index may have been dropped, and read again from another object.
    found = [
        known if known and known.version == versions[n.parent] else None
        for known, n in zip(map(source.indexes.get, keys), nested, strict=True)
    ]
    wanted = [i for i, known in enumerate(found) if known is None]
    ranges = [_index_range(source, level, extents[i], prod(shape)) for i in wanted]
    encoded = _read_ranges(
        source, [nested[i].parent for i in wanted], ranges, parents, tally
    )
    for i, data in zip(wanted, encoded, strict=True):
        version = versions[nested[i].parent]
        index = _decode_index(source, level, data, shape, extents[i])
        found[i] = known = KnownIndex(index, version)
        if version is not None:
            source.indexes.put(keys[i], known)
    return [known.index for known in found if known is not None]


def _index_range(
    source: Source, level: int, extent: Extent, n_entries: int
) -> tuple[int, int]:
    """Half-open byte range of a nested shard's index."""
    here = source.layout.levels[level]
    nbytes = here.index_nbytes(n_entries)
    if extent.nbytes is not None and extent.nbytes < nbytes:
        raise CorruptShardError(
            "a nested shard is too short to hold its index",
            array_path=source.layout.path,
            shard_key=extent.key,
            expected=f"at least {nbytes} bytes",
            got=f"{extent.nbytes} bytes from byte {extent.start} on",
            hint=f"the shard is damaged: {_RESTORE}",
        )
    stop = extent.start + (extent.nbytes or 0)
    if here.index_location == "end":
        return stop - nbytes, stop
    return extent.start, extent.start + nbytes


def _read_ranges(
    source: Source,
    parent: Sequence[int],
    ranges: Sequence[tuple[int, int]],
    parents: Sequence[tuple[Coordinate, KnownIndex | None]],
    tally: Tally,
) -> list[NDArray[np.uint8]]:
    """Bytes of each range, read in coalesced requests."""
    if not ranges:
        return []
    start, stop = np.array(ranges, np.int64).T
    costs = source.store.costs
    requests = coalesce(
        np.array(parent, np.int64),
        start,
        stop,
        gap_nbytes=costs.gap_nbytes,
        max_request_nbytes=costs.max_request_nbytes,
    )
    byte_requests: list[ByteRequest] = []
    columns = (requests.source, requests.start, requests.stop)
    for p, first, last in zip(*(c.tolist() for c in columns), strict=True):
        coordinate, known = parents[p]
        version = known and known.version
        byte_requests.append(ByteRequest(source.key(coordinate), first, last, version))
    with tally.stage("index"):
        answers = fetch_payload(source, byte_requests)
    tally.add(
        n_index_requests=len(byte_requests), index_nbytes=int(requests.nbytes.sum())
    )
    pieces: list[NDArray[np.uint8]] = [np.empty(0, np.uint8)] * len(ranges)
    for r, answer in enumerate(answers):
        base = byte_requests[r].start
        for row in requests.order[requests.bounds[r] : requests.bounds[r + 1]].tolist():
            pieces[row] = answer[ranges[row][0] - base : ranges[row][1] - base]
    return pieces


def fetch_payload(
    source: Source, requests: Sequence[ByteRequest]
) -> list[NDArray[np.uint8]]:
    """Bytes of each range of objects that an index says are there.

    Returns
    -------
    list of uint8 arrays, each of exactly the size asked, host.

    Raises
    ------
    ObjectChangedError
        An object was replaced or vanished since its index was read.
    CorruptShardError
        An object ends before a range that its index names.
    """
    answers = source.store.read(requests)
    return [
        _exactly(source, request, answer)
        for request, answer in zip(requests, answers, strict=True)
    ]


def _exactly(
    source: Source, request: ByteRequest, answer: Fetched | None
) -> NDArray[np.uint8]:
    if answer is None:
        raise ObjectChangedError(
            "a shard was deleted between its index and its inner chunks",
            array_path=source.layout.path,
            shard_key=request.key,
            hint="read again; if a writer replaces shards, let it do so atomically",
        )
    expected = (request.stop or 0) - request.start
    if len(answer.data) != expected:
        raise CorruptShardError(
            "the shard ends before an inner chunk that its index names",
            array_path=source.layout.path,
            shard_key=request.key,
            expected=f"bytes {request.start} to {request.stop}",
            got=f"{len(answer.data)} of {expected} bytes",
            hint=f"the object is truncated: {_RESTORE}",
        )
    return answer.data
