"""Memory of an emulated device as its owners see it: buffers, and arrays in them."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from cuda_host.device import EmulatedDevice, Memory


class ForeignBuffer:
    """Memory of an emulated device that somebody else has."""

    def __init__(self, device: EmulatedDevice, address: int, nbytes: int) -> None:
        self._device = device
        self.address = address
        self.nbytes = nbytes

    def read(self) -> NDArray[np.uint8]:
        """Copy of its content, once all that is queued is done."""
        self._device.drain()
        with self._device.open_memory():
            content = np.empty(self.nbytes, np.uint8)
            ctypes.memmove(content.ctypes.data, self.address, self.nbytes)
        return content


class EmulatedBuffer(ForeignBuffer):
    """Memory of an emulated device, given back when it is dropped."""

    def __init__(self, device: EmulatedDevice, memory: Memory) -> None:
        super().__init__(device, memory.address, memory.nbytes)
        self._memory = memory

    def __del__(self) -> None:
        self._device.free(self._memory)


class EmulatedArray:
    """An array in an emulated device's memory, as far as readers care."""

    def __init__(
        self,
        device: EmulatedDevice,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        address: int = 0,
        owner: Any = None,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.owner = owner
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.buffer = (
            device.allocate(nbytes)
            if owner is None
            else ForeignBuffer(device, address, nbytes)
        )
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (self.buffer.address, False),
            "strides": None,
        }

    def get(self) -> NDArray[Any]:
        """Copy on the host, as CuPy's arrays give."""
        return self.buffer.read().view(self.dtype).reshape(self.shape)
