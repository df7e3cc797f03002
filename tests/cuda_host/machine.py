"""A machine without a GPU for `python -m benchmarks.gpu`: it measures nothing.

`emulated` is what its ``--device`` is told in tests, `through_cupy` in rehearsals: that
which a GPU is measured with, over a stand-in for CuPy.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.gpu.gpu import CudaMachine
from cuda_host import cupy_standin
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


class MachineOverStandin(CudaMachine):
    """The machine that a GPU is measured with, over a stand-in for CuPy."""

    is_emulated = True

    def __init__(self) -> None:
        self.emulated = EmulatedMachine()
        # For as long as the process lives.
        cupy_standin.install(pytest.MonkeyPatch(), self.emulated.device)
        super().__init__()

    def to_device(self, values: NDArray[Any]) -> EmulatedArray:
        return self.emulated.to_device(values)


def through_cupy() -> MachineOverStandin:
    return MachineOverStandin()
