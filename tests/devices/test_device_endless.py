"""A decoder that never ends: the read ends, memory is kept, and the process ends.

On the emulated device through the stand-in for CuPy, where one stream gets stuck.
"""

from __future__ import annotations

import gc
import re
import sys
import threading
import time

import numpy as np
import pytest
from zarr.codecs import ZstdCodec

import gpushard
import test_gpu_damage
from cuda_cases import forget, stored
from cuda_host import cupy_standin
from flipped_bytes import damage_inner_chunks
from gpushard import CorruptShardError, DeviceError, Loader, Options
from gpushard.device_reading import sink
from gpushard.devices import cuda, endless
from gpushard.devices.find import find_device
from places import TESTS
from stuck_device import standing_in

LIMIT_S = 0.4
# Of the thread that gives the device up, or of another one.
NOT_ENDED = r"not ended (for|after) 0\.4 seconds"
PATIENT = Options(placement="device", device_patience_s=LIMIT_S)


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    """What is kept for the life of the process, which is that of a test here."""
    monkeypatch.setattr(endless, "end_past_the_driver", lambda: None)
    monkeypatch.setattr(endless, "_kept", [])
    return endless._kept


@pytest.fixture
def device(monkeypatch, tmp_path):
    yield standing_in(monkeypatch, tmp_path)
    forget()


def opened(place, options=PATIENT):
    return gpushard.open_array(place, device="cuda", options=options)


def in_small_batches(monkeypatch):
    monkeypatch.setattr(sink, "_ENOUGH_ROWS", 2)
    monkeypatch.setattr(sink, "_ENOUGH_NBYTES", 1)


def test_a_read_ends_with_the_damage_that_keeps_the_decoder_busy(device, tmp_path):
    stored(tmp_path / "a", "gzip")
    damage_inner_chunks(tmp_path / "a/c/0/0", [1], 500)
    device.victim = 0
    a = opened(tmp_path / "a")
    began = time.monotonic()
    with pytest.raises(CorruptShardError, match="start a new process") as raised:
        a[...]
    assert LIMIT_S < time.monotonic() - began + 0.1 < LIMIT_S + 20
    assert (raised.value.shard_key, raised.value.inner_chunk) == ("c/0/0", (0, 1))
    cause = raised.value.__cause__
    assert isinstance(cause, DeviceError)
    assert re.search(NOT_ENDED, str(cause))
    began = time.monotonic()
    with pytest.raises(DeviceError, match=r"failed before.* got work that had not"):
        a[...]
    assert time.monotonic() - began < LIMIT_S


def test_memory_is_kept_before_anybody_finds_the_device_broken(
    device, tmp_path, monkeypatch
):
    begin, known = endless.Endless.begin, []

    def noted(self, owner):
        known.append(owner._broken_by)
        begin(self, owner)

    monkeypatch.setattr(endless.Endless, "begin", noted)
    stored(tmp_path / "a", "gzip")
    device.victim = 0
    with pytest.raises(DeviceError):
        opened(tmp_path / "a")[...]
    assert known[0] == ""


def test_a_device_that_is_stuck_without_damage_is_told_as_such(device, tmp_path):
    stored(tmp_path / "a", "gzip")
    device.victim = 0
    with pytest.raises(DeviceError, match="found no damage") as raised:
        opened(tmp_path / "a")[...]
    assert raised.type is DeviceError
    assert re.search(NOT_ENDED, str(raised.value))


def n_unused(device, there):
    """Number of pieces of memory that somebody may get: of the device, and pinned."""
    pinned = there._pinned._unused.values()
    return sum(map(len, device.cupy.arenas.values())), sum(map(len, pinned))


