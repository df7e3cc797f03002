"""Tasks run in parallel, a bounded number at a time.

Reads and decoders release the GIL, so threads are enough. Tasks may read from stores,
which have their own threads, so no thread ever waits for its own pool.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from gpushard.threads.pools import (
    Future,
    break_off,
    cancel_or_wait,
    pool_of,
    submit_all,
)
from gpushard.threads.work_queue import Spawner, Work, WorkQueue

# Most threads for reads that stores over a network are asked for ahead. No more would
# find a connection.
_MOST_WAITING = 128

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def run_tasks(
    tasks: Iterable[Work], n_workers: int, most_nbytes: int | None = None
) -> None:
    """Run all tasks; after an error, start no more, wait, and raise the earliest error.

    The calling thread works too, and runs a single task alone. When the function
    returns or raises, no task is running, so nothing writes to the output any more.
    Tasks are drawn from the iterable only as workers become free. The tasks of a
    `Spawner` run before new work is drawn.

    Parameters
    ----------
    most_nbytes
        Memory that spawners may hold together; a single one may hold more.
    """
    if n_workers <= 1:
        for work in tasks:
            _run_here(work)
            del work  # what it fetched is let go of before the next one fetches
        return
    helpers: list[Future[None]] = []

    def hire(queue: WorkQueue) -> None:
        helpers.extend(_helpers(queue, n_workers))

    _work_off(WorkQueue(tasks, most_nbytes, hire), helpers)


class StartedTasks:
    """Tasks that other threads start on at once, and that `finish` waits for.

    All workers except the calling thread take tasks as they become free.

    Parameters
    ----------
    tasks, n_workers, most_nbytes
        As `run_tasks` takes them; at least two workers.
    n_beside
        Number of such reads that may wait for answers beside one that is run. Their
        threads are others than its own; 0: the same.
    """

    def __init__(
        self,
        tasks: Iterable[Work],
        n_workers: int,
        most_nbytes: int | None = None,
        n_beside: int = 0,
    ) -> None:
        queue = WorkQueue(tasks, most_nbytes, lambda _: None)
        self._started = [(queue, _helpers(queue, n_workers, n_beside))]

    def finish(self) -> None:
        """Work in the calling thread too, and return or raise as `run_tasks` does."""
        # Tasks left over after an error would keep their output alive, so they are
        # dropped.
        _work_off(*self._started.pop())

    def end(self) -> None:
        """Start no more tasks; afterwards none runs, except inside `finish`."""
        for queue, helpers in self._started:
            queue.close()
            cancel_or_wait(helpers)


def _helpers(queue: WorkQueue, n_workers: int, n_beside: int = 0) -> list[Future[None]]:
    """All workers at a queue except the calling thread."""
    tasks = [queue.work_off] * (n_workers - 1)
    if not n_beside:
        return submit_all(pool_of("read", len(tasks)), tasks, queue.close)
    # Those of the reads before wait for their answers, in the same pool. It is one for
    # any number of reads, because pools keep the threads that they have started.
    pool = pool_of("ahead", max(2 * len(tasks), _MOST_WAITING))
    return submit_all(pool, tasks, queue.close)


def _work_off(queue: WorkQueue, helpers: Sequence[Future[None]]) -> None:
    """Work at a queue until it ends, wait for others, and raise the earliest error."""
    try:
        try:
            queue.work_off()
        finally:
            queue.close()
    except Exception:
        raise
    except BaseException:  # an interrupt: nobody waits for what the others do
        break_off(helpers)
        raise
    finally:
        cancel_or_wait(helpers)
    queue.raise_earliest()
    for helper in helpers:
        # What no worker catches, such as SystemExit, must not look like success.
        helper.raise_error()


def _run_here(work: Work) -> None:
    for task in work.spawn() if isinstance(work, Spawner) else (work,):
        task()


def run_side_by_side(
    function: Callable[[Item], Answer], items: Sequence[Item], n_workers: int
) -> list[Answer]:
    """Results of `function` for each item, in order; raises an error of any of them.

    Each worker takes every n-th item in one task, because a future per item would cost
    more than reading a few KiB from the page cache. Once an item has failed, or the
    wait was interrupted, no other item is begun. When the function returns or raises,
    no task is running.
    """
    n_tasks = min(n_workers, len(items))
    if n_tasks <= 1:
        return [function(item) for item in items]
    is_over = threading.Event()
    tasks = [
        partial(_run_all, function, items[first::n_tasks], is_over)
        for first in range(n_tasks)
    ]
    futures = submit_all(pool_of("store", n_workers), tasks, is_over.set)
    try:
        here = [task() for task in tasks[len(futures) :]]
        shares = [
            # Its thread may still be busy with tasks of others.
            task() if future.cancel() else future.result()
            for future, task in zip(futures, tasks, strict=False)
        ]
        shares += here
    except Exception:
        raise
    except BaseException:  # an interrupt: nobody waits for what the others do
        break_off(futures)
        raise
    finally:
        try:
            is_over.set()
        finally:
            cancel_or_wait(futures)
    return [shares[i % n_tasks][i // n_tasks] for i in range(len(items))]


def _run_all(
    function: Callable[[Item], Answer],
    items: Sequence[Item],
    is_over: threading.Event,
) -> list[Answer]:
    """Answers for items, one after the other; none for those left when it is over."""
    answers: list[Answer] = []
    try:
        for item in items:
            if is_over.is_set():
                break
            answers.append(function(item))
    except BaseException:
        is_over.set()
        answers.clear()  # the error knows this frame
        raise
    return answers
