"""Boxes whose inner chunks are kept decoded, or will be.

Boxes of kept inner chunks are copied from memory, like fill values. An inner chunk that
will be kept is decoded whole, to where it stays, and boxes are copied from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.fused.columns import (
    CELL,
    CHUNK_STRIDE,
    ENTRY,
    FILE,
    FILLED,
    HIGH,
    KEEP,
    LOW,
    N_ELEMENTS,
    NBYTES,
    SOURCE,
    STEP,
)
from gpushard.fused.laid import Mesh, Scattered
from gpushard.memory.chunk_cache import ChunkCache
from gpushard.memory.chunk_slots import Hold
from gpushard.memory.known import KnownIndex
from gpushard.memory.misses import PART, WHOLE
from gpushard.placing.keeping import NO_KEY, cache_for, first_key, fits, keys_of
from gpushard.planning.index import PRESENT
from gpushard.selecting.selection import Ints
from gpushard.source import Source


class CacheUse(Enum):
    """What a read does with the cache: nothing, or which inner chunks it keeps."""

    NONE = 0
    KEEP_MISSED_BEFORE = 1
    KEEP_ALL = 2


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
    use: CacheUse = CacheUse.KEEP_MISSED_BEFORE,
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
    use
        What the read does with a sparing cache; others keep all if they are used.
    """
    cache = cache_for(source, n_wanted)
    if cache is None or use is CacheUse.NONE:
        return None
    n_boxes = np.array(ends)
    n_boxes[1:] -= ends[:-1]
    shard = np.arange(len(known)).repeat(n_boxes)
    keys = keys_of(source, known, shard, boxes[:, ENTRY])
    may_drop = fits(source, n_wanted)
    return _mark_kept(cache, boxes, keys, may_drop=may_drop, use=use)


def cache_use(
    source: Source, wanted: Mesh | Scattered, known: KnownIndex | None
) -> CacheUse:
    """What a short read does with the cache; if none, a sparing one notes that.

    Parameters
    ----------
    wanted
        What it reads.
    known
        Index of the first shard of `wanted`.
    """
    is_mesh = isinstance(wanted, Mesh)
    cache = cache_for(source, wanted.n_most if is_mesh else wanted.points.shape[1])
    if cache is None:
        return CacheUse.NONE
    if not (is_mesh and cache.is_sparing):
        return CacheUse.KEEP_MISSED_BEFORE
    first = first_key(source, known)
    if first is None or known is None:
        return CacheUse.NONE
    if known.index.state.item(wanted.entry) != PRESENT:
        return CacheUse.NONE
    key, weight = first + wanted.entry, _weight_of(source, wanted)
    is_back = cache.is_back(key, wanted.n_most, weight)
    return CacheUse.KEEP_ALL if is_back else CacheUse.NONE


def _weight_of(source: Source, wanted: Mesh) -> int:
    """What a read spends on each of its inner chunks, from `misses`."""
    if source.range_strides is None:
        return WHOLE
    extent = 0
    for column in wanted.columns:
        reach = min(column[N_ELEMENTS] * max(column[STEP], 1), column[CELL])
        extent += (reach - 1) * column[CHUNK_STRIDE]
    return PART if 4 * extent <= source.chunk_nbytes else WHOLE


def _mark_kept(
    cache: ChunkCache, boxes: Ints, keys: Ints, *, may_drop: bool, use: CacheUse
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
    wanted = new if use is CacheUse.KEEP_ALL else cache.wanted(new)
    if cache.is_sparing and max(wanted) < 0:
        return KeptBoxes(cache, found)
    claimed = cache.claim(wanted, may_drop=may_drop)
    boxes[:, KEEP] = claimed.addresses
    return KeptBoxes(cache, found, claimed)
