"""How much a read into a device's memory takes on the host, and how much there.

The memory of an emulated device is the host's too. `MeteredDevice` tells them apart: it
counts what it has allocated, and notes how far the rest of the process grows meanwhile.
What the device's work takes while it runs is neither: a GPU does it by itself.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cuda_host.device import JUNK
from damaged_arrays import emulated
from device_fetch_cases import LockedDevice
from gpushard.pages import in_pages
from memory_probe import status_nbytes
from memory_sweep import in_a_child

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cuda_host.arrays import EmulatedBuffer
    from cuda_host.device import Memory

Read = Callable[["MeteredDevice"], Any]
"""Reads to a device; gives what lies there, or None."""


class MeteredDevice(LockedDevice):
    """An emulated device that is measured, and the process around it.

    Attributes
    ----------
    most_host_nbytes
        How much the process has grown at most since `begin`, without the device.
    most_held_nbytes
        How much the device has held at most.
    """

    def begin(self) -> None:
        """Measure from here on."""
        gc.collect()
        _trim()
        _forget_highest()
        self._before = status_nbytes("VmRSS") - self._resident_nbytes
        self.most_host_nbytes = 0
        self.most_held_nbytes = self._held_nbytes

    def look(self) -> None:
        """Note how much the host has taken at most since the last call."""
        if hasattr(self, "_before"):
            highest = status_nbytes("VmHWM") - self._resident_nbytes - self._before
            self.most_host_nbytes = max(self.most_host_nbytes, highest)
            _forget_highest()

    @property
    def _resident_nbytes(self) -> int:
        return sum(memory.room_nbytes for memory in self._memories.values())

    def allocate(self, nbytes: int) -> EmulatedBuffer:
        self.look()
        buffer = super().allocate(nbytes)
        _forget_highest()
        return buffer

    def allocate_pinned(self, nbytes: int) -> NDArray[np.uint8]:
        self._take("pinned", nbytes)
        # Of the driver's, and not of the C library, which would keep some of it.
        pinned = in_pages(nbytes)
        pinned[:] = JUNK
        return pinned

    def free(self, memory: Memory) -> None:
        self.look()
        super().free(memory)
        memory.vacate()
        _forget_highest()

    def _run_next(self, stream: int) -> None:
        self.look()
        super()._run_next(stream)
        if self.log and self.log[-1][1] == "decode":
            _trim()  # the codecs that stand in for the vendor's take memory of the host
        _forget_highest()


def _trim() -> None:
    ctypes.CDLL(None).malloc_trim(0)


def _forget_highest() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def grown(read: Read, warm_up: Read) -> tuple[str, int, int]:
    """What becomes of a read in a process of its own, and by how much that grows.

    The numbers of bytes are those of the host, and those of the device beside what the
    read gives.
    """
    return in_a_child(lambda: _grown_here(read, warm_up), ("died", 0, 0))


def _grown_here(read: Read, warm_up: Read) -> tuple[str, int, int]:
    device = MeteredDevice(*emulated(), seed=5)
    warm_up(device)
    device.begin()
    came, made = "read", None
    try:
        made = read(device)
    except Exception as error:  # noqa: BLE001 - told
        came = type(error).__name__
    device.look()
    made_nbytes = 0 if made is None else made.buffer.nbytes
    return came, device.most_host_nbytes, device.most_held_nbytes - made_nbytes
