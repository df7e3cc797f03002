"""Thread pools of this process, and tasks that they begin as far as they can."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, TypeVar

from gpushard.alone import Alone, is_inside

Answer = TypeVar("Answer")
Purpose = Literal["read", "store", "rare"]

_pools: dict[tuple[int, Purpose, int], ThreadPoolExecutor] = {}
# Process -> who hands a task to a pool, which has locks for that.
_handing: dict[int, Alone] = {}


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

    None are while the interpreter ends: at exit, and in threads that are left then; nor
    in the handler of a signal, if others may wait for what it has stopped. A task
    without a future is never run.
    """
    if is_inside():
        return []
    hand = _handing.get(os.getpid()) or _handing.setdefault(os.getpid(), Alone())
    futures: list[Future[Answer]] = []
    for task in tasks:
        future: Future[Answer] = Future()
        handed = [(future, task)]
        try:
            hand.call(pool.submit, _run, handed)
        except RuntimeError:
            # The pool queues a task before it begins a thread for it. If it cannot,
            # another of its threads would run the task, beside the caller or later. If
            # it has none, what is queued stays.
            if not future.cancel():
                futures.append(future)
            handed.clear()
            break
        futures.append(future)
    return futures


def _run(handed: list[tuple[Future[Answer], Callable[[], Answer]]]) -> None:
    # Emptied, because an error knows the frames of the pool that have the list.
    try:
        future, task = handed.pop()
    except IndexError:  # taken back
        return
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(task())
    except BaseException as error:  # noqa: BLE001 - raised by `Future.result`
        future.set_exception(error)
        del future, task  # the error knows this frame
