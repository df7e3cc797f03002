"""Shard indexes that are kept between reads, with the versions they belong to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from itertools import count
from time import monotonic
from typing import Any

from numpy.typing import NDArray

from gpushard.planning.index import ShardIndex
from gpushard.threads.alone import Alone
from gpushard.threads.forks import after_fork

# With at most this many, keys of the first 2**39 indexes of a process fit 63 bits.
_MOST_ENTRIES = 1 << 24
# Dropped indexes whose time is remembered: of shards that change while they are read.
_MOST_DROPPED = 1 << 10
_serials = count()

IndexKey = tuple[int, ...]
"""Coordinate of a stored object; for a shard nested in it also level, start, stop."""


class KnownIndex:
    """A validated index and the version of the object that it was read from.

    Attributes
    ----------
    read_at_s
        Time at which it was read, from `time.monotonic`.
    addresses
        Addresses of the index' columns (offset, nbytes, state), kept here because
        compiled loops need them in every read.
    first_key
        Added to the place of an inner chunk in the index, this gives a number that no
        inner chunk of another index has; None if the index has too many entries.
    """

    __slots__ = ("addresses", "first_key", "index", "read_at_s", "version")

    def __init__(self, index: ShardIndex, version: Hashable) -> None:
        self.index = index
        self.version = version
        self.read_at_s = monotonic()
        columns: tuple[NDArray[Any], ...] = (index.offset, index.nbytes, index.state)
        self.addresses = tuple(c.__array_interface__["data"][0] for c in columns)
        is_countable = len(index.state) <= _MOST_ENTRIES
        self.first_key = next(_serials) * _MOST_ENTRIES if is_countable else None


class IndexCache:
    """Shard indexes that are kept between reads; the least recently used go first.

    Safe for several threads. What the handler of a signal reads while its own thread is
    in here is not kept.

    Parameters
    ----------
    limit_nbytes
        Memory for all indexes.
    """

    def __init__(self, limit_nbytes: int) -> None:
        self._limit_nbytes = limit_nbytes
        self._held_nbytes = 0
        self._known: OrderedDict[IndexKey, KnownIndex] = OrderedDict()
        self._dropped: OrderedDict[IndexKey, float] = OrderedDict()
        self.renew()
        after_fork(self.renew)

    def get(self, key: IndexKey) -> KnownIndex | None:
        """Index kept for `key`, if any; the caller checks whether it is current."""
        known = self._known.get(key)
        if known is not None:
            try:  # noqa: SIM105 - `suppress` takes as long as all else in here
                self._known.move_to_end(key)
            except KeyError:  # another thread has dropped it by now
                pass
        return known

    def put(self, key: IndexKey, known: KnownIndex) -> None:
        """Keep an index; the least recently used ones make room for it."""
        self._alone.call(self._put, key, known)

    def _put(self, key: IndexKey, known: KnownIndex) -> None:
        self._drop(key)
        self._dropped.pop(key, None)
        if known.index.held_nbytes > self._limit_nbytes:
            return
        self._known[key] = known
        self._held_nbytes += known.index.held_nbytes
        while self._held_nbytes > self._limit_nbytes and self._known:
            # Not by an iterator, in the middle of which `get` could move something.
            _, dropped = self._known.popitem(last=False)
            self._held_nbytes -= dropped.index.held_nbytes

    def drop_shard(self, coordinate: tuple[int, ...]) -> None:
        """Forget a shard's index and those of the shards nested in it."""
        self._alone.call(self._drop_shard, coordinate)

    def _drop_shard(self, coordinate: tuple[int, ...]) -> None:
        n = len(coordinate)
        if coordinate in self._known:
            self._dropped[coordinate] = self._known[coordinate].read_at_s
        if len(self._dropped) > _MOST_DROPPED:
            self._dropped.popitem(last=False)
        for key in [k for k in list(self._known) if k[:n] == coordinate]:
            self._drop(key)

    def read_at_s(self, coordinate: tuple[int, ...]) -> float | None:
        """When the index of a shard was read that is kept, or was dropped lately."""
        known = self._known.get(coordinate)
        return self._dropped.get(coordinate) if known is None else known.read_at_s

    def _drop(self, key: IndexKey) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            self._held_nbytes -= known.index.held_nbytes

    def renew(self) -> None:
        """Let in the next thread, whoever was in here."""
        self._alone = Alone()
