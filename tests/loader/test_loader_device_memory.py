"""Memory of a device that a loader uses again: not before all who use it are done."""

from __future__ import annotations

import ctypes
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cuda_cases import two_gpus
from cuda_host.device import EmulatedDevice
from cuda_host.launch import Kernels
from cuda_host.standin import load_standin
from gpushard import Loader
from gpushard.devices import find
from gpushard.loader import reading
from gpushard.loader.device_memory import DeviceMemory
from loader_data import images, stored

pytestmark = pytest.mark.usefixtures("device_begins_at_once")

KERNELS = Kernels()


@pytest.fixture
def device():
    return EmulatedDevice(KERNELS, load_standin(), seed=3)


@pytest.fixture
def cupy(monkeypatch, tmp_path):
    yield from two_gpus(monkeypatch, tmp_path)


class BusyDevice(EmulatedDevice):
    """One whose caller works on a stream that runs when nothing else can."""

    def current_stream(self):
        return 0

    def _run_any(self, otherwise):
        ready = [s for s, queue in self._streams.items() if self._is_ready(queue)]
        assert ready, otherwise
        self._run_next(max(ready))


def test_memory_is_not_written_while_the_consumer_has_work_queued(monkeypatch):
    """Its work is queued when it lets go of a batch, and runs much later."""
    monkeypatch.setattr(reading, "LOAD_NBYTES", 48)
    device, seen = BusyDevice(KERNELS, load_standin()), []

    def use(batch):
        address, nbytes = batch.buffer.address, batch.buffer.nbytes

        def read():
            content = ctypes.string_at(address, nbytes)
            seen.append(np.frombuffer(content, "u2").reshape(-1, 2, 3))

        device.queue(0, "kernel", "train", read)

    for batch in Loader(images(), batch_size=4, shuffle=True, device=device, seed=4):
        use(batch)
        del batch
    device.drain()
    host = list(Loader(images(), batch_size=4, shuffle=True, seed=4))
    assert len(seen) == len(host)
    for got, wanted in zip(seen, host, strict=True):
        assert np.array_equal(got, wanted)


def memory_of_two_threads(device):
    """Memory that this thread uses on stream 0, and other threads on another one."""
    others, user = device.create_stream(), threading.get_ident()
    return DeviceMemory(
        device, 1, lambda: 0 if threading.get_ident() == user else others
    )


def test_memory_is_not_written_before_the_thread_that_used_it_is_done():
    """A thread of the loader, which uses another stream, lets go of the rows last."""
    device, done = BusyDevice(KERNELS, load_standin()), []
    memory = memory_of_two_threads(device)
    held = [memory.take((9,), np.dtype("i4"))]
    array = held[0].array()
    address = array.buffer.address
    device.queue(0, "kernel", "train", lambda: done.append("train"))
    del array
    with ThreadPoolExecutor(1) as pool:
        pool.submit(held.clear).result(5)
    assert memory.take((9,), np.dtype("i4")).address == address
    device.wait_for(memory.stream)
    assert done == ["train"]


def test_of_many_batches_that_a_thread_drops_the_last_use_counts(device):
    memory = DeviceMemory(device, 1, lambda: 0)
    rows = memory.take((9,), np.dtype("i4"))
    for _ in range(5):
        rows.array()
    del rows
    (use,) = memory._free[0].uses.values()
    device.wait(use)
    assert not device._streams[0]


@pytest.mark.parametrize("is_lost", [False, True], ids=["rows", "all of it"])
def test_memory_of_a_cycle_is_free_once_its_uses_are_done(cupy, is_lost):
    """The garbage collector ends the events of a cycle before it drops the rows."""
    cuda, used = find.find_device("cuda").device, cupy.made.Stream(non_blocking=True)
    main, done = threading.get_ident(), []
    memory = DeviceMemory(
        cuda, 1, lambda: 0 if threading.get_ident() == main else used.ptr
    )
    rows = memory.take((9,), np.dtype("i4"))
    address, (emulated, queue) = rows.address, cupy.queue(used.ptr)
    emulated.queue(queue, "kernel", "train", lambda: done.append("train"))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(drop_array_over, rows).result(5)
    cycle = [rows]
    cycle.append(cycle)
    if is_lost:
        cycle.append(memory)
        del memory
    del rows, cycle
    gc.collect()
    if not is_lost:
        assert memory.take((9,), np.dtype("i4")).address == address
        cuda.wait_for(memory.stream)
    assert done == ["train"]


def drop_array_over(rows):
    rows.array()


def n_rows_of(memory):
    """Length of rows that are taken, and dropped at once."""
    return len(memory.take((9,), np.dtype("i4")))


def test_memory_that_was_taken_again_in_vain_is_not_given_back_too_early():
    """A load may fail before anything has waited for the use of its memory before."""
    device, done = BusyDevice(KERNELS, load_standin()), []
    memory = memory_of_two_threads(device)
    array = memory.take((9,), np.dtype("i4")).array()
    device.queue(0, "kernel", "train", lambda: done.append("train"))
    del array
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(n_rows_of, memory).result(5) == 9
    del memory
    gc.collect()
    assert done == ["train"]


def test_memory_of_the_device_is_bounded_and_given_back(device, monkeypatch):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 16 * 1024)
    a = stored(np.zeros((320, 8 * 1024), "u1"), (8, 8 * 1024))
    before = device.free_nbytes()
    options = {"batch_size": 8, "shuffle": True, "block": "chunk", "buffer_blocks": 1}
    with Loader(a, device=device, prefetch_factor=1, **options) as loader:
        held = []
        for batch in loader:
            held.append(before - device.free_nbytes())
            del batch
    # One in hand, one waiting, two being read, and what reading takes beside them.
    assert len(held) == 40
    assert max(held) < 9 * 64 * 1024 < a.nbytes / 4
    del loader
    gc.collect()
    device.drain()
    assert device.free_nbytes() == before


def test_loaders_that_are_gone_leave_their_streams_to_others(device):
    for _ in range(3):
        with Loader(images(), device=device, batch_size=8) as loader:
            for batch in loader:
                del batch
        del loader
        gc.collect()
        assert len(device._idle_streams) == len(device._streams) - 1  # the default one
