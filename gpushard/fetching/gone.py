"""Shards that were replaced or deleted: what a read does that meets one."""

from __future__ import annotations

from collections.abc import Iterable

from gpushard.errors import ObjectChangedError, ObjectDeletedError
from gpushard.memory.known import IndexKey, KnownIndex
from gpushard.source import Source
from gpushard.stores.base import ByteRequest


def deleted(source: Source, key: str) -> ObjectDeletedError:
    """Error of a shard that was there a moment ago."""
    return ObjectDeletedError(
        "a shard was deleted between two parts of it that were read",
        array_path=source.layout.path,
        shard_key=key,
        hint="read again; if a writer replaces shards, let it do so atomically",
    )


def replaced(source: Source, key: str) -> ObjectChangedError:
    """Error of a shard that is not what it was when the first part of it was read."""
    return ObjectChangedError(
        "a shard was replaced, again, between two parts of it that were read",
        array_path=source.layout.path,
        shard_key=key,
        hint="read again, or raise memory_limit to have the shard read at once",
    )


def refuse_replaced(
    source: Source, kept: Iterable[tuple[str, KnownIndex]], begun: float
) -> int:
    """Refuse shards that are others by now than their index, kept since before `begun`.

    For those of which nothing is fetched, as their index says that it is missing: else
    a request for payload names the version. Gives how many requests it took to ask.

    Raises
    ------
    ObjectChangedError
        One is.
    StoreError
        The store failed.
    """
    requests = [
        ByteRequest(key, 0, 1, known.version)
        for key, known in kept
        if known.since < begun and not source.store.current_version(key)[0]
    ]
    if requests:
        source.store.read(requests)
    return len(requests)


def forget(
    source: Source, shards: Iterable[IndexKey], changed: Iterable[str], begun: float
) -> frozenset[str]:
    """Forget indexes of `shards`, and tell which of `changed` this read had seen.

    To be gone now is an error for those. The index of others was kept from before
    `begun`, when the read began, and nobody has asked for them since: they may have
    been absent for long.
    """
    seen = set(changed)
    for shard in shards:
        known, key = source.indexes.get(shard), source.key(shard)
        is_asked, _ = source.store.current_version(key)
        if known is not None and known.since < begun and not is_asked:
            seen.discard(key)
        source.indexes.drop_shard(shard)
    return frozenset(seen)
