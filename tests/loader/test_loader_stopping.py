"""A read that nobody waits for ends at each of its tasks."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from itertools import count, islice
from types import SimpleNamespace
from typing import Any
from weakref import ref

import numpy as np
import pytest

from gpushard import Loader, OptionError
from gpushard.fetching.job import Job
from gpushard.loader import prefetch, reading
from gpushard.loader.prefetch import Prefetched, WaitStats
from gpushard.loader.stopping import Stopped, stoppable
from gpushard.threads.stop_flag import StopFlag
from loader_data import N, images
from places import DIGITS

NOTHING: Any = None


class Noted:
    """A sink, and what reads by itself, that note what they are asked for."""

    seen = frozenset({"c/0"})

    def __init__(self) -> None:
        self.asked: list[str] = []

    def job_reader(self, job: Any) -> Any:
        return self

    def tasks(self, n_workers: int) -> Any:
        return iter([lambda: self.asked.append("task")] * n_workers)

    def left_over(self) -> Any:
        return iter(["block"])

    def fetch(self, job: Any, requests: Any, n_rows: int) -> Any:
        self.asked.append("fetch")

    def request_reader(self, job: Any, ranged: Any) -> Any:
        self.asked.append("request_reader")
        return lambda n_workers, done: self.tasks(n_workers)

    def place(self, job: Any, ranged: Any, fetched: Any) -> None:
        self.asked.append("place")


WAYS = {
    "fetch": lambda sink: sink.fetch(NOTHING, [], 0),
    "request_reader": lambda sink: sink.request_reader(NOTHING, NOTHING),
    "place": lambda sink: sink.place(NOTHING, NOTHING, []),
}


def stoppable_sink() -> tuple[Noted, StopFlag, Any]:
    noted: Any = Noted()
    stop = StopFlag()
    job = stoppable(Job(NOTHING, NOTHING, noted, NOTHING), stop)
    return noted, stop, job.sink


@pytest.mark.parametrize("way", WAYS)
def test_nothing_more_is_asked_for_once_nobody_waits(way):
    noted, stop, sink = stoppable_sink()
    WAYS[way](sink)
    assert noted.asked == [way]
    stop.set()
    with pytest.raises(Stopped):
        WAYS[way](sink)
    assert noted.asked == [way]


def test_requests_that_were_given_out_are_not_read_any_more():
    noted, stop, sink = stoppable_sink()
    first, second = sink.request_reader(NOTHING, NOTHING)(2, NOTHING)
    first()
    stop.set()
    with pytest.raises(Stopped):
        second()
    assert noted.asked == ["request_reader", "task"]


def test_tasks_that_were_given_out_are_not_run_any_more():
    noted, stop, sink = stoppable_sink()
    reader = sink.job_reader(NOTHING)
    first, second = reader.tasks(2)
    first()
    stop.set()
    with pytest.raises(Stopped):
        second()
    assert noted.asked == ["task"]


def test_what_reads_by_itself_says_the_same_about_what_is_left():
    noted, _, sink = stoppable_sink()
    reader = sink.job_reader(NOTHING)
    assert reader.seen == noted.seen
    assert list(reader.left_over()) == ["block"]


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_thread_ends_though_an_interrupt_kept_it_from_being_told(
    is_forgotten, monkeypatch
):
    monkeypatch.setattr(prefetch, "_LOOK_AGAIN_S", 0.01)
    stage = Prefetched(iter("abc"), 1, StopFlag(), WaitStats())
    stage.start()
    while not stage._channel.items.qsize():
        time.sleep(0.001)
    time.sleep(0.02)  # until it waits for room
    thread = stage._thread
    # As far as either gets.
    cut_off = (lambda _: None) if is_forgotten else (lambda line: line.stop.set())
    monkeypatch.setattr(prefetch._Channel, "end", cut_off)
    if is_forgotten:
        del stage
    else:
        stage.close()
    thread.join(5)
    assert not thread.is_alive()


def interrupted_at(n_line: int, work: Any) -> KeyboardInterrupt:
    """Interrupt of `work`, which has no end, before its n-th line."""
    n_seen = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal n_seen
        n_seen += event == "line"
        if n_seen == n_line:
            raise KeyboardInterrupt
        return trace

    traced = sys.gettrace()
    try:
        sys.settrace(trace)
        work()
    except KeyboardInterrupt as interrupt:
        return interrupt
    finally:
        sys.settrace(traced)
    raise AssertionError("it has come to an end")


def test_an_interrupt_of_the_wait_for_a_thread_says_nothing_of_the_wait(monkeypatch):
    def wait():
        try:
            raise of_the_caller
        except ValueError:
            prefetch._next_item(channel, thread)

    monkeypatch.setattr(prefetch, "_LOOK_AGAIN_S", 0)  # it looks again and again
    thread: Any = SimpleNamespace(is_alive=lambda: True)
    channel, of_the_caller = prefetch._Channel(StopFlag()), ValueError()
    contexts = [interrupted_at(n, wait).__context__ for n in range(4, 60)]
    assert set(contexts) == {of_the_caller}
    assert of_the_caller.__context__ is None


def ready(items, stop):
    """Items of which two were made ahead."""
    stage = Prefetched(items, 2, stop, WaitStats())
    stage.start()
    while stage._channel.items.qsize() < 2:
        time.sleep(0.001)
    return stage


def test_nothing_is_handed_out_any_more_once_it_is_to_end():
    stop = StopFlag()
    stage = ready(iter("abc"), stop)
    stop.set()
    with pytest.raises(StopIteration):
        next(stage)
    stage.close()


def test_what_was_made_ahead_and_is_not_wanted_any_more_is_dropped():
    class Item:
        """One that can be told to be gone."""

    def items():
        while True:
            item = Item()
            made.append(ref(item))
            yield item

    made = []
    stage = ready(items(), StopFlag())
    stage.close()
    stage.join(10)
    assert len(made) >= 2
    assert not [item for item in made if item() is not None]


def test_an_iteration_that_begins_ends_one_that_was_begun_after_it_was_made():
    with Loader(images(), batch_size=8) as loader:
        early, late = iter(loader), iter(loader)
        next(late)
        ended = loader._pass
        next(early)
        assert ended._epochs._stop.is_set()
        assert not loader._pass._epochs._stop.is_set()


@pytest.mark.parametrize("takes", [0, 1, N // 8])
def test_no_thread_of_an_iteration_that_was_left_is_alive_after_close(takes):
    def slow_once(batch):
        if next(numbers) == 1:
            has_begun.set()
            goes_on.wait(20)
        return batch

    numbers, has_begun, goes_on = count(), threading.Event(), threading.Event()
    loader = Loader(images(), batch_size=8, transform=slow_once, epochs=2)
    for _ in loader:
        assert has_begun.wait(20)
        break
    assert len(list(islice(loader, takes))) == takes
    threading.Timer(0.2, goes_on.set).start()
    loader.close()
    assert goes_on.is_set()
    assert not [one for one in prefetch._running() if one.owner is loader._progress]


def test_a_wait_for_an_iteration_that_was_left_is_short_during_an_interrupt():
    def slow_once(batch):
        if next(numbers) == 1:
            goes_on.wait(20)
        return batch

    numbers, goes_on = count(), threading.Event()
    loader = Loader(images(), transform=slow_once)
    next(iter(loader))
    next(iter(loader))
    begin = time.monotonic()
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        loader.close()
    assert time.monotonic() - begin < 5
    goes_on.set()


@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_a_transform_may_close_its_loader(prefetch_factor):
    def closing(batch):
        loader.close()
        return batch

    options = {"batch_size": 8, "prefetch_factor": prefetch_factor}
    loader = Loader(images(), transform=closing, **options)
    with pytest.raises(OptionError, match="closed"):
        list(loader)


UNFINISHED = """
import sys, threading, time, gpushard
from gpushard.loader import prefetch
labels, way = gpushard.open_array(sys.argv[1], device="cpu"), sys.argv[2]
n_batches, is_begun = 0, threading.Event()
if way == "endless":
    prefetch._LONGEST_AT_EXIT_S = 0.2
