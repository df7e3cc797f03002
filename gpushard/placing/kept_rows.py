"""Inner chunks of a block -> those that are kept decoded, and slots to keep others.

Of arrays without shards, only small reads and the compiled loops keep any.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial

import numpy as np

from gpushard.fetching.job import Job, rows_of
from gpushard.fetching.locate import Found
from gpushard.fetching.ranged import CacheSlots
from gpushard.memory.chunk_cache import ChunkCache
from gpushard.options import MIB
from gpushard.placing.keeping import current_file_version, fits_cache, keys_of
from gpushard.planning.blocks import Block, ShardBlock
from gpushard.selecting.selection import Ints
from gpushard.threads.work_queue import Task

# Bytes that a task copies at a time, which takes half a millisecond.
_SHARE_NBYTES = 4 * MIB


def find_kept(
    job: Job, block: ShardBlock, found: Found, rows: Ints
) -> CacheSlots | None:
    """Which of the stored inner chunks `rows` are kept; None if the read keeps none.

    The indexes of the block's shards are `found`.
    """
    source = job.source
    cache = source.chunks
    if cache is None or job.sink.place_kept is None:
        return None
    if not (len(cache) or _keeps(job, cache)):
        return None
    keys = keys_of(source, found, block.shard[rows], block.entry[0][rows])
    return CacheSlots.of(cache, cache.find(keys), rows, len(block.shard))


def kept_file_tasks(job: Job, block: ShardBlock) -> Generator[Task, None, Block | None]:
    """Tasks that write what is kept of files of one inner chunk, in their version.

    Returns the part of the block that is left; None if nothing is.
    """
    source, cache = job.source, job.source.chunks
    if cache is None or job.sink.place_kept is None or not len(cache):
        return block
    coordinates: list[list[int]] = block.shard_coords.tolist()
    hold = cache.find([source.number_of((*c,)) for c in coordinates])
    slots = np.array(hold.slots, np.int64)
    at: list[int] = np.flatnonzero(slots >= 0).tolist()
    for i, version in zip(at, hold.versions, strict=True):
        if current_file_version(source, (*coordinates[i],)) != version:
            cache.drop(hold, [i])
            slots[i] = -1
    is_kept = slots >= 0
    if not is_kept.any():
        return block
    hold.slots = slots[block.shard].tolist()  # from here on, a slot for each row
    rows = np.arange(block.n_chunks)
    kept = CacheSlots.of(cache, hold, rows, len(rows))
    yield from placing_tasks(job, block, kept, rows[is_kept[block.shard]])
    return None if is_kept.all() else rows_of(block, ~is_kept)


def claim(job: Job, kept: CacheSlots, rows: Ints) -> CacheSlots | None:
    """Slots for inner chunks that are about to be decoded, while there is room.

    None if none of them is to be kept. `kept` is the result of `find_kept` for inner
    chunks that include `rows`.
    """
    if not _keeps(job, kept.cache):
        return None
    may_drop = fits_cache(job.source, job.plan.n_chunks)
    keys = np.asarray(kept.hold.keys)[kept.index_in_hold[rows]]
    wanted = kept.cache.keys_to_keep(keys)
    if wanted is None:
        return None
    hold = kept.cache.claim(wanted, may_drop=may_drop)
    return CacheSlots.of(kept.cache, hold, rows, len(kept.index_in_hold))


def _keeps(job: Job, cache: ChunkCache) -> bool:
    """Whether the job keeps inner chunks; one of more than fit may only find some."""
    return not cache.is_sparing or fits_cache(job.source, job.plan.n_chunks)


def placing_tasks(
    job: Job, block: ShardBlock, kept: CacheSlots, rows: Ints
) -> Iterator[Task]:
    """Tasks that write the wanted elements of inner chunks that are kept."""
    place = job.sink.place_kept
    if place is None or not len(rows):
        return
    job.tally.add(n_kept_inner_chunks=len(rows))
    step = max(1, _SHARE_NBYTES // max(job.source.chunk_nbytes, 1))
    for first in range(0, len(rows), step):
        yield partial(place, job, block, rows[first : first + step], kept)
