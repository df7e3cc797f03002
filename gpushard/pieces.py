"""Blocks cut into pieces whose columns and shard indexes fit the memory limit."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from gpushard.blocks import Planned, ShardBlock
from gpushard.job import Job, rows_of
from gpushard.selection import Ints

# An index is held encoded, decoded and as columns, and in flight beside another one.
_COPIES = 4


def cut_shards(job: Job, block: Planned) -> Iterator[Planned]:
    """Blocks of as many shards as have indexes that fit, of one at least."""
    n_shards = len(block.shard_coords)
    if not job.source.layout.levels or n_shards <= 1:
        yield block
        return
    n_fitting = _n_fitting(job, block, 0)
    for first in range(0, n_shards, n_fitting):
        marked = np.zeros(n_shards, bool)
        marked[first : first + n_fitting] = True
        yield rows_of(block, marked)


def cut_rows(job: Job, block: Planned) -> Iterator[ShardBlock]:
    """Pieces of a block, of the same shards, with a bounded number of inner chunks.

    What the indexes of the nested shards of a piece take fits, too, or there is one
    such shard in it.
    """
    for piece in block.pieces():
        yield from _cut_nested(job, piece)


def _cut_nested(job: Job, block: ShardBlock) -> Iterator[ShardBlock]:
    """Pieces whose nested shards have indexes that fit, of one such shard at least."""
    pieces = [block]
    for level in range(1, len(job.source.layout.levels)):
        n_fitting = _n_fitting(job, block, level)
        if len(block.shard) > n_fitting:
            pieces = [
                piece.at(np.flatnonzero(group == k))
                for piece in pieces
                for group in [_nested(piece, level) // n_fitting]
                for k in np.unique(group).tolist()
            ]
    return iter(pieces)


def _n_fitting(job: Job, block: Planned, level: int) -> int:
    """How many shards of a level have indexes that fit, one at least."""
    source = job.source
    first = tuple(block.shard_coords[0].tolist())
    n_entries = prod(source.chunks_per_shard(first, level))
    index_nbytes = source.layout.levels[level].index_nbytes(n_entries)
    return max(1, source.options.memory_limit // (_COPIES * index_nbytes))


def _nested(block: ShardBlock, level: int) -> Ints:
    """Which of the nested shards each inner chunk lies in, counted from 0."""
    columns = np.stack([block.shard, *block.entry[:level]])
    nested: Any = np.unique(columns, axis=1, return_inverse=True)[1]
    return nested.reshape(-1)
