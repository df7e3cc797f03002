"""A GPU as that of the calling thread, over a stand-in for CuPy with two of them."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import gpushard
from cuda_cases import opened, stored, two_gpus
from gpushard.device_reading import sink
from gpushard.devices import find
from gpushard.devices.cuda import CudaDevice
from gpushard.threads.stop_flag import StopFlag, enter, leave
from zarr_oracle import assert_same_bits


@pytest.fixture
def cupy(monkeypatch, tmp_path):
    yield from two_gpus(monkeypatch, tmp_path)


def test_threads_make_no_context_on_a_gpu_that_nobody_reads_on(
    cupy, tmp_path, monkeypatch
):
    """As where each process of a training has set a GPU of its own.

    All threads begin with the first GPU, which another process may have.
    """
    cupy.runtime.setDevice(1)
    values = stored(tmp_path / "a")
    monkeypatch.setattr(sink, "_ENOUGH_ROWS", 2)
    monkeypatch.setattr(sink, "_ENOUGH_NBYTES", 1)
    used = set()
    query = cupy.runtime.streamQuery

    def noting(stream):
        used.add(threading.get_ident())
        return query(stream)

    monkeypatch.setattr(cupy.runtime, "streamQuery", noting)
    a = opened(tmp_path / "a", "cuda:1")
    assert_same_bits(a[...].get(), values)
    loader = gpushard.Loader(a, batch_size=4, device="cuda:1")
    got = [batch.get() for batch in loader]
    assert_same_bits(np.concatenate(got), values)
    device = find.find_device("cuda:1").device
    device._waits.beside(device.free_nbytes)
    assert len(used) > 1
    assert cupy.contexts == {1}


def test_a_thread_of_ours_has_its_device_again_after_another_one(cupy):
    first, second = CudaDevice(0), CudaDevice(1)
    found = []

    def work():
        enter(StopFlag())
        try:
            with second._current():
                with first._current():
                    found.append(cupy.thread.device)
                found.append(cupy.thread.device)
            found.append(cupy.thread.device)
        finally:
            leave()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [0, 1, 1]


def test_a_thread_of_ours_has_a_context_for_the_driver_from_its_first_call_on(cupy):
    device, found = CudaDevice(0), []

    def work():
        enter(StopFlag())
        try:
            with device._current():
                found.append(set(cupy.thread.contexts))
        finally:
            leave()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [{0}]
