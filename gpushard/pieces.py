"""Blocks cut into pieces whose columns and shard indexes fit the memory limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpushard.blocks import Planned, ShardBlock
from gpushard.index_room import held_nbytes, n_at_once
from gpushard.job import Job, rows_of
from gpushard.options import MIB
from gpushard.selection import Ints

# Indexes in hand that take no more are not worth another limit for the rest.
_LITTLE_NBYTES = MIB


def beside_indexes(jobs: Sequence[Job]) -> Sequence[Job]:
    """The jobs, held to what the shard indexes in hand leave of the memory limit.

    Those of one job are read while another one's inner chunks are still decoded.
    """
    nbytes = max(map(_indexes_nbytes, jobs), default=0)
    if nbytes <= _LITTLE_NBYTES:
        return jobs
    return [replace(job, source=job.source.beside(nbytes)) for job in jobs]


def _indexes_nbytes(job: Job) -> int:
    """Memory of the indexes in hand, as soon as it is worth a closer look."""
    source, n_chunks = job.source, job.plan.n_chunks
    nbytes = held_nbytes(source, n_chunks, n_chunks)
    if nbytes > _LITTLE_NBYTES:
        return held_nbytes(source, job.plan.n_shards, n_chunks)
    return nbytes


def cut_shards(job: Job, block: Planned) -> Iterator[Planned]:
    """Blocks of as many shards as have indexes that fit, of one at least."""
    n_shards = len(block.shard_coords)
    if not job.source.layout.levels or n_shards <= 1:
        yield block
        return
    n_fitting = n_at_once(job.source, 0)
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
        n_fitting = n_at_once(job.source, level)
        if len(block.shard) > n_fitting:
            pieces = [
                piece.at(np.flatnonzero(group == k))
                for piece in pieces
                for group in [_nested(piece, level) // n_fitting]
                for k in np.unique(group).tolist()
            ]
    return iter(pieces)


def _nested(block: ShardBlock, level: int) -> Ints:
    """Which of the nested shards each inner chunk lies in, counted from 0."""
    columns = np.stack([block.shard, *block.entry[:level]])
    nested: Any = np.unique(columns, axis=1, return_inverse=True)[1]
    return nested.reshape(-1)
