"""Tasks run side by side, a bounded number at a time.

The decoders release the interpreter's lock, so threads are enough.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

Task = Callable[[], None]

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def run_tasks(tasks: Iterable[Task], n_workers: int) -> None:
    """Run all tasks; on the first error start no more, wait for the rest, and raise.

    When it returns or raises, no task is running: nothing writes to the output any
    more. Tasks are drawn from the iterable only as workers become free.
    """
    if n_workers <= 1:
        for task in tasks:
            task()
        return
    pool = _pool(n_workers)
    running: deque[Future[None]] = deque()
    try:
        for task in tasks:
            running.append(pool.submit(task))
            while len(running) >= 2 * n_workers:
                _finish_oldest(running)
        while running:
            _finish_oldest(running)
    finally:
        for future in running:
            future.cancel()
        for future in running:
            if not future.cancelled():
                future.exception()


def _finish_oldest(running: deque[Future[None]]) -> None:
    # Taken off only when done: an interrupt while waiting must still find it there.
    running[0].result()
    running.popleft()


def _pool(n_workers: int) -> ThreadPoolExecutor:
    """Pool of this process: a fork has none of its parent's threads."""
    identity = (os.getpid(), n_workers)
    pool = _pools.get(identity)
    if pool is None:
        pool = _pools.setdefault(
            identity, ThreadPoolExecutor(n_workers, thread_name_prefix="gpushard")
        )
    return pool
