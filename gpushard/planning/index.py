"""Shard index: entries -> validated byte ranges and the missing mask.

See section "Binary shard format" of the sharding codec, version 1.0. Sentinels, bounds
and overflow are handled here and nowhere later.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import CorruptShardError
from gpushard.pages import in_pages
from gpushard.selecting.selection import Ints

# Both fields of a missing inner chunk's entry.
_EMPTY = np.uint64(2**64 - 1)
_LARGEST = 2**63 - 1
# Entries that are parsed together, few enough that temporary columns stay in a cache.
_RUN_ENTRIES = 1 << 15

PRESENT, MISSING, CORRUPT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """Where a shard's inner chunks lie.

    Attributes
    ----------
    offset, nbytes
        int64, shape (n_entries,). Byte range of each present inner chunk within the
        stored object; for other states, the bits of the stored entry.
    state
        uint8, shape (n_entries,). `PRESENT`, `MISSING` or `CORRUPT`.
    shard_nbytes
        Size of the shard, or None if unknown.
    """

    offset: Ints
    nbytes: Ints
    state: NDArray[np.uint8]
    shard_nbytes: int | None

    @property
    def held_nbytes(self) -> int:
        """Memory that the columns take."""
        return self.offset.nbytes + self.nbytes.nbytes + self.state.nbytes

    def refuse_corrupt(self, entry: int) -> None:
        """Raise the `CorruptShardError` of entry `entry`, whose state is `CORRUPT`."""
        offset = int(self.offset[entry]) % 2**64
        nbytes = int(self.nbytes[entry]) % 2**64
        if (offset == 2**64 - 1) != (nbytes == 2**64 - 1):
            expected = "both fields or neither to be 2**64 - 1"
        elif self.shard_nbytes is None:
            expected = "a byte range below 2**63"
        else:
            expected = f"a byte range within the shard's {self.shard_nbytes} bytes"
        raise CorruptShardError(
            f"entry {entry} of the shard index is no valid byte range",
            expected=expected,
            got=f"offset {offset}, nbytes {nbytes}",
            hint="the shard is damaged: restore it from a copy or write it again",
        )


def parse_index(
    entries: NDArray[np.uint64],
    *,
    base: int = 0,
    nbytes: int | None,
    is_paged: bool = False,
) -> ShardIndex:
    """Validated index of a shard, from its decoded entries.

    Parameters
    ----------
    entries
        uint64, shape (n_entries, 2), native byte order: offset and nbytes of each inner
        chunk, relative to the shard.
    base
        Offset of the shard in the stored object; not 0 for a nested shard.
    nbytes
        Size of the shard, or None if unknown.
    is_paged
        Whether the columns get memory that returns to the system by itself.
    """
    columns = np.empty(entries.shape[::-1], np.uint64)
    if is_paged:
        columns = in_pages(entries.nbytes).view(np.uint64).reshape(columns.shape)
    columns[...] = entries.T
    offset, size = columns
    state = np.empty(len(offset), np.uint8)
    limit = np.uint64(_LARGEST - base if nbytes is None else nbytes)
    start: Ints = offset.view(np.int64)
    for first in range(0, len(offset), _RUN_ENTRIES):
        run = slice(first, first + _RUN_ENTRIES)
        state[run] = _states(offset[run], size[run], limit)
        if base:
            start[run] += np.where(state[run] == PRESENT, base, 0)
    return ShardIndex(start, size.view(np.int64), state, nbytes)


def _states(
    offset: NDArray[np.uint64], size: NDArray[np.uint64], limit: np.uint64
) -> NDArray[np.uint8]:
    """State of each entry, in a shard that ends at `limit`."""
    # Subtraction instead of a sum, which could wrap around.
    room = np.minimum(offset, limit)
    np.subtract(limit, room, out=room)
    state = np.full(len(offset), CORRUPT, np.uint8)
    state[(offset <= limit) & (size <= room)] = PRESENT
    state[(offset == _EMPTY) & (size == _EMPTY)] = MISSING
    return state
