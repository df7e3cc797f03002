"""A block of inner chunks whose byte ranges are known, cut into requests."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.memory.chunk_cache import ChunkCache
from gpushard.memory.chunk_slots import Hold
from gpushard.planning.blocks import ShardBlock
from gpushard.planning.coalesce import Requests
from gpushard.selecting.selection import Ints


class Located(NamedTuple):
    """Byte ranges of a block's inner chunks within their stored objects.

    Attributes
    ----------
    start, stop
        int64, shape (n_chunks,). Half-open range; undefined where `missing`.
    missing
        bool, shape (n_chunks,). Not stored: the output gets the fill value.
    versions
        Version of each stored object from which its index was read. None if there is no
        object, if it has no index, or if the store does not tell versions.
    """

    start: Ints
    stop: Ints
    missing: NDArray[np.bool_]
    versions: Sequence[Hashable | None]


@dataclass(frozen=True, slots=True)
class CacheSlots:
    """Slots of a cache in which inner chunks of a block are kept, or will be.

    Attributes
    ----------
    cache, hold
        The cache, and the slots, which nothing else gets while this object exists.
    index_in_hold
        int64, shape (n_chunks,). Index of each inner chunk's slot in `hold`; -1: none.
    addresses
        int64, shape (n_chunks,). Address of that slot; 0: there is none.
    """

    cache: ChunkCache
    hold: Hold
    index_in_hold: Ints
    addresses: Ints

    @classmethod
    def of(cls, cache: ChunkCache, hold: Hold, rows: Ints, n_chunks: int) -> CacheSlots:
        """Slots in `hold` for the inner chunks `rows`, one after the other."""
        index_in_hold = np.full(n_chunks, -1, np.int64)
        addresses = np.zeros(n_chunks, np.int64)
        index_in_hold[rows], addresses[rows] = np.arange(len(rows)), hold.addresses
        return cls(cache, hold, index_in_hold, addresses)

    def memory(self, row: int) -> NDArray[np.uint8] | None:
        """Slot of an inner chunk, uint8; None if it has none."""
        index = int(self.index_in_hold[row])
        if index < 0 or self.hold.slots[index] < 0:
            return None
        return self.hold.bytes_of(index)

    def keep(self, rows: Ints) -> None:
        """Make the inner chunks `rows` available, after decoding to their slots."""
        self.cache.keep(self.hold, self.index_in_hold[rows].tolist())


@dataclass(frozen=True, slots=True)
class RangedBlock:
    """A block whose byte ranges are known and cut into requests.

    Attributes
    ----------
    block
        The inner chunks.
    located
        Byte range of each inner chunk.
    spans
        int64, shape (2, n_chunks). Byte range to fetch for each: all of it, or, for
        plain elements, the part that contains the wanted ones.
    requests
        The requests; their rows are columns of `block`.
    claimed
        Slots to keep inner chunks in after decoding; None: they are not kept.
    """

    block: ShardBlock
    located: Located
    spans: Ints
    requests: Requests
    claimed: CacheSlots | None = None

    def rows_of(self, r: int) -> Ints:
        """Inner chunks that request `r` holds, ascending by byte range."""
        return self.requests.order[
            self.requests.bounds[r] : self.requests.bounds[r + 1]
        ]

    def cuts(self, rows: Ints, base: Ints | int) -> Iterator[tuple[int, int, int, int]]:
        """Where inner chunks lie in the bytes of their objects from offsets `base` on.

        For each: its first byte there and one past its last, where these bytes begin in
        the stored inner chunk, and how many that has.
        """
        spans, start = self.spans[:, rows], self.located.start[rows]
        first, last = (spans - base).tolist()
        low = (spans[0] - start).tolist()
        stored_nbytes = (self.located.stop[rows] - start).tolist()
        return zip(first, last, low, stored_nbytes, strict=True)
