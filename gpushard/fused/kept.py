"""Boxes whose inner chunks are kept decoded, or are to be.

What is kept is copied from memory, as fill values are; what is to be kept is decoded
whole to where it stays, and copied from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.fused.columns import (
    ENTRY,
    FILE,
    FILLED,
    GAP_NBYTES,
    HIGH,
    KEEP,
    LOW,
    NBYTES,
    REACH,
    SOURCE,
)
from gpushard.memory.chunk_cache import ChunkCache, Hold
from gpushard.memory.known import KnownIndex
from gpushard.placing.keeping import NO_KEY, fits, keys_of
from gpushard.selecting.selection import Ints
from gpushard.source import Source


@dataclass(frozen=True, slots=True)
class KeptBoxes:
    """What boxes read from and write to that is kept; held as long as this is there.

    Attributes
    ----------
    cache
        What keeps it.
    found
        What was kept before, box by box.
    claimed
        What is to be kept, box by box; None where nothing is.
    is_all_found
        Whether nothing is read or decoded.
    """

    cache: ChunkCache
    found: Hold
    claimed: Hold | None = None
    is_all_found: bool = False

    @property
    def n_found(self) -> int:
        """Inner chunks that were kept before."""
        return len(set(self.found.taken))

    def keep(self, boxes: Ints, is_placed: NDArray[np.bool_], first: int = 0) -> None:
        """Keep what was decoded, once no object changed while it was read.

        Parameters
        ----------
        boxes
            Those from `first` on, as the loops left them.
        is_placed
            bool, shape (n_boxes,).
        """
        if self.claimed is not None:
            decoded = np.flatnonzero(is_placed & (boxes[:, KEEP] != 0))
            self.cache.keep(self.claimed, (first + decoded).tolist())


def kept_boxes(
    source: Source,
    boxes: Ints,
    known: Sequence[KnownIndex | None],
    ends: Ints,
    n_wanted: int,
) -> KeptBoxes | None:
    """Let planned boxes be copied from what is kept, and what others decode be kept.

    Parameters
    ----------
    boxes
        int64, shape (n_boxes, FIRST_LENGTH + n_axes). Changed.
    known
        Indexes of the shards that they lie in.
    ends
        int64, shape (n_shards,). Where the boxes of each shard end.
    n_wanted
        Inner chunks of the whole read.
    """
    if source.chunks is None:
        return None
    n_boxes = np.array(ends)
    n_boxes[1:] -= ends[:-1]
    shard = np.arange(len(known)).repeat(n_boxes)
    keys = keys_of(source, known, shard, boxes[:, ENTRY])
    return _mark_kept(source.chunks, boxes, keys, may_drop=fits(source, n_wanted))


def _mark_kept(
    cache: ChunkCache, boxes: Ints, keys: Ints, *, may_drop: bool
) -> KeptBoxes:
    """As `kept_boxes`; `keys`: int64, shape (n_boxes,)."""
    found = cache.find(keys)
    n_left = len(boxes) - len(found.taken)
    if found.taken:
        addresses = found.addresses
        at: Any = np.flatnonzero(addresses) if n_left else slice(None)
        boxes[at, SOURCE], boxes[at, NBYTES] = addresses[at], cache.chunk_nbytes
        boxes[at, LOW], boxes[at, HIGH], boxes[at, FILE] = 0, 0, FILLED
    if not n_left:
        return KeptBoxes(cache, found, is_all_found=True)
    if found.taken:
        _put_reach(boxes)
    if not may_drop and not cache.has_room:
        return KeptBoxes(cache, found)
    new = np.where(boxes[:, FILE] == FILLED, NO_KEY, keys)
    claimed = cache.claim(new, may_drop=may_drop)
    boxes[:, KEEP] = claimed.addresses
    return KeptBoxes(cache, found, claimed)


def _put_reach(boxes: Ints) -> None:
    """Write up to where it pays to read on from each box: some are not read now."""
    at = np.flatnonzero(boxes[:, FILE] >= 0)
    if not len(at):
        return
    file, low, high = boxes[at][:, [FILE, LOW, HIGH]].T
    is_first = np.empty(len(at), np.bool_)
    is_first[0] = True
    np.not_equal(file[1:], file[:-1], out=is_first[1:])
    is_first[1:] |= low[1:] > high[:-1] + GAP_NBYTES
    firsts = np.flatnonzero(is_first)
    reach = np.maximum.reduceat(high, firsts)[np.cumsum(is_first) - 1]
    boxes[at, REACH] = reach
