"""What the reader asks of a device: memory, copies, launches, streams and events.

Streams order all work: an operation runs after all earlier operations on its stream and
after the events that its stream waits for. The host waits only in `Device.wait` and
`Device.wait_for`. Nothing waits for the whole device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.nvcomp import Alignments, StreamTables
from gpushard.devices.nvcomp_abi import Algorithm
from gpushard.devices.placement import Rates

Stream = int
"""Handle of a stream, as the driver gives it; 0 is the default stream."""

Grid = tuple[int, int]
"""Blocks of a launch along x and y, at least one each."""


class RowCopy(NamedTuple):
    """Rows of bytes to copy within a device's memory, as ``cudaMemcpy2D`` takes them.

    Attributes
    ----------
    address, pitch
        Address of the first target row, and bytes from one row to the next.
    source, source_pitch
        The same for the source rows.
    nbytes, n_rows
        Bytes of a row, at most either pitch, and the number of rows.
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
    def decoder(self) -> StreamDecoder:
        """Decoder of compressed streams on the device."""
        ...

    @property
    def rates(self) -> Mapping[str, Rates]:
        """Decoding speeds on the device and on the host, as `placement.RATES`."""
        ...

    def check(self) -> None:
        """Raise if the device cannot be used any more; otherwise do nothing.

        Raises
        ------
        DeviceError
            Earlier work failed in a way that a process cannot recover from.
        """
        ...

    def free_nbytes(self) -> int:
        """Memory that is free on the device, in bytes."""
        ...

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """Memory on the device, content undefined; ready for use on any stream.

        Raises
        ------
        DeviceMemoryError
            The device has not enough free memory.
        """
        ...

    def allocate_pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Page-locked host memory for asynchronous copies: uint8, (nbytes,).

        Kernels may write there, at the host's address.

        Raises
        ------
        DeviceMemoryError
            The host has not enough memory to lock.
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

        Parameters
        ----------
        owner
            Owner of the memory. It is kept alive as long as the array or anything
            made from it.
        """
        ...

    def adopt(self, array: Any) -> Any:
        """Array of the device's library over an object that exports DLPack.

        Work queued on the current stream from now on runs after the object's writer.

        Raises
        ------
        UnsupportedError
            The library does not accept the object.
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
        """Run a kernel of ``kernels/*.cu`` on `stream`.

        Parameters
        ----------
        grid
            Blocks along x and y, of the size that the kernel declares.
        parameters
            NumPy scalars, passed by value with exactly their bytes.

        Raises
        ------
        DeviceMemoryError
            The launch needs more memory than there is; the kernel does not run.
        """
        ...

    def record(self, stream: Stream) -> Event:
        """Event that is done when all work queued on `stream` so far is."""
        ...

    def await_event(self, stream: Stream, event: Event) -> None:
        """Make work queued on `stream` from now on wait for `event`."""
        ...

    def wait(self, event: Event) -> None:
        """Block the host until `event` is done.

        Raises
        ------
        DeviceError
            Work on the device failed; the device cannot be used any more.
        """
        ...

    def wait_for(self, stream: Stream) -> None:
        """Block the host until all work queued on `stream` is done.

        Raises
        ------
        DeviceError
            As for `wait`.
        """
        ...


class StreamDecoder(Protocol):
    """Decoder of many streams in device memory with one call (nvCOMP)."""

    @property
    def label(self) -> str:
        """Name and version of the decoder, for reports: "nvCOMP 6.0.0"."""
        ...

    def alignments(self, algorithm: Algorithm) -> Alignments:
        """Powers of two that addresses must be multiples of for decoding."""
        ...

    def temp_nbytes(
        self, algorithm: Algorithm, count: int, max_nbytes: int, total_nbytes: int
    ) -> int:
        """Scratch bytes to decode `count` streams to at most `total_nbytes` bytes."""
        ...

    def decompress_async(
        self,
        algorithm: Algorithm,
        tables: StreamTables,
        temp: int,
        temp_nbytes: int,
        stream: Stream,
    ) -> None:
        """Enqueue the decoding of a batch of streams on `stream`."""
        ...

    def encoding_alignments(self, algorithm: Algorithm) -> Alignments:
        """Powers of two that addresses must be multiples of for encoding."""
        ...

    def encoded_limit(self, algorithm: Algorithm, nbytes: int) -> int:
        """Largest encoded size of `nbytes` bytes."""
        ...

    def encoding_temp_nbytes(
        self, algorithm: Algorithm, count: int, max_nbytes: int
    ) -> int:
        """Scratch bytes to encode `count` streams of `max_nbytes` bytes each."""
        ...

    def compress_async(
        self,
        algorithm: Algorithm,
        tables: StreamTables,
        max_nbytes: int,
        temp: int,
        temp_nbytes: int,
        stream: Stream,
    ) -> None:
        """Enqueue the encoding of a batch of streams on `stream`."""
        ...
