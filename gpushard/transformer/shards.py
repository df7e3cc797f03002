"""Shards of the draft's binary format in a key/value store: indexes and chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpushard.errors import CorruptShardError, GpushardError, StoreError
from gpushard.planning.index import CORRUPT, MISSING, PRESENT, ShardIndex, parse_index
from gpushard.stores.key_value import KeyRange, KeyValueStore
from gpushard.transformer.keys import ChunkPlace, ShardKeys

_NO_BYTES = np.uint64(2**64 - 1)

Chunks = dict[int, bytes]
"""Present chunks of a shard, by their entries in its index."""


class Shards:
    """The shards of one array in the store `below`, which has the chunks of `keys`."""

    def __init__(self, below: KeyValueStore, keys: ShardKeys) -> None:
        self._below = below
        self._keys = keys

    def indexes(
        self, shard_keys: Iterable[str], others: Sequence[KeyRange] = ()
    ) -> tuple[dict[str, ShardIndex], Sequence[bytes | None]]:
        """Indexes of the existing shards, and other values, in one operation."""
        nbytes, keys = self._keys.index_nbytes, sorted(shard_keys)
        spans: Sequence[KeyRange] = [(key, (-nbytes, None)) for key in keys]
        if not spans and not others:
            return {}, ()
        answers = self._values([*spans, *others])
        found = zip(keys, answers, strict=False)
        indexes = {
            key: _parsed(data, key, nbytes) for key, data in found if data is not None
        }
        return indexes, answers[len(keys) :]

    def chunks(self, spans: Iterable[KeyRange]) -> Sequence[bytes]:
        """Bytes of shards, in one operation."""
        wanted = [*spans]
        if not wanted:
            return ()
        chunks = self._values(wanted)
        for (key, (_, nbytes)), data in zip(wanted, chunks, strict=True):
            if data is None or _n_bytes(data) != nbytes:
                raise CorruptShardError(
                    "a chunk does not lie within its shard",
                    shard_key=key,
                    expected=f"{nbytes} bytes",
                    got="no shard" if data is None else f"{_n_bytes(data)} bytes",
                )
        return [data for data in chunks if data is not None]

    def _values(self, spans: Sequence[KeyRange]) -> Sequence[bytes | None]:
        """Answers of the store below; without one, a shard would count as missing.

        A write to a part of it would then lose the others.
        """
        values = self._below.get_partial_values(spans)
        if len(values) != len(spans):
            raise StoreError(
                "the store answered another number of requests than it was asked",
                expected=f"{len(spans)} values",
                got=f"{len(values)} values",
                hint="correct get_partial_values of the store",
            )
        return values

    def change(self, changes: Mapping[str, Mapping[int, bytes | None]]) -> None:
        """Write shards with changed chunks; None erases a chunk."""
        # Chunks that the array does not have show that it has become another one.
        available = self._keys.available
        partial = [key for key, of in changes.items() if available(key) != of.keys()]
        held = self._held(partial, changes)
        for key, change in changes.items():
            chunks = held.get(key, {})
            chunks |= {entry: v for entry, v in change.items() if v is not None}
            if chunks:
                self._below.set(key, _shard(chunks, self._keys.n_entries))
            else:
                self._below.erase_values([key])

    def _held(
        self,
        shard_keys: Sequence[str],
        changes: Mapping[str, Mapping[int, bytes | None]],
    ) -> dict[str, Chunks]:
        """Unchanged chunks of shards, read in two operations."""
        indexes, _ = self.indexes(shard_keys)
        wanted = [
            ChunkPlace(key, entry)
            for key, index in indexes.items()
            for entry in range(self._keys.n_entries)
            if entry not in changes[key] and index.state[entry] != MISSING
        ]
        spans = {place: range_of(indexes, place) or (0, 0) for place in wanted}
        data = self.chunks((place.shard_key, spans[place]) for place in wanted)
        held: dict[str, Chunks] = {key: {} for key in indexes}
        for place, chunk in zip(wanted, data, strict=True):
            held[place.shard_key][place.entry] = chunk
        return held


def _n_bytes(data: bytes) -> int:
    """Number of bytes, also of what a store answers with instead of `bytes`."""
    return memoryview(data).nbytes


def _parsed(data: bytes, shard_key: str, nbytes: int) -> ShardIndex:
    if _n_bytes(data) != nbytes:
        raise CorruptShardError(
            "the shard is too short to hold its index",
            shard_key=shard_key,
            expected=f"{nbytes} bytes or more",
            got=f"{_n_bytes(data)} bytes",
        )
    entries = np.frombuffer(data, "<u8").astype(np.uint64).reshape(-1, 2)
    index = parse_index(entries, nbytes=None)
    for entry in np.flatnonzero(index.state == CORRUPT)[:1]:
        try:
            index.refuse_corrupt(int(entry))
        except GpushardError as error:
            error.add_context(shard_key=shard_key)
            raise
    return index


def range_of(
    indexes: Mapping[str, ShardIndex], place: ChunkPlace
) -> tuple[int, int] | None:
    """Offset and size of a chunk in its shard; None if it is missing."""
    index = indexes.get(place.shard_key)
    if index is None or index.state[place.entry] != PRESENT:
        return None
    return int(index.offset[place.entry]), int(index.nbytes[place.entry])


def _shard(chunks: Chunks, n_entries: int) -> bytes:
    """Bytes of a shard: its chunks in the order of the index, then the index."""
    entries = np.full((n_entries, 2), _NO_BYTES, "<u8")
    ordered = sorted(chunks)
    sizes = [len(chunks[entry]) for entry in ordered]
    entries[ordered, 0] = np.cumsum([0, *sizes[:-1]])
    entries[ordered, 1] = sizes
    return b"".join([*(chunks[entry] for entry in ordered), entries.tobytes()])
