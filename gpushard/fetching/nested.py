"""Indexes of nested shards; the indexes of neighbours are read in one request."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.damage import without_frames
from gpushard.errors import CorruptShardError
from gpushard.fetching.fetch import (
    RESTORE,
    Extent,
    decode_index,
    fetch_payload,
)
from gpushard.layout import Coordinate
from gpushard.memory.known import KnownIndex
from gpushard.options import MIB
from gpushard.pages import pages_if_any
from gpushard.planning.coalesce import coalesce_for, cut_batches
from gpushard.planning.index import ShardIndex
from gpushard.report import Tally
from gpushard.source import Source
from gpushard.stores.base import ByteRequest, lasts

# The bytes fetched at a time to find indexes take at most one part in `_SHARE` of the
# memory limit, in `_REQUESTS` requests or more. The bytes that lie between neighbouring
# indexes are fetched with them and count, too.
_SHARE, _REQUESTS = 8, 4
# From files no more is read at a time, into one piece of memory that stays in a cache.
_CACHED_NBYTES = 4 * MIB


class NestedShard(NamedTuple):
    """A shard inside a stored object: the byte range that it takes.

    `parent` is the position of the stored object in the caller's list.
    """

    parent: int
    start: int
    stop: int


def fetch_nested_indexes(
    source: Source,
    level: int,
    nested: Sequence[NestedShard],
    parents: Sequence[tuple[Coordinate, KnownIndex | None]],
    tally: Tally,
) -> list[ShardIndex | CorruptShardError]:
    """Index of each nested shard of sharding level `level`; neighbours share a request.

    An error takes the place of an index if the nested shard is too short to hold one,
    or if the index contradicts its codecs.

    Parameters
    ----------
    nested
        Ascending by stored object and byte range.
    parents
        Coordinate and outermost index of each stored object.
    """
    shape = source.chunks_per_shard(parents[0][0], level)
    extents = [
        Extent(source.key(parents[n.parent][0]), n.start, n.stop - n.start)
        for n in nested
    ]
    # The key of a nested shard is its parent with its level and byte range.
    keys = [(*parents[n.parent][0], level, n.start, n.stop) for n in nested]
    versions = [known and known.version for _, known in parents]
    # A parent's index may have been dropped and read again from a newer object.
    found: list[ShardIndex | CorruptShardError | None] = [
        known.index if known and known.version == versions[n.parent] else None
        for known, n in zip(map(source.indexes.get, keys), nested, strict=True)
    ]
    wanted: list[int] = []
    ranges: list[tuple[int, int]] = []
    for i in [i for i, index in enumerate(found) if index is None]:
        try:
            ranges.append(index_range(source, level, extents[i], prod(shape)))
        except CorruptShardError as error:
            found[i] = without_frames(error)
        else:
            wanted.append(i)
    parent = [nested[i].parent for i in wanted]
    encoded = _read_or_errors(source, parent, ranges, parents, tally)
    for i, data in zip(wanted, encoded, strict=True):
        version = versions[nested[i].parent]
        if isinstance(data, CorruptShardError):
            found[i] = data
            continue
        try:
            index = found[i] = decode_index(source, level, data, shape, extents[i])
        except CorruptShardError as error:
            found[i] = without_frames(error)
        else:
            if lasts(version):
                source.indexes.put(keys[i], KnownIndex(index, version))
    return [index for index in found if index is not None]


def index_range(
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
            hint=f"the shard is damaged: {RESTORE}",
        )
    stop = extent.start + (extent.nbytes or 0)
    if here.index_location == "end":
        return stop - nbytes, stop
    return extent.start, extent.start + nbytes


def _read_or_errors(
    source: Source,
    parent: Sequence[int],
    ranges: Sequence[tuple[int, int]],
    parents: Sequence[tuple[Coordinate, KnownIndex | None]],
    tally: Tally,
) -> Sequence[NDArray[np.uint8] | CorruptShardError]:
    """Bytes of each range; an error for a range that the object does not contain."""
    try:
        return _read_ranges(source, parent, ranges, parents, tally)
    except CorruptShardError as error:
        if len(ranges) == 1:
            return [without_frames(error)]
    found: list[NDArray[np.uint8] | CorruptShardError] = []
    for p, byte_range in zip(parent, ranges, strict=True):
        found += _read_or_errors(source, [p], [byte_range], parents, tally)
    return found


def _read_ranges(
    source: Source,
    parent: Sequence[int],
    ranges: Sequence[tuple[int, int]],
    parents: Sequence[tuple[Coordinate, KnownIndex | None]],
    tally: Tally,
) -> list[NDArray[np.uint8]]:
    """Bytes of each range, from coalesced requests, in batches of these."""
    if not ranges:
        return []
    starts, stops = np.array(ranges, np.int64).T
    costs = source.store.costs
    room = max(1, source.options.memory_limit // _SHARE)
    if costs.reads_in_shares:
        room = min(room, _CACHED_NBYTES)
    most_nbytes = max(1, min(costs.max_request_nbytes, room // _REQUESTS))
    among = np.array(parent, np.int64)
    requests = coalesce_for(costs, among, starts, stops, most_nbytes)
    byte_requests: list[ByteRequest] = []
    columns = (requests.source, requests.start, requests.stop)
    for p, first, last in zip(*(c.tolist() for c in columns), strict=True):
        coordinate, known = parents[p]
        version = known and known.version
        key = source.key(coordinate)
        byte_requests.append(ByteRequest(key, first, last, version, is_indexed=True))
    pieces: list[NDArray[np.uint8]] = [np.empty(0, np.uint8)] * len(ranges)
    batches = cut_batches(requests.nbytes, room)
    sizes = [int(requests.nbytes[first:last].sum()) for first, last in batches]
    memory = pages_if_any(max(sizes))
    for first, last in batches:
        with tally.stage("index"):
            answers = fetch_payload(source, _into(byte_requests[first:last], memory))
        for r, answer in zip(range(first, last), answers, strict=True):
            base = byte_requests[r].start
            begin, end = requests.bounds[r : r + 2].tolist()
            for row in requests.order[begin:end].tolist():
                start, stop = ranges[row]
                # The copy lets go of the bytes between the indexes.
                pieces[row] = answer[start - base : stop - base].copy()
        del answers
    tally.add(
        n_index_requests=len(byte_requests), index_nbytes=int(requests.nbytes.sum())
    )
    return pieces


def _into(
    requests: Sequence[ByteRequest], memory: NDArray[np.uint8] | None
) -> Sequence[ByteRequest]:
    """The requests, whose answers go to `memory`, if any, one after the other."""
    if memory is None:
        return requests
    into: list[ByteRequest] = []
    end = 0
    for request in requests:
        first, end = end, end + (request.stop or 0) - request.start
        into.append(request._replace(into=memory[first:end]))
    return into
