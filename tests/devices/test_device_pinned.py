"""Pinned memory that was used before is had again, without the driver.

On the emulated device through the stand-in for CuPy.
"""

from __future__ import annotations

import gc
import threading
import time

import pytest

from cuda_cases import forget
from gpushard.devices.endless import Endless
from gpushard.devices.find import find_device
from gpushard.devices.pinned import PinnedPieces
from gpushard.errors import DeviceMemoryError
from stuck_device import standing_in

PAGE_NBYTES = 4096


@pytest.fixture
def device(monkeypatch, tmp_path):
    yield standing_in(monkeypatch, tmp_path)
    forget()


def test_pinned_memory_that_went_back_is_had_without_a_thread(device, monkeypatch):
    there, asked = find_device("cuda").device, []
    beside = there._waits.beside

    def noting(call):
        asked.append(call)
        return beside(call)

    monkeypatch.setattr(there._waits, "beside", noting)
    first = there.allocate_pinned(1000)
    assert len(asked) == 1
    del first
    kept = [there.allocate_pinned(700)]  # of the same page
    assert len(asked) == 1
    kept += [there.allocate_pinned(1000), there.allocate_pinned(2000)]
    assert len(asked) == 3


def test_pinned_memory_that_went_back_is_had_while_the_driver_gives_none(
    device, monkeypatch
):
    """Nor from CuPy's pool, whose lock is held by the thread that asks the driver."""
    there = find_device("cuda").device
    del (first := [there.allocate_pinned(1000)])[:]
    asked, goes_on = threading.Event(), threading.Event()
    host_alloc = device.cupy.host_alloc

    def hangs(nbytes):
        asked.set()
        goes_on.wait(60)
        return host_alloc(nbytes)

    monkeypatch.setattr(device.cupy, "host_alloc", hangs)
    more = [5 * PAGE_NBYTES]
    other = threading.Thread(target=there.allocate_pinned, args=more, daemon=True)
    other.start()
    try:
        assert asked.wait(20)
        began = time.monotonic()
        first += [there.allocate_pinned(1000)]
        del first[:]
        assert time.monotonic() - began < 10
    finally:
        goes_on.set()
        other.join(20)


def test_pinned_memory_that_went_back_makes_room_for_more(device):
    there = find_device("cuda").device
    device.cupy.host_limit_nbytes = device.cupy.host_nbytes + 5 * PAGE_NBYTES
    kept = [there.allocate_pinned(n * PAGE_NBYTES) for n in (1, 4)]
    with pytest.raises(DeviceMemoryError):
        there.allocate_pinned(1)
    del kept[1]
    kept += [there.allocate_pinned(PAGE_NBYTES)]
    with pytest.raises(DeviceMemoryError):
        there.allocate_pinned(4 * PAGE_NBYTES)


def test_no_more_is_pinned_than_was_asked_for_and_at_most_half_is_wasted(device):
    there = find_device("cuda").device
    before = device.cupy.host_nbytes
    there.allocate_pinned(6 * PAGE_NBYTES - 1)  # and dropped
    pinned = [device.cupy.host_nbytes - before]
    for n in (6, 3, 2, 7):
        there.allocate_pinned(n * PAGE_NBYTES)
        pinned.append(device.cupy.host_nbytes - before)
    assert [nbytes // PAGE_NBYTES for nbytes in pinned] == [6, 6, 6, 8, 9]


def test_requests_that_grow_do_not_leave_a_piece_each(device):
    there = find_device("cuda").device
    before = device.cupy.host_nbytes
    for n in range(1, 65):
        there.allocate_pinned(n * PAGE_NBYTES)  # and dropped
    # One piece is left of each size that the next does not stand in for.
    assert device.cupy.host_nbytes - before < 2 * 64 * PAGE_NBYTES


def test_a_piece_stands_in_for_unused_ones_of_half_its_size_and_more(device):
    there = find_device("cuda").device
    before = device.cupy.host_nbytes
    held = [there.allocate_pinned(n * PAGE_NBYTES) for n in (3, 4, 7)]
    del held[:2]
    held += [there.allocate_pinned(8 * PAGE_NBYTES)]
    assert device.cupy.host_nbytes - before == (3 + 7 + 8) * PAGE_NBYTES


def test_a_collection_may_let_go_of_a_piece_while_unused_ones_are_given_back():
    thresholds = gc.get_threshold()
    for n_more in range(20):  # objects that Python makes before it collects
        pieces = PinnedPieces(bytearray, Endless())
        held = [pieces.make(n * PAGE_NBYTES) for n in range(1, 9)]
        del held[:]
        gc.collect()
        gc.disable()
        try:
            forgotten = [pieces.make(99 * PAGE_NBYTES)]
            forgotten.append(forgotten)
            del forgotten
            # Python keeps some tuples for later, which begin no collection.
            tuples = [(n, n) for n in range(5000)]
            gc.set_threshold(gc.get_count()[0] + n_more)
            gc.enable()
            assert pieces._drop_unused()
        finally:
            gc.set_threshold(*thresholds)
            gc.enable()
        assert len(tuples) == 5000
