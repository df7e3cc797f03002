"""A system that gives no thread does not have those wait who call zarr later."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator

import pytest
from zarr.core import sync
from zarr.storage import MemoryStore

import gpushard
from gpushard.zarr_thread import running_loop


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.fixture(autouse=True)
def _no_loop(monkeypatch) -> Iterator[None]:
    """zarr's state at its import; its loop and its thread come back afterwards."""
    with monkeypatch.context() as patch:
        patch.setattr(sync, "loop", [None])
        patch.setattr(sync, "iothread", [None])
        yield
        if sync.loop[0] is not None and sync.iothread[0] is not None:
            sync.loop[0].call_soon_threadsafe(sync.loop[0].stop)
            sync.iothread[0].join()
            sync.loop[0].close()


def create() -> gpushard.Array:
    return gpushard.create_array(
        MemoryStore(), shape=(8,), dtype="u1", chunks=(2,), shards=(4,)
    )


def test_an_array_is_created_once_there_is_a_thread_again(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(gpushard.StoreError, match="ulimit -u"):
            create()
    a = create()
    a[...] = 7
    assert a[...].tolist() == [7] * 8


def test_an_array_is_created_once_there_are_file_descriptors_again(monkeypatch):
    def refuse_files() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "new_event_loop", refuse_files)
        with pytest.raises(gpushard.StoreError, match="no free file descr") as caught:
            create()
    assert "ulimit -n" in str(caught.value)
    a = create()
    a[...] = 7
    assert a[...].tolist() == [7] * 8


def test_a_time_limit_of_the_callers_ends_the_start_of_a_loop(monkeypatch):
    def run_out() -> None:
        raise TimeoutError("the caller's time is over")

    monkeypatch.setattr(asyncio, "new_event_loop", run_out)
    with pytest.raises(TimeoutError, match="caller"):
        create()


def test_a_loop_that_others_could_not_start_is_made_anew(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            sync._get_loop()
    answered = threading.Event()
    running_loop().call_soon_threadsafe(answered.set)
    assert answered.wait(10)


def test_a_loop_that_runs_is_kept():
    assert running_loop() is running_loop()
