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
from gpushard.memory.misses import ENOUGH, PART, WHOLE
from gpushard.options import KIB
from gpushard.placing.keeping import NO_KEY, cache_for, first_key, fits, keys_of
from gpushard.planning.index import PRESENT
from gpushard.selecting.selection import Ints
from gpushard.source import Source

# Reads that take so long look for each of their inner chunks.
_SOUGHT_US = 4000
# Reads that take less are one call of the loops, and gain little from smaller ones.
_CALL_US, _LEAST_CALLED_NBYTES = 800, 64 * KIB


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
    weight: int | None = WHOLE,
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
    weight
        What the read spends on each of its inner chunks, from `misses`; None: it does
        without the cache.
    """
    cache = cache_for(source, n_wanted)
    if cache is None or weight is None:
        return None
    shard = None
    if len(known) > 1:
        shard = np.arange(len(known)).repeat(np.diff(ends, prepend=0))
    keys = keys_of(source, known, shard, boxes[:, ENTRY])
    may_drop = fits(source, n_wanted)
    return _mark_kept(cache, boxes, keys, may_drop=may_drop, weight=weight)


def short_weight(
    source: Source,
    wanted: Mesh | Scattered,
    known: KnownIndex | None,
    chunk_us: float,
) -> int | None:
    """What a read spends on each inner chunk; None if it does without the cache.

    To look for each inner chunk takes a tenth of a millisecond. So a read that takes
    little time is known by its first inner chunk.

    Parameters
    ----------
    wanted
        What it reads.
    known
        Index of the first shard of `wanted`.
    chunk_us
        Time that it takes to decode an inner chunk.
    """
    is_mesh = isinstance(wanted, Mesh)
    cache = cache_for(source, wanted.n_most if is_mesh else wanted.points.shape[1])
    if cache is None:
        return None
    if not (is_mesh and cache.is_sparing):
        return WHOLE
    weight = _weight_of(source, wanted)
    work_us = wanted.n_most * chunk_us
    if work_us >= _SOUGHT_US:
        return weight
    is_too_little = source.chunk_nbytes < _LEAST_CALLED_NBYTES and work_us < _CALL_US
    first = first_key(source, known)
    if is_too_little or first is None or known is None:
        return None
    if known.index.state.item(wanted.entry) != PRESENT:
        return None
    is_back = cache.is_back(first + wanted.entry, wanted.n_most, weight)
    return ENOUGH if is_back else None


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
    cache: ChunkCache, boxes: Ints, keys: Ints, *, may_drop: bool, weight: int
) -> KeptBoxes:
    """Do the work of `kept_boxes`; `keys`: int64, shape (n_boxes,)."""
    found = cache.find(keys if len(cache) else ())
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
    wanted = cache.wanted(new, weight)
    if wanted is None:
        return KeptBoxes(cache, found)
    claimed = cache.claim(wanted, may_drop=may_drop)
    boxes[:, KEEP] = claimed.addresses
    return KeptBoxes(cache, found, claimed)
