"""The handler of a signal that reads, wherever its thread was stopped.

Python runs it between any two steps of the main thread. A read that waits for its own
thread never ends, so each of these is done in a forked process.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import zstandard

import gpushard
from forked import answers_in_a_fork
from gpushard import Options
from gpushard.fused import choice
from gpushard.fused.columns import ZSTD
from gpushard.fused.libraries import HalfImportedError, find_library
from gpushard.memory.chunk_cache import ChunkCache
from gpushard.memory.known import IndexCache
from gpushard.options import MIB
from gpushard.stores.local import handles
from gpushard.threads import alone
from gpushard.threads.alone import Alone, is_inside
from gpushard.threads.pools import Pool
from gpushard.threads.workers import run_side_by_side
from held_alone import held_by_another_thread
from small_array import VALUES, write_values
from zarr_oracle import held

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="this platform cannot fork"
)
OPTIONS = Options(
    small_read_chunks=0, compile_nbytes=0, chunk_cache_nbytes=MIB, threads=4
)

# What a read does while no other thread may, by where it is.
STEPS: dict[str, tuple[Any, str]] = {
    "an index is kept": (IndexCache, "_put"),
    "inner chunks are looked for": (ChunkCache, "_found"),
    "memory for inner chunks is claimed": (ChunkCache, "_claimed"),
    "inner chunks are kept": (ChunkCache, "_keep"),
    "a file is kept open": (handles.HandleTable, "_keep"),
    "compiled loops are looked for": (choice, "_look_for_loops"),
}


def read_in_the_middle_of(step: tuple[Any, str], read: Callable[[], bool]) -> bool:
    """Whether `read` is true, inside of a step and around it."""
    owner, name = step
    good, told = getattr(owner, name), []

    def stopped(*args: Any, **kwargs: Any) -> Any:
        setattr(owner, name, good)  # a handler's own read is not stopped again
        told.append(read())
        return good(*args, **kwargs)

    setattr(owner, name, stopped)
    return read() and told == [True]


@pytest.mark.parametrize("step", STEPS)
def test_a_handler_reads_while(step, tmp_path, monkeypatch):
    monkeypatch.setattr(handles, "_SETTLED_NS", 0)  # keep what was just written, too
    place = write_values(tmp_path / "a")
    if "loops" in step:
        choice._load()  # to compile them could take the fork longer than it has
        monkeypatch.setattr(choice, "_loaded", [])

    def work() -> bool:
        a = gpushard.open_array(place, options=OPTIONS)
        return read_in_the_middle_of(STEPS[step], lambda: (a[...] == VALUES).all())

    assert answers_in_a_fork(work)


def test_a_handler_has_tasks_run_while_its_thread_gives_one_away():
    def is_run() -> bool:
        return run_side_by_side(str, range(8), 4) == [*map(str, range(8))]

    begun = Pool, "_begin_thread"
    assert answers_in_a_fork(lambda: read_in_the_middle_of(begun, is_run))


def is_read_well(a: gpushard.Array) -> bool:
    return bool((a[...] == VALUES).all())


# Where locks are taken that a handler might wait for.
WAITING = ("/threading.py", "/concurrent/", "/asyncio/", "/zarr/", "/stores/")


def interrupted_at(n_line: int, read: Callable[[], bool]) -> tuple[bool, bool]:
    """Whether a read is right that makes way for another, and whether it did.

    It does so before its line `n_line` of those where it might wait, each of which
    counts twice at most.
    """
    told: list[bool] = []
    n_left = n_line
    reached: Counter[tuple[str, int]] = Counter()

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal n_left
        if event == "call" and not any(w in frame.f_code.co_filename for w in WAITING):
            return None
        if event == "line":
            place = frame.f_code.co_filename, frame.f_lineno
            reached[place] += 1
            n_left -= reached[place] <= 2
        if n_left == 0 and not told:
            sys.settrace(None)
            told.append(read())
        return trace

    sys.settrace(trace)
    try:
        is_right = read()
    finally:
        sys.settrace(None)
    return is_right and all(told), bool(told)


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_handler_reads_before_any_line_of_what_may_wait(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(handles, "_SETTLED_NS", 0)  # keep what was just written, too
    place: Any = write_values(tmp_path / "a")
    if kind == "memory":
        paths = [path for path in place.rglob("*") if path.is_file()]
        place = held({str(p.relative_to(place)): p.read_bytes() for p in paths})

    def work() -> bool:
        n_line, is_right, has_come = 1, True, True
        while is_right and has_come:
            a = gpushard.open_array(place, options=OPTIONS)  # which has kept nothing
            is_right, has_come = interrupted_at(n_line, partial(is_read_well, a))
            n_line += 1
        return is_right and n_line > 20

    assert answers_in_a_fork(work)


def test_a_handler_reads_whenever_it_is_called(tmp_path):
    place = write_values(tmp_path / "a")

    def work() -> bool:
        a = gpushard.open_array(place, options=OPTIONS)
        rng, told = np.random.default_rng(0), []

        def read(*_: Any) -> None:
            told.append(bool((a[...] == VALUES).all() and (a[3] == VALUES[3]).all()))

        signal.signal(signal.SIGALRM, read)
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            signal.setitimer(signal.ITIMER_REAL, 1e-5 + 1e-3 * rng.random())
            read()
        signal.setitimer(signal.ITIMER_REAL, 0)
        return all(told)

    assert answers_in_a_fork(work)


def test_a_handler_reads_while_its_thread_imports_a_library(tmp_path, monkeypatch):
    backend = pytest.importorskip("zstandard.backend_cffi")
    a = gpushard.open_array(write_values(tmp_path / "a"), options=OPTIONS)
    find_library.cache_clear()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, backend.__name__, ModuleType(backend.__name__))
        patch.delattr(zstandard, "backend_cffi")
        assert is_read_well(a)
        with pytest.raises(HalfImportedError):
            find_library(ZSTD)
    assert find_library(ZSTD) is not None  # nobody keeps that it was not there


def test_what_is_done_alone_is_not_begun_again_by_its_own_thread():
    alone, done = Alone(), []

    def outer() -> str:
        done.append((is_inside(), alone.call(lambda: "inner")))
        return "outer"

    assert alone.call(outer) == "outer"
    assert done == [(True, None)]
    assert not is_inside()


def test_what_fails_alone_leaves_it_to_the_next():
    alone = Alone()
    with pytest.raises(ZeroDivisionError):
        alone.call(lambda: 1 // 0)
    assert not alone.is_entered
    assert not is_inside()
    assert alone.call(is_inside) is True


def test_what_there_is_no_memory_for_is_not_begun_and_says_so(monkeypatch):
    class Full(list[int]):
        def append(self, _: int) -> None:
            raise MemoryError

    turn = alone.Alone()
    with monkeypatch.context() as patch:
        patch.setattr(alone, "_inside", Full())
        with pytest.raises(MemoryError):
            turn.call(pytest.fail, "began")
    assert not turn.is_entered
    assert turn.call(lambda: 3) == 3


def test_another_thread_waits_for_what_is_done_alone():
    alone, order = Alone(), []
    with ThreadPoolExecutor(1) as pool:
        with held_by_another_thread(alone):
            later = pool.submit(alone.call, order.append, "later")
            time.sleep(0.02)
            order.append("first")
        later.result()
    assert order == ["first", "later"]
