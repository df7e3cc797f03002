"""Boxes whose inner chunks are kept decoded, or will be.

Boxes of kept inner chunks are copied from memory, like fill values. An inner chunk that
will be kept is decoded whole, to where it stays, and boxes are copied from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.codecs.base import PART_SHARE
from gpushard.fused.columns import (
    CELL,
    CHUNK_STRIDE,
    ENTRY,
    FILE,
    FILLED,
    KEEP,
    N_ELEMENTS,
    SOURCE,
    STEP,
)
from gpushard.fused.meshes import Mesh, ScatteredPoints
from gpushard.fused.placer import PlanPlacer
from gpushard.memory.chunk_cache import ChunkCache
from gpushard.memory.chunk_slots import Hold
from gpushard.memory.known import KnownIndex
from gpushard.memory.misses import SPENT_ENOUGH, SPENT_PART, SPENT_WHOLE
from gpushard.options import KIB
from gpushard.placing.keeping import (
    NO_KEY,
    first_key,
    first_keys,
    fits_cache,
    takes_part,
)
from gpushard.planning.index import PRESENT
from gpushard.selecting.selection import Ints
from gpushard.source import Source

# Reads that take at least this long look up each of their inner chunks, and so do reads
# of inner chunks of which each takes at least this long.
_LONG_US, _LONG_CHUNK_US = 4000, 500
# Shorter reads are one call of the loops. They gain little from inner chunks that are
# smaller than this.
_CALL_US, _LEAST_CALLED_NBYTES = 800, 64 * KIB


class ChunkUse(NamedTuple):
    """How much of its inner chunks a read takes.

    Attributes
    ----------
    n_elements
        Number of elements, of all inner chunks together.
    reach_nbytes
        Distance from the first to the last element that it takes of one, at most.
    """

    n_elements: int
    reach_nbytes: int

    def weight_in(self, source: Source) -> int:
        """What the read spends on each inner chunk: `SPENT_WHOLE`, or `SPENT_PART`."""
        decodes_any = source.range_strides is not None
        is_part = decodes_any and PART_SHARE * self.reach_nbytes <= source.chunk_nbytes
        return SPENT_PART if is_part else SPENT_WHOLE


@dataclass(frozen=True, slots=True)
class ChunkHolds:
    """Holds of the slots that boxes are copied from, and decoded to.

    Attributes
    ----------
    cache
        The cache that has the slots.
    kept
        Slots of inner chunks that were kept before, box by box.
    claimed
        Slots of inner chunks that will be kept, box by box; None if there are none.
    are_all_kept
        Whether all were kept before, so that nothing is read or decoded.
    """

    cache: ChunkCache
    kept: Hold
    claimed: Hold | None = None
    are_all_kept: bool = False

    @property
    def n_kept(self) -> int:
        """Number of inner chunks that were kept before."""
        return len(set(self.kept.taken))

    def keep(self, boxes: Ints, is_placed: NDArray[np.bool_]) -> None:
        """Keep the decoded inner chunks; no object may have changed during the read.

        Parameters
        ----------
        boxes
            The boxes, as the loops left them.
        is_placed
            bool, shape (n_boxes,). Whether the loops placed each.
        """
        if self.claimed is not None:
            decoded = np.flatnonzero(is_placed & (boxes[:, KEEP] != 0))
            self.cache.keep(self.claimed, decoded.tolist())


def hold_chunks(
    source: Source,
    boxes: Ints,
    known: Sequence[KnownIndex | None],
    ends: Ints,
    n_wanted: int,
    weight: int | None,
) -> ChunkHolds | None:
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
    cache = source.chunks
    if cache is None or weight is None:
        return None
    may_drop = fits_cache(source, n_wanted)
    keeps = keeps_any(cache, weight, may_drop=may_drop)
    if not (keeps or len(cache)):
        return None
    n_boxes = ends.copy()
    n_boxes[1:] -= ends[:-1]
    keys = boxes[:, ENTRY] + first_keys(source, known).repeat(n_boxes)
    holds, n_left = _mark_kept(cache, boxes, keys)
    if n_left and keeps and (may_drop or cache.has_room):
        return _mark_claimed(holds, boxes, keys, may_drop=may_drop, weight=weight)
    return holds


def keeps_any(cache: ChunkCache, weight: int, *, may_drop: bool) -> bool:
    """Whether a read may keep inner chunks; one that does not still finds them.

    Larger reads than fit keep as much as there is room for, but are not remembered.
    """
    return may_drop or not cache.is_sparing or weight >= SPENT_ENOUGH


def planned_weight(
    source: Source, placer: PlanPlacer, boxes: Ints, n_chunks: int
) -> int:
    """What a read spends on each of its `n_chunks` inner chunks, of which some `boxes`.

    The boxes are int64, shape (n_boxes, FIRST_LENGTH + n_axes).
    """
    if source.chunks is None or not takes_part(source, placer.n_elements, n_chunks):
        return SPENT_WHOLE  # so that full reads need not look at their boxes
    reach = int(placer.reaches(boxes).max(initial=0))
    use = ChunkUse(placer.n_elements, reach)
    is_at_once = _are_kept_at_once(source, use, n_chunks, placer.chain.chunk_us)
    return SPENT_ENOUGH if is_at_once else SPENT_WHOLE


def _are_kept_at_once(
    source: Source, use: ChunkUse, n_chunks: int, chunk_us: float
) -> bool:
    """Whether a read keeps all inner chunks that it decodes, although it is the first.

    A read that takes only a part of inner chunks is often followed by one that takes
    other parts of them, or the same again. If decoding takes long, and decodes whole
    inner chunks anyway, they are kept at once.

    Parameters
    ----------
    use, n_chunks
        How much the read takes of its inner chunks, and how many there are.
    chunk_us
        Time that it takes to decode an inner chunk.
    """
    return (
        _is_long(n_chunks, chunk_us)
        and use.weight_in(source) == SPENT_WHOLE
        and takes_part(source, use.n_elements, n_chunks)
    )


def _is_long(n_chunks: int, chunk_us: float) -> bool:
    return n_chunks * chunk_us >= _LONG_US or chunk_us >= _LONG_CHUNK_US


def short_weight(
    source: Source,
    on_grid: Mesh | ScatteredPoints,
    key: int | None,
    chunk_us: float,
    n_elements: int,
) -> int | None:
    """What a read spends on each inner chunk; None if it does without the cache.

    Looking up every inner chunk takes a tenth of a millisecond. So a short read is
    recognised by its first inner chunk alone.

    Parameters
    ----------
    on_grid
        The selection that it reads.
    key
        Key of its first inner chunk; None if that is missing, or cannot be kept.
    chunk_us
        Time that it takes to decode an inner chunk.
    n_elements
        Number of elements that it takes.
    """
    cache = source.chunks
    if cache is None:
        return None
    if isinstance(on_grid, ScatteredPoints) or not cache.is_sparing:
        return SPENT_WHOLE
    # What tells whether parts are taken is not asked of what is decoded whole anyway.
    reach_nbytes = 0 if source.range_strides is None else _reach_of(on_grid)
    n_chunks, use = on_grid.n_most, ChunkUse(n_elements, reach_nbytes)
    weight = use.weight_in(source)
    if _are_kept_at_once(source, use, n_chunks, chunk_us):
        return SPENT_ENOUGH
    if not _is_long(n_chunks, chunk_us):
        is_repeated = _is_repeated(source, n_chunks, key, chunk_us, weight)
        return SPENT_ENOUGH if is_repeated else None
    return weight if fits_cache(source, n_chunks) or len(cache) else None


def _is_repeated(
    source: Source,
    n_chunks: int,
    key: int | None,
    chunk_us: float,
    weight: int,
) -> bool:
    """Whether a short read repeats a recent one, judged by its first inner chunk."""
    cache = source.chunks
    is_little = n_chunks * chunk_us < _CALL_US
    # Files of one inner chunk are several calls, and each has to be opened.
    is_one_call = source.chunk_nbytes < _LEAST_CALLED_NBYTES and source.layout.levels
    is_too_little = is_one_call and is_little
    if cache is None or key is None or is_too_little:
        return False
    return fits_cache(source, n_chunks) and cache.is_repeated(key, n_chunks, weight)


def key_in(
    source: Source, known: KnownIndex | None, on_grid: Mesh | ScatteredPoints
) -> int | None:
    """Key of the first inner chunk of a selection, in a shard with the index `known`.

    None if it is missing or cannot be kept, and for points.
    """
    first = first_key(source, known)
    if known is None or first is None or isinstance(on_grid, ScatteredPoints):
        return None
    is_there = known.index.state.item(on_grid.entry) == PRESENT
    return first + on_grid.entry if is_there else None


def _reach_of(mesh: Mesh) -> int:
    """Distance in bytes from the first to the last element taken of an inner chunk."""
    reach = 0
    for column in mesh.columns:
        length = min(column[N_ELEMENTS] * max(column[STEP], 1), column[CELL])
        reach += (length - 1) * column[CHUNK_STRIDE]
    return reach


def _mark_kept(cache: ChunkCache, boxes: Ints, keys: Ints) -> tuple[ChunkHolds, int]:
    """Have boxes copied from kept inner chunks; the number of boxes that are left.

    `keys`: int64, shape (n_boxes,).
    """
    kept = cache.find(keys if len(cache) else ())
    n_left = len(boxes) - len(kept.taken)
    if kept.taken:
        addresses = kept.addresses
        at: Any = np.flatnonzero(addresses) if n_left else slice(None)
        boxes[at, : FILE + 1] = 0, cache.chunk_nbytes, 0, 0, FILLED
        boxes[at, SOURCE] = addresses[at]
    return ChunkHolds(cache, kept, are_all_kept=not n_left), n_left


def _mark_claimed(
    holds: ChunkHolds, boxes: Ints, keys: Ints, *, may_drop: bool, weight: int
) -> ChunkHolds:
    """Have other inner chunks decoded to where they stay, as many as are to be kept."""
    new = np.where(boxes[:, FILE] == FILLED, NO_KEY, keys)
    wanted = holds.cache.keys_to_keep(new, weight)
    if wanted is None:
        return holds
    claimed = holds.cache.claim(wanted, may_drop=may_drop)
    boxes[:, KEEP] = claimed.addresses
    return replace(holds, claimed=claimed)
