"""Boxes whose inner chunks are kept decoded, or will be.

Boxes of kept inner chunks are copied from memory, like fill values. An inner chunk that
will be kept is decoded whole, to where it stays, and boxes are copied from there.
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
    HIGH,
    KEEP,
    LOW,
    NBYTES,
    SOURCE,
)
from gpushard.memory.chunk_cache import ChunkCache, Hold
from gpushard.memory.known import KnownIndex
from gpushard.placing.keeping import NO_KEY, fits, keys_of
from gpushard.selecting.selection import Ints
from gpushard.source import Source


@dataclass(frozen=True, slots=True)
class KeptBoxes:
    """Kept inner chunks that boxes read from or write to, held by this object.

    Attributes
    ----------
    cache
        The cache that keeps them.
    found
        Slots of inner chunks that were kept before, box by box.
    claimed
        Slots of inner chunks that will be kept, box by box; None if there are none.
    is_all_found
        Whether all were kept before, so that nothing is read or decoded.
    """

    cache: ChunkCache
    found: Hold
    claimed: Hold | None = None
    is_all_found: bool = False

    @property
    def n_found(self) -> int:
        """Number of inner chunks that were kept before."""
        return len(set(self.found.taken))

    def keep(self, boxes: Ints, is_placed: NDArray[np.bool_], first: int = 0) -> None:
        """Keep the decoded inner chunks; no object may have changed during the read.

        Parameters
        ----------
        boxes
            The boxes from number `first` on, as the loops left them.
        is_placed
            bool, shape (n_boxes,). Whether the loops placed each.
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
    """Have planned boxes copied from kept inner chunks, and keep what others decode.

    Parameters
    ----------
    boxes
        int64, shape (n_boxes, FIRST_LENGTH + n_axes). Changed in place.
    known
        Indexes of the boxes' shards.
    ends
        int64, shape (n_shards,). End of the boxes of each shard.
    n_wanted
        Number of inner chunks in the whole read.
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
    """Do the work of `kept_boxes`; `keys`: int64, shape (n_boxes,)."""
    found = cache.find(keys)
    n_left = len(boxes) - len(found.taken)
    if found.taken:
        addresses = found.addresses
        at: Any = np.flatnonzero(addresses) if n_left else slice(None)
        boxes[at, SOURCE], boxes[at, NBYTES] = addresses[at], cache.chunk_nbytes
        boxes[at, LOW], boxes[at, HIGH], boxes[at, FILE] = 0, 0, FILLED
    if not n_left:
        return KeptBoxes(cache, found, is_all_found=True)
    if not may_drop and not cache.has_room:
        return KeptBoxes(cache, found)
    new = np.where(boxes[:, FILE] == FILLED, NO_KEY, keys)
    claimed = cache.claim(new, may_drop=may_drop)
    boxes[:, KEEP] = claimed.addresses
    return KeptBoxes(cache, found, claimed)
