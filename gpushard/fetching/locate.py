"""Inner chunks of a block -> their byte ranges, through the shard indexes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import CorruptShardError, LimitError
from gpushard.fetching.fetch import fetch_indexes
from gpushard.fetching.gone import deleted, refuse_replaced
from gpushard.fetching.job import Job
from gpushard.fetching.nested import NestedShard, fetch_nested_indexes
from gpushard.fetching.ranged import Located
from gpushard.memory.known import KnownIndex
from gpushard.planning.blocks import Block, ShardBlock
from gpushard.planning.index import CORRUPT, MISSING, PRESENT, ShardIndex
from gpushard.selecting.selection import Ints
from gpushard.stores.base import ByteRequest

Found = Sequence[KnownIndex | CorruptShardError | None]
"""For each shard of a block, its outermost index, or the error, or None if missing."""


def find_indexes(job: Job, block: Block) -> Found:
    """Indexes of the shards of a block; reads those that are not known.

    Raises
    ------
    ObjectChangedError
        A shard that existed a moment ago is gone.
    StoreError
        The store failed.
    """
    if not job.source.layout.levels:
        return [None] * len(block.shard_coords)
    found = fetch_indexes(job.source, block.shard_coords, job.tally)
    if job.seen:
        for coordinate, known in zip(block.shard_coords.tolist(), found, strict=True):
            key = job.source.key(tuple(coordinate))
            if known is None and key in job.seen:
                raise deleted(job.source, key)
    job.tally.add(n_missing_shards=sum(k is None for k in found))
    return found


def locate(job: Job, block: ShardBlock, found: Found) -> Located:
    """Byte range of each inner chunk of a block.

    Parameters
    ----------
    block
        Some or all of the inner chunks of some shards.
    found
        Result of `find_indexes` for those shards.

    Raises
    ------
    CorruptShardError
        A wanted entry is not a valid byte range, or an index cannot be decoded. If the
        read continues over damage, such inner chunks count as missing instead.
    StoreError
        The store failed.
    """
    if not job.source.layout.levels:
        return _locate_unsharded(job, block)
    lookup = _Lookup(job, block)
    known: list[KnownIndex | None] = []
    bounds = np.searchsorted(block.shard, np.arange(len(found) + 1)).tolist()
    for s, outermost in enumerate(found):
        rows = slice(bounds[s], bounds[s + 1])
        if outermost is None:
            lookup.missing[rows] = True
        elif isinstance(outermost, CorruptShardError):
            lookup.give_up(outermost, rows)
            outermost = None
        else:
            lookup.take(rows, outermost.index, 0)
        known.append(outermost)
    for level in range(1, len(job.source.layout.levels)):
        _descend(lookup, level, known)
    versions = [None if k is None else k.version for k in known]
    return Located(lookup.start, lookup.stop, lookup.missing, versions)


def refuse_stale(
    job: Job,
    block: ShardBlock,
    found: Found,
    missing: NDArray[np.bool_],
    began_at_s: float,
) -> None:
    """Refuse shards that were replaced, where every wanted inner chunk is `missing`.

    Parameters
    ----------
    found
        Result of `find_indexes` for the block's shards. Indexes in it that were kept
        since before `began_at_s` may be stale.
    missing
        bool, shape (n_chunks,).

    Raises
    ------
    ObjectChangedError
        A shard was replaced.
    StoreError
        The store failed.
    """
    is_all_missing = np.zeros(len(found), bool)
    is_all_missing[block.shard[missing]] = True
    is_all_missing[block.shard[~missing]] = False
    coordinates = block.shard_coords
    kept = (
        (job.source.key(tuple(coordinates[s].tolist())), known)
        for s in np.flatnonzero(is_all_missing).tolist()
        if isinstance(known := found[s], KnownIndex)
    )
    job.tally.add(n_index_requests=refuse_replaced(job.source, kept, began_at_s))


def refuse_oversized(job: Job, block: ShardBlock, located: Located) -> None:
    """Refuse byte ranges that are larger than any encoding of an inner chunk.

    Raises
    ------
    CorruptShardError
        A range is too large. If the read continues over damage, that inner chunk is
        marked as missing instead.
    LimitError
        An inner chunk and its stored bytes do not fit the memory limit together.
    """
    source, shape = job.source, job.source.chunk_shape
    if shape is None:
        return
    nbytes = located.stop - located.start
    nbytes[located.missing] = 0
    limit = source.pipeline.encoded_limit(shape)
    for row in np.flatnonzero(nbytes > limit).tolist():
        try:
            source.pipeline.refuse_oversized(int(nbytes[row]), shape)
        except CorruptShardError as error:
            job.name_place(error, block, row)
            job.damage.note(error)
            located.missing[row] = True
    if source.raw_strides is not None:
        return  # plain elements are fetched in part
    for row in np.flatnonzero(nbytes > source.room.most_stored_nbytes).tolist():
        if not located.missing[row]:
            try:
                source.room.refuse_stored(int(nbytes[row]))
            except LimitError as error:
                job.name_place(error, block, row)
                raise


def _locate_unsharded(job: Job, block: ShardBlock) -> Located:
    """Byte ranges in an unsharded array, where each object is one inner chunk."""
    source = job.source
    n_objects = len(block.shard_coords)
    if source.is_held:
        keys = [source.key(tuple(c)) for c in block.shard_coords.tolist()]
        answers = source.store.read([ByteRequest(key) for key in keys])
        sizes = np.array([-1 if a is None else len(a.data) for a in answers], np.int64)
        job.tally.add(n_missing_shards=int(np.count_nonzero(sizes < 0)))
    else:
        # For plain elements, the bytes show whether the object is missing or has
        # another size.
        sizes = np.full(n_objects, source.chunk_nbytes, np.int64)
    stop = sizes[block.shard]
    return Located(np.zeros_like(stop), stop, stop < 0, [None] * n_objects)


class _Lookup:
    """Byte ranges that were found so far."""

    def __init__(self, job: Job, block: ShardBlock) -> None:
        self.job = job
        self.block = block
        n_chunks = len(block.shard)
        self.start = np.zeros(n_chunks, np.int64)
        self.stop = np.zeros(n_chunks, np.int64)
        self.missing = np.zeros(n_chunks, bool)

    def take(self, rows: slice | Ints, index: ShardIndex, level: int) -> None:
        """Narrow `rows` to the byte ranges of their entries in `index`."""
        entry = self.block.entry[level][rows]
        offset = index.offset[entry]
        self.start[rows] = offset
        self.stop[rows] = offset + index.nbytes[entry]
        state = index.state[entry]
        if (state == PRESENT).all():
            return
        self.missing[rows] = state == MISSING
        corrupt = np.flatnonzero(state == CORRUPT)
        if len(corrupt):
            self._refuse_corrupt(
                np.arange(len(self.missing))[rows][corrupt], index, entry[corrupt]
            )

    def give_up(self, error: CorruptShardError, rows: slice | Ints) -> None:
        """Mark `rows` as missing because of `error`, or raise it."""
        self.job.give_up(error, self.block, np.arange(len(self.missing))[rows])
        self.missing[rows] = True

    def give_up_nested(self, error: CorruptShardError, rows: Ints) -> None:
        """Like `give_up`; if raised, the error names the first of `rows`."""
        if not self.job.damage.replaces:
            self.job.name_place(error, self.block, int(rows[0]))
        self.give_up(error, rows)

    def _refuse_corrupt(self, rows: Ints, index: ShardIndex, entry: Ints) -> None:
        for row, at in zip(rows.tolist(), entry.tolist(), strict=True):
            try:
                index.refuse_corrupt(at)
            except CorruptShardError as error:
                self.job.name_place(error, self.block, row)
                self.job.damage.note(error)
                self.missing[row] = True


def _descend(lookup: _Lookup, level: int, known: Sequence[KnownIndex | None]) -> None:
    """Take the ranges found so far as nested shards, and look into their indexes."""
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
        if isinstance(index, CorruptShardError):
            lookup.give_up_nested(index, rows[first:last])
        else:
            lookup.take(rows[first:last], index, level)
