"""Work at the end of a process, when its pools begin no more threads."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
import weakref

import pytest

from gpushard.stores import obstores
from gpushard.threads import pools
from gpushard.threads.pools import Pool, run_in_turn
from gpushard.threads.stop_flag import StopFlag
from gpushard.threads.workers import StartedTasks, run_side_by_side, run_tasks


@pytest.fixture(params=[0, 1])
def refused(request, monkeypatch) -> None:
    """Pools take so many tasks, and no more, as when the interpreter ends."""
    left, submit = [request.param], Pool.submit

    def submit_if_any(*given):
        left[0] -= 1
        return left[0] >= 0 and submit(*given)

    monkeypatch.setattr(Pool, "submit", submit_if_any)


@pytest.mark.usefixtures("refused")
def test_the_calling_thread_does_what_no_other_can():
    done: list[int] = []
    tasks = [lambda k=k: done.append(k) for k in range(9)]
    run_tasks(tasks, 4)
    StartedTasks(tasks, 4).finish()
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

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(pools, "_pools", {})
    monkeypatch.setattr(pools, "start_new_thread", refuse)
    items = [Item() for _ in range(4)]
    left = [weakref.ref(item) for item in items]
    assert run_side_by_side(type, items, 4) == [Item] * 4
    items.clear()
    assert [item() for item in left] == [None] * 4


@pytest.fixture
def one_thread_each(monkeypatch) -> None:
    """Pools get a thread, and no second one, as at a container's limit of threads."""
    begin, begun = pools.start_new_thread, []

    def begin_one(serve, given):
        if serve.__self__ in begun:
            raise RuntimeError("can't start new thread")
        begun.append(serve.__self__)
        begin(serve, given)

    monkeypatch.setattr(pools, "_pools", {})
    monkeypatch.setattr(pools, "start_new_thread", begin_one)


def test_a_thread_that_finds_no_memory_for_its_first_step_is_not_counted(monkeypatch):
    """It ends without a word. Nobody waits for it, not even at the end."""
    begin = pools.start_new_thread
    monkeypatch.setattr(
        pools, "start_new_thread", lambda _, given: begin(lambda *_: None, given)
    )
    pool = Pool("rare", 1)
    assert not pool.submit(pools.Future(lambda: 3, StopFlag()))
    assert not pool._serving
    assert pool.end(0)


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

    (future,) = pools.submit_all(pool, [first, ran.set])
    assert is_seen.wait(10)
    goes_on.set()
    future.result()
    assert not ran.wait(0.1)


def test_what_was_handed_over_before_an_interrupt_has_ended_or_never_begins():
    ran = []

    def work() -> None:
        time.sleep(0.02)
        ran.append(None)

    def tasks():
        yield work
        yield work
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pools.submit_all(pools.pool_of("store", 2), tasks())
    n_ran = len(ran)
    time.sleep(0.1)
    assert len(ran) == n_ran


def test_a_pool_begins_no_more_threads_than_are_busy():
    pool = Pool("store", 3)
    for _ in range(4):
        (future,) = pools.submit_all(pool, [int])
        assert future.result() == 0
    assert len(pool._serving) == 1
    goes_on = threading.Event()
    there = pools.submit_all(pool, [goes_on.wait] * 5)
    assert len(there) == 5
    assert len(pool._serving) == 3
    goes_on.set()
    assert all(future.result() for future in there)


def test_a_task_that_waits_for_a_busy_thread_is_done_by_its_caller():
    goes_on, is_seen = threading.Event(), threading.Event()

    def first() -> None:
        is_seen.set()
        goes_on.wait(10)

    (busy,) = pools.submit_all(pools.pool_of("store", 2), [first])
    others = pools.submit_all(pools.pool_of("store", 2), [goes_on.wait])
    assert is_seen.wait(10)
    assert run_side_by_side(lambda k: -k, range(2), 2) == [0, -1]
    goes_on.set()
    pools.cancel_or_wait([busy, *others])


AT_EXIT = """
import threading, time
from gpushard.threads import pools

def work():
    begun.set()
    time.sleep(0.2)
    print("ended", flush=True)

begun, pool = threading.Event(), pools.pool_of("read", 2)
pools.submit_all(pool, [work])
begun.wait()
"""


def test_the_interpreter_waits_for_what_runs_in_a_pool():
    told = subprocess.run(
        [sys.executable, "-c", AT_EXIT], capture_output=True, text=True, check=True
    )
    assert told.stdout == "ended\n"
    assert not told.stderr


def at_exit(body: str) -> tuple[str, str, float]:
    """What a program tells whose pool runs what `body` says, and seconds to its end."""
    program = textwrap.dedent(AT_EXIT_OTHERS).format(body=body)
    began = time.perf_counter()
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return told.stdout, told.stderr, time.perf_counter() - began


AT_EXIT_OTHERS = """
import atexit, os, signal, threading, time
from gpushard.threads import pools
from gpushard.threads.stop_flag import flag_here
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background

def leave(*_):
    raise SystemExit
signal.signal(signal.SIGTERM, leave)

def work():
    begun.set()
    {body}
    print("ended", flush=True)

begun = threading.Event()
pools.submit_all(pools.pool_of("store", 2), [work])
begun.wait()
"""


def test_at_the_end_of_the_interpreter_nobody_waits_for_requests():
    out, err, took = at_exit("flag_here().wait(30)")
    assert out == "ended\n"
    assert not err
    assert took < 10


def test_the_interpreter_pauses_for_other_libraries_after_all_has_ended():
    out, err, took = at_exit(
        "pools.pause_at_end(0.4); pools.pause_at_end(0.6); "
        "sleep = time.sleep; sleep(0.2); "
        "time.sleep = lambda s: (print(f'pause {s}', flush=True), sleep(s))"
    )
    assert out == "ended\npause 0.6\n"
    assert not err
    assert took > 0.6


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_an_interrupt_at_the_end_of_the_interpreter_is_not_told(number):
    kill = f"os.kill(os.getpid(), signal.{number})"
    out, err, took = at_exit(f"time.sleep(0.2); {kill}; time.sleep(30)")
    assert not out
    assert not err
    assert took < 10


def test_a_pool_that_has_ended_begins_nothing():
    pool = Pool("read", 2)
    (future,) = pools.submit_all(pool, [int])
    pool.end()
    assert future.result() == 0
    assert pools.submit_all(pool, [int]) == []


def test_a_process_that_reads_through_obstore_pauses_before_it_ends(monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr(obstores, "pause_at_end", pauses.append)
    monkeypatch.setattr(obstores, "_loops", {})
    before = {*threading.enumerate()}
    loop = obstores._loop()
    assert obstores._loop() is loop
    loop.call_soon_threadsafe(loop.stop)
    for thread in {*threading.enumerate()} - before:
        thread.join()
    loop.close()
    assert pauses == [obstores._PAUSE_S]
