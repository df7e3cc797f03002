"""Work at the end of a process, when its pools begin no more threads."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from gpushard import pools
from gpushard.workers import Begun, run_in_turn, run_side_by_side, run_tasks


@pytest.fixture(params=[0, 1])
def refused(request, monkeypatch) -> None:
    """Pools take so many tasks, and no more, as when the interpreter ends."""
    left, submit = [request.param], ThreadPoolExecutor.submit

    def submit_if_any(*given):
        if not left[0]:
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")
        left[0] -= 1
        return submit(*given)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_if_any)


@pytest.mark.usefixtures("refused")
def test_the_calling_thread_does_what_no_other_can():
    done: list[int] = []
    tasks = [lambda k=k: done.append(k) for k in range(9)]
    run_tasks(tasks, 4)
    Begun(tasks, 4).finish()
    assert sorted(done) == sorted([*range(9)] * 2)


@pytest.mark.usefixtures("refused")
def test_items_of_a_store_are_read_in_the_calling_thread():
    assert run_side_by_side(lambda k: -k, range(9), 4) == [-k for k in range(9)]


@pytest.mark.usefixtures("refused")
def test_work_that_takes_turns_is_done_once():
    seen: list[threading.Thread] = []
    for _ in range(2):
        run_in_turn(lambda: seen.append(threading.current_thread()))
    assert len(seen) == 2
    assert seen[1] is threading.current_thread()


def test_a_pool_that_gets_no_thread_keeps_nothing_of_its_tasks(monkeypatch):
    class Item:
        pass

    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(pools, "_pools", {})
    monkeypatch.setattr(threading.Thread, "start", refuse)
    items = [Item() for _ in range(4)]
    left = [weakref.ref(item) for item in items]
    assert run_side_by_side(type, items, 4) == [Item] * 4
    items.clear()
    assert [item() for item in left] == [None] * 4


@pytest.fixture
def one_thread_each(monkeypatch) -> None:
    """Pools get a thread, and no second one, as at a container's limit of threads."""
    begin, begun = threading.Thread.start, set()

    def begin_one(thread):
        pool = thread.name.rpartition("_")[0]
        if pool in begun:
            raise RuntimeError("can't start new thread")
        begun.add(pool)
        begin(thread)

    monkeypatch.setattr(pools, "_pools", {})
    monkeypatch.setattr(threading.Thread, "start", begin_one)


@pytest.mark.usefixtures("one_thread_each")
def test_a_task_that_the_calling_thread_took_over_runs_once():
    read: list[int] = []
    is_again = threading.Event()

    def function(item: int) -> int:
        if item in read:
            is_again.set()
        read.append(item)
        if item == 3:  # the calling thread's last; another has time to begin
            is_again.wait(0.1)
        return -item

    assert run_side_by_side(function, range(4), 4) == [0, -1, -2, -3]
    assert sorted(read) == [0, 1, 2, 3]


@pytest.mark.usefixtures("one_thread_each")
def test_no_thread_works_for_a_caller_that_does_not_wait_for_it():
    pool = pools.pool_of("store", 2)
    is_seen, goes_on, ran = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        is_seen.set()
        goes_on.wait(10)

    futures = pools.begun(pool, [first, ran.set])
    assert is_seen.wait(10)
    assert len(futures) == 1
    goes_on.set()
    futures[0].result(10)
    assert not ran.wait(0.1)


def test_a_task_that_began_before_its_pool_failed_is_waited_for():
    class Pool:
        """Begins a task in another thread, and then fails."""

        def submit(self, run, handed):
            threading.Thread(target=run, args=(handed,)).start()
            is_begun.wait(10)
            raise RuntimeError("can't start new thread")

    def task() -> int:
        is_begun.set()
        return 7

    is_begun = threading.Event()
    (future,) = pools.begun(cast("ThreadPoolExecutor", Pool()), [task, task])
    assert future.result(10) == 7
