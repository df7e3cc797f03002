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

from gpushard.errors import ObjectChangedError, naming
from gpushard.fetching.gone import forget
from gpushard.fetching.index_room import refuse_large
from gpushard.fetching.job import Job, SelfReader, rows_of
from gpushard.fetching.pieces import beside_columns, cut_shards, most_merged
from gpushard.planning.blocks import Planned
from gpushard.reading.ranges import range_tasks
from gpushard.reading.whole import fetched_whole, whole_tasks
from gpushard.work_queue import Spawner, Task, Work
from gpushard.workers import StartedTasks, run_tasks

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

Changed = list[tuple[Job, Planned, set[str]]]
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
    begin(prepare(jobs))
    finish(jobs)


class Prepared(NamedTuple):
    """Jobs that are ready to run.

    Attributes
    ----------
    jobs
        The jobs, whose memory limit excludes what indexes and columns take.
    n_workers
        Number of threads that all jobs are run with.
    directs
        Jobs whose sink reads them itself, without the stages of this module, and the
        reader of each.
    tasks
        Tasks of `directs`; the first is made already.
    since
        Monotonic time at which `prepare` began.
    """

    jobs: Sequence[Job]
    n_workers: int
    directs: Sequence[tuple[Job, SelfReader]]
    tasks: Iterator[Task]
    since: float


def prepare(jobs: Sequence[Job]) -> Prepared:
    """Check limits and make the first task, which needs no free threads yet.

    Raises
    ------
    LimitError, StoreError
        As `execute` does.
    """
    since = monotonic()
    for job in jobs:
        if job.plan.n_chunks:
            with _named(job):
                refuse_large(job.source)
    jobs = beside_columns(jobs)
    for job in jobs:
        if job.plan.n_chunks:
            with _named(job):
                job.source.room.refuse_large()
    n_workers = _n_workers(jobs)
    directs = [(job, direct) for job in jobs if (direct := job.sink.direct(job))]
    tasks = _direct_tasks(directs, n_workers)
    first = [*islice(tasks, 1)]
    return Prepared(jobs, n_workers, directs, chain(first, tasks), since)


def begin_early(prepared: Prepared) -> StartedTasks | None:
    """Start other threads on the jobs before `begin`, so that this thread is free.

    None if there is nothing that other threads can start on.
    """
    if not prepared.directs or prepared.n_workers <= 1:
        return None
    return StartedTasks(prepared.tasks, prepared.n_workers)


def begin(prepared: Prepared, begun: StartedTasks | None = None) -> None:
    """Run jobs to their end, except for work that a device still does; see `execute`.

    Parameters
    ----------
    begun
        The result of `begin_early`.
    """
    jobs, n_workers, directs, tasks, since = prepared
    changed: Changed = []
    if begun is None:
        run_tasks(tasks, n_workers)
    else:
        begun.finish()
    for job, _ in directs:
        job.source.room.let_go()
    blocks = [
        (replace(job, seen=frozenset(direct.seen)), direct.left_over())
        for job, direct in directs
    ]
    done = {id(job) for job, _ in directs}
    blocks += [
        (job, job.plan.blocks(most_merged(job.source)))
        for job in jobs
        if id(job) not in done
    ]
    most = max((job.most_fetched_nbytes for job in jobs), default=0)
    run_tasks(_all_tasks(blocks, n_workers, changed), n_workers, most)
    for job, block, keys in changed:
        shards = map(tuple, block.shard_coords.tolist())
        again = replace(job, seen=forget(job.source, shards, keys, since))
        with _named(job):
            run_tasks(_block_tasks(again, block, n_workers), n_workers, most)


def _n_workers(jobs: Sequence[Job]) -> int:
    """Number of threads that suits the job with most work, and fits all jobs."""
    worth = max((job.n_workers for job in jobs), default=1)
    return min([worth, *(job.source.room.most_workers for job in jobs)])


def finish(jobs: Sequence[Job]) -> None:
    """Wait until the outputs of jobs that `begin` ran are written; see `execute`."""
    for job in jobs:
        with _named(job):
            job.sink.finish()


def _named(job: Job) -> AbstractContextManager[None]:
    """Add the array to errors: a caller of many jobs could not tell which it was."""
    return naming(job.source.store, job.source.layout.path)


def _direct_tasks(
    directs: Sequence[tuple[Job, SelfReader]], n_workers: int
) -> Iterator[Task]:
    """Tasks of the jobs whose sink reads them itself, without the stages here."""
    for job, direct in directs:
        with _named(job):
            for task in direct.tasks(n_workers):
                yield partial(_run_named, task, job)


def _run_named(task: Task, job: Job) -> None:
    with _named(job):
        task()


def _all_tasks(
    blocks: Sequence[tuple[Job, Iterator[Planned]]],
    n_workers: int,
    changed: Changed,
) -> Iterator[Work]:
    """Work that reads the given blocks of each job."""
    for job, some in blocks:
        for planned in some:
            for block in cut_shards(job, planned):
                for work in _tasks(job, block, n_workers, changed):
                    if isinstance(work, Spawner):
                        spawn = partial(_spawn, work, job, block, changed)
                        yield replace(work, spawn=spawn)
                    else:
                        yield partial(_run, work, job, block, changed)


def _tasks(
    job: Job, block: Planned, n_workers: int, changed: Changed
) -> Iterator[Work]:
    job.tally.add(n_shards=len(block.shard_coords), n_inner_chunks=block.n_chunks)
    with _noting(job, block, changed):
        yield from _block_tasks(job, block, n_workers)


def _spawn(work: Spawner, job: Job, block: Planned, changed: Changed) -> Sequence[Task]:
    tasks: Sequence[Task] = ()
    with _noting(job, block, changed):
        tasks = work.spawn()
    return [partial(_run, task, job, block, changed) for task in tasks]


def _run(task: Task, job: Job, block: Planned, changed: Changed) -> None:
    with _noting(job, block, changed):
        task()


@contextmanager
def _noting(job: Job, block: Planned, changed: Changed) -> Iterator[None]:
    """Note objects that were replaced; add the array to all other errors."""
    try:
        with _named(job):
            yield
    except ObjectChangedError as error:
        _note(job, block, changed, error)


def _note(
    job: Job, block: Planned, changed: Changed, error: ObjectChangedError
) -> None:
    key = error.shard_key or ""
    for _, noted, keys in changed:
        if noted is block:
            keys.add(key)
            return
    changed.append((job, block, {key}))


def _block_tasks(job: Job, block: Planned, n_workers: int) -> Iterator[Work]:
    """Work that reads a block: whole shards where that is cheaper, ranges elsewhere."""
    whole = fetched_whole(job, block)
    if whole.any():
        yield from whole_tasks(job, rows_of(block, whole), n_workers)
    if not whole.all():
        yield from range_tasks(job, rows_of(block, ~whole), n_workers)