@pytest.mark.parametrize("victim", [0, 2, 4])
def test_no_memory_goes_back_that_the_work_may_still_use(
    device, tmp_path, monkeypatch, kept, victim
):
    """Once it goes on, it finds all that it was given, also what is pinned."""
    stored(tmp_path / "a", "gzip")
    in_small_batches(monkeypatch)
    device.victim = victim
    n_free = []

    def note(self, why, give_up=cuda.CudaDevice._give_up):
        n_free.append(n_unused(device, self))
        give_up(self, why)

    monkeypatch.setattr(cuda.CudaDevice, "_give_up", note)
    with pytest.raises(DeviceError):
        opened(tmp_path / "a")[...]
    assert device.is_stuck
    gc.collect()
    assert n_unused(device, find_device("cuda").device) == n_free[0]
    device.goes_on = True
    device.drain()
    assert any(isinstance(things[0], list) for things in kept)  # the results


def test_an_interrupted_read_keeps_its_result_too(device, tmp_path, monkeypatch, kept):
    stored(tmp_path / "a", "gzip")
    device.victim = 0
    a = opened(tmp_path / "a")
    check, left = cuda.Waits._check_limit, [KeyboardInterrupt]

    def interrupted(self, limit):
        if left:
            raise left.pop()
        check(self, limit)

    monkeypatch.setattr(cuda.Waits, "_check_limit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        a[...]
    with pytest.raises(DeviceError, match="failed before"):
        a[...]
    gc.collect()
    device.goes_on = True
    device.drain()
    assert any(isinstance(things[0], list) for things in kept)


def test_kernels_and_pinned_memory_are_waited_for_no_longer(
    device, tmp_path, monkeypatch
):
    """The driver gives neither while the work goes on that never ends."""
    stored(tmp_path / "a", "gzip")
    in_small_batches(monkeypatch)
    hung, goes_on = [], threading.Event()

    def hanging(owner, name):
        call = getattr(owner, name)

        def hangs(*given):
            if device.is_stuck:
                hung.append(name)
                goes_on.wait(60)
            return call(*given)

        monkeypatch.setattr(owner, name, hangs)

    hanging(device.cupy, "host_alloc")
    hanging(cupy_standin.Module, "load")
    device.victim = 0
    began = time.monotonic()
    try:
        with pytest.raises(DeviceError, match=NOT_ENDED):
            opened(tmp_path / "a")[...]
    finally:
        goes_on.set()
    assert hung
    assert time.monotonic() - began < 20


def test_another_gpu_loads_its_kernels_meanwhile(device, tmp_path, monkeypatch):
    values = stored(tmp_path / "a", "gzip")
    goes_on, load = threading.Event(), cupy_standin.Module.load

    def hanging(module, cubin):
        if module.device is device and device.is_stuck:
            goes_on.wait(60)
        return load(module, cubin)

    monkeypatch.setattr(cupy_standin.Module, "load", hanging)
    device.victim = 0
    try:
        with pytest.raises(DeviceError, match=NOT_ENDED):
            opened(tmp_path / "a")[...]
        other = gpushard.open_array(tmp_path / "a", device="cuda:1", options=PATIENT)
        began = time.monotonic()
        assert np.array_equal(other[...].get(), values)
        assert time.monotonic() - began < 20
    finally:
        goes_on.set()


def test_a_loader_ends_and_names_the_samples(device, tmp_path):
    stored(tmp_path / "a", "gzip")
    damage_inner_chunks(tmp_path / "a/c/0/0", [1], 500)
    device.victim = 0
    with (
        Loader(opened(tmp_path / "a"), batch_size=8) as loader,
        pytest.raises(CorruptShardError, match="start a new process") as raised,
    ):
        list(loader)
    assert raised.value.inner_chunk == (0, 1)
    assert "samples 0, 1, 2, 3" in raised.value.__notes__[0]


def test_reads_of_other_threads_end_too(device, tmp_path):
    stored(tmp_path / "a", "gzip")
    device.victim = 0
    a, endings = opened(tmp_path / "a"), []

    def read():
        try:
            a[...]
        except DeviceError as error:
            endings.append(str(error))

    threads = [threading.Thread(target=read, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert all(re.search(NOT_ENDED, ending) for ending in endings)
    assert endings


def test_a_device_that_was_given_up_is_asked_nothing(device, tmp_path, monkeypatch):
    stored(tmp_path / "a", "gzip")
    device.victim = 0
    a = opened(tmp_path / "a")
    with pytest.raises(DeviceError):
        a[...]
    there = find_device("cuda").device
    asked = []
    for name in ("memcpyAsync", "eventRecord", "memGetInfo", "streamQuery"):
        monkeypatch.setattr(sys.modules["cupy"].cuda.runtime, name, asked.append)
    for ask in (
        lambda: there.allocate(10),
        lambda: there.allocate_pinned(10),
        lambda: there.record(0),
        lambda: there.wait_for(0),
        lambda: there.copy(0, 0, 1, 0),
        there.free_nbytes,
    ):
        with pytest.raises(DeviceError, match="failed before"):
            ask()
    assert asked == []


def stuck_for_a_while(device, stream=0):
    """Work that is not a read's, and ends only when the limit is long over."""
    device.queue(stream, "kernel", "the caller's", lambda: None)
    device.stuck = device._streams[stream][-1]
    threading.Timer(4 * LIMIT_S, setattr, (device, "goes_on", True)).start()


def test_the_callers_own_work_does_not_count_for_a_read(device, tmp_path):
    values = stored(tmp_path / "a", "gzip")
    a = opened(tmp_path / "a")
    stuck_for_a_while(device)
    assert np.array_equal(a[...].get(), values)


def written(tmp_path):
    """A new array on the device, and a value for it there."""
    stored(tmp_path / "a", "gzip")
    value = opened(tmp_path / "a")[...]
    return value, gpushard.create_array(
        tmp_path / "b",
        shape=value.shape,
        dtype="i4",
        chunks=(8, 10),
        compressors=ZstdCodec(),
        device="cuda",
        options=PATIENT,
    )


def test_the_callers_own_work_does_not_count_for_a_write(device, tmp_path):
    value, b = written(tmp_path)
    stuck_for_a_while(device)
    b[...] = value
    assert np.array_equal(b[...].get(), value.get())


def test_a_write_ends_too(device, tmp_path):
    value, b = written(tmp_path)
    device.victim = device.n_decodes  # the encoder's work there
    with pytest.raises(DeviceError, match=NOT_ENDED):
        b[...] = value


def test_a_stream_is_used_again_without_the_limit_of_its_last_user(device, tmp_path):
    stored(tmp_path / "a", "gzip")
    opened(tmp_path / "a")[...]
    there = find_device("cuda").device
    stream = there.create_stream()
    stuck_for_a_while(device, stream % (1 << 20))
    there.wait_for(stream)
    there.check()


def test_without_a_limit_a_read_waits(device, tmp_path):
    values = stored(tmp_path / "a", "gzip")
    device.victim = 0
    threading.Timer(4 * LIMIT_S, setattr, (device, "goes_on", True)).start()
    options = Options(placement="device", device_patience_s=None)
    assert np.array_equal(opened(tmp_path / "a", options)[...].get(), values)


STANDS_IN = """
from pathlib import Path
import pytest
sys.path.insert(0, TESTS)
import stuck_device

patch = pytest.MonkeyPatch()
device = stuck_device.standing_in(patch, Path(place).parent)

def begin():
    device.victim = device.n_decodes
"""


@pytest.mark.parametrize("is_first", [False, True])
def test_the_test_for_a_gpu_passes_here(tmp_path, is_first):
    """But for the kernel that never ends, and what a driver does in the end."""
    test_gpu_damage.damaged_beside_intact(tmp_path / "a")
    spins = STANDS_IN.replace("TESTS", repr(str(TESTS)))
    told, ends_s, status = test_gpu_damage.stuck_outcome(
        tmp_path / "a", is_first=is_first, spins=spins
    )
    assert test_gpu_damage.is_told(told["cause"])
    assert told["error"] == "CorruptShardError"
    assert tuple(told["inner_chunk"]) == test_gpu_damage.VICTIM
    assert (ends_s < 20, status) == (True, 7)
