"""The conductor of a read, which runs the stages in order.

plan -> (per block of shards) index -> byte ranges -> requests -> batches -> (per batch,
side by side) payload -> decode -> scatter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from gpushard.errors import ObjectChangedError
from gpushard.fetching.gone import forget
from gpushard.fetching.index_room import refuse_large_indexes
from gpushard.fetching.job import Job, JobReader, rows_of
from gpushard.fetching.pieces import beside_columns, cut_shards, most_merged
from gpushard.options import MIB
from gpushard.placing.kept_rows import kept_file_tasks
from gpushard.planning.blocks import Block, ShardBlock
from gpushard.reading.ranges import range_tasks
from gpushard.reading.whole import fetched_whole, whole_tasks
from gpushard.remade import naming_source
from gpushard.threads.work_queue import Spawner, Task, Work
from gpushard.threads.workers import StartedTasks, run_tasks

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

# Least that a read may hold of what it fetched, of several that are asked for together:
# with less, shards that are fetched whole would come one after the other.
_LEAST_AHEAD_NBYTES = 64 * MIB

Changed = list[tuple[Job, Block, set[str]]]
"""Blocks with objects that were replaced during the read, and the keys of these."""


def execute(jobs: Sequence[Job]) -> None:
    """Run all jobs as one batch; every output is written when this returns.

    If a shard is replaced while it is read, it is read once more.

    Raises
    ------
    LimitError
        Something that must be fetched or decoded in one piece exceeds the limits in
        the options.
    HostMemoryError
        The host does not have enough memory.
    CorruptShardError
        Stored bytes are damaged.
    StoreError
        The store failed; `ObjectChangedError` if a shard was replaced twice.
    """
    run(prepare(jobs))
    finish(jobs)


class Prepared(NamedTuple):
    """Jobs that are ready to run.

    Attributes
    ----------
    jobs
        The jobs, whose memory limit excludes what indexes and columns take.
    n_workers
        Number of threads that all jobs are run with.
    readers
        Jobs whose sink reads them itself, and the reader of each. Other jobs, and what
        these readers leave over, go through the stages of this module.
    tasks
        Tasks of `readers`; the first is made already.
    works
        Work on what these readers leave over, which is everything if there are none.
    changed
        Blocks of `works` with objects that were replaced; filled as they are found.
    began_at_s
        Monotonic time at which `prepare` began.
    """

    jobs: Sequence[Job]
    n_workers: int
    readers: Sequence[tuple[Job, JobReader]]
    tasks: Iterator[Task]
    works: Iterator[Work]
    changed: Changed
    began_at_s: float

    @property
    def most_nbytes(self) -> int:
        """Memory that what was fetched for `works` may hold together."""
        return max((job.most_fetched_nbytes for job in self.jobs), default=0)


def prepare(jobs: Sequence[Job]) -> Prepared:
    """Check limits and make the first task, which needs no free threads yet.

    Raises
    ------
    LimitError, StoreError
        As `execute` does.
    """
    began_at_s = monotonic()
    for job in jobs:
        if job.plan.n_chunks:
            with _named(job):
                refuse_large_indexes(job.source)
    jobs = beside_columns(jobs)
    for job in jobs:
        if job.plan.n_chunks:
            with _named(job):
                job.source.room.refuse_large()
    n_workers = _n_workers(jobs)
    readers = [(job, reader) for job in jobs if (reader := job.sink.job_reader(job))]
    tasks = _reader_tasks(readers, n_workers)
    first = [*islice(tasks, 1)]
    changed: Changed = []
    works = _works_left(jobs, readers, n_workers, changed)
    return Prepared(
        jobs, n_workers, readers, chain(first, tasks), works, changed, began_at_s
    )


def start_early(prepared: Prepared, n_asked: int) -> StartedTasks | None:
    """Have other threads start on the jobs before `run`, while this thread is free.

    None if there is nothing that other threads can start on.

    Parameters
    ----------
    n_asked
        Number of reads that stores over a network may be asked for while another one
        is run; 0 if they are not to be asked now. Other reads wait for answers
        meanwhile, and not for threads; so each has threads of its own, and a share of
        the memory that one read has for what it fetched.
    """
    if prepared.n_workers <= 1:
        return None
    if prepared.readers:
        return StartedTasks(prepared.tasks, prepared.n_workers)
    stores = [job.source.store for job in prepared.jobs]
    if n_asked and all(store.costs.prefers_whole_objects for store in stores):
        fair_nbytes = max(prepared.most_nbytes // n_asked, _LEAST_AHEAD_NBYTES)
        most_nbytes = min(fair_nbytes, prepared.most_nbytes)
        return StartedTasks(prepared.works, prepared.n_workers, most_nbytes, n_asked)
    return None


def run(prepared: Prepared, started: StartedTasks | None = None) -> None:
    """Run jobs to their end, except for work that a device still does; see `execute`.

    Parameters
    ----------
    started
        The result of `start_early`.
    """
    n_workers = prepared.n_workers
    if started is None:
        run_tasks(prepared.tasks, n_workers)
    else:
        started.finish()
    for job, _ in prepared.readers:
        job.source.room.let_go()
    most_nbytes = prepared.most_nbytes
    run_tasks(prepared.works, n_workers, most_nbytes)
    for job, block, keys in prepared.changed:
        shards = map(tuple, block.shard_coords.tolist())
        seen = forget(job.source, shards, keys, prepared.began_at_s)
        with _named(job):
            works = _block_tasks(replace(job, seen=seen), block, n_workers)
            run_tasks(works, n_workers, most_nbytes)


def _works_left(
    jobs: Sequence[Job],
    readers: Sequence[tuple[Job, JobReader]],
    n_workers: int,
    changed: Changed,
) -> Iterator[Work]:
    """Work that is left of jobs; the readers are asked when the first is drawn."""
    yield from _all_tasks(_blocks_left(jobs, readers), n_workers, changed)


def _blocks_left(
    jobs: Sequence[Job], readers: Sequence[tuple[Job, JobReader]]
) -> list[tuple[Job, Iterator[Block]]]:
    """Blocks of each job that its reader, if any, has not read."""
    left = [
        (replace(job, seen=frozenset(reader.seen)), reader.left_over())
        for job, reader in readers
    ]
    with_reader = {id(job) for job, _ in readers}
    left += [
        (job, job.plan.blocks(most_merged(job.source)))
        for job in jobs
        if id(job) not in with_reader
    ]
    return left


def _n_workers(jobs: Sequence[Job]) -> int:
    """Number of threads that suits the job with most work, and fits all jobs."""
    worth = max((job.n_workers for job in jobs), default=1)
    if len(jobs) > 1:  # of one inner chunk each, maybe, but over a network they wait
        far = [j.source for j in jobs if j.source.store.costs.prefers_whole_objects]
        worth = max([worth, *(source.most_workers for source in far)])
    return min([worth, *(job.source.room.most_workers for job in jobs)])


def finish(jobs: Sequence[Job]) -> None:
    """Wait until the outputs of jobs that `run` ran are written; see `execute`."""
    for job in jobs:
        with _named(job):
            job.sink.finish()


def _named(job: Job) -> AbstractContextManager[None]:
    """Add the array to errors: a caller of many jobs could not tell which it was."""
    return naming_source(job.source)


def _reader_tasks(
    readers: Sequence[tuple[Job, JobReader]], n_workers: int
) -> Iterator[Task]:
    """Tasks of the jobs whose sink reads them itself."""
    for job, reader in readers:
        with _named(job):
            for task in reader.tasks(n_workers):
                yield partial(_run_named, task, job)


def _run_named(task: Task, job: Job) -> None:
    with _named(job):
        task()


def _all_tasks(
    blocks: Sequence[tuple[Job, Iterator[Block]]],
    n_workers: int,
    changed: Changed,
) -> Iterator[Work]:
    """Work that reads the given blocks of each job."""
    for job, planned_blocks in blocks:
        for planned in planned_blocks:
            for block in cut_shards(job, planned):
                for work in _tasks(job, block, n_workers, changed):
                    if isinstance(work, Spawner):
                        spawn = partial(_spawn, work, job, block, changed)
                        yield replace(work, spawn=spawn)
                    else:
                        yield partial(_run, work, job, block, changed)


def _tasks(job: Job, block: Block, n_workers: int, changed: Changed) -> Iterator[Work]:
    job.tally.add(n_shards=len(block.shard_coords), n_inner_chunks=block.n_chunks)
    with _noting(job, block, changed):
        yield from _block_tasks(job, block, n_workers)


def _spawn(work: Spawner, job: Job, block: Block, changed: Changed) -> Sequence[Task]:
    tasks: Sequence[Task] = ()
    with _noting(job, block, changed):
        tasks = work.spawn()
    return [partial(_run, task, job, block, changed) for task in tasks]


def _run(task: Task, job: Job, block: Block, changed: Changed) -> None:
    with _noting(job, block, changed):
        task()


@contextmanager
def _noting(job: Job, block: Block, changed: Changed) -> Iterator[None]:
    """Note objects that were replaced; add the array to all other errors."""
    try:
        with _named(job):
            yield
    except ObjectChangedError as error:
        _note(job, block, changed, error)


def _note(job: Job, block: Block, changed: Changed, error: ObjectChangedError) -> None:
    key = error.shard_key or ""
    for _, noted, keys in changed:
        if noted is block:
            keys.add(key)
            return
    changed.append((job, block, {key}))


def _block_tasks(job: Job, block: Block, n_workers: int) -> Iterator[Work]:
    """Work that reads a block: whole shards where that is cheaper, ranges elsewhere."""
    if not job.source.layout.levels and isinstance(block, ShardBlock):
        left = yield from kept_file_tasks(job, block)
        if left is None:
            return
        block = left
    whole = fetched_whole(job, block)
    if whole.any():
        yield from whole_tasks(job, rows_of(block, whole), n_workers)
    if not whole.all():
        yield from range_tasks(job, rows_of(block, ~whole), n_workers)
