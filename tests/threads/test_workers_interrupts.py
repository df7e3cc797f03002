"""An interrupt at any line of what runs tasks leaves no lock taken and no task running.

A lock that stays taken never ends the next wait for it, so this is done in a fork.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from forked import answers_in_a_fork
from gpushard.threads import pools
from gpushard.threads.pools import run_in_turn
from gpushard.threads.stop_flag import flag_here
from gpushard.threads.work_queue import Spawner, WorkQueue
from gpushard.threads.workers import run_side_by_side, run_tasks
from interrupts import is_cut_off

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="this platform cannot fork"
)
MODULES = (
    "gpushard/threads/workers.py",
    "gpushard/threads/work_queue.py",
    "gpushard/threads/pools.py",
    "/threading.py",
    "/futures/",
)
# Python looks for signals at calls and at the ends of loops: not between a lock and the
# block that gives it back, nor before the `try` of `cancel_or_wait`.
UNREACHED = (
    "with self._lock:",
    "with self._is_running:",
    "pass",
    "cancel_or_wait(helpers)",
    "cancel_or_wait(futures)",
    "interrupt: BaseException | None = None",
    "while True:",
    "try:",
    "for future in [f for f in futures if not f.cancel()]:",
)


def in_line(task: Callable[[int], Any]) -> None:
    run_tasks([lambda k=k: task(k) for k in range(4)], 3)


def opened(task: Callable[[int], Any]) -> None:
    spawner = Spawner(lambda: [lambda k=k: task(k) for k in range(2)], 1)
    run_tasks([spawner, spawner], 3, most_nbytes=2)


def side_by_side(task: Callable[[int], Any]) -> None:
    run_side_by_side(task, range(4), 3)


def in_turn(task: Callable[[int], Any]) -> None:
    run_in_turn(lambda: task(0))


@pytest.mark.parametrize("way", [in_line, opened, side_by_side, in_turn])
def test_after_an_interrupt_at_any_line_no_task_runs_and_the_next_ones_do(way):
    def work() -> bool:
        running: list[int] = []

        def task(k: int) -> None:
            running.append(k)
            time.sleep(0.0005)
            running.remove(k)

        for n_line in count(1):
            was_cut_off = is_cut_off(lambda: way(task), n_line, MODULES, UNREACHED)
            if running:
                return False
            way(task)
            if not was_cut_off:
                return n_line > 20
        return False

    assert answers_in_a_fork(work)


@pytest.mark.parametrize(
    "way",
    [
        lambda task: run_tasks([task] * 100, 3),
        lambda task: run_side_by_side(lambda _: task(), range(100), 3),
    ],
    ids=["in line", "side by side"],
)
def test_an_interrupt_while_helpers_begin_lets_them_end_soon(way, monkeypatch):
    def work() -> bool:
        n_done = []
        submitting = pools.Pool.submit

        def submit(pool: Any, future: Any) -> bool:
            submitting(pool, future)
            while not future._claims:  # until its thread has begun
                time.sleep(0.001)
            time.sleep(0.01)
            raise KeyboardInterrupt

        def task() -> None:
            time.sleep(0.01)
            n_done.append(1)

        monkeypatch.setattr(pools.Pool, "submit", submit)
        with pytest.raises(KeyboardInterrupt):
            way(task)
        return len(n_done) < 20

    assert answers_in_a_fork(work)


def leave(*_: object) -> None:
    raise SystemExit


@pytest.mark.parametrize("handler", [signal.default_int_handler, leave])
@pytest.mark.parametrize("own_s", [0, 10])
@pytest.mark.parametrize("way", [in_line, side_by_side, in_turn])
def test_an_interrupt_breaks_off_what_other_threads_wait_for(way, own_s, handler):
    """Whether it stops a task of the calling thread, or its wait for the others."""

    def work() -> bool:
        signal.signal(signal.SIGINT, handler)
        interrupting, broken_off = threading.Lock(), []
        has_begun = threading.Event()

        def task(_: int) -> None:
            flag = flag_here()
            if flag is None:  # the calling thread
                has_begun.wait(10)
                time.sleep(own_s)
                return
            has_begun.set()
            if interrupting.acquire(blocking=False):
                time.sleep(0.05)
                main = threading.main_thread().ident
                signal.pthread_kill(main, signal.SIGINT)
            broken_off.append(flag.wait(20))

        with pytest.raises((KeyboardInterrupt, SystemExit)):
            way(task)
        return bool(broken_off) and all(broken_off) and not way(lambda _: None)

    assert answers_in_a_fork(work)


def test_tasks_may_be_ended_in_the_middle_of_any_step_of_their_thread(
    monkeypatch: pytest.MonkeyPatch,
):
    """So does the handler of a signal that closes a loader."""
    wake_all = WorkQueue._wake_all

    def told(line: Any) -> None:
        monkeypatch.undo()
        line.close()
        wake_all(line)

    monkeypatch.setattr(WorkQueue, "_wake_all", told)
    thread = threading.Thread(target=run_tasks, args=([int] * 9, 2), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
