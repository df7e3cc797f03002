"""Tasks side by side: which run, when they stop, and what is raised."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from functools import partial
from unittest import mock

import pytest

from gpushard.threads.pools import Future, run_in_turn
from gpushard.threads.work_queue import Spawner
from gpushard.threads.workers import run_side_by_side, run_tasks

WORKERS = [1, 2, 4]


class Running:
    """Counts the tasks that are running, and those that ran."""

    def __init__(self):
        self.now = 0
        self.most = 0
        self.done = []
        self._lock = threading.Lock()

    def task(self, name, seconds=0.0, error=None):
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(seconds)
        with self._lock:
            self.now -= 1
            self.done.append(name)
        if error is not None:
            raise error


@pytest.mark.parametrize("n_workers", WORKERS)
def test_every_task_runs_once(n_workers):
    running = Running()
    run_tasks((partial(running.task, i) for i in range(50)), n_workers)
    assert sorted(running.done) == list(range(50))
    assert running.now == 0


@pytest.mark.parametrize("n_workers", WORKERS)
def test_no_task_is_no_work(n_workers):
    run_tasks([], n_workers)


def test_a_single_worker_is_the_calling_thread():
    seen = []
    run_tasks([lambda: seen.append(threading.current_thread())] * 3, 1)
    assert seen == [threading.current_thread()] * 3


def test_tasks_run_side_by_side_as_many_as_there_are_workers():
    running = Running()
    meet = threading.Barrier(3, timeout=10)
    run_tasks([meet.wait] * 3, 3)
    run_tasks((partial(running.task, i, 0.002) for i in range(20)), 3)
    assert running.most <= 3


@pytest.mark.parametrize("n_workers", WORKERS)
def test_the_first_error_is_raised_as_it_is(n_workers):
    error = ValueError("the third")
    tasks = [lambda: None, lambda: None, mock.Mock(side_effect=error)]
    with pytest.raises(ValueError, match="the third") as caught:
        run_tasks(tasks, n_workers)
    assert caught.value is error


def test_an_exit_in_any_worker_is_raised():
    caller = threading.current_thread()
    meet = threading.Barrier(2, timeout=10)

    def leave(from_caller):
        meet.wait()
        if (threading.current_thread() is caller) == from_caller:
            raise SystemExit("leaving")

    for from_caller in (False, True):
        with pytest.raises(SystemExit, match="leaving"):
            run_tasks([partial(leave, from_caller)] * 2, 2)


def test_of_several_errors_the_one_of_the_earliest_task_is_raised():
    running = Running()
    tasks = [
        partial(running.task, 0, 0.05, ValueError("early")),
        partial(running.task, 1, 0.0, KeyError("late")),
    ]
    with pytest.raises(ValueError, match="early"):
        run_tasks(tasks, 2)


@pytest.mark.parametrize("n_workers", WORKERS)
def test_after_an_error_few_more_are_started_and_none_is_left_running(n_workers):
    running = Running()
    first = partial(running.task, -1, 0.0, ValueError("stop"))
    rest = (partial(running.task, i, 0.01) for i in range(200))
    with pytest.raises(ValueError, match="stop"):
        run_tasks((task for tasks in ([first], rest) for task in tasks), n_workers)
    assert running.now == 0
    n_done = len(running.done)
    assert n_done <= 2 * n_workers
    time.sleep(0.05)
    assert len(running.done) == n_done


@pytest.mark.parametrize("n_workers", WORKERS)
def test_an_error_of_the_iterable_is_raised_when_its_tasks_have_ended(n_workers):
    running = Running()

    def tasks():
        yield partial(running.task, 0, 0.03)
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        run_tasks(tasks(), n_workers)
    assert running.now == 0
    assert running.done in ([0], [])


def test_an_interrupt_leaves_no_task_running():
    running = Running()
    begun = threading.Event()
    caller = threading.current_thread()

    def task(i):
        if threading.current_thread() is caller:
            assert begun.wait(10)
            raise KeyboardInterrupt
        begun.set()
        running.task(i, 0.1)

    with pytest.raises(KeyboardInterrupt):
        run_tasks([partial(task, i) for i in range(10)], 2)
    assert len(running.done) == 1


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, TimeoutError])
def test_interrupts_of_the_wait_for_tasks_leave_none_running_either(kind, monkeypatch):
    running, begun, goes_on = Running(), threading.Event(), threading.Event()
    caller, wait, n_left = threading.current_thread(), Future.wait, iter("ab")

    def task(i):
        if threading.current_thread() is caller:
            assert begun.wait(10)
            raise kind
        begun.set()
        assert goes_on.wait(10)
        running.task(i, 0.05)

    def interrupted(future):
        if next(n_left, None):
            raise kind
        goes_on.set()
        wait(future)

    monkeypatch.setattr(Future, "wait", interrupted)
    with pytest.raises(kind):
        run_tasks([partial(task, i) for i in range(10)], 2)
    assert len(running.done) == 1


@pytest.mark.parametrize("n_workers", [2, 4])
def test_tasks_are_drawn_only_as_workers_become_free(n_workers):
    running = Running()
    ahead = []

    def tasks():
        for i in range(60):
            ahead.append(i - len(running.done))
            yield partial(running.task, i, 0.001)

    run_tasks(tasks(), n_workers)
    assert max(ahead) < 2 * n_workers


def test_threads_are_kept_from_one_run_to_the_next():
    names: set[str] = set()
    meet = threading.Barrier(2, timeout=10)

    def note():
        meet.wait()
        names.add(threading.current_thread().name)

    for _ in range(5):
        run_tasks([note] * 6, 2)
    names.discard(threading.current_thread().name)  # which works too
    assert len(names) == 1
    assert all(name.startswith("gpushard") for name in names)


# Many items, one answer each


@pytest.mark.parametrize("n_workers", WORKERS)
@pytest.mark.parametrize("n_items", [0, 1, 2, 3, 7, 20])
def test_answers_come_in_the_order_of_their_items(n_workers, n_items):
    def late(item):
        time.sleep(0.002 if item % 3 == 0 else 0)
        return item * item

    items = list(range(n_items))
    assert run_side_by_side(late, items, n_workers) == [i * i for i in items]


def test_items_are_answered_side_by_side():
    meet = threading.Barrier(3, timeout=10)
    places = run_side_by_side(lambda _: meet.wait(), range(3), 3)
    assert sorted(places) == [0, 1, 2]


@pytest.mark.parametrize("n_workers", WORKERS)
def test_an_error_of_an_item_is_raised_as_it_is(n_workers):
    def answer(item):
        if item == 5:
            raise KeyError(item)
        return item

    with pytest.raises(KeyError, match="5"):
        run_side_by_side(answer, range(8), n_workers)


def test_tasks_may_ask_stores_however_many_wait_for_them():
    answers = []

    def task():
        answers.extend(run_side_by_side(lambda item: item, range(4), 2))

    run_tasks([task] * 8, 2)
    assert sorted(answers) == sorted(list(range(4)) * 8)


FORK = """
import os, signal, threading, time
from gpushard.threads.workers import run_side_by_side, run_tasks
done, both = [], threading.Barrier(2)
run_tasks([lambda: done.append(1)] * 8, 2)
run_side_by_side(lambda _: both.wait(), range(2), 2)
time.sleep(0.05)  # until both threads wait for work, of which the child has neither
if not os.fork():
    signal.alarm(20)
    run_tasks([lambda: done.append(1)] * 8, 2)
    run_side_by_side(str, range(4), 2)
    os._exit(len(done))
