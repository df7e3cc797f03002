"""Servers that fall silent do not keep a program that is interrupted, or has enough."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpushard
from gpushard.loader.loads import Incidents
from gpushard.loader.reading import Reader
from gpushard.threads.stop_flag import StopFlag, enter, leave
from places import ROOT
from range_server import RangeServer
from small_array import write_values

pytestmark = pytest.mark.network


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    with RangeServer(write_values(tmp_path / "a")) as running:
        yield running


INTERRUPTED = """
import signal, sys, threading, gpushard
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
a = gpushard.open_array(sys.argv[1], options=gpushard.Options(patience_s=60))
print("opened", flush=True)
try:
    a[...]
except KeyboardInterrupt:
    from gpushard.threads.pools import _pools
    busy = [p._tasks.qsize() for p in _pools.values()]
    idle = all(p._serving and not p._unended for p in _pools.values())
    print("interrupted", sum(busy), idle, flush=True)
"""


def interrupted(server: RangeServer, program: str) -> tuple[str, str, float]:
    """What an interrupted program tells beside a silent server; seconds to its end."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, server.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "opened\n"
    server.silence_s = 30
    # Not when a loader looks again whether its thread lives, as each second: an
    # interrupt would then be told with the end of that wait.
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    started = time.perf_counter()
    out, err = process.communicate(timeout=40)
    return out, err, time.perf_counter() - started


def test_an_interrupted_read_leaves_nothing_running(server):
    out, _, took = interrupted(server, INTERRUPTED)
    assert out == "interrupted 0 True\n"
    assert took < 3


LOADING = """
import os, signal, sys, threading, gpushard
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
options = gpushard.Options(patience_s=60, chunk_cache_nbytes=0, index_cache_nbytes=0)
a = gpushard.open_array(sys.argv[1], options=options)
loader = gpushard.Loader(a, batch_size=1, shuffle=True)
print("opened", flush=True)
{loop}
"""
LOOPS = {
    "for": "while True:\n    for batch in loader: pass",
    "with": "with loader:\n    while True:\n        for batch in loader: pass",
    # A generator that nobody closes before the interpreter ends.
    "next": "batches = iter(loader)\nwhile True:\n    for batch in batches: pass\n"
    "    batches = iter(loader)",
}


@pytest.mark.parametrize("loop", LOOPS)
def test_an_interrupted_program_with_a_loader_ends_soon(server, loop):
    out, err, took = interrupted(server, LOADING.format(loop=LOOPS[loop]))
    assert not out
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert err.count("Traceback") == 1
    assert "Exception ignored" not in err
    assert took < 3


def test_a_loader_closes_at_once_beside_a_silent_server(server):
    options = gpushard.Options(
        patience_s=60, chunk_cache_nbytes=0, index_cache_nbytes=0
    )
    loader = gpushard.Loader(gpushard.open_array(server.url, options=options))
    server.silence_s = 30
    closing = threading.Timer(0.3, loader.close)
    closing.start()
    started = time.perf_counter()
    with pytest.raises(gpushard.OptionError, match="closed"):
        next(iter(loader))
    closing.join()  # which waits for the threads of the loader
    assert time.perf_counter() - started < 3


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_request_that_was_broken_off_is_no_failure_of_a_loader(server, on_error):
    loader = gpushard.Loader(
        gpushard.open_array(server.url), prefetch_factor=0, on_error=on_error
    )
    settings, stop = loader._settings, StopFlag()
    incidents = Incidents()
    reader = Reader(
        fields=settings.fields,
        origins=settings.origins,
        axis=settings.fields[0].axis("chunk"),
        place=settings.place(),
        on_error=on_error,
        stop=stop,
        incidents=incidents,
    )
    order = settings.shuffling.order(0)
    plans = reader.plans(order, settings.share(order.n), 0)
    server.silence_s = 30
    threading.Timer(0.2, stop.set).start()
    enter(stop)
    try:
        assert not list(reader.loads(plans))
    finally:
        leave()
    assert incidents == Incidents()
