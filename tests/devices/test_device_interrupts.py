"""After interrupts of a read to a device no work is under way, and no stream is lost.

On the emulated device, whose pages are gone once they are given back: work that is
still under way ends the process. So this is done in forks.
"""

from __future__ import annotations

import gc
import os
import sys
from itertools import count

import numpy as np
import pytest
from zarr.codecs import BloscCodec, ZstdCodec

import gpushard
from cuda_host.device import EmulatedDevice
from device_fetch_cases import emulated, small_batches, stored
from forked import answers_in_a_fork
from gpushard import Loader
from gpushard.device_reading.payload.ring import Slot
from gpushard.devices.lane import Lane
from gpushard.loader import reading
from gpushard.loader.device_memory import DeviceMemory
from gpushard.options import Options
from interrupts import is_cut_off
from relaying_cases import in_small_batches, relaying, use_small_pieces

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="this platform cannot fork"
)
CHAINS = {
    "none": None,
    "zstd": [ZstdCodec()],
    "blosc-lz4": [BloscCodec(cname="lz4", shuffle="shuffle")],
}
# From the first stream to the last that is given back.
MODULES = ("reading/sink.py", "devices/lane.py", "devices/slabs.py", "ing/targets.py")
RELAYS = ("reading/relayed.py", "payload/device_slots.py")
LOADER = ("loader/reading.py", "loader/places.py", "loader/batches.py")
# Python looks for signals at calls and at the ends of loops, not before these.
UNREACHED = ("try:", "with settled(self._idle) as lane:", "raise", "self.abandon()")


class Interrupted(EmulatedDevice):
    """Waits with the numbers `hits` are interrupted; if `is_over`, at their end."""

    hits = ()
    is_over = False

    def wait(self, event):
        number = self.n_waits
        if number in self.hits and not self.is_over:
            self.n_waits += 1
            raise KeyboardInterrupt
        super().wait(event)
        if number in self.hits:
            raise KeyboardInterrupt


def is_clean(device, a, values):
    """Whether all work is done, all streams are back, and the next read is right."""
    gc.collect()
    device.drain()  # which looks at the memory that copies use
    is_back = len(device._idle_streams) == len(device._streams) - 1
    return is_back and np.array_equal(a[...].get(), values)


def opened(place, device):
    options = Options(threads=1, placement="device")
    return gpushard.open_array(place, device=device, options=options)


@pytest.mark.parametrize("chain", CHAINS)
def test_an_interrupt_at_any_line_leaves_no_work_and_all_streams(tmp_path, chain):
    values = stored(tmp_path, CHAINS[chain], (20, 20))

    def work():
        for n_line in count(1, 5):
            device = emulated(seed=n_line)
            a = opened(tmp_path, device)
            was_cut = is_cut_off(lambda a=a: a[...], n_line, MODULES, UNREACHED)
            if not is_clean(device, a, values):
                return False
            if not was_cut:
                return n_line > 300
        return False

    assert answers_in_a_fork(work)


def test_an_interrupt_at_any_line_of_a_relay_leaves_no_work(tmp_path, monkeypatch):
    pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")
    values = stored(tmp_path, None, (20, 20))
    use_small_pieces(monkeypatch)
    in_small_batches(monkeypatch, 600)
    options = Options(threads=1, placement="device", compile_nbytes=0)

    def work():
        for n_line in count(1, 2):
            device = relaying()
            a = gpushard.open_array(tmp_path, device=device, options=options)
            was_cut = is_cut_off(lambda a=a: a[...], n_line, RELAYS, UNREACHED)
            if not (is_clean(device, a, values) and device.copier.is_left):
                return False
            if not was_cut:
                return device.copier.n_copies > 4
        return False

    assert answers_in_a_fork(work)


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize("chain", CHAINS)
def test_a_second_interrupt_does_not_end_the_wait_for_what_is_under_way(
    tmp_path, chain, is_over
):
    values = stored(tmp_path, CHAINS[chain])

    def work():
        for first in count():
            for second in range(first + 1, first + 4):
                device = emulated(Interrupted, seed=second)
                device.hits, device.is_over = (first, second), is_over
                a = opened(tmp_path, device)
                try:
                    a[...]
                except KeyboardInterrupt:
                    device.hits = ()
                else:
                    return first > 2
                if not is_clean(device, a, values):
                    return False
        return False

    assert answers_in_a_fork(work)


