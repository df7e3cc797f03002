"""What a read does when it finds a shard replaced or deleted."""

from __future__ import annotations

from collections.abc import Iterable

from gpushard.errors import ObjectChangedError, ObjectDeletedError
from gpushard.memory.known import IndexKey, KnownIndex
from gpushard.source import Source
from gpushard.stores.base import ByteRequest


def deleted(source: Source, key: str) -> ObjectDeletedError:
    """Error for a shard that was there a moment ago and is gone."""
    return ObjectDeletedError(
        "a shard was deleted between two parts of it that were read",
        array_path=source.layout.path,
        shard_key=key,
        hint="read again; if a writer replaces shards, let it do so atomically",
    )


def replaced(source: Source, key: str) -> ObjectChangedError:
    """Error for a shard that was replaced after its first part was read."""
    return ObjectChangedError(
        "a shard was replaced, again, between two parts of it that were read",
        array_path=source.layout.path,
        shard_key=key,
        hint="read again, or raise memory_limit to have the shard read at once",
    )


def refuse_replaced(
    source: Source, kept: Iterable[tuple[str, KnownIndex]], begun: float
) -> int:
    """Refuse shards that were replaced after their indexes were read.

    `kept` has the shards of which nothing is fetched, because their indexes say that
    all of it is missing; other shards need no check, because each request for payload
    names the version. Indexes from after `begun` are current. Returns the number of
    requests that the check took.

    Raises
    ------
    ObjectChangedError
        A shard was replaced.
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
    """Drop the indexes of `shards`; return those of `changed` that this read had seen.

    If one of those is gone now, that is an error. The indexes of the others were kept
    from before `begun`, when the read began, and nothing has checked them since: their
    objects may have been gone for long. Another read may have found that before, and
    have dropped their indexes.
    """
    seen = set(changed)
    for shard in shards:
        since, key = source.indexes.since(shard), source.key(shard)
        is_asked, _ = source.store.current_version(key)
        if since is not None and since < begun and not is_asked:
            seen.discard(key)
        source.indexes.drop_shard(shard)
    return frozenset(seen)
