"""Thread pools of this process, and tasks that they begin as far as they can."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Literal, TypeVar

Answer = TypeVar("Answer")
Purpose = Literal["read", "store", "rare"]

_pools: dict[tuple[int, Purpose, int], ThreadPoolExecutor] = {}


def pool_of(purpose: Purpose, n_workers: int) -> ThreadPoolExecutor:
    """Thread pool of this process; a fork has none of its parent's threads."""
    identity = (os.getpid(), purpose, n_workers)
    pool = _pools.get(identity)
    if pool is None:
        # Two threads may both get here; the pool that is dropped has no thread yet.
        pool = _pools.setdefault(
            identity,
            ThreadPoolExecutor(n_workers, thread_name_prefix=f"gpushard-{purpose}"),
        )
    return pool


def begun(
    pool: ThreadPoolExecutor, tasks: Iterable[Callable[[], Answer]]
) -> list[Future[Answer]]:
    """Futures of tasks, of as many as there are threads to be had for.

    None are while the interpreter ends: at exit, and in threads that are left then.
    """
    futures: list[Future[Answer]] = []
    with suppress(RuntimeError):
        for task in tasks:
            futures.append(pool.submit(task))  # noqa: PERF401 - one may be the last
    return futures
