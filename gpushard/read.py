"""The conductor: the stages of a read, in order.

plan -> (per block of shards) index -> byte ranges -> requests -> batches -> (per batch,
side by side) payload -> decode -> scatter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from gpushard.blocks import ShardBlock
from gpushard.errors import ObjectChangedError
from gpushard.job import Job, rows_of
from gpushard.ranges import range_tasks
from gpushard.whole import fetched_whole, whole_tasks
from gpushard.workers import Task, run_tasks

Changed = list[tuple[Job, ShardBlock]]
"""Blocks whose objects were replaced while they were read."""


def execute(jobs: Sequence[Job]) -> None:
    """Run all jobs as one batch; when it returns, every output is written.

    A shard that is replaced while it is read is read once more.

    Raises
    ------
    CorruptShardError
        Stored bytes are damaged.
    StoreError
        The store failed; `ObjectChangedError` if a shard was replaced twice.
    """
    changed: Changed = []
    n_workers = max((job.n_workers for job in jobs), default=1)
    run_tasks(
        (
            partial(_run, task, job, block, changed)
            for job in jobs
            for block in job.plan.blocks()
            for task in _tasks(job, block, n_workers, changed)
        ),
        n_workers,
    )
    for job, block in changed:
        for coordinate in block.shard_coords.tolist():
            job.source.indexes.drop_shard(tuple(coordinate))
        run_tasks(_block_tasks(job, block, n_workers), n_workers)
    for job in jobs:
        job.sink.finish()


def _tasks(
    job: Job, block: ShardBlock, n_workers: int, changed: Changed
) -> Iterator[Task]:
    job.tally.add(n_shards=len(block.shard_coords), n_inner_chunks=len(block.shard))
    try:
        yield from _block_tasks(job, block, n_workers)
    except ObjectChangedError:
        _note(job, block, changed)


def _run(task: Task, job: Job, block: ShardBlock, changed: Changed) -> None:
    try:
        task()
    except ObjectChangedError:
        _note(job, block, changed)


def _note(job: Job, block: ShardBlock, changed: Changed) -> None:
    if not any(noted is block for _, noted in changed):
        changed.append((job, block))


def _block_tasks(job: Job, block: ShardBlock, n_workers: int) -> Iterator[Task]:
    """Tasks that read a block: of shards fetched whole, and of ranges of the others."""
    whole = fetched_whole(job, block)
    if whole.any():
        yield from whole_tasks(job, rows_of(block, whole), n_workers)
    if not whole.all():
        yield from range_tasks(job, rows_of(block, ~whole), n_workers)
