"""What a lane is asked for when its memory is used again, or read back."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from contextlib import contextmanager, nullcontext
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec

import gpushard
from cuda_host.reads import read_on_device
from device_fetch_cases import emulated, small_batches, stored
from gpushard.device_reading.payload import device_slots
from gpushard.device_reading.payload.answers import read_back
from gpushard.device_reading.payload.device_slots import DeviceSlot
from gpushard.device_reading.payload.ring import Slot
from gpushard.device_reading.sink import settled
from gpushard.devices.lane import Lane
from gpushard.devices.slabs import PinnedSlab, Slab, pooled_nbytes
from gpushard.devices.spares import Spares
from gpushard.selecting.selection import whole
from gpushard.threads.stop_flag import StopFlag, enter, leave
from gpushard.threads.workers import run_side_by_side
from zarr_oracle import assert_same_bits


class Memory:
    """Device memory of which one can tell whether it was given back."""

    address = 256

    def __init__(self, nbytes):
        self.nbytes = nbytes


def test_a_slab_keeps_what_it_outgrew_for_the_work_under_way():
    made = []

    def allocate(nbytes):
        memory = Memory(nbytes)
        made.append(weakref.ref(memory))
        return memory

    slab = Slab(SimpleNamespace(allocate=allocate))
    slab.address(1000)
    slab.address(500)
    assert len(made) == 1
    slab.address(2000)
    assert made[0]() is not None
    slab.settle()
    assert made[0]() is None
    slab.address_anew(5000)  # where nothing is under way
    assert [memory() is None for memory in made] == [True, True, False]


@pytest.mark.parametrize("counts_streams", [False, True])
def test_a_slot_is_waited_for_unless_its_lane_was(counts_streams):
    device = emulated()
    lane = Lane(device, device.create_stream(), small_batches(1000), counts_streams)
    slot = Slot(device, 100)
    lane.upload(slot.memory(100))
    slot.note_copy(lane)
    slot.reclaim()
    assert "upload" in [kind for _, kind, _ in device.log]
    lane.upload(slot.memory(100))
    slot.note_copy(lane)
    lane.wait()
    n_calls = device.n_calls
    slot.reclaim()
    assert device.n_calls == n_calls


@pytest.mark.parametrize("counts_streams", [False, True])
def test_a_wait_that_is_not_over_frees_no_slot(monkeypatch, counts_streams):
    device = emulated()
    lane = Lane(device, device.create_stream(), small_batches(1000), counts_streams)
    slot = Slot(device, 100)
    lane.upload(slot.memory(100))
    slot.note_copy(lane)
    is_copied, wait_for = [], device.wait_for

    def wait(stream):
        monkeypatch.setattr(device, "wait_for", wait_for)
        slot.reclaim()  # as another thread may meanwhile
        is_copied.append("upload" in [kind for _, kind, _ in device.log])
        wait_for(stream)

    monkeypatch.setattr(device, "wait_for", wait)
    lane.wait()
    assert is_copied == [True]


RANGES = {
    "one": [(7, 20)],
    "neighbours": [(0, 16), (16, 16), (32, 5)],
    "shared": [(5, 50), (20, 10), (5, 50), (30, 60)],
    "contained": [(0, 500), (10, 5), (600, 5), (602, 1)],
    "empty": [(40, 0), (3, 9), (900, 0)],
    "unordered": [(700, 30), (2, 1), (300, 44)],
    "many": [(k * k, 3) for k in range(31)],
}


@pytest.mark.parametrize("ranges", RANGES)
def test_ranges_are_read_back_in_few_copies_and_one_wait(ranges):
    device = emulated()
    lane = Lane(device, device.create_stream(), small_batches(1000))
    content = np.random.default_rng(0).integers(0, 256, 1000, np.uint8)
    at, nbytes = np.array(RANGES[ranges], np.int64).reshape(-1, 2).T

    first = np.uint64(lane.upload(content))
    src = (first + at.astype(np.uint64)).astype(np.uint64)
    device.n_waits, n_before = 0, len(device.log)
    memory, found = read_back(lane, src, nbytes)
    for place, (a, n) in zip(found, RANGES[ranges], strict=True):
        assert memory[place : place + n].tobytes() == content[a : a + n].tobytes()
    assert device.n_waits == (nbytes.sum() > 0)
    downloads = [int(n) for _, kind, n in device.log[n_before:] if kind == "download"]
    assert len(downloads) <= 8
    # The largest gaps are left out.
    assert sum(downloads) < (600 if ranges == "many" else nbytes.sum() + 1)


def test_what_is_refused_takes_few_calls_whatever_its_number(tmp_path):
    values = stored(tmp_path, [BloscCodec(cname="blosclz", clevel=9)], (48, 40))
    a = gpushard.open_array(tmp_path)
    device = emulated()
    results, job = read_on_device(a, [whole(a.shape)], device)
    assert_same_bits(results[0], values)
    assert job.tally.counts["n_refused_inner_chunks"] == 20
    # A batch that finds no stream to decode; one that the host decodes; one that fills.
    assert device.n_calls <= 3 * 20


@pytest.mark.parametrize("is_sharded", [True, False])
@pytest.mark.parametrize(("side", "n_threads"), [(64, 1), (128, 8)])
def test_large_inner_chunks_of_the_host_are_decoded_side_by_side(
    tmp_path, monkeypatch, side, n_threads, is_sharded
):
    asked = []

    def noting(function, items, n_workers):
        asked.append((len(items), n_workers))
        return run_side_by_side(function, items, n_workers)

    monkeypatch.setattr("gpushard.device_reading.host_rows.run_side_by_side", noting)
    made = zarr.create_array(
        tmp_path,
        shape=(side, 5 * side),
        chunks=(side, side),
        shards=(side, 5 * side) if is_sharded else None,
        dtype="i4",
    )
    values = np.arange(5 * side * side, dtype="i4").reshape(side, -1)
    made[...] = values
    a = gpushard.open_array(tmp_path, options=gpushard.Options(threads=8))
    device = emulated()
    results, job = read_on_device(a, [whole(a.shape)], device, placement="host")
    assert_same_bits(results[0], values)
    assert job.tally.counts["n_decoded_on_host"] == 5
    assert {n for _, n in asked} == {n_threads}


def test_who_needs_the_slot_of_a_lane_in_use_is_told_once_it_is_settled(monkeypatch):
    monkeypatch.setattr(device_slots, "_LOOK_S", 60.0)
    device = emulated()
    held, other = (Lane(device, n, small_batches(100)) for n in (1, 2))
    turns = iter([other])  # asks once for a lane, and gets the other one
    slot = DeviceSlot(device, 100, lambda: nullcontext(next(turns)))
    slot.note_use(held)
    in_its_thread = threading.Timer(0.05, held.settle_all)
    with held.used():
        in_its_thread.start()
        slot.reclaim()
    assert held.n_settled == 1
    in_its_thread.join()


def test_who_needs_the_slot_of_a_lane_is_told_once_that_is_idle(monkeypatch):
    # Nobody else may need a lane, and then nobody else settles it.
    monkeypatch.setattr(device_slots, "_LOOK_S", 60.0)
    device = emulated()
    lanes = [Lane(device, n, small_batches(100)) for n in range(3)]
    idle = Spares(lanes)
    slot = DeviceSlot(device, 100, lambda: settled(idle))
    with settled(idle) as lane:
        slot.note_use(lane)
        lane.note_infallible()
        waits = threading.Thread(target=slot.reclaim)
        waits.start()
        while not lane.waiting:
            time.sleep(0.001)
        time.sleep(0.05)  # it has looked at the idle lanes by now
        assert waits.is_alive()
    waits.join(30)
    assert not waits.is_alive()
    assert lane.pending is None


def test_two_threads_may_tell_those_who_wait_for_a_lane():
    class Raced(deque):
        def pop(self):
            self.clear()  # the other one was faster
            return super().pop()

    device = emulated()
    lane = Lane(device, device.create_stream(), small_batches(100))
    lane.waiting = Raced([SimpleQueue()])
    lane.wake_waiting()
    assert not lane.waiting


def test_who_was_told_nothing_of_a_lane_looks_again(monkeypatch):
    # As after an interrupt in the thread that had the lane.
    monkeypatch.setattr(device_slots, "_LOOK_S", 0.001)
    device = emulated()
    lane, other = (Lane(device, n, small_batches(100)) for n in (1, 2))
    lane.is_used = True
    turns = iter([other, other, lane])

    @contextmanager
    def in_turn():
        turn = next(turns)
        turn.settle_all()
        yield turn

    slot = DeviceSlot(device, 100, in_turn)
    slot.note_use(lane)
    slot.reclaim()
    assert (lane.n_settled, other.n_settled) == (1, 2)


def test_the_wait_for_a_lane_that_was_lost_ends_with_the_read():
    # As when an interrupt comes while the thread that had it hands it back.
    device, flag = emulated(), StopFlag()
    lost, other = (Lane(device, n, small_batches(100)) for n in (1, 2))
    n_looks = iter(range(5))

    def settled_one():
        if next(n_looks) == 2:
            flag.set()
        return nullcontext(other)

    slot = DeviceSlot(device, 100, settled_one)
    slot.note_use(lost)
    enter(flag)
    try:
        with pytest.raises(gpushard.DeviceError, match="nobody waits"):
            slot.reclaim()
    finally:
        leave()


def test_pinned_memory_is_asked_for_in_few_sizes():
    """CuPy's pool gives memory again only for the same size, and keeps all of it."""
    wanted = np.arange(1, 1 << 20, 173)
    given = np.array([pooled_nbytes(int(n)) for n in wanted])
    assert (given >= wanted).all()
    assert (given[wanted > 2] < 1.5 * wanted[wanted > 2]).all()
    assert len(np.unique(given)) <= 2 * 20


@pytest.mark.parametrize(
    ("most_nbytes", "pinned"),
    [(1 << 40, [1024, 1536, 3072]), (1300, [1024, 1300, 2300]), (0, [800, 1100, 2300])],
)
def test_a_pinned_slab_grows_in_few_sizes_but_not_ahead_of_its_bound(
    most_nbytes, pinned
):
    asked = []

    def allocate_pinned(nbytes):
        asked.append(nbytes)
        return np.empty(nbytes, np.uint8)

    slab = PinnedSlab(SimpleNamespace(allocate_pinned=allocate_pinned), most_nbytes)
    for nbytes in (800, 700, 1100, 2300):
        assert len(slab.view(nbytes)) == nbytes
    assert asked == pinned
