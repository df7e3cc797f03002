"""Run blocking requests side by side in threads that outlive one read."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def run_side_by_side(
    function: Callable[[Item], Answer], items: Sequence[Item], n_workers: int
) -> list[Answer]:
    """Answers of `function` for each item, in order; raises the first item's error.

    Each worker takes every n-th item in one task: a future an item would cost more
    than reading a few KiB from the page cache.
    """
    n_tasks = min(n_workers, len(items))
    if n_tasks <= 1:
        return [function(item) for item in items]
    pool = _pool(n_workers)
    futures = [
        pool.submit(_run_all, function, items[first::n_tasks])
        for first in range(n_tasks)
    ]
    answers: list[Answer] = [None] * len(items)  # type: ignore[list-item]
    try:
        for first, future in enumerate(futures):
            answers[first::n_tasks] = future.result()
    finally:
        for future in futures:
            future.cancel()
    return answers


def _run_all(function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
    return [function(item) for item in items]


def _pool(n_workers: int) -> ThreadPoolExecutor:
    """Pool of `n_workers` threads of this process: a fork has none of its parent's."""
    identity = (os.getpid(), n_workers)
    pool = _pools.get(identity)
    if pool is None:
        # Two threads may both get here: the loser's pool has no thread yet.
        pool = _pools.setdefault(
            identity,
            ThreadPoolExecutor(n_workers, thread_name_prefix="gpushard-store"),
        )
    return pool
