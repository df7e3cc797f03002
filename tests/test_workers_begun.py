"""Tasks that other threads begin with before the calling one joins them."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from gpushard.workers import Begun


def test_others_begin_before_the_calling_thread_joins_them():
    first, done = threading.Event(), []

    def task(i):
        done.append(i)
        first.set()

    begun = Begun([partial(task, i) for i in range(20)], 2)
    assert first.wait(10)
    begun.finish()
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

    first = Begun([task, task], 2)
    second = Begun([is_next.set], 2)
    first.finish()
    second.finish()
    assert went_on == [True]


def test_an_error_of_what_others_have_begun_is_raised_when_they_are_joined():
    def task():
        raise ValueError("stop")

    begun = Begun([task], 3)
    with pytest.raises(ValueError, match="stop"):
        begun.finish()


def test_no_task_runs_once_what_others_have_begun_is_ended():
    first, running, done = threading.Event(), [], []

    def task():
        running.append(1)
        first.set()
        time.sleep(0.02)
        running.pop()
        done.append(1)

    begun = Begun([task] * 200, 3)
    assert first.wait(10)
    begun.end()
    assert not running
    assert len(done) < 10