assert os.waitstatus_to_exitcode(os.wait()[1]) == 16
run_tasks([lambda: done.append(1)] * 8, 2)
assert len(done) == 16
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork on Windows")
def test_a_forked_child_gets_workers_of_its_own():
    # Python 3.12 warns of any fork with threads around; that it works is the point.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK]
    subprocess.run(command, check=True, timeout=60)


# Work in two steps


@pytest.mark.parametrize("n_workers", WORKERS)
def test_what_an_opener_gives_is_run_once_and_after_it(n_workers):
    running = Running()

    def begin(name):
        running.task((name, "begin"))
        return [partial(running.task, (name, i)) for i in range(name)]

    works = (Spawner(partial(begin, name), 1) for name in range(6))
    run_tasks((w for work in works for w in (work, lambda: None)), n_workers, 3)
    assert len(running.done) == len(set(running.done)) == 6 + 15
    for name in range(6):
        first, *rest = [i for at, i in running.done if at == name]
        assert first == "begin"
        assert sorted(rest) == list(range(name))


def test_what_a_single_opener_gives_is_run_side_by_side():
    meet = threading.Barrier(3, timeout=10)
    run_tasks([Spawner(lambda: [meet.wait] * 3, 0)], 3)


@pytest.mark.parametrize("most", [1, 10, 25, None])
def test_openers_hold_no_more_together_than_they_may(most):
    held = []
    lock = threading.Lock()
    now = 0

    def add(n):
        nonlocal now
        with lock:
            now += n
            held.append(now)

    def begin():
        add(10)
        left = iter(range(3))

        def use():
            time.sleep(0.001)
            if next(left) == 2:
                add(-10)

        return [use] * 3

    run_tasks((Spawner(begin, 10) for _ in range(12)), 4, most)
    assert max(held) <= {1: 10, 10: 10, 25: 20, None: 40}[most]
    assert now == 0


