"""What the reader asks of a device: memory, copies, launches, streams and events.

Streams order all work: an operation runs after all earlier operations on its stream and
after the events that its stream waits for. The host waits only in `Device.wait` and
`Device.wait_for`. Nothing waits for the whole device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.nvcomp import Nvcomp
from gpushard.devices.placement import Rates
from gpushard.errors import DeviceError
from gpushard.threads.stop_flag import to_the_end

Stream = int
"""Handle of a stream, as the driver gives it; 0 is the default stream."""

Grid = tuple[int, int]
"""Blocks of a launch along x and y, at least one each."""


class RowCopy(NamedTuple):
    """Rows of bytes to copy within a device's memory, as ``cudaMemcpy2D`` takes them.

    The first target row is at `address`, the first source row at `source`; rows follow
    one another by `pitch` and `source_pitch` bytes. Each has `nbytes` bytes, at most
    either pitch.
    """

    address: int
    pitch: int
    source: int
    source_pitch: int
    nbytes: int
    n_rows: int


class DeviceBuffer(Protocol):
    """Memory on the device, freed when the object is dropped.

    Drop it only when no work on any stream still uses it.
    """

    @property
    def address(self) -> int:
        """Address of the first byte, aligned to 256 bytes."""
        ...

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        ...


class Event(Protocol):
    """A point on a stream; other streams and the host can wait for it."""


ONLY_OWN_CAPTURES = 1
"""Mode of a thread that captures of CUDA graphs by others do not concern
(``CU_STREAM_CAPTURE_MODE_THREAD_LOCAL``).
"""


class CopyCalls(NamedTuple):
    """Addresses of the driver's functions for copies; each returns 0 or an error.

    Attributes
    ----------
    upload
        Takes an address on the device, one of pinned memory, a number of bytes and a
        stream: queues the copy.
    record
        Takes an event and a stream: the event is done when all work queued there is.
    wait
        Takes an event, and blocks until it is done. One never recorded is done.
    exchange_mode
        Takes the address of a mode for the calling thread, such as `ONLY_OWN_CAPTURES`,
        as int32, and leaves there the mode that the thread had.
    get_context, set_context
        Take the address of memory for the context of the calling thread, and a context
        to be that of the calling thread.
    context
        The context in which the others are called.
    """

    upload: int
    record: int
    wait: int
    exchange_mode: int
    get_context: int
    set_context: int
    context: int


class CopyEvent(Protocol):
    """An event for `CopyCalls`, freed when the object is dropped."""

    @property
    def handle(self) -> int:
        """Handle of the event."""
        ...


class Copier(Protocol):
    """Copies to a device that compiled code queues, without the interpreter."""

    @property
    def calls(self) -> CopyCalls:
        """The functions."""
        ...

    def create_event(self) -> CopyEvent:
        """An event that was not recorded yet; a wait for it does not spin."""
        ...

    def failure(self, status: int) -> DeviceError:
        """Error for what a function returned; notes whether the device is lost."""
        ...


class Device(Protocol):
    """One GPU, or its stand-in in tests."""

    @property
    def label(self) -> str:
        """Name of the device for users: "cuda:0"."""
        ...

    @property
    def model(self) -> str:
        """Model, under which measured rates are kept: "NVIDIA H200, ..."."""
        ...

    @property
    def decoder(self) -> Nvcomp:
        """Decoder of compressed streams on the device."""
        ...

    @property
    def rates(self) -> Mapping[str, Rates]:
        """Decoding speeds on the device and on the host, as `placement.RATES`."""
        ...

    @property
    def copier(self) -> Copier | None:
        """Copies that compiled code queues; None if it cannot call the driver."""
        ...

    def check(self) -> None:
        """Raise `DeviceError` if earlier work broke the device for this process."""
        ...

    def free_nbytes(self) -> int:
        """Memory that is free on the device, in bytes."""
        ...

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """Memory on the device, content undefined; ready for use on any stream.

        Raises `DeviceMemoryError` if the device has not enough free memory.
        """
        ...

    def allocate_pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Page-locked host memory for asynchronous copies: uint8, (nbytes,).

        Kernels may write there, at the host's address. Raises `DeviceMemoryError` if
        the host has not enough memory to lock.
        """
        ...

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Array of the device's library, with ``__cuda_array_interface__``.

        Work queued on the current stream may still use its memory.

        Raises
        ------
        UnsupportedError
            The library has no such data type.
        DeviceMemoryError
            The device has not enough free memory.
        """
        ...

    def view(
        self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: Any
    ) -> Any:
        """Array of the device's library over existing device memory.

        `owner` owns the memory, and lives as long as anything made from the array.
        """
        ...

    def adopt(self, array: Any) -> Any:
        """Array of the device's library over an object that exports DLPack.

        Work queued on the current stream from now on runs after the object's writer.
        Raises `UnsupportedError` if the library does not accept the object.
        """
        ...

    def current_stream(self) -> Stream:
        """The stream that the caller works on."""
        ...

    def create_stream(self) -> Stream:
        """A stream that does not wait for the default stream."""
        ...

    def release_stream(self, stream: Stream) -> None:
        """Take back a stream on which nothing is under way; another caller gets it."""
        ...

    def upload(self, address: int, data: NDArray[np.uint8], stream: Stream) -> None:
        """Copy pinned host memory to the device, on `stream`.

        `data` must not change until the copy is done.
        """
        ...

    def download(self, data: NDArray[np.uint8], address: int, stream: Stream) -> None:
        """Copy device memory to pinned host memory, on `stream`."""
        ...

    def copy(self, address: int, source: int, nbytes: int, stream: Stream) -> None:
        """Copy device memory at `source` to `address`, on `stream`."""
        ...

    def copy_rows(self, rows: RowCopy, stream: Stream) -> None:
        """Copy rows of device memory to other places there, on `stream`."""
        ...

    def launch(
        self, kernel: str, grid: Grid, parameters: Sequence[Any], stream: Stream
    ) -> None:
        """Run a kernel of ``kernels/*.cu`` on `stream`, over a grid of blocks.

        `parameters` are NumPy scalars, passed by value with exactly their bytes. Raises
        `DeviceMemoryError` if there is too little memory; the kernel does not run then.
        """
        ...

    def record(self, stream: Stream) -> Event:
        """Event that is done when all work queued on `stream` so far is."""
        ...

    def await_event(self, stream: Stream, event: Event) -> None:
        """Make work queued on `stream` from now on wait for `event`."""
        ...

    def limit_waits(
        self, stream: Stream, limit_s: float | None, entries: Sequence[Event]
    ) -> None:
        """Give the device up if work on `stream` takes longer than `limit_s` seconds.

        The time of a wait for the stream, or for its events, begins once `entries` are
        done. The limit ends as the stream is released.
        """
        ...

    def wait(self, event: Event) -> None:
        """Block the host until `event` is done.

        Raises `DeviceError` if work failed, or if the device is given up because work
        does not end; the device cannot be used any more.
        """
        ...

    def wait_for(self, stream: Stream) -> None:
        """Block the host until all work on `stream` is done; raises as `wait`."""
        ...

    def keep(self, *things: Any) -> None:
        """Keep the owners of memory for good if work that uses it may never end.

        Only a device that was given up keeps any, and so it does with all memory that
        `allocate` and `allocate_pinned` gave.
        """
        ...


def wait_out(device: Device, streams: Sequence[Stream]) -> None:
    """Wait until no work is under way on streams, and ignore whether it failed.

    Call it before memory is given back that such work may use. Interrupts do not end
    the wait; the last one is raised afterwards. If the device is given up, work may go
    on, and the memory is kept.
    """

    def wait() -> None:
        for stream in streams:
            with suppress(DeviceError):
                device.wait_for(stream)

    to_the_end(wait)
