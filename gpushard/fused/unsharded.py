"""An unsharded array in local files, read by the compiled loops, file by file.

Each inner chunk is a file. What the loops cannot read (damage, symbolic links, files
that change, those that a rolling array lacks) is read again on the general path, which
says what is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from gpushard.fetching.job import Job, rows_of
from gpushard.fetching.pieces import most_merged
from gpushard.fused.columns import ENTRY, FILE, KEEP, NBYTES, NO_FILE, SOURCE, Opener
from gpushard.fused.files import FileBoxes, window_nbytes
from gpushard.fused.libraries import FileCalls, file_calls
from gpushard.fused.runner import BoxRunner
from gpushard.fused.shares import Shares
from gpushard.fused.thread_memory import address_of
from gpushard.memory.chunk_room import usual_stored
from gpushard.placing.place import HostSink
from gpushard.planning.blocks import Block, ShardBlock
from gpushard.selecting.selection import Ints
from gpushard.source import Source
from gpushard.stores.failures import refuse_unsafe_key
from gpushard.stores.handles import Handle
from gpushard.stores.local import LocalStore, holds_plain_files
from gpushard.work_queue import Task

# openat2(2). A link may lead out of the store: the general path looks where it leads.
_NO_LINKS = 0x04
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
# So many files are read by one thread at first. If they take longer than so much beside
# decoding, and the next ones too, a disk or a server is waited for: the general path
# asks it more at once.
_N_TRIED, _N_TRIALS, _SLOW_US = 8, 2, 300
# About so many boxes are placed by one call of the loops; interrupts wait for its end.
_AT_ONCE = 512


class ObjectRead:
    """A read of files of one inner chunk each.

    Parameters
    ----------
    runner, host, job
        The loops, the sink that fills what is missing, and the job to read.
    store, root
        The job's store, and its directory, open.
    calls
        Functions of the C library.
    """

    def __init__(
        self,
        runner: BoxRunner,
        host: HostSink,
        job: Job,
        store: LocalStore,
        root: Handle,
        calls: FileCalls,
    ) -> None:
        self._runner = runner
        self._host = host
        self._job = job
        self._store = store
        self._root = root
        self._calls = calls
        links = store.allow_symlinks_outside
        self._knows_missing = not (links or store.checks_missing)
        # Behind the struct, a path of no characters.
        self._how = np.array([_FLAGS, 0, 0 if links else _NO_LINKS, 0], np.int64)
        self._most_nbytes = _most_nbytes(job.source)
        self._left: list[Block] = []
        self.seen: set[str] = set()

    def tasks(self, n_workers: int) -> Iterator[Task]:
        """Tasks that read everything except what `left_over` then returns.

        If the first files take long, all others are left over.
        """
        blocks = self._job.plan.blocks(most_merged(self._job.source))
        n_slow = 0
        for planned in blocks:
            for block in planned.pieces():
                rest = block
                while n_slow < _N_TRIALS and len(rest.shard_coords) > 2 * _N_TRIED:
                    is_tried = np.arange(len(rest.shard_coords)) < _N_TRIED
                    tried, rest = _parts(rest, is_tried)
                    if not self._are_slow(tried):
                        break
                    n_slow += 1
                if n_slow == _N_TRIALS:
                    self._left += [rest, *blocks]
                    return
                yield from self._tasks_of(rest, n_workers)

    def left_over(self) -> Iterator[Block]:
        """Blocks to be read on the general path, once all tasks have run."""
        return iter(self._left)

    def _are_slow(self, block: ShardBlock) -> bool:
        """Read a few files; return whether they took long."""
        started = perf_counter()
        for task in self._tasks_of(block, 1):
            task()
        microseconds = 1e6 * (perf_counter() - started) / len(block.shard_coords)
        return microseconds - self._runner.chain.chunk_us > _SLOW_US

    def _tasks_of(self, block: ShardBlock, n_workers: int) -> Iterator[Task]:
        if not block.n_chunks:
            return
        cut = self._runner.cut(block, np.arange(block.n_chunks))
        if cut is None:
            self._left.append(block)
            return
        boxes, row = cut
        for column in (SOURCE, NBYTES, KEEP):
            boxes[:, column] = 0
        boxes[:, FILE], boxes[:, ENTRY] = NO_FILE, block.shard[row]
        source, chain = self._job.source, self._runner.chain
        paths = _Paths(source, block.shard_coords)
        missing = np.zeros(len(block.shard_coords), np.bool_)
        opener = Opener(
            self._root.fd,
            address_of(paths.addresses),
            address_of(missing),
            int(self._knows_missing),
            address_of(self._how),
            *self._calls,
            self._most_nbytes,
        )
        reading = FileBoxes(
            self._runner,
            [self._root],
            boxes,
            Shares.of(boxes, chain.chunk_nbytes, n_workers, most=_AT_ONCE),
            window_nbytes(source.options, self._most_nbytes),
            partial(self._finish, block, row, missing, paths),
            opener,
        )
        yield from reading.tasks()

    def _finish(
        self,
        block: ShardBlock,
        row: Ints,
        missing: NDArray[np.bool_],
        paths: _Paths,
        some: FileBoxes,
    ) -> None:
        """Fill what is missing, and note the files that must be read again."""
        del paths  # the loops have its addresses until now
        if self._job.tally.is_summed:
            _, firsts = np.unique(some.boxes[:, ENTRY], return_index=True)
            nbytes = int(some.boxes[firsts, NBYTES].sum())
            self._job.tally.add(payload_nbytes=nbytes)
        if missing.any() and self._store.open_root() is None:
            missing[:] = False  # the general path says that the directory is gone
        is_missing = missing[block.shard]
        if is_missing.any():
            self._host.fill(self._job, block, np.flatnonzero(is_missing))
        left = np.zeros(len(missing), np.bool_)
        left[block.shard[row[~some.shares.is_placed]]] = True
        left &= ~missing
        if left.any():
            self._left.append(rows_of(block, left))


def _parts(
    block: ShardBlock, is_in_first: NDArray[np.bool_]
) -> tuple[ShardBlock, ShardBlock]:
    """The part of a block in the marked shards, and the part in the others."""
    ((first,), (second,)) = (
        rows_of(block, marked).pieces() for marked in (is_in_first, ~is_in_first)
    )
    return first, second


class _Paths:
    """Paths of some objects, relative to the store's directory.

    Attributes
    ----------
    addresses
        int64, shape (n_objects,). Address of each path, which ends with a zero byte.
    """

    def __init__(self, source: Source, coordinates: Ints) -> None:
        keys = source.keys(coordinates)
        refuse_unsafe_key(keys[0], source.store.url)  # others differ in numbers only
        paths = list(map(os.fsencode, keys))
        self._text = np.frombuffer(b"\0".join((*paths, b"")), np.uint8)
        nbytes = np.fromiter(map(len, paths), np.int64, len(paths)) + 1
        self.addresses = address_of(self._text) + np.cumsum(nbytes) - nbytes


def _most_nbytes(source: Source) -> int:
    """Size of the largest file that the loops read."""
    if source.raw_strides is not None:
        return source.chunk_nbytes
    shape = source.chunk_shape or ()
    limit = source.pipeline.encoded_limit(shape)
    return min(limit, usual_stored(source.chunk_nbytes))


def object_read(runner: BoxRunner, host: HostSink, job: Job) -> ObjectRead | None:
    """Read of an unsharded array's files in the loops; None if they cannot do it."""
    source = job.source
    store, layout = source.store, source.layout
    if layout.object_codecs or not holds_plain_files(store):
        return None
    if job.tally.is_wanted or source.chunk_nbytes > source.options.max_chunk_nbytes:
        return None
    if _most_nbytes(source) > source.room.most_window_nbytes:
        return None
    calls = file_calls()
    root = None if calls is None else store.open_root()
    if calls is None or root is None:
        return None
    return ObjectRead(runner, host, job, store, root, calls)
