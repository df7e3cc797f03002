"""A machine without a GPU for `python -m benchmarks.gpu`: it measures nothing.

`emulated` is what its ``--device`` is told in tests.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cuda_host.launch import Kernels
from cuda_host.standin import load_standin
from device_fetch_cases import LockedDevice

if TYPE_CHECKING:
    from cuda_host.arrays import EmulatedArray
    from cuda_host.device import EmulatedDevice


class EmulatedMachine:
    """An emulated device, and what benchmarks need of it besides."""

    is_emulated = True

    def __init__(self) -> None:
        self.device: EmulatedDevice = LockedDevice(Kernels(), load_standin())

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self.device.queue(
            stream, "copy", str(nbytes), lambda: ctypes.memmove(to, source, nbytes)
        )

    def to_device(self, values: NDArray[Any]) -> EmulatedArray:
        device = self.device
        copied = device.empty(values.shape, values.dtype)
        host = device.allocate_pinned(values.nbytes)
        host[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        device.upload(copied.buffer.address, host, 0)
        device.wait(device.record(0))
        return copied

    def facts(self) -> dict[str, Any]:
        return {"device": self.device.label, "decoder": self.device.decoder.label}


def emulated() -> EmulatedMachine:
    return EmulatedMachine()
