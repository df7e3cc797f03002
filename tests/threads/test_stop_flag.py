"""A flag is set for good, and ends what waits for it or was begun for it."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from itertools import count

import pytest

from forked import answers_in_a_fork
from gpushard.errors import StoreError
from gpushard.stores.zarr.loop import run_in_loop
from gpushard.threads import pools
from gpushard.threads.stop_flag import (
    StopFlag,
    enter,
    flag_here,
    is_stopped,
    leave,
    stop_all,
    to_the_end,
)
from interrupts import is_cut_off

# Before its `try` no call looks for signals.
UNREACHED = (
    "to_the_end(self._set)",
    "interrupt: BaseException | None = None",
    "while True:",
    "try:",
)


class Noted:
    """A request that notes that it was broken off."""

    def __init__(self) -> None:
        self.n = 0

    def break_off(self) -> None:
        self.n += 1


@pytest.fixture
def flag() -> Iterator[StopFlag]:
    """One that this thread works for."""
    made = StopFlag()
    enter(made)
    yield made
    leave()


def test_a_flag_is_set_for_good_and_wakes_all_who_wait():
    flag, told = StopFlag(), []
    assert not flag.is_set()
    assert not flag.wait(0.001)
    threads = [
        threading.Thread(target=lambda: told.append(flag.wait(30))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for _ in range(2):
        flag.set()
    for thread in threads:
        thread.join(10)
    assert told == [True] * 3
    assert flag.is_set()
    assert flag.wait(0)


def test_requests_under_way_are_broken_off_once_and_no_others():
    flag, ended, under_way = StopFlag(), Noted(), [Noted(), Noted()]
    for request in (ended, *under_way):
        assert flag.begin(request)
    assert flag.end(ended)
    for _ in range(2):
        flag.set()
    assert [request.n for request in (ended, *under_way)] == [0, 1, 1]
    assert not flag.end(under_way[0])


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_at_any_line_of_setting_leaves_no_request_waiting(kind):
    for n_line in count(1):
        flag, requests = StopFlag(), [Noted(), Noted(), Noted()]
        for request in requests:
            flag.begin(request)
        modules, unreached = ("stop_flag.py", "test_stop_flag.py"), UNREACHED
        was_cut_off = is_cut_off(flag.set, n_line, modules, unreached, kind)
        assert all(request.n for request in requests)
        assert flag.wait(0)
        assert not any(flag.end(request) for request in requests)
        if not was_cut_off:
            break
    assert n_line > 10


@pytest.mark.parametrize(
    "use",
    [
        lambda step: to_the_end(step.interrupted_once),
        lambda step: pools.cancel_or_wait([step]),
    ],
    ids=["to_the_end", "cancel_or_wait"],
)
def test_what_an_interrupt_did_not_end_is_let_go_of_with_the_error(use):
    class Step:
        stop = StopFlag()
        n_times = 0

        def interrupted_once(self):
            self.n_times += 1
            if self.n_times == 1:
                raise KeyboardInterrupt
            return True

        cancel = interrupted_once

    step = Step()
    gone = weakref.ref(step)
    gc.disable()
    try:
        with pytest.raises(KeyboardInterrupt):
            use(step)
        assert step.n_times == 2
        del step
        assert gone() is None
    finally:
        gc.enable()


def test_a_request_that_ends_while_the_flag_is_set_is_left_alone():
    flag, ended = StopFlag(), Noted()

    class Ending(Noted):
        def break_off(self) -> None:
            assert flag.end(ended)

    flag.begin(Ending())
    flag.begin(ended)
    flag.set()
    assert ended.n == 0


def test_a_request_that_begins_too_late_is_told_and_is_broken_off_by_the_next_one():
    flag, late = StopFlag(), Noted()
    flag.set()
    assert not flag.begin(late)
    flag.set()
    assert late.n == 1


def test_a_thread_knows_for_whom_it_works(flag):
    seen: list[StopFlag | None] = []
    other = threading.Thread(target=lambda: seen.append(flag_here()))
    other.start()
    other.join(10)
    assert seen == [None]
    assert flag_here() is flag
    assert not is_stopped()
    stop_all()
    assert is_stopped()
    leave()
    assert not is_stopped()


def test_what_a_thread_hands_on_is_for_the_same_ones(flag):
    pool = pools.pool_of("store", 2)
    (future,) = pools.submit_all(pool, [flag_here])
    assert future.result() is flag
    leave()
    (future,) = pools.submit_all(pool, [flag_here])
    assert future.result() not in (None, flag)


def test_a_thread_that_works_for_others_does_not_stop_them(flag):
    futures = pools.submit_all(pools.pool_of("store", 2), [int])
    pools.break_off(futures)
    assert not flag.is_set()
    leave()
    pools.break_off(futures)
    assert flag.is_set()
    pools.cancel_or_wait(futures)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_threads_of_a_fork_work_for_nobody(flag):
    assert answers_in_a_fork(lambda: flag_here() is None)
    assert flag_here() is flag


@pytest.mark.parametrize("is_late", [False, True])
def test_what_a_zarr_store_is_asked_for_is_broken_off(flag, is_late):
    begun, cancelled = threading.Event(), []

    async def asked() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    def set_it() -> None:
        begun.wait(10)
        flag.set()

    if is_late:  # nothing is waited for that nobody wants
        flag.set()
    other = threading.Thread(target=set_it)
    other.start()
    with pytest.raises(StoreError, match="cancelled"):
        run_in_loop(asked)
    begun.set()
    other.join(10)
    assert cancelled == [1] or is_late
