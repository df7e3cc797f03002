"""A ring of pinned slots: payload is fetched into them and copied out of them."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.base import Device, Event, Stream
from gpushard.devices.lane import Lane
from gpushard.devices.slabs import PinnedSlab


class _Copy(NamedTuple):
    """A copy out of a slot, and how often its lane had been waited for before it.

    `event` is None if the host waits for the lane within each batch.
    """

    lane: Lane
    event: Event | None
    n_waits: int


class Slot:
    """Pinned memory of a ring."""

    def __init__(self, device: Device, most_nbytes: int) -> None:
        self._device = device
        self._slab = PinnedSlab(device, most_nbytes)
        self._copied: dict[Stream, _Copy] = {}

    def note_copy(self, lane: Lane) -> None:
        """Note that a copy out of this slot has been queued on a lane.

        Each later wait for the lane also waits for the copy.
        """
        event = None if lane.counts_streams else self._device.record(lane.stream)
        self._copied[lane.stream] = _Copy(lane, event, lane.n_waits)

    def reclaim(self) -> None:
        """Wait until the device has copied the content of the slot.

        Raises `DeviceError` if work on the device failed.
        """
        while self._copied:
            _, copied = self._copied.popitem()
            if copied.lane.n_waits > copied.n_waits:
                continue
            if copied.event is None:  # the batch ended before its streams were counted
                self._device.wait_for(copied.lane.stream)
            else:
                self._device.wait(copied.event)

    def memory(self, nbytes: int) -> NDArray[np.uint8]:
        """First `nbytes` bytes of the slot: uint8, host, pinned."""
        return self._slab.view(nbytes)


class Ring:
    """`n_slots` slots; each is reused once the device has copied its content.

    Slots grow ahead of need up to `most_nbytes`. A larger request gets its own size.
    """

    def __init__(self, device: Device, n_slots: int, most_nbytes: int) -> None:
        self.n_slots = n_slots
        self._free: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        for _ in range(n_slots):
            self._free.put(Slot(device, most_nbytes))

    @contextmanager
    def slot(self) -> Iterator[Slot]:
        """The slot that was handed back first, once its content has been copied.

        Raises as `Slot.reclaim`.
        """
        slot = self._free.get()
        try:
            slot.reclaim()
            yield slot
        finally:
            self._free.put(slot)
