"""An unsharded array in local files, read by the compiled loops, file by file.

Each inner chunk is a file. What the loops cannot read (damage, symbolic links, files
that change, those that a rolling array lacks) is read again on the general path, which
says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial

import numpy as np

from gpushard.fetching.job import Job, rows_of
from gpushard.fetching.pieces import most_merged
from gpushard.fused.columns import ENTRY, FILE, KEEP, NBYTES, NO_FILE, SOURCE
from gpushard.fused.files import FileBoxes, window_nbytes
from gpushard.fused.kept_chunks import planned_weight
from gpushard.fused.kept_files import KeptFiles, NewFiles, new_files
from gpushard.fused.opening import (
    MOST_AT_ONCE,
    N_TRIED,
    Beginning,
    ObjectFiles,
    Opening,
    are_slow,
    fits_memory,
)
from gpushard.fused.placer import Bools, PlanPlacer
from gpushard.fused.shares import Shares
from gpushard.fused.words import Opener
from gpushard.placing.place import HostSink
from gpushard.planning.blocks import Block, ShardBlock
from gpushard.selecting.selection import Ints
from gpushard.stores.local.handles import FileHandle
from gpushard.threads.work_queue import Task

# So often are files tried, before the others are left over because they are slow.
_N_TRIALS = 2


class UnshardedRead:
    """A read of files of one inner chunk each.

    Parameters
    ----------
    placer, host, job
        The loops, the sink that fills what is missing, and the job to read.
    files, root
        The job's files, and their store's directory, open.
    """

    def __init__(
        self,
        placer: PlanPlacer,
        host: HostSink,
        job: Job,
        files: ObjectFiles,
        root: FileHandle,
    ) -> None:
        self._placer = placer
        self._host = host
        self._job = job
        self._files = files
        self._root = root
        self._left: list[Block] = []
        self.seen: set[str] = set()

    def tasks(self, n_workers: int) -> Iterator[Task]:
        """Tasks that read everything except what `left_over` then returns.

        If the first files take long, all others are left over.
        """
        blocks = self._job.plan.blocks(most_merged(self._job.source))
        n_trials, is_slow = 0, True
        for planned in blocks:
            for block in planned.pieces():
                rest = yield from self._kept_tasks(block, n_workers)
                # Not later on: this thread then waits for others that hold Python's
                # lock, which looks like a wait for a disk.
                while (
                    is_slow
                    and n_trials < _N_TRIALS
                    and len(rest.shard_coords) > 2 * N_TRIED
                ):
                    is_tried = np.arange(len(rest.shard_coords)) < N_TRIED
                    tried, rest = _parts(rest, is_tried)
                    is_slow = self._are_slow(tried)
                    n_trials += 1
                if is_slow and n_trials == _N_TRIALS:
                    self._left += [rest, *blocks]
                    return
                yield from self._tasks_of(rest, n_workers)

    def left_over(self) -> Iterator[Block]:
        """Blocks to be read on the general path, once all tasks have run."""
        return iter(self._left)

    def _are_slow(self, block: ShardBlock) -> bool:
        """Read a few files; return whether they were waited for long."""
        beginning, n_files = Beginning.now(), len(block.shard_coords)
        for task in self._tasks_of(block, 1):
            task()
        waited_s = beginning.waited_s(n_files)
        return are_slow(waited_s, n_files, self._placer.chain.chunk_us)

    def _kept_tasks(
        self, block: ShardBlock, n_workers: int
    ) -> Generator[Task, None, ShardBlock]:
        """Tasks for the files whose inner chunks are kept; returns all other files."""
        cache = self._job.source.chunks
        if cache is None or not len(cache):
            return block
        kept = cache.find(block.shard_coords @ self._files.strides)
        if not kept.taken:
            return block
        here, rest = _parts(block, np.asarray(kept.slots) >= 0)
        if here.n_chunks:
            boxes, row = self._cut(here)
            files = KeptFiles(cache, boxes)
            if not len(files.boxes):  # another thread has dropped them since
                return block
            opening = self._files.opening(self._root, len(files.boxes))
            opener = files.told(opening.opener)
            finish = partial(self._finish_kept, here, row, files)
            yield from self._reading(files.boxes, opener, n_workers, finish).tasks()
        return rest

    def _tasks_of(self, block: ShardBlock, n_workers: int) -> Iterator[Task]:
        if not block.n_chunks:
            return
        boxes, row = self._cut(block)
        opening = self._files.opening(self._root, len(boxes))
        source, n_wanted = self._job.source, self._job.plan.n_chunks
        weight = planned_weight(source, self._placer, boxes, n_wanted)
        new = new_files(source, boxes, n_wanted, weight)
        opener = opening.opener if new is None else new.told(opening.opener)
        finish = partial(self._finish, block, row, opening, new)
        yield from self._reading(boxes, opener, n_workers, finish).tasks()

    def _cut(self, block: ShardBlock) -> tuple[Ints, Ints]:
        """Boxes of a block's files, and the row of each."""
        boxes, row = self._placer.cut(block, np.arange(block.n_chunks))
        for column in (SOURCE, NBYTES, KEEP):
            boxes[:, column] = 0
        numbers = block.shard_coords @ self._files.strides
        boxes[:, FILE], boxes[:, ENTRY] = NO_FILE, numbers[block.shard[row]]
        return boxes, row

    def _reading(
        self,
        boxes: Ints,
        opener: Opener,
        n_workers: int,
        finish: Callable[[FileBoxes], None],
    ) -> FileBoxes:
        chunk_nbytes = self._placer.chain.chunk_nbytes
        return FileBoxes(
            self._placer,
            [self._root],
            boxes,
            Shares.of(boxes, chunk_nbytes, n_workers, most=MOST_AT_ONCE),
            window_nbytes(self._job.source.options, self._files.most_nbytes),
            finish,
            opener,
        )

    def _finish_kept(
        self, block: ShardBlock, row: Ints, kept: KeptFiles, file_boxes: FileBoxes
    ) -> None:
        """Note the files that must be read again, because they have changed."""
        is_placed = file_boxes.shares.is_placed
        kept.drop_changed(is_placed)
        is_done = kept.is_kept.copy()
        is_done[kept.is_kept] = is_placed
        # A file may have several boxes, which need not have found it as it was.
        is_left = np.zeros(len(block.shard_coords), np.bool_)
        is_left[block.shard[row][~is_done]] = True
        self._job.tally.add(n_kept_inner_chunks=int(np.count_nonzero(~is_left)))
        if is_left.any():
            self._left.append(rows_of(block, is_left))

    def _finish(
        self,
        block: ShardBlock,
        row: Ints,
        opening: Opening,
        new: NewFiles | None,
        file_boxes: FileBoxes,
    ) -> None:
        """Fill what is missing, and note the files that must be read again."""
        if new is not None:
            new.keep(file_boxes.shares.is_placed, opening.missing)
        if self._job.tally.is_summed:
            _, firsts = np.unique(file_boxes.boxes[:, ENTRY], return_index=True)
            nbytes = int(file_boxes.boxes[firsts, NBYTES].sum())
            self._job.tally.add(payload_nbytes=nbytes)
        file = block.shard[row]
        is_missing, is_left = np.zeros((2, len(block.shard_coords)), np.bool_)
        # If the directory is gone, the general path says so.
        if opening.missing.any() and self._files.store.open_root() is not None:
            is_missing[file[opening.missing]] = True
            self._host.fill(self._job, block, np.flatnonzero(is_missing[block.shard]))
        is_left[file[~file_boxes.shares.is_placed]] = True
        is_left &= ~is_missing
        if is_left.any():
            self._left.append(rows_of(block, is_left))


def _parts(block: ShardBlock, is_in_first: Bools) -> tuple[ShardBlock, ShardBlock]:
    """The part of a block in the marked shards, and the part in the others."""
    ((first,), (second,)) = (
        rows_of(block, marked).pieces() for marked in (is_in_first, ~is_in_first)
    )
    return first, second


def unsharded_read(
    placer: PlanPlacer, host: HostSink, job: Job
) -> UnshardedRead | None:
    """Read of an unsharded array's files in the loops; None if they cannot do it."""
    files = placer.chain.object_files
    if files is None or not fits_memory(job.source, files) or job.tally.is_wanted:
        return None
    root = files.store.open_root()
    return None if root is None else UnshardedRead(placer, host, job, files, root)