def test_an_interrupt_at_any_line_of_a_loader_leaves_no_work(tmp_path, monkeypatch):
    """The rows that its kernels write to are given back before its reads are."""
    values = stored(tmp_path, CHAINS["zstd"], (40, 20))
    monkeypatch.setattr(reading, "LOAD_NBYTES", 200)

    def work():
        for n_line in count(1, 3):
            device = emulated(seed=n_line)
            loader = Loader(opened(tmp_path, device), batch_size=7, prefetch_factor=0)
            was_cut = is_cut_off(lambda it=loader: [*it], n_line, LOADER, UNREACHED)
            del loader
            gc.collect()
            device.drain()
            if not was_cut:
                break
        loader = Loader(opened(tmp_path, device), batch_size=7, prefetch_factor=0)
        got = [batch.get() for batch in loader]
        return n_line > 200 and np.array_equal(np.concatenate(got), values)

    assert answers_in_a_fork(work)


def test_a_batch_whose_wait_was_interrupted_is_waited_for_again():
    device = emulated(Interrupted)
    device.hits = (0,)
    lane = Lane(device, device.create_stream(), small_batches(1000))
    pinned = device.allocate_pinned(100)
    lane.upload(pinned)
    lane.note_infallible()
    with pytest.raises(KeyboardInterrupt):
        lane.settle_all()
    lane.settle_all()
    assert device.is_idle


@pytest.mark.parametrize("counts_streams", [False, True])
def test_a_slot_whose_wait_was_interrupted_is_waited_for_again(counts_streams):
    """Else another thread fetches into it while the device still copies."""
    device = emulated(Interrupted)
    device.hits = (0,)
    budget = small_batches(1000)
    lane = Lane(device, device.create_stream(), budget, counts_streams)
    slot = Slot(device, 1000)
    lane.upload(slot.memory(100))
    slot.note_copy(lane)
    with pytest.raises(KeyboardInterrupt):
        slot.reclaim()
    assert not device.is_idle
    slot.reclaim()
    assert device.is_idle


def test_rows_that_a_consumer_still_uses_are_not_given_back_after_an_interrupt(
    monkeypatch,
):
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: lost.append(what.exc_type))
    device, consumer = emulated(Interrupted), 0
    device.hits = (0,)
    memory = DeviceMemory(device, 0, lambda: consumer)
    rows = memory.take((9,), np.dtype("i4"))
    device.copy(rows.address, rows.address, rows.nbytes, consumer)
    del rows, memory
    gc.collect()
    assert device.is_idle
    assert lost == [KeyboardInterrupt]


@pytest.mark.parametrize("is_handed_out", [False, True])
def test_an_interrupt_as_rows_are_dropped_frees_no_memory_in_use(
    monkeypatch, is_handed_out
):
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: lost.append(what.exc_type))
    device = emulated()
    memory, record = DeviceMemory(device, 1, lambda: 0), device.record
    rows = memory.take((9,), np.dtype("i4"))
    held = [rows.array()] if is_handed_out else [rows]
    device.copy(rows.address, rows.address, rows.nbytes, 0)

    def interrupted(stream):
        monkeypatch.setattr(device, "record", record)
        raise KeyboardInterrupt

    monkeypatch.setattr(device, "record", interrupted)
    del rows
    held.clear()
    assert lost == [KeyboardInterrupt]
    assert [free.buffer.nbytes for free in memory._free] == [36]
    device.wait(*memory._free[0].uses.values())
    assert not device._streams[0]


def test_a_write_gives_back_no_memory_before_its_work_is_done(tmp_path):
    stored(tmp_path, CHAINS["zstd"])

    def work():
        device = emulated(Interrupted)
        a = gpushard.open_array(tmp_path, device=device)
        value = device.empty(a.shape, a.dtype)
        device.hits = (0, 1)
        try:
            a[...] = value
        except KeyboardInterrupt:
            gc.collect()
            device.drain()
            return len(device._idle_streams) == len(device._streams) - 1 == 1
        return False

    assert answers_in_a_fork(work)


@pytest.mark.parametrize("way", ["uploaded", "joined"])
def test_copies_of_a_loader_are_done_when_an_interrupt_is_raised(way):
    def work():
        device = emulated(Interrupted)
        device.hits = (0,)
        memory = DeviceMemory(device, 0, lambda: 0)
        try:
            if way == "uploaded":
                memory.uploaded(np.arange(50))
            else:
                rows = memory.take((9,), np.dtype("i4"))
                rows.joined([rows, rows])
        except KeyboardInterrupt:
            return not device._streams[memory.stream]
        return False

    assert answers_in_a_fork(work)
