"""Device memory that is reused once nothing refers to it any more."""

from __future__ import annotations

import sys
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.base import Device, DeviceBuffer, Event, Stream, wait_out
from gpushard.devices.output import DeviceOutput, contiguous_strides
from gpushard.devices.scattering.transfer import Affine
from gpushard.errors import DeviceError
from gpushard.threads.stop_flag import to_the_end

_Uses = dict[tuple[int, Stream], Event]
"""Thread and stream that memory was used in -> event that is done when that use is.

Later events of a thread on the same stream take the place of earlier ones.
"""

_held: dict[int, tuple[DeviceBuffer, _Uses]] = {}
"""Memory of all leases, and of what is free but may still be used.

If an error's traceback ends in a cycle, the garbage collector finalises all objects of
the cycle in any order. It would give back the memory of a lease, and destroy the events
of its uses, which the lease then declares free. What is in here is never garbage.
"""


@dataclass(slots=True)
class _Free:
    """Memory that can be used again once all `uses` are done."""

    device: Device
    buffer: DeviceBuffer
    uses: _Uses
    is_taken: bool = False

    def __del__(self) -> None:
        # An allocator does not know the streams on which memory was used.
        if not (getattr(self, "is_taken", True) or sys.is_finalizing()):
            # An interrupt must not end the waits; it is lost in here.
            try:
                with suppress(DeviceError):
                    to_the_end(self._wait)
            finally:
                _held.pop(id(self.buffer), None)

    def _wait(self) -> None:
        for event in [*self.uses.values()]:
            self.device.wait(event)


class DeviceMemory:
    """Rows in device memory, which are reused once they were dropped and read.

    Memory is not reused while an array refers to it, nor before the consumer's work is
    done that a thread had queued when it dropped an array.

    Parameters
    ----------
    device
        The device.
    n_kept
        Number of free pieces of memory to keep.
    consumer
        Returns the stream that the calling thread uses batches on now.
    """

    def __init__(
        self, device: Device, n_kept: int, consumer: Callable[[], Stream]
    ) -> None:
        self.device = device
        self.stream = device.create_stream()
        self._consumer = consumer
        self._n_kept = n_kept
        self._free: deque[_Free] = deque()

    def __del__(self) -> None:
        # Copies on it are done (`copying`). It may still wait for work of a consumer,
        # which only delays who gets it next. Without a stream, making one had failed.
        if "stream" in vars(self):
            self.device.release_stream(self.stream)

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceRows:
        """Rows of undefined content; later work on `stream` may write to them."""
        nbytes = max(prod(shape) * dtype.itemsize, 1)
        buffer, uses = self._block(nbytes)
        lease = _Lease(buffer, uses, self._free, self.device, self._consumer)
        return DeviceRows(self, lease, buffer.address, shape, dtype)

    def uploaded(self, values: NDArray[Any]) -> DeviceRows:
        """Rows with a copy of `values`, which is complete on return."""
        rows = self.take(values.shape, values.dtype)
        if rows.nbytes:
            self.fill(rows, values)
        return rows

    def fill(self, rows: DeviceRows, values: NDArray[Any]) -> None:
        """Copy `values`, of as many bytes, to rows; complete on return."""
        pinned = self.device.allocate_pinned(max(values.nbytes, 1))[: values.nbytes]
        pinned[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        with self.copying():
            self.device.upload(rows.address, pinned, self.stream)

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Have copies queued on `stream`, which are done when the context ends.

        Also after an interrupt: an allocator would give their memory to others.
        """
        try:
            yield
            self.device.wait_for(self.stream)
        except BaseException:
            wait_out(self.device, (self.stream,))
            raise

    def _block(self, nbytes: int) -> tuple[DeviceBuffer, _Uses]:
        """Memory of at least `nbytes` bytes; a reused piece has at most twice that.

        Of a reused piece also a use that is over when all before are: it may be given
        back before `stream`, which waits for these, has come to any work on it.
        """
        for n_left in range(len(self._free), 0, -1):
            try:
                free = self._free.popleft()
            except IndexError:  # the reading and the joining thread both take memory
                break
            if n_left > self._n_kept:
                continue
            if nbytes <= free.buffer.nbytes <= 2 * nbytes:
                for event in [*free.uses.values()]:
                    self.device.await_event(self.stream, event)
                before = {(get_ident(), self.stream): self.device.record(self.stream)}
                free.is_taken = True
                return free.buffer, before
            self._free.append(free)
        return self.device.allocate(nbytes), {}


class _Lease:
    """Owner of rows. Their memory is free when the last array over them is gone."""

    __slots__ = ("_buffer", "_consumer", "_device", "_free", "_is_back", "_uses")

    def __init__(
        self,
        buffer: DeviceBuffer,
        uses: _Uses,
        free: deque[_Free],
        device: Device,
        consumer: Callable[[], Stream],
    ) -> None:
        self._free = free
        self._device = device
        self._consumer = consumer
        self._uses = uses
        self._is_back = False
        self._buffer = buffer
        _held[id(buffer)] = buffer, uses

    def note_use(self) -> None:
        """Note what the calling thread has queued on its stream so far."""
        stream = self._consumer()
        self._uses[get_ident(), stream] = self._device.record(stream)

    def __del__(self) -> None:
        # Modules may be gone already; or it was interrupted as it was made.
        buffer = getattr(self, "_buffer", None)
        if sys.is_finalizing() or id(buffer) not in _held:
            return
        try:
            # An interrupt is lost in here, and must not free the memory too early.
            to_the_end(self._give_back)
        except DeviceError:  # memory of a device that failed is never reused
            _held.pop(id(buffer), None)

    def _give_back(self) -> None:
        self.note_use()
        if self._is_back:  # and was interrupted just behind this
            return
        # Not made before: of a cycle it would be finalised together with the lease.
        free = _Free(self._device, self._buffer, self._uses, is_taken=True)
        self._is_back, free.is_taken = True, False
        self._free.append(free)


class _Use:
    """What an array over rows refers to: notes its use when the array is gone.

    A thread of the loader may drop the rows last. It does not know the stream of the
    thread that used the array.
    """

    __slots__ = ("_lease",)

    def __init__(self, lease: _Lease) -> None:
        self._lease = lease

    def __del__(self) -> None:
        lease = getattr(self, "_lease", None)  # None: interrupted as it was made
        if lease is not None and not sys.is_finalizing():
            with suppress(DeviceError):
                to_the_end(lease.note_use)


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """Rows of axis 0 in device memory, C order; a slice of them is a view.

    Attributes
    ----------
    memory
        The memory that the rows were taken from.
    lease
        Keeps the memory of the rows from being reused.
    address
        Address of the first row.
    shape, dtype
        As for an array.
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

    def output(self, affine: Affine | None) -> DeviceOutput:
        """The rows as the output of a read."""
        strides = contiguous_strides(self.shape, self.dtype.itemsize)
        return DeviceOutput(self.address, self.shape, strides, self.dtype, affine)

    def array(self) -> Any:
        """Array of the device's library over the rows."""
        device = self.memory.device
        return device.view(self.address, self.shape, self.dtype, _Use(self.lease))

    def joined(self, parts: Sequence[DeviceRows]) -> DeviceRows:
        """Rows of all parts, one after the other, in new memory."""
        memory, n_rows = self.memory, sum(map(len, parts))
        rows = memory.take((n_rows, *self.shape[1:]), self.dtype)
        address = rows.address
        with memory.copying():
            for part in parts:
                if part.nbytes:
                    memory.device.copy(
                        address, part.address, part.nbytes, memory.stream
                    )
                address += part.nbytes
        return rows
