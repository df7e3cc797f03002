"""A whole read in compiled loops: planned, fetched from files, decoded and placed.

This is for one selection of an array with one sharding level in local files. Shards
that the loops cannot finish (damage, files that change, rare cases) are read again on
the general path, as whole shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import CorruptShardError, ObjectChangedError
from gpushard.fetching.fetch import fetch_indexes
from gpushard.fetching.index_room import most_indexes
from gpushard.fetching.job import Job
from gpushard.fused.addresses import address_of
from gpushard.fused.boxes import GridLanding
from gpushard.fused.cells import AxisCells, axis_cells
from gpushard.fused.columns import END, FIRST_LENGTH, HIGH, LENGTH, LOW
from gpushard.fused.files import (
    FileBoxes,
    spanned_nbytes,
    widest_nbytes,
    window_nbytes,
)
from gpushard.fused.filling import fill_for, little_fill
from gpushard.fused.kept_chunks import ChunkHolds, hold_chunks, planned_weight
from gpushard.fused.placer import PlanPlacer
from gpushard.fused.shares import Shares
from gpushard.memory.known import KnownIndex
from gpushard.planning import blocks
from gpushard.planning.blocks import Block
from gpushard.selecting.selection import Ints
from gpushard.source import Source
from gpushard.stores.local.handles import FileHandle
from gpushard.stores.local.store import LocalStore
from gpushard.threads.work_queue import Task

# Most shards to read at a time: each is an open file, of which a process may have few.
_MOST_SHARDS = 64
# Memory of a cell's columns while the columns of an axis are made.
_CELL_NBYTES = 100


class ShardedRead:
    """Reads one selection of an array in local files; see `JobReader`.

    Parameters
    ----------
    placer, landing, cells, job
        The loops, the output of the selection, its axes, and the job to read.
    store
        The job's store.

    Attributes
    ----------
    seen
        Keys of shards that existed when their index was read.
    """

    def __init__(
        self,
        placer: PlanPlacer,
        landing: GridLanding,
        cells: Sequence[AxisCells],
        job: Job,
        store: LocalStore,
    ) -> None:
        self._placer = placer
        self._job = job
        self._store = store
        self._part = landing.part
        source = job.source
        self._cells = cells
        self._columns = np.concatenate([c.columns for c in self._cells], axis=1)
        self._fill = little_fill(source, placer.chain.chunk_nbytes)
        self._plan = placer.planner(landing.address, address_of(self._fill), source)
        # If no axis is taken by an index array, each inner chunk has a single box.
        self._is_sliced = all(p.members is None for p in self._part.projections)
        self._left: set[int] = set()
        self.seen: set[str] = set()

    def tasks(self, n_workers: int) -> Iterator[Task]:
        """Tasks that read all shards except those of `left_over`.

        Several tasks work on the same shards, each for the time of one call of the
        loops. Tasks for the next shards follow when all boxes of these are claimed.

        Raises
        ------
        StoreError
            The store failed.
        """
        n_shards = prod(self._part.shard_grid)
        largest = prod(int(np.diff(c.bounds).max(initial=0)) for c in self._cells)
        step = min(max(1, blocks.BLOCK_CHUNKS // max(largest, 1)), _MOST_SHARDS)
        step = min(step, most_indexes(self._job.source, 0))
        for first in range(0, n_shards, step):
            last = min(first + step, n_shards)
            for boxes in self._shards(first, last, n_workers):
                yield from boxes.tasks()

    def left_over(self) -> Iterator[Block]:
        """Blocks to be read on the general path, once all tasks have run."""
        return map(self._part.shard, sorted(self._left))

    def _shards(self, first: int, last: int, n_workers: int) -> Iterator[FileBoxes]:
        """Boxes of the shards ``first:last``; a large shard comes slab by slab."""
        source, part = self._job.source, self._part
        at = np.unravel_index(np.arange(first, last), part.shard_grid)
        known, handles, is_open = self._open_shards(at)
        self._left.update((first + np.flatnonzero(~is_open)).tolist())
        rows = [shard_row(k, h) for k, h in zip(known, handles, strict=True)]
        cell = _columns_at(_first_cells(self._cells), at)
        count = _columns_at([np.diff(c.bounds) for c in self._cells], at)
        count *= is_open[:, None]
        n_wanted = self._job.plan.n_chunks
        for ranges in _slabs(cell, count):
            boxes, bounds = self._boxes(first, rows, ranges)
            weight = planned_weight(source, self._placer, boxes, n_wanted)
            holds = hold_chunks(source, boxes, known, bounds[1:], n_wanted, weight)
            self._count(boxes, holds)
            finish = partial(self._finish, first, bounds, holds)
            yield self._file_boxes(boxes, handles, n_workers, finish)

    def _open_shards(
        self, at: Sequence[Ints]
    ) -> tuple[list[KnownIndex | None], list[FileHandle | None], NDArray[np.bool_]]:
        """Index and file of each shard at some places of the part's grid.

        Both are None for a missing shard. Which shards can be read: bool, shape
        (n_shards,); the general path reports or fills what is wrong with others.
        """
        cells = [a.shards_at(i) for a, i in zip(self._part.sharded, at, strict=True)]
        coordinates = np.stack(cells, axis=1)
        found = fetch_indexes(self._job.source, coordinates, self._job.tally)
        known = [None if isinstance(k, CorruptShardError) else k for k in found]
        handles = [
            None if index is None else self._open(tuple(coordinate), index)
            for coordinate, index in zip(coordinates.tolist(), known, strict=True)
        ]
        is_open = [
            h is not None or k is None for h, k in zip(handles, found, strict=True)
        ]
        return known, handles, np.array(is_open)

    def _count(self, boxes: Ints, holds: ChunkHolds | None) -> None:
        tally = self._job.tally
        if not tally.is_summed:
            return
        if holds is not None:
            tally.add(n_kept_inner_chunks=holds.n_kept)
        tally.add(payload_nbytes=int((boxes[:, HIGH] - boxes[:, LOW]).sum()))

    def _file_boxes(
        self,
        boxes: Ints,
        handles: Sequence[FileHandle | None],
        n_workers: int,
        finish: Callable[[FileBoxes], None],
    ) -> FileBoxes:
        """Boxes with their shares; those that need a larger window are left over."""
        source, chunk_nbytes = self._job.source, self._placer.chain.chunk_nbytes
        spanned = widest_nbytes(boxes) if self._is_sliced else spanned_nbytes(boxes)
        spanned = min(spanned, source.room.most_window_nbytes)
        firsts = np.arange(len(boxes) + 1) if self._is_sliced else None
        return FileBoxes(
            self._placer,
            handles,
            boxes,
            Shares.of(boxes, chunk_nbytes, n_workers, firsts),
            window_nbytes(source.options, spanned),
            finish,
        )

    def _boxes(
        self, first: int, rows: Sequence[tuple[int, ...]], ranges: Ints
    ) -> tuple[Ints, Ints]:
        """Boxes of some cells of each shard from `first` on, and their bounds."""
        table = np.array(rows, np.int64)
        n_wanted = ranges[1].prod(axis=1)
        n_axes = len(self._cells)
        boxes = np.empty((int(n_wanted.sum()), FIRST_LENGTH + n_axes), np.int64)
        self._plan(self._columns, ranges, table, boxes)
        bounds = np.append(0, table[:, END])
        # It serves all boxes of the read, because threads copy from it meanwhile.
        self._fill = fill_for(
            boxes[: bounds[-1]],
            self._job.source,
            self._fill,
            lambda _: self._placer.spanned_nbytes(_widest(self._cells)),
        )
        is_left = (np.diff(bounds) == 0) & (n_wanted > 0)
        self._left.update((first + np.flatnonzero(is_left)).tolist())
        return boxes[: bounds[-1]], bounds

    def _open(
        self, coordinate: tuple[int, ...], known: KnownIndex
    ) -> FileHandle | None:
        """File of a shard; None if it changed since its index was read."""
        key = self._job.source.key(coordinate)
        try:
            return self._store.open_file(key, known.version)
        except ObjectChangedError:
            self.seen.add(key)
            return None

    def _finish(
        self, first: int, bounds: Ints, holds: ChunkHolds | None, file_boxes: FileBoxes
    ) -> None:
        """Note shards that must be read again; keep inner chunks if no file changed.

        `first` is the number of the first shard; the boxes of shard s are
        ``bounds[s]:bounds[s + 1]``.
        """
        are_same = True
        for s in np.flatnonzero(np.diff(bounds)).tolist():
            if not self._is_same_file(file_boxes.handles[s]):
                self._left.add(first + s)
                are_same = False
        if holds is not None and are_same:
            holds.keep(file_boxes.boxes, file_boxes.shares.is_placed)
        self._left.update(first + s for s in file_boxes.left_of(bounds))

    def _is_same_file(self, handle: FileHandle | None) -> bool:
        """Whether a file is still the one that was opened."""
        try:
            if handle is not None:
                self._store.confirm(handle)
        except ObjectChangedError as error:
            self.seen.add(error.shard_key or "")
            return False
        return True


def _slabs(cell: Ints, count: Ints) -> Iterator[Ints]:
    """Ranges of cells that a block has: int64, shape (2, n_shards, n_axes).

    `cell` is each shard's first cell along each axis, `count` its number of cells. With
    several shards, the block has all cells; a single large shard is divided into slabs
    in C order.
    """
    lengths: list[int] = count[0].tolist()
    if len(count) > 1 or prod(lengths) <= blocks.BLOCK_CHUNKS:
        yield np.stack([cell, count])
        return
    cut = next(
        d for d in range(len(lengths)) if prod(lengths[d + 1 :]) <= blocks.BLOCK_CHUNKS
    )
    step = blocks.BLOCK_CHUNKS // prod(lengths[cut + 1 :])
    for ahead in product(*map(range, lengths[:cut])):
        for at in range(0, lengths[cut], step):
            offset, length = np.zeros_like(count), count.copy()
            offset[0, : cut + 1] = *ahead, at
            length[0, :cut] = 1
            length[0, cut] = min(step, lengths[cut] - at)
            yield np.stack([cell + offset, length])


def sharded_read(
    placer: PlanPlacer, landing: GridLanding, job: Job
) -> ShardedRead | None:
    """Read of one selection in compiled loops; None if they cannot do all of it.

    A job has a lower memory limit than its array, by what its columns and indexes take.
    """
    source, chain = job.source, placer.chain
    if (
        chain.plannable_store is None
        or job.tally.is_wanted
        or source.has_large_indexes
        or _has_long_axes(landing, source)
    ):
        return None
    cells = axis_cells(landing, chain.strides, source.layout)
    return ShardedRead(placer, landing, cells, job, chain.plannable_store)


def _has_long_axes(landing: GridLanding, source: Source) -> bool:
    """Whether the columns over the cells of all axes take much of the memory limit."""
    n_cells = sum(p.n_cells for p in landing.part.projections)
    return _CELL_NBYTES * n_cells > source.options.memory_limit // 4


def _columns_at(columns: Sequence[Ints], at: Sequence[Ints]) -> Ints:
    """Entry of each axis' column at its position: int64, shape (n, n_axes)."""
    return np.stack([c[i] for c, i in zip(columns, at, strict=True)], axis=1)


def _widest(cells: Sequence[AxisCells]) -> Ints:
    """A box that is as long along each axis as any: int64, shape (1, n_columns)."""
    box = np.zeros((1, FIRST_LENGTH + len(cells)), np.int64)
    box[0, FIRST_LENGTH:] = [c.columns[LENGTH].max(initial=1) for c in cells]
    return box


def _first_cells(cells: Sequence[AxisCells]) -> list[Ints]:
    """First cell of each shard, in a numbering through the cells of all axes."""
    before = 0
    found: list[Ints] = []
    for axis in cells:
        found.append(axis.bounds[:-1] + before)
        before += axis.columns.shape[1]
    return found


def shard_row(known: KnownIndex | None, handle: FileHandle | None) -> tuple[int, ...]:
    """Row of a shard for the loops (from `columns.OFFSETS` on)."""
    if known is None or handle is None:
        return 0, 0, 0, 0, 0
    return *known.addresses, handle.fd, 0
