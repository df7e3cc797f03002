"""Tasks that other threads begin with before the calling one joins them."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from gpushard.threads.pools import Future, Pool
from gpushard.threads.stop_flag import StopFlag
from gpushard.threads.workers import StartedTasks, run_side_by_side, run_tasks


def test_others_begin_before_the_calling_thread_joins_them():
    first, done = threading.Event(), []

    def task(i):
        done.append(i)
        first.set()

    started = StartedTasks([partial(task, i) for i in range(20)], 2)
    assert first.wait(10)
    started.finish()
    assert sorted(done) == list(range(20))


def test_a_worker_goes_on_to_what_was_begun_next_while_others_are_still_busy():
    """A thread of the pool that finds nothing to take waits for nobody's task."""
    caller = threading.get_ident()
    is_busy, is_next = threading.Event(), threading.Event()
    went_on = []

    def task():
        if threading.get_ident() != caller:
            assert is_busy.wait(10)
            return
        is_busy.set()
        went_on.append(is_next.wait(10))

    first = StartedTasks([task, task], 2)
    second = StartedTasks([is_next.set], 2)
    first.finish()
    second.finish()
    assert went_on == [True]


@pytest.mark.parametrize("n_beside", [1, 3])
def test_what_is_asked_for_ahead_has_threads_beside_those_of_the_reads_before(n_beside):
    is_last, went_on = threading.Event(), []

    def task():
        went_on.append(is_last.wait(10))

    first = [StartedTasks([task], 2, n_beside=n_beside) for _ in range(n_beside)]
    last = StartedTasks([is_last.set], 2, n_beside=n_beside)
    deadline = time.monotonic() + 10
    while len(went_on) < n_beside and time.monotonic() < deadline:
        time.sleep(0.01)
    for started in (*first, last):
        started.finish()
    assert went_on == [True] * n_beside


def test_an_error_of_what_others_have_begun_is_raised_when_they_are_joined():
    def task():
        raise ValueError("stop")

    started = StartedTasks([task], 3)
    with pytest.raises(ValueError, match="stop"):
        started.finish()


def test_no_task_runs_once_what_others_have_begun_is_ended():
    first, running, done = threading.Event(), [], []

    def task():
        running.append(1)
        first.set()
        time.sleep(0.02)
        running.pop()
        done.append(1)

    started = StartedTasks([task] * 200, 3)
    assert first.wait(10)
    started.end()
    assert not running
    assert len(done) < 10


def test_only_one_worker_draws_at_a_time():
    """A generator that two draw from at once fails."""
    done: list[int] = []

    def tasks():
        for i in range(8):
            yield partial(done.append, i)
            time.sleep(0.01)

    run_tasks(tasks(), 4)
    assert sorted(done) == list(range(8))


def test_once_an_item_has_failed_no_other_thread_begins_one():
    failed, done = threading.Event(), []

    def answer(i):
        if i == 1:
            failed.set()
            raise OSError("no more")
        assert failed.wait(10)
        time.sleep(0.01)
        done.append(i)

    with pytest.raises(OSError, match="no more"):
        run_side_by_side(answer, range(20), 2)
    assert len(done) < 10  # of those that are the other thread's


def test_tasks_that_several_threads_submit_at_once_all_begin_at_once():
    """Two that both count on the one free thread would leave a task to wait."""
    n_threads, n_each = 8, 4
    all_run = threading.Barrier(n_threads * n_each + 1)
    submits = threading.Barrier(n_threads)
    pool = Pool("store", 2 * n_threads * n_each)

    def submit():
        submits.wait(10)
        for _ in range(n_each):
            assert pool.submit(Future(partial(all_run.wait, 10), StopFlag()))

    threads = [threading.Thread(target=submit) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    all_run.wait(10)  # raises unless every task has a thread
    assert pool.end(time.monotonic() + 10)
