"""Files of one inner chunk whose decoded inner chunks are kept, or will be.

The key of such an inner chunk is its place in the chunk grid. So the loops ask for the
version of its file, and copy it only if it was decoded from that version.
"""

from __future__ import annotations

from time import time_ns

import numpy as np
from numpy.typing import NDArray

from gpushard.fused.addresses import address_of
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
from gpushard.fused.kept_chunks import keeps_any
from gpushard.fused.placer import Bools
from gpushard.fused.words import VERSION_CHANGED, VERSION_NBYTES, Opener
from gpushard.memory.chunk_cache import ChunkCache
from gpushard.memory.chunk_slots import Hold
from gpushard.placing.keeping import fits_cache
from gpushard.selecting.selection import Ints
from gpushard.source import Source
from gpushard.stores.local.handles import is_settled

_VERSION_WORDS = VERSION_NBYTES // 8


class KeptFiles:
    """Boxes whose inner chunks are kept, as far as their files have not changed.

    Parameters
    ----------
    cache
        The cache that keeps them.
    boxes
        int64, shape (n_boxes, FIRST_LENGTH + n_axes). Boxes of files; not changed.

    Attributes
    ----------
    is_kept
        bool, shape (n_boxes,).
    boxes
        Those that are kept, to be placed by the loops.
    """

    def __init__(self, cache: ChunkCache, boxes: Ints) -> None:
        self._cache = cache
        self._hold = cache.find(boxes[:, ENTRY])
        addresses = self._hold.addresses
        self.is_kept: Bools = addresses != 0
        self.boxes = boxes[self.is_kept]
        self.boxes[:, [LOW, HIGH, KEEP]] = 0
        self.boxes[:, NBYTES], self.boxes[:, FILE] = cache.chunk_nbytes, FILLED
        self.boxes[:, SOURCE] = addresses[self.is_kept]
        packed = b"".join(self._hold.versions)
        self._versions = np.frombuffer(packed, np.uint8)

    def told(self, opener: Opener) -> Opener:
        """The opener of the boxes, with the versions that their files must have."""
        return opener._replace(versions=address_of(self._versions))

    def drop_changed(self, is_placed: Bools) -> None:
        """Keep no more what is not placed, because its file has another version.

        `is_placed` is bool, shape (n_kept_boxes,).
        """
        if not is_placed.all():
            at = np.flatnonzero(self.is_kept)[~is_placed]
            self._cache.drop(self._hold, at.tolist())


class NewFiles:
    """Boxes whose inner chunks are decoded to where they will be kept.

    Parameters
    ----------
    cache
        The cache that will keep them.
    boxes
        int64, shape (n_boxes, FIRST_LENGTH + n_axes). Boxes of files; `KEEP` is set.
    may_drop
        Whether others may be dropped to make room.
    weight
        What the read spends on each inner chunk, from `misses`.
    """

    def __init__(
        self, cache: ChunkCache, boxes: Ints, *, may_drop: bool, weight: int
    ) -> None:
        self._cache = cache
        self._boxes = boxes
        # A version counts if it had settled when the first file was opened.
        self._began_ns = time_ns()
        self._claimed: tuple[Hold, NDArray[np.int64]] | None = None
        wanted = cache.keys_to_keep(boxes[:, ENTRY], weight)
        if wanted is None:
            return
        hold = cache.claim(wanted, may_drop=may_drop)
        if hold.taken:
            boxes[:, KEEP] = hold.addresses
            self._claimed = hold, np.zeros((len(boxes), _VERSION_WORDS), np.int64)

    def told(self, opener: Opener) -> Opener:
        """The opener of the boxes, with room for the versions of their files."""
        if self._claimed is None:
            return opener
        _, found = self._claimed
        return opener._replace(versions=address_of(found))

    def keep(self, is_placed: Bools, missing: Bools) -> None:
        """Keep what was decoded.

        Parameters
        ----------
        is_placed, missing
            bool, shape (n_boxes,). Whether each box was placed, and has no file.
        """
        if missing.any():
            self._cache.note_absent(self._boxes[missing, ENTRY])
        if self._claimed is None:
            return
        hold, found = self._claimed
        at = np.flatnonzero(is_placed & (self._boxes[:, KEEP] != 0)).tolist()
        changed_ns = found[:, VERSION_CHANGED].tolist()
        versions = {
            i: found[i].tobytes()
            for i in at
            if is_settled(changed_ns[i], self._began_ns)
        }
        self._cache.keep(hold, versions, versions)


def kept_files(source: Source, boxes: Ints, weight: int | None) -> KeptFiles | None:
    """Boxes whose inner chunks are kept; None if there are none.

    `weight` is what the read spends on each inner chunk; None: it does without the
    cache.
    """
    cache = source.chunks
    if cache is None or weight is None or not len(cache):
        return None
    kept = KeptFiles(cache, boxes)
    return kept if len(kept.boxes) else None


def new_files(
    source: Source, boxes: Ints, n_wanted: int, weight: int | None
) -> NewFiles | None:
    """Boxes whose inner chunks a read keeps; None if it keeps none.

    `n_wanted` is the number of inner chunks in the whole read; the rest is as for
    `kept_files`.
    """
    cache = source.chunks
    if cache is None or weight is None or not len(boxes):
        return None
    may_drop = fits_cache(source, n_wanted)
    if not keeps_any(cache, weight, may_drop=may_drop):
        return None
    if not (may_drop or cache.has_room):
        return None
    return NewFiles(cache, boxes, may_drop=may_drop, weight=weight)
