"""Warnings of others that are left out, while other threads run."""

from __future__ import annotations

import os
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import gpushard
from gpushard import quiet
from gpushard.quiet import without_warnings
from zarr_oracle import quiet_zarr

# One that zarr decodes.
CHECKSUM = {"name": "numcodecs.adler32", "configuration": {}}


def warn_quietly():
    with without_warnings():
        warnings.warn("of no use", stacklevel=1)


def create():
    gpushard.create_array(MemoryStore(), shape=(3,), chunks=(2,), dtype="i4")


@pytest.fixture(scope="module")
def decoded_by_zarr():
    store = MemoryStore()
    with quiet_zarr():
        z = zarr.create_array(
            store, data=np.ones(3), chunks=(2,), compressors=[CHECKSUM]
        )
    assert z.shape == (3,)
    return lambda: gpushard.open_array(store, device="cpu")


@pytest.mark.parametrize("door", ["a block", "create_array", "open_array"])
def test_threads_that_leave_out_warnings_at_once_put_the_filters_back(
    door, decoded_by_zarr, monkeypatch
):
    doors = {"a block": warn_quietly, "create_array": create}
    work = doors.get(door, decoded_by_zarr)
    leave_out = warnings.simplefilter
    n_left_out = []

    def slowly(*filters):
        leave_out(*filters)
        n_left_out.append(1)
        # The other threads come, too, and leave in the order in which they came.
        time.sleep(0.03 * len(n_left_out))

    monkeypatch.setattr(warnings, "simplefilter", slowly)
    before = list(warnings.filters)
    start = threading.Barrier(4)

    def begin():
        start.wait()
        work()

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(begin) for _ in range(4)]:
            future.result()
    assert len(n_left_out) >= 4
    assert warnings.filters == before


def test_a_thread_leaves_out_warnings_within_what_leaves_them_out():
    before = list(warnings.filters)
    with without_warnings():
        warn_quietly()
        warnings.warn("still of no use", stacklevel=1)
    assert warnings.filters == before


def test_filters_are_put_back_after_an_error():
    before = list(warnings.filters)
    with pytest.raises(ZeroDivisionError), without_warnings():
        1 / 0  # noqa: B018
    assert warnings.filters == before
    with ThreadPoolExecutor(1) as pool:
        pool.submit(warn_quietly).result(timeout=10)


def test_who_waits_for_his_turn_in_vain_goes_on(monkeypatch):
    monkeypatch.setattr(quiet, "_PATIENCE_S", 0.01)
    with without_warnings(), ThreadPoolExecutor(1) as pool:
        pool.submit(warn_quietly).result(timeout=10)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_waits_for_no_thread_of_its_parent(monkeypatch):
    monkeypatch.setattr(quiet, "_PATIENCE_S", 60.0)
    is_held, is_over = threading.Event(), threading.Event()

    def hold():
        with without_warnings():
            is_held.set()
            is_over.wait(30)

    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(hold)
        is_held.wait(30)
        child = os.fork()
        if child == 0:
            start = time.monotonic()
            warn_quietly()
            os._exit(0 if time.monotonic() - start < 30 else 1)
        _, status = os.waitpid(child, 0)
        is_over.set()
        held.result(timeout=30)
    assert os.waitstatus_to_exitcode(status) == 0
