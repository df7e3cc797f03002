"""Memory of a device that comes back when nobody looks at it any more."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.base import Device, DeviceBuffer, Event, Stream
from gpushard.devices.output import DeviceOutput
from gpushard.devices.scattering.transfer import Affine
from gpushard.errors import DeviceError


@dataclass(slots=True)
class _Free:
    """Memory that nobody looks at any more once `event` is done."""

    device: Device
    buffer: DeviceBuffer
    event: Event
    is_taken: bool = False

    def __del__(self) -> None:
        # An allocator knows nothing of the streams that memory was used on.
        if not (self.is_taken or sys.is_finalizing()):
            with suppress(DeviceError):
                self.device.wait(self.event)


class DeviceMemory:
    """Rows in a device's memory, written again once they are let go of and read.

    Nothing is written again that an array still refers to, nor before the work is done
    that the consumer had queued when it let go.

    Parameters
    ----------
    device
        The device.
    n_kept
        Pieces of memory kept for later.
    consumer
        The stream that batches are used on, as the caller's thread has it now.
    """

    def __init__(
        self, device: Device, n_kept: int, consumer: Callable[[], Stream]
    ) -> None:
        self.device = device
        self.stream = device.create_stream()
        self._consumer = consumer
        self._n_kept = n_kept
        self._free: deque[_Free] = deque()

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceRows:
        """Rows of any content, ready to be written by what follows on `stream`."""
        nbytes = max(prod(shape) * dtype.itemsize, 1)
        buffer = self._block(nbytes)
        lease = _Lease(buffer, self._free, self.device, self._consumer)
        return DeviceRows(self, lease, buffer.address, shape, dtype)

    def uploaded(self, values: NDArray[Any]) -> DeviceRows:
        """Rows with what host memory holds; they are there when it returns."""
        rows = self.take(values.shape, values.dtype)
        if rows.nbytes:
            pinned = self.pinned(values)
            self.device.upload(rows.address, pinned, self.stream)
            self.device.wait(self.device.record(self.stream))
        return rows

    def pinned(self, values: NDArray[Any]) -> NDArray[np.uint8]:
        """Bytes of `values` where copies run from by themselves."""
        host = self.device.allocate_pinned(max(values.nbytes, 1))[: values.nbytes]
        host[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return host

    def _block(self, nbytes: int) -> DeviceBuffer:
        """Memory of at least `nbytes`, and not of much more."""
        for n_left in range(len(self._free), 0, -1):
            try:
                free = self._free.popleft()
            except IndexError:  # two threads take: one that reads, one that joins
                break
            if n_left > self._n_kept:
                continue
            if nbytes <= free.buffer.nbytes <= 2 * nbytes:
                self.device.await_event(self.stream, free.event)
                free.is_taken = True
                return free.buffer
            self._free.append(free)
        return self.device.allocate(nbytes)


class _Lease:
    """Owner of rows, whose memory goes back when the last array over them is gone."""

    __slots__ = ("_buffer", "_consumer", "_device", "_free")

    def __init__(
        self,
        buffer: DeviceBuffer,
        free: deque[_Free],
        device: Device,
        consumer: Callable[[], Stream],
    ) -> None:
        self._buffer = buffer
        self._free = free
        self._device = device
        self._consumer = consumer

    def __del__(self) -> None:
        if sys.is_finalizing():  # there may be no module left to ask
            return
        # Of a device that failed nothing is used again.
        with suppress(DeviceError):
            event = self._device.record(self._consumer())
            self._free.append(_Free(self._device, self._buffer, event))


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """Rows of axis 0 in a device's memory, C order; a slice of them is a view.

    Attributes
    ----------
    memory
        What they were taken from.
    lease
        Keeps the memory.
    address
        Of the first row.
    shape, dtype
        As of an array.
    """

    memory: DeviceMemory
    lease: _Lease
    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def row_nbytes(self) -> int:
        """Size of a row in bytes."""
        return prod(self.shape[1:]) * self.dtype.itemsize

    def __getitem__(self, rows: slice) -> DeviceRows:
        start, stop, _ = rows.indices(len(self))
        shape = (max(stop - start, 0), *self.shape[1:])
        return self._moved(start * self.row_nbytes, shape)

    def reshaped(self, shape: tuple[int, ...]) -> DeviceRows:
        """The same elements as rows of another shape."""
        return self._moved(0, shape)

    def _moved(self, offset: int, shape: tuple[int, ...]) -> DeviceRows:
        address = self.address + offset
        return DeviceRows(self.memory, self.lease, address, shape, self.dtype)

    def output(self, affine: Affine | None = None) -> DeviceOutput:
        """Where a read writes all of them."""
        steps = [self.dtype.itemsize]
        for extent in reversed(self.shape[1:]):
            steps.append(steps[-1] * extent)
        strides = tuple(reversed(steps))
        return DeviceOutput(self.address, self.shape, strides, self.dtype, affine)

    def array(self) -> Any:
        """Array of the device's library over them."""
        device = self.memory.device
        return device.view(self.address, self.shape, self.dtype, self.lease)

    def joined(self, parts: Sequence[DeviceRows]) -> DeviceRows:
        """Rows of all parts, one after the other, in memory of their own."""
        memory, n_rows = self.memory, sum(map(len, parts))
        rows = memory.take((n_rows, *self.shape[1:]), self.dtype)
        address = rows.address
        for part in parts:
            if part.nbytes:
                memory.device.copy(address, part.address, part.nbytes, memory.stream)
            address += part.nbytes
        memory.device.wait(memory.device.record(memory.stream))
        return rows
