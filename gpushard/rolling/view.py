"""A rolling array at one moment: an `Array` over the shards of a fixed window."""

from __future__ import annotations

from dataclasses import replace

from gpushard.array import Array
from gpushard.memory.known import IndexCache, IndexKey, KnownIndex
from gpushard.moving.window import Window, relative_key
from gpushard.selecting.expressions import basic
from gpushard.selecting.indexer import Indexer
from gpushard.source import Source


class RollingView(Array):
    """A window of a rolling array that does not move.

    `RollingArray.view` makes it. It reads like any array. Reading elements that the
    array has rolled past and deleted is an error, and never gives the fill value. A
    pickle has the address of the array and the window.
    """

    @property
    def window(self) -> Window:
        """The part of the array that the view shows."""
        return Window.of(self.source.layout)

    @property
    def origin(self) -> tuple[int, ...]:
        """Coordinate of the first shard."""
        return self.window.origin

    @property
    def domain(self) -> tuple[range, ...]:
        """Logical coordinates along each axis."""
        return self.window.domain

    @property
    def at(self) -> Indexer:
        """Indexing by logical coordinates: ``view.at[-24:0]``, as `RollingArray.at`."""
        return self._indexer(
            lambda key, shape: basic(relative_key(key, self.domain), shape)
        )


class ShiftedIndexes(IndexCache):
    """Shard indexes of a window, kept by the shards' own coordinates, which never move.

    All windows of the array share `kept`; `origin` is that of the window.
    """

    def __init__(self, kept: IndexCache, origin: tuple[int, ...]) -> None:
        super().__init__(0)
        self._kept = kept
        self._origin = origin

    def get(self, key: IndexKey) -> KnownIndex | None:
        """Index kept for `key`, if any."""
        return self._kept.get(self._stored(key))

    def put(self, key: IndexKey, known: KnownIndex) -> None:
        """Keep an index."""
        self._kept.put(self._stored(key), known)

    def drop_shard(self, coordinate: tuple[int, ...]) -> None:
        """Forget a shard's index and those of the shards nested in it."""
        self._kept.drop_shard(self._stored(coordinate))

    def read_at_s(self, coordinate: tuple[int, ...]) -> float | None:
        """When the index of a shard was read that is kept, or was dropped lately."""
        return self._kept.read_at_s(self._stored(coordinate))

    def _stored(self, key: IndexKey) -> IndexKey:
        n = len(self._origin)
        shifted = (i + o for i, o in zip(key[:n], self._origin, strict=True))
        return (*shifted, *key[n:])


def source_over(source: Source, kept: IndexCache, window: Window) -> Source:
    """The same array through another window."""
    return replace(
        source,
        layout=source.layout.over(window.origin, window.shape),
        indexes=ShiftedIndexes(kept, window.origin),
    )
