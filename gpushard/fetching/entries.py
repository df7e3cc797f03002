"""Inner chunks of a small read -> their byte ranges, through the shard indexes.

This is `locate` for inner chunks that are Python objects instead of columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpushard.errors import CorruptShardError, GpushardError
from gpushard.fetching.fetch import index_request, keep_index, known_index
from gpushard.fetching.nested import NestedShard, fetch_nested_indexes
from gpushard.layout import Coordinate
from gpushard.memory.known import KnownIndex
from gpushard.planning.index import CORRUPT, MISSING, ShardIndex
from gpushard.planning.touched import TouchedChunk
from gpushard.report import Tally
from gpushard.source import Source

Known = dict[Coordinate, KnownIndex | None]
Range = tuple[int, int]
"""Start and stop, in the stored object, of a chunk or of a shard nested in it."""


def known_indexes(source: Source, keys: Mapping[Coordinate, str]) -> Known:
    """Outermost index of each shard, by coordinate; None if there is no such object."""
    known: Known = {shard: known_index(source, shard, keys[shard]) for shard in keys}
    if None in known.values():
        unknown = {shard: keys[shard] for shard in keys if known[shard] is None}
        answers = source.read(
            [index_request(source, shard, key) for shard, key in unknown.items()]
        )
        for (shard, key), answer in zip(unknown.items(), answers, strict=True):
            if answer is not None:
                known[shard] = keep_index(source, shard, key, answer)
    return known


def located(
    source: Source, chunks: Sequence[TouchedChunk], known: Known
) -> list[Range | None]:
    """Byte range of each inner chunk; None if it is missing."""
    found = [
        None
        if (outermost := known[chunk.shard]) is None
        else _entry(source, chunk, outermost.index, 0)
        for chunk in chunks
    ]
    for level in range(1, len(source.layout.levels)):
        places = {(c.shard, f) for c, f in zip(chunks, found, strict=True) if f}
        indexes = _nested_indexes(source, level, places, known)
        found = [
            None if f is None else _nested_entry(source, c, indexes[c.shard, f], level)
            for c, f in zip(chunks, found, strict=True)
        ]
    return found


def _nested_indexes(
    source: Source, level: int, places: set[tuple[Coordinate, Range]], known: Known
) -> dict[tuple[Coordinate, Range], ShardIndex | CorruptShardError]:
    """Index of each nested shard, or its error, by its stored object and byte range."""
    found: dict[tuple[Coordinate, Range], ShardIndex | CorruptShardError] = {}
    unknown: list[tuple[Coordinate, Range]] = []
    for shard, place in places:
        outermost = known[shard]
        kept = source.indexes.get((*shard, level, *place))
        if kept and outermost and kept.version == outermost.version:
            found[shard, place] = kept.index
        else:
            unknown.append((shard, place))
    if unknown:
        unknown.sort()
        parents = list(dict.fromkeys([shard for shard, _ in unknown]))
        nested = [NestedShard(parents.index(shard), *place) for shard, place in unknown]
        indexes = fetch_nested_indexes(
            source, level, nested, [(p, known[p]) for p in parents], Tally()
        )
        found.update(zip(unknown, indexes, strict=True))
    return found


def _nested_entry(
    source: Source,
    chunk: TouchedChunk,
    index: ShardIndex | CorruptShardError,
    level: int,
) -> Range | None:
    """Like `_entry`, for the index of a nested shard, which may be damaged."""
    if isinstance(index, CorruptShardError):
        name_place(index, source, chunk)
        raise index
    return _entry(source, chunk, index, level)


def _entry(
    source: Source, chunk: TouchedChunk, index: ShardIndex, level: int
) -> Range | None:
    """Byte range that an entry of an index names; None if the entry says missing."""
    entry = chunk.entries[level]
    state = index.state.item(entry)
    if state == MISSING:
        return None
    if state == CORRUPT:
        try:
            index.refuse_corrupt(entry)
        except CorruptShardError as error:
            name_place(error, source, chunk)
            raise
    start = index.offset.item(entry)
    return start, start + index.nbytes.item(entry)


def name_place(error: GpushardError, source: Source, chunk: TouchedChunk) -> None:
    """Name in `error` the inner chunk that it is about."""
    error.add_context(
        array_path=source.layout.path,
        shard_key=source.key(chunk.shard),
        inner_chunk=chunk.cell,
    )
