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
    source: Source, kept: Iterable[tuple[str, KnownIndex]], began_at_s: float
) -> int:
    """Refuse shards that were replaced after their indexes were read.

    Only shards of which no payload is fetched need this check: each request for payload
    names the version that its index belongs to.

    Parameters
    ----------
    kept
        Keys and indexes of the shards in which all that is wanted is missing.
    began_at_s
        When the read began. Indexes that were read later are current.

    Returns
    -------
    Number of requests that the check took.

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
        if known.read_at_s < began_at_s and not source.store.current_version(key)[0]
    ]
    if requests:
        source.read(requests)
    return len(requests)


def forget(
    source: Source,
    shards: Iterable[IndexKey],
    changed: Iterable[str],
    began_at_s: float,
) -> frozenset[str]:
    """Drop the indexes of `shards`; return those of `changed` that this read had seen.

    It is an error if a shard that this read has seen is gone when it is read again. The
    other indexes were kept from before `began_at_s`, when the read began, and nothing
    has checked them since. Their objects may have been gone for long, and another read
    may have found that and dropped the index.
    """
    seen = set(changed)
    for shard in shards:
        read_at_s, key = source.indexes.read_at_s(shard), source.key(shard)
        is_asked, _ = source.store.current_version(key)
        if read_at_s is not None and read_at_s < began_at_s and not is_asked:
            seen.discard(key)
        source.indexes.drop_shard(shard)
    return frozenset(seen)
