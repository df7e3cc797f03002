"""Work run side by side, a bounded number at a time.

Reads and decoders release the interpreter's lock, so threads are enough. Tasks may read
from stores, which have threads of their own: no thread ever waits for its own pool.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, TypeVar

Task = Callable[[], None]
Item = TypeVar("Item")
Answer = TypeVar("Answer")
Purpose = Literal["read", "store"]

_pools: dict[tuple[int, Purpose, int], ThreadPoolExecutor] = {}


def run_tasks(tasks: Iterable[Task], n_workers: int) -> None:
    """Run all tasks; on the first error start no more, wait for the rest, and raise.

    When it returns or raises, no task is running: nothing writes to the output any
    more. Tasks are drawn from the iterable only as workers become free.
    """
    if n_workers <= 1:
        for task in tasks:
            task()
        return
    pool = _pool("read", n_workers)
    running: deque[Future[None]] = deque()
    try:
        for task in tasks:
            running.append(pool.submit(task))
            while len(running) >= 2 * n_workers:
                _finish_oldest(running)
        while running:
            _finish_oldest(running)
    finally:
        _finish(running)


def _finish(futures: Iterable[Future[Any]]) -> None:
    """Cancel what has not started, and wait for what has."""
    started = [future for future in futures if not future.cancel()]
    for future in started:
        future.exception()


def _finish_oldest(running: deque[Future[None]]) -> None:
    # Taken off only when done: an interrupt while waiting must still find it there.
    running[0].result()
    running.popleft()


def run_side_by_side(
    function: Callable[[Item], Answer], items: Sequence[Item], n_workers: int
) -> list[Answer]:
    """Answers of `function` for each item, in order; raises what one of them raises.

    Each worker takes every n-th item in one task: a future an item would cost more
    than reading a few KiB from the page cache. When it returns or raises, nothing runs.
    """
    n_tasks = min(n_workers, len(items))
    if n_tasks <= 1:
        return [function(item) for item in items]
    pool = _pool("store", n_workers)
    futures = [
        pool.submit(_run_all, function, items[first::n_tasks])
        for first in range(n_tasks)
    ]
    try:
        shares = [future.result() for future in futures]
    finally:
        _finish(futures)
    return [shares[i % n_tasks][i // n_tasks] for i in range(len(items))]


def _run_all(function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
    return [function(item) for item in items]


def _pool(purpose: Purpose, n_workers: int) -> ThreadPoolExecutor:
    """Pool of this process: a fork has none of its parent's threads."""
    identity = (os.getpid(), purpose, n_workers)
    pool = _pools.get(identity)
    if pool is None:
        # Two threads may both get here: the loser's pool has no thread yet.
        pool = _pools.setdefault(
            identity,
            ThreadPoolExecutor(n_workers, thread_name_prefix=f"gpushard-{purpose}"),
        )
    return pool
