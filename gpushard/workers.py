"""Work run side by side, a bounded number at a time.

Reads and decoders release the interpreter's lock, so threads are enough. Tasks may read
from stores, which have threads of their own: no thread ever waits for its own pool.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from operator import itemgetter
from typing import Any, Literal, TypeVar

Task = Callable[[], None]
Item = TypeVar("Item")
Answer = TypeVar("Answer")
Purpose = Literal["read", "store"]

_pools: dict[tuple[int, Purpose, int], ThreadPoolExecutor] = {}


def run_tasks(tasks: Iterable[Task], n_workers: int) -> None:
    """Run all tasks; on an error start no more, wait for the rest, raise the earliest.

    The calling thread works too, and a single task needs no other. When it returns or
    raises, no task is running: nothing writes to the output any more. Tasks are drawn
    from the iterable only as workers become free.
    """
    if n_workers <= 1:
        for task in tasks:
            task()
        return
    line = _Line(tasks)
    helpers: list[Future[None]] = []
    try:
        if line.look():
            pool = _pool("read", n_workers - 1)
            helpers += [pool.submit(line.work_off) for _ in range(n_workers - 1)]
        line.work_off()
    finally:
        line.close()
        _finish(helpers)
    line.raise_earliest()
    for helper in helpers:
        if not helper.cancelled():
            # What no worker catches, a SystemExit for one, must not pass for success.
            helper.result()


class _Line:
    """Tasks in a line, drawn by several workers."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._tasks = iter(tasks)
        self._ahead: deque[Task] = deque()
        self._n_drawn = 0
        self._lock = threading.Lock()
        self._is_closed = False
        self._errors: list[tuple[int, BaseException]] = []

    def look(self) -> bool:
        """Whether there are two tasks or more."""
        self._ahead.extend(islice(self._tasks, 2))
        return len(self._ahead) > 1

    def work_off(self) -> None:
        """Run one task after the other until there are none, or one has failed."""
        while True:
            with self._lock:
                number = self._n_drawn
                self._n_drawn += 1
                try:
                    task = self._draw()
                except Exception as error:  # noqa: BLE001 - raised by `raise_earliest`
                    self._fail(number, error)
                    return
            if task is None:
                return
            try:
                task()
            except Exception as error:  # noqa: BLE001 - as above
                self._fail(number, error)

    def close(self) -> None:
        """Let no more tasks be drawn."""
        # Not under the lock: an interrupt must not wait for a worker that is drawing.
        self._is_closed = True

    def raise_earliest(self) -> None:
        """Raise the error of the earliest task that failed, if any did."""
        if self._errors:
            raise min(self._errors, key=itemgetter(0))[1]

    def _draw(self) -> Task | None:
        if self._is_closed:
            return None
        return self._ahead.popleft() if self._ahead else next(self._tasks, None)

    def _fail(self, number: int, error: BaseException) -> None:
        self._errors.append((number, error))
        self._is_closed = True


def _finish(futures: Iterable[Future[Any]]) -> None:
    """Cancel what has not started, and wait for what has."""
    started = [future for future in futures if not future.cancel()]
    for future in started:
        future.exception()


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
