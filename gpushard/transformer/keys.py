"""Chunk keys of an array of the v3 draft <-> shard keys and places in the shards.

Section "Key & value transformation" of the draft of the storage transformer.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal, NamedTuple

from gpushard.arguments import instance
from gpushard.layout import Coordinate

# No array has a chunk of a longer number, and Python refuses to parse very long ones.
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")


class ChunkPlace(NamedTuple):
    """Key of the shard that holds a chunk, and the chunk's entry in its index."""

    shard_key: str
    entry: int


@dataclass(frozen=True)
class ShardKeys:
    """How the chunks of an array are grouped in shards.

    Attributes
    ----------
    base
        Prefix of the keys of the array's objects, such as "data/root/a/".
    per_shard
        Chunks combined in a shard along each axis.
    grid_shape
        Chunks of the array along each axis; None if unknown.
    """

    base: str
    per_shard: Coordinate
    separator: Literal["/", "."]
    grid_shape: Coordinate | None = None

    @cached_property
    def n_entries(self) -> int:
        """Number of chunks per shard."""
        return prod(self.per_shard)

    @cached_property
    def index_nbytes(self) -> int:
        """Size of the index of a shard."""
        return 16 * self.n_entries

    def place(self, key: str) -> ChunkPlace | None:
        """Place of the chunk `key`; None if it is not a chunk of the array."""
        at = self.coordinate(key)
        if at is None:
            return None
        entry = 0
        for i, n in zip(at, self.per_shard, strict=True):
            entry = entry * n + i % n
        return ChunkPlace(self.key(self._home(at)), entry)

    def coordinate(self, key: str) -> Coordinate | None:
        """Coordinate in the key of a chunk or a shard; None if it is neither."""
        parts = self._parts(key)
        n_parts = max(len(self.per_shard), 1)
        if parts is None or len(parts) != n_parts or not all(map(_is_number, parts)):
            return None
        at = tuple(map(int, parts))
        if not self.per_shard:
            return () if at == (0,) else None
        return at

    def key(self, at: Coordinate) -> str:
        """Key of the chunk or shard at a coordinate."""
        text = self.separator.join(map(str, at)) or "0"
        return f"{self.base}c{text}"

    def chunks_of(self, shard: Coordinate) -> Iterator[str]:
        """Keys of all chunks that a shard can hold, in the order of its index."""
        for inner in itertools.product(*map(range, self.per_shard)):
            yield self.key(self._chunk(shard, inner))

    def available(self, shard_key: str) -> set[int]:
        """Entries of the chunks that the array has in a shard; all if unknown."""
        shard = self.coordinate(shard_key)
        if self.grid_shape is None or shard is None:
            return set(range(self.n_entries))
        grid = self.grid_shape
        return {
            entry
            for entry, inner in enumerate(
                itertools.product(*map(range, self.per_shard))
            )
            if all(
                i < extent
                for i, extent in zip(self._chunk(shard, inner), grid, strict=True)
            )
        }

    def shards_prefix(self, prefix: str) -> str | None:
        """Prefix of the shards of all chunks whose keys begin with `prefix`.

        None if `prefix` ends before any coordinate of the array, or is elsewhere.
        """
        parts = self._parts(prefix)
        if parts is None:
            return None
        # The last part may be incomplete, and then stand for any number.
        known: list[int] = []
        for part in parts[:-1]:
            if not _is_number(part):
                return None
            known.append(int(part))
        if len(parts) > max(len(self.per_shard), 1):
            return None
        homes = [i // n for i, n in zip(known, self.per_shard, strict=False)]
        return f"{self.base}c" + "".join(f"{home}{self.separator}" for home in homes)

    def directories(self, shard_prefix: str, below: str) -> Iterator[str]:
        """Prefixes of chunks directly below `below`, for a prefix of shards."""
        home = int(shard_prefix.rstrip("/").rpartition("/")[2].removeprefix("c"))
        axis = 0 if below == self.base else below.removeprefix(self.base).count("/")
        first = home * self.per_shard[axis]
        stop = first + self.per_shard[axis]
        if self.grid_shape is not None:
            stop = min(stop, self.grid_shape[axis])
        letter = "" if axis else "c"
        for i in range(first, stop):
            yield f"{below}{letter}{i}/"

    def is_shards_directory(self, prefix: str) -> bool:
        """Whether `prefix`, which ends in a slash, is a part of a shard's key."""
        parts = self._parts(prefix)
        return (
            self.separator == "/"
            and parts is not None
            and len(parts) <= len(self.per_shard)
            and all(map(_is_number, parts[:-1]))
        )

    def _parts(self, key: str) -> list[str] | None:
        instance(key, "a key", str)
        start = f"{self.base}c"
        if not key.startswith(start):
            return None
        return key[len(start) :].split(self.separator)

    def _home(self, at: Coordinate) -> Coordinate:
        return tuple(i // n for i, n in zip(at, self.per_shard, strict=True))

    def _chunk(self, shard: Coordinate, inner: Coordinate) -> Coordinate:
        parts = zip(shard, self.per_shard, inner, strict=True)
        return tuple(home * n + i for home, n, i in parts)


def _is_number(text: str) -> bool:
    # No writer makes keys with digits of other scripts or with leading zeros.
    return _NUMBER.fullmatch(text) is not None
