"""A block of inner chunks whose byte ranges are known, cut into requests."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.memory.chunk_cache import ChunkCache, Hold
from gpushard.planning.blocks import ShardBlock
from gpushard.planning.coalesce import Requests
from gpushard.selecting.selection import Ints


class Located(NamedTuple):
    """Byte ranges of a block's inner chunks within their stored objects.

    Attributes
    ----------
    start, stop
        int64, shape (n_chunks,). Half-open; of no meaning where `missing`.
    missing
        bool, shape (n_chunks,). Not stored: the fill value is wanted.
    versions
        Version of each stored object that its index was read from; None where there is
        no object, no index in it, or the store tells no versions.
    """

    start: Ints
    stop: Ints
    missing: NDArray[np.bool_]
    versions: Sequence[Hashable | None]


@dataclass(frozen=True, slots=True)
class Places:
    """Where inner chunks of a block are kept, or will be once they are decoded.

    Attributes
    ----------
    cache, hold
        What keeps them, and the places, which stay theirs while this is there.
    nth
        int64, shape (n_chunks,). Which place of `hold` was asked for each; -1: none.
    addresses
        int64, shape (n_chunks,). Where that lies in memory; 0: there is none.
    """

    cache: ChunkCache
    hold: Hold
    nth: Ints
    addresses: Ints

    @classmethod
    def of(cls, cache: ChunkCache, hold: Hold, rows: Ints, n_chunks: int) -> Places:
        """Places of the inner chunks `rows`, one after the other."""
        nth = np.full(n_chunks, -1, np.int64)
        addresses = np.zeros(n_chunks, np.int64)
        nth[rows], addresses[rows] = np.arange(len(rows)), hold.addresses
        return cls(cache, hold, nth, addresses)

    def memory(self, row: int) -> NDArray[np.uint8] | None:
        """Place of one of them, uint8; None if it has none."""
        nth = int(self.nth[row])
        if nth < 0 or self.hold.slots[nth] < 0:
            return None
        return self.hold.bytes_of(nth)

    def keep(self, rows: Ints) -> None:
        """Let the inner chunks `rows` be found, which were decoded to their places."""
        self.cache.keep(self.hold, self.nth[rows].tolist())


@dataclass(frozen=True, slots=True)
class RangedBlock:
    """A block whose byte ranges are known and cut into requests.

    Attributes
    ----------
    block
        The inner chunks.
    located
        Byte range that each of them fills.
    spans
        int64, shape (2, n_chunks). Byte range that is fetched of each: all of it, or
        of plain elements what holds the wanted ones.
    requests
        What is fetched; its rows are columns of `block`.
    claimed
        Where they are kept once they are decoded; None: nowhere.
    """

    block: ShardBlock
    located: Located
    spans: Ints
    requests: Requests
    claimed: Places | None = None

    def rows_of(self, r: int) -> Ints:
        """Inner chunks that request `r` holds, ascending by byte range."""
        return self.requests.order[
            self.requests.bounds[r] : self.requests.bounds[r + 1]
        ]