def transform(batch):
    global n_batches
    n_batches += 1
    if n_batches == 2:
        is_begun.set()
        time.sleep(30 if way == "endless" else 0.3)
        print("transformed", flush=True)
    return batch
loader = gpushard.Loader(labels, batch_size=1, transform=transform)
batches = iter(loader)
next(batches)
is_begun.wait()
if way == "dropped":
    del loader, batches
"""


def said_at_the_end(way: str) -> tuple[int, str, str]:
    """Status and output of a program that ends while its second batch is made."""
    run = subprocess.run(
        [sys.executable, "-c", UNFINISHED, str(DIGITS / "labels"), way],
        capture_output=True,
        text=True,
        check=False,
        timeout=25,
    )
    return run.returncode, run.stdout, run.stderr


@pytest.mark.parametrize("way", ["kept", "dropped"])
def test_a_program_ends_after_the_batch_that_is_being_transformed(way):
    assert said_at_the_end(way) == (0, "transformed\n", "")


def test_a_program_does_not_wait_for_a_transform_that_takes_very_long():
    assert said_at_the_end("endless") == (0, "", "")


class Trainer:
    """It has an iteration, whose loader has functions of it."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.n_changed = 0
        given = {name: getattr(self, name) for name in ("transform", "sampler")}
        own = {name: given[name] for name in options.pop("own")}
        self.batches = iter(Loader(images(), batch_size=4, **own, **options))
        next(self.batches)

    def transform(self, batch: Any) -> Any:
        self.n_changed += 1
        return batch

    def sampler(self, epoch: int) -> Any:
        return np.arange(epoch, N)


@pytest.mark.parametrize(
    "options",
    [
        {"own": ["transform"]},
        {"own": ["sampler"]},
        {"own": ["transform", "sampler"]},
        {"own": ["transform"], "epochs": 9, "shuffle": True},
        {"own": ["transform"], "prefetch_factor": 0},
    ],
)
@pytest.mark.parametrize("load_nbytes", [1, reading.LOAD_NBYTES])
def test_a_forgotten_iteration_whose_loader_leads_to_it_ends(
    options, load_nbytes, monkeypatch
):
    monkeypatch.setattr(reading, "LOAD_NBYTES", load_nbytes)
    before = set(threading.enumerate())
    trainer = ref(Trainer({**options}))
    deadline = time.monotonic() + 20
    while trainer() is not None and time.monotonic() < deadline:
        gc.collect()  # again: a thread that makes a batch has a reference to it
        time.sleep(0.01)
    assert trainer() is None
    for thread in set(threading.enumerate()) - before:
        if thread.name == "gpushard-loader":
            thread.join(20)
            assert not thread.is_alive()
