"""Inner chunks of a block -> those that are kept decoded, and places for the others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from gpushard.fetching.job import Job
from gpushard.fetching.locate import Found
from gpushard.fetching.ranged import Places
from gpushard.options import MIB
from gpushard.placing.keeping import fits, keys_of
from gpushard.planning.blocks import ShardBlock
from gpushard.selecting.selection import Ints
from gpushard.workers import Task

# What a task copies at a time: half a millisecond.
_SHARE_NBYTES = 4 * MIB


def find_kept(job: Job, block: ShardBlock, found: Found, rows: Ints) -> Places | None:
    """Which inner chunks of a block are kept; None where none can be.

    Parameters
    ----------
    found
        Indexes of the block's shards.
    rows
        Inner chunks that are stored.
    """
    source = job.source
    if source.chunks is None or job.sink.place_kept is None:
        return None
    keys = keys_of(source, found, block.shard[rows], block.entry[0][rows])
    hold = source.chunks.find(keys)
    return Places.of(source.chunks, hold, rows, len(block.shard))


def claim(job: Job, kept: Places, rows: Ints) -> Places:
    """Places for inner chunks that are to be decoded, as far as there is room.

    Parameters
    ----------
    kept
        Those that were looked for, these `rows` among them.
    """
    may_drop = fits(job.source, job.plan.n_chunks)
    keys = np.asarray(kept.hold.keys)[kept.nth[rows]]
    hold = kept.cache.claim(keys, may_drop=may_drop)
    return Places.of(kept.cache, hold, rows, len(kept.nth))


def placing_tasks(
    job: Job, block: ShardBlock, kept: Places, rows: Ints
) -> Iterator[Task]:
    """Tasks that write what is wanted of inner chunks that are kept."""
    place = job.sink.place_kept
    if place is None or not len(rows):
        return
    job.tally.add(n_kept_inner_chunks=len(rows))
    step = max(1, _SHARE_NBYTES // max(job.source.chunk_nbytes, 1))
    for first in range(0, len(rows), step):
        yield partial(place, job, block, rows[first : first + step], kept)