@pytest.mark.parametrize("n_workers", WORKERS)
@pytest.mark.parametrize("fails", ["begin", "task"])
def test_an_error_of_an_opener_or_of_what_it_gives_is_raised(n_workers, fails):
    running = Running()
    error = ValueError("the third")

    def begin(i):
        if (i, fails) == (3, "begin"):
            raise error
        late = error if (i, fails) == (3, "task") else None
        return [partial(running.task, i, 0.001, late)] * 2

    with pytest.raises(ValueError, match="the third"):
        run_tasks((Spawner(partial(begin, i), 1) for i in range(50)), n_workers, 2)
    assert running.now == 0
    assert len(running.done) <= 2 * (4 + n_workers)


def test_an_exit_while_others_wait_for_an_opener_ends_their_wait():
    def begin():
        time.sleep(0.02)  # the others have nothing to do by then
        raise SystemExit("leaving")

    for works in ([Spawner(begin, 1)] * 2, [lambda: None, Spawner(begin, 1)]):
        with pytest.raises(SystemExit, match="leaving"):
            run_tasks(works, 3)


@pytest.mark.parametrize("n_workers", WORKERS)
def test_what_a_spawner_fetched_is_let_go_of_before_the_next_one_fetches(n_workers):
    fetched: list[weakref.ref[set[int]]] = []

    def fetch():
        assert [ref() for ref in fetched] == [None] * len(fetched)
        what = {0}
        fetched.append(weakref.ref(what))
        # Who is done with the first waits, while the other one is still at work.
        return [partial(use, what, 0), partial(use, what, 0.002)]

    def use(what: set[int], seconds: float):
        assert what == {0}
        time.sleep(seconds)

    run_tasks([Spawner(fetch, 1)] * 20, n_workers, most_nbytes=1)
    assert len(fetched) == 20


class _Held:
    """What a function has in hand when it fails."""


@pytest.mark.parametrize("way", ["in turn", "side by side", "tasks"])
def test_what_failed_holds_nothing_once_its_error_is_dealt_with(way):
    held: list[weakref.ref[_Held]] = []

    def fails(_: object = None) -> None:
        in_hand = _Held()
        held.append(weakref.ref(in_hand))
        raise ValueError("damaged")

    gc.collect()
    gc.disable()
    try:
        with suppress(ValueError):
            if way == "in turn":
                run_in_turn(fails)
            elif way == "side by side":
                run_side_by_side(fails, [1, 2], 2)
            else:
                run_tasks([fails] * 3, 2)
        for _ in range(200):  # a thread of the pool may not have let go yet
            if all(one() is None for one in held):
                break
            time.sleep(0.005)
        assert held
        assert all(one() is None for one in held)
    finally:
        gc.enable()
