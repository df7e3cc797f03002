"""Blocks cut into pieces whose columns and shard indexes fit the memory limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from gpushard.fetching.index_room import held_nbytes, most_indexes
from gpushard.fetching.job import Job, rows_of
from gpushard.layout import GridAxis
from gpushard.memory.freed import freed
from gpushard.options import MIB
from gpushard.planning.axes import LONG_CELLS
from gpushard.planning.blocks import BLOCK_CHUNKS, Block, ShardBlock
from gpushard.planning.grid import GridPart
from gpushard.planning.patches import PatchPart
from gpushard.planning.plan import MERGED_CHUNKS, ReadPlan
from gpushard.selecting.numbering import distinct
from gpushard.selecting.selection import Ints
from gpushard.source import Source

# Indexes in hand that take no more than this do not reduce the limit for the rest.
_LITTLE_NBYTES = MIB
# Memory of the columns of an inner chunk in hand, and of a cell along an axis. For
# several selections, the inner chunks in hand take a quarter of the limit.
_CHUNK_NBYTES, _CELL_NBYTES = 300, 80
_MERGED_SHARE = 4
# Each worker has columns of a piece in hand; those of all take this part of the limit,
# but each piece may have so many inner chunks. Of freed columns, this part is kept.
_PIECES_SHARE = 4
_LEAST_ROWS = 1 << 10
_FREED_SHARE = 16
# Number of boxes of patches whose columns are made together, and the memory of a box.
_MOST_BOXES, _BOX_NBYTES = 1 << 16, 200


def beside_columns(jobs: Sequence[Job]) -> Sequence[Job]:
    """The jobs, with limits reduced by the shard indexes and columns in hand.

    Indexes and columns of one job are made while inner chunks of another are still
    decoded. The columns of all axes are made before any job begins. If the limit is
    below the least one, columns have room outside it, and do not make batches smaller.
    """
    nbytes = max((indexes_nbytes(j.source, j.plan) for j in jobs), default=0)
    if nbytes > _LITTLE_NBYTES:
        jobs = [replace(job, source=job.source.beside(nbytes)) for job in jobs]
    nbytes = max((_rows_nbytes(j.source, j.plan) for j in jobs), default=0)
    nbytes += sum(_axes_nbytes(job.plan) for job in jobs)
    if nbytes <= _LITTLE_NBYTES:
        return jobs
    return [replace(job, source=_beside(job.source, nbytes)) for job in jobs]


def _beside(source: Source, nbytes: int) -> Source:
    """The array with `nbytes` set aside for columns, but at most half of the bound."""
    options = source.options
    nbytes = min(nbytes, options.bound_nbytes // 2)
    return source.with_memory_limit(options.memory_limit, nbytes)


def least_beside_columns(source: Source, box: Sequence[int]) -> int:
    """Least bound of a read of a box, of `box` elements along each axis.

    It has room for an inner chunk beside the indexes and columns that `beside_columns`
    sets aside. The box begins at a multiple of its lengths.
    """
    layout, needed = source.layout, source.room.least_nbytes
    cells = [*map(_n_touched, layout.inner_axes, box)]
    n_chunks = min(prod(cells), BLOCK_CHUNKS)
    nbytes = _CHUNK_NBYTES * n_chunks
    nbytes += _CELL_NBYTES * sum(min(n, LONG_CELLS) for n in cells)
    if nbytes > _LITTLE_NBYTES:
        needed += min(nbytes, needed)
    n_shards = prod(map(_n_touched, layout.axes, box))
    nbytes = held_nbytes(source, n_shards, n_chunks)
    if nbytes > _LITTLE_NBYTES:
        # Of several indexes, as many are held as leave two fifths of the bound.
        needed += max(held_nbytes(source, 1, 1), min(nbytes, 3 * needed // 2))
        needed += needed // 15 + 1  # what is set aside is rounded up to a 16th
    return needed


def _n_touched(axis: GridAxis, n: int) -> int:
    """Most cells that `n` elements lie in, from a multiple of `n` on."""
    if not axis.cell:
        return min(axis.n_cells, n)
    if axis.cell % n == 0 or n % axis.cell == 0:
        return min(axis.n_cells, max(1, n // axis.cell))
    return min(axis.n_cells, n // axis.cell + 2)


def columns_nbytes(source: Source, plan: ReadPlan) -> int:
    """Memory of the columns in hand: of inner chunks, and of the cells along axes."""
    return _rows_nbytes(source, plan) + _axes_nbytes(plan)


def _rows_nbytes(source: Source, plan: ReadPlan) -> int:
    """Memory of the columns of the inner chunks in hand."""
    together = BLOCK_CHUNKS if len(plan.parts) == 1 else most_merged(source)
    return _CHUNK_NBYTES * min(plan.n_chunks, together)


def _axes_nbytes(plan: ReadPlan) -> int:
    """Memory of the columns of cells along axes, and of patches."""
    nbytes = 0
    for part in plan.parts:
        if isinstance(part, GridPart):
            n_cells = sum(min(p.n_cells, LONG_CELLS) for p in part.projections)
            nbytes += _CELL_NBYTES * n_cells
        elif isinstance(part, PatchPart):
            nbytes += part.nbytes + _BOX_NBYTES * min(part.n_boxes, _MOST_BOXES)
    return nbytes


def indexes_nbytes(source: Source, plan: ReadPlan) -> int:
    """Memory of the indexes in hand, or an upper bound of it if that is little."""
    n_chunks = plan.n_chunks
    nbytes = held_nbytes(source, n_chunks, n_chunks)
    if nbytes > _LITTLE_NBYTES:
        return held_nbytes(source, plan.n_shards, n_chunks)
    return nbytes


def most_merged(source: Source) -> int:
    """Number of inner chunks of several selections that are laid out together."""
    room = source.options.bound_nbytes // (_MERGED_SHARE * _CHUNK_NBYTES)
    return max(BLOCK_CHUNKS, min(room, MERGED_CHUNKS))


def cut_shards(job: Job, block: Block) -> Iterator[Block]:
    """Blocks with as many shards as have indexes that fit, but at least one."""
    n_shards = len(block.shard_coords)
    if not job.source.layout.levels or n_shards <= 1:
        yield block
        return
    n_fitting = most_indexes(job.source, 0)
    for first in range(0, n_shards, n_fitting):
        marked = np.zeros(n_shards, bool)
        marked[first : first + n_fitting] = True
        yield rows_of(block, marked)


def cut_rows(job: Job, block: Block, n_workers: int) -> Iterator[ShardBlock]:
    """Pieces of a block, with the same shards and a bounded number of inner chunks.

    The columns of as many pieces as there are workers fit the limit. So do the indexes
    of the nested shards of a piece, unless the piece has only one nested shard.
    """
    bound = job.source.options.bound_nbytes
    most = bound // (_PIECES_SHARE * n_workers * _CHUNK_NBYTES)
    most = min(max(_LEAST_ROWS, most), BLOCK_CHUNKS)
    for piece in block.pieces():
        for rows in piece.pieces(most):
            # Threads keep as much of what they have freed.
            if most < BLOCK_CHUNKS and rows.n_chunks >= _LEAST_ROWS:
                freed.note(_CHUNK_NBYTES * rows.n_chunks, bound // _FREED_SHARE)
            for bounded in _cut_boxes(job, rows):
                yield from _cut_nested(job, bounded)


def _cut_boxes(job: Job, block: ShardBlock) -> Iterator[ShardBlock]:
    """Pieces with a bounded number of boxes, and at least one inner chunk."""
    parts = job.plan.parts
    if len(parts) != 1 or not isinstance(parts[0], PatchPart):
        yield block
        return
    ordinal = block.position[0]
    n_boxes = parts[0].bounds[ordinal + 1] - parts[0].bounds[ordinal]
    ends = np.cumsum(n_boxes)
    first, before = 0, 0
    while first < len(ends):
        last = int(np.searchsorted(ends, before + _MOST_BOXES, side="right"))
        last = max(last, first + 1)
        yield block.at(slice(first, last))
        first, before = last, int(ends[last - 1])


def _cut_nested(job: Job, block: ShardBlock) -> Iterator[ShardBlock]:
    """Pieces with nested shards whose indexes fit, but at least one nested shard."""
    pieces = [block]
    for level in range(1, len(job.source.layout.levels)):
        n_fitting = most_indexes(job.source, level)
        if len(block.shard) > n_fitting:
            whole, pieces = pieces, []
            for piece in whole:
                group = _nested(piece, level) // n_fitting
                groups = distinct(group).tolist()
                pieces += [piece.at(np.flatnonzero(group == k)) for k in groups]
    return iter(pieces)


def _nested(block: ShardBlock, level: int) -> Ints:
    """Number of the nested shard in which each inner chunk lies, counted from 0."""
    columns = np.stack([block.shard, *block.entry[:level]])
    nested: Any = np.unique(columns, axis=1, return_inverse=True)[1]
    return nested.reshape(-1)
