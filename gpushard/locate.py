"""Inner chunks of a block -> their byte ranges, through the shard indexes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpushard.blocks import ShardBlock
from gpushard.errors import CorruptShardError
from gpushard.fetch import NestedShard, fetch_indexes, fetch_nested_indexes
from gpushard.index import CORRUPT, MISSING, ShardIndex
from gpushard.job import Job
from gpushard.ranged import Located
from gpushard.selection import Ints
from gpushard.source import KnownIndex
from gpushard.stores.base import ByteRequest


def locate(job: Job, block: ShardBlock) -> Located:
    """Byte range of each inner chunk of a block.

    Reads the index of every shard whose index is not known.

    Raises
    ------
    CorruptShardError
        A wanted entry is no valid byte range, or an index cannot be decoded.
    StoreError
        The store failed.
    """
    if not job.source.layout.levels:
        return _locate_unsharded(job, block)
    known = fetch_indexes(job.source, block.shard_coords, job.tally)
    job.tally.add(n_missing_shards=sum(k is None for k in known))
    lookup = _Lookup(job, block)
    bounds = np.searchsorted(block.shard, np.arange(len(known) + 1)).tolist()
    for s, outermost in enumerate(known):
        rows = slice(bounds[s], bounds[s + 1])
        if outermost is None:
            lookup.missing[rows] = True
        else:
            lookup.take(rows, outermost.index, 0)
    for level in range(1, len(job.source.layout.levels)):
        _descend(lookup, level, known)
    return Located(lookup.start, lookup.stop, lookup.missing, known)


def _locate_unsharded(job: Job, block: ShardBlock) -> Located:
    """An object is one inner chunk, from its first byte to its last."""
    source = job.source
    n_objects = len(block.shard_coords)
    if source.is_held:
        keys = [source.key(tuple(c)) for c in block.shard_coords.tolist()]
        answers = source.store.read([ByteRequest(key) for key in keys])
        sizes = np.array([-1 if a is None else len(a.data) for a in answers], np.int64)
        job.tally.add(n_missing_shards=int(np.count_nonzero(sizes < 0)))
    else:
        # Plain elements: the size is checked, and a missing object noticed, when the
        # bytes come.
        sizes = np.full(n_objects, source.chunk_nbytes, np.int64)
    stop = sizes[block.shard]
    return Located(np.zeros_like(stop), stop, stop < 0, [None] * n_objects)


class _Lookup:
    """Byte ranges found so far."""

    def __init__(self, job: Job, block: ShardBlock) -> None:
        self.job = job
        self.block = block
        n_chunks = len(block.shard)
        self.start = np.zeros(n_chunks, np.int64)
        self.stop = np.zeros(n_chunks, np.int64)
        self.missing = np.zeros(n_chunks, bool)

    def take(self, rows: slice | Ints, index: ShardIndex, level: int) -> None:
        """Narrow `rows` to the entries that they have in `index`."""
        entry = self.block.entry[level][rows]
        state = index.state[entry]
        if np.any(state == CORRUPT):
            at = int(np.argmax(state == CORRUPT))
            row = int(np.arange(len(self.block.shard))[rows][at])
            try:
                index.refuse_corrupt(int(entry[at]))
            except CorruptShardError as error:
                self.job.name_place(error, self.block, row)
                raise
        offset = index.offset[entry]
        self.start[rows] = offset
        self.stop[rows] = offset + index.nbytes[entry]
        self.missing[rows] = state == MISSING


def _descend(lookup: _Lookup, level: int, known: Sequence[KnownIndex | None]) -> None:
    """Take the byte ranges found so far for shards, and look one level deeper."""
    rows = np.flatnonzero(~lookup.missing)
    if not len(rows):
        return
    shard = lookup.block.shard
    rows = rows[np.lexsort((lookup.stop[rows], lookup.start[rows], shard[rows]))]
    columns = np.stack([shard[rows], lookup.start[rows], lookup.stop[rows]])
    changes = np.any(columns[:, 1:] != columns[:, :-1], axis=0)
    firsts = np.flatnonzero(np.append(True, changes))
    nested = [NestedShard(*column) for column in columns[:, firsts].T.tolist()]
    indexes = fetch_nested_indexes(
        lookup.job.source,
        level,
        nested,
        [
            (tuple(coordinate), outermost)
            for coordinate, outermost in zip(
                lookup.block.shard_coords.tolist(), known, strict=True
            )
        ],
        lookup.job.tally,
    )
    ends = np.append(firsts[1:], len(rows))
    for index, first, last in zip(indexes, firsts, ends, strict=True):
        lookup.take(rows[first:last], index, level)
