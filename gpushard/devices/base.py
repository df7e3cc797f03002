"""What the reader asks of a device: memory, copies, launches, streams and events.

Everything is ordered by streams: an operation runs when those before it on its stream,
and the events its stream waits for, are done. The host waits in `Device.wait` and
`wait_for` alone, and nothing waits for the whole device.
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
"""Handle of a stream, as the driver has it; 0 is the default stream."""

Grid = tuple[int, int]
"""Blocks of a launch along x and y, at least one each."""


class RowCopy(NamedTuple):
    """Rows of bytes to copy within a device's memory, as ``cudaMemcpy2D`` takes them.

    Attributes
    ----------
    address, pitch
        Where the first row goes, and the bytes from there to the next.
    source, source_pitch
        The same of where rows lie.
    nbytes, n_rows
        Of a row, at most either pitch; and how many there are.
    """

    address: int
    pitch: int
    source: int
    source_pitch: int
    nbytes: int
    n_rows: int


class DeviceBuffer(Protocol):
    """Memory on the device, given back when it is dropped.

    Nothing that uses it may be under way any more then, on any stream.
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
    """A point on a stream that others, and the host, can wait for."""


class Device(Protocol):
    """One GPU, or what stands in for it in tests."""

    @property
    def label(self) -> str:
        """How it is named to users: "cuda:0"."""
        ...

    @property
    def model(self) -> str:
        """What it is, for what is kept of all that are alike: "NVIDIA H200, ..."."""
        ...

    @property
    def decoder(self) -> StreamDecoder:
        """What decodes compressed streams there."""
        ...

    @property
    def rates(self) -> Mapping[str, Rates]:
        """How fast streams are decoded there and on the host, as `placement.RATES`."""
        ...

    def check(self) -> None:
        """Do nothing on a device that can be used.

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
        """Memory on the device, its content undefined; ready for use on any stream.

        Raises
        ------
        DeviceMemoryError
            There is not so much.
        """
        ...

    def allocate_pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Host memory that copies run to and from by themselves: uint8, (nbytes,).

        Kernels may write there, at the host's address.

        Raises
        ------
        DeviceMemoryError
            There is not so much.
        """
        ...

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Array of the device's library, with ``__cuda_array_interface__``.

        What the current stream has queued may still use its memory.

        Raises
        ------
        UnsupportedError
            The library has no such data type.
        DeviceMemoryError
            There is not so much memory.
        """
        ...

    def view(
        self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: Any
    ) -> Any:
        """Array of the device's library over memory that lies there.

        Parameters
        ----------
        owner
            What has the memory, kept as long as the array or anything made of it is.
        """
        ...

    def adopt(self, array: Any) -> Any:
        """Array of the device's library over what exports itself by DLPack.

        What is queued on the current stream from here on comes after what wrote it.

        Raises
        ------
        UnsupportedError
            The library does not take it.
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

        `data` must stay as it is until the copy is done.
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
        """Let what is queued on `stream` from here on wait for `event`."""
        ...

    def wait(self, event: Event) -> None:
        """Let the host wait until `event` is done.

        Raises
        ------
        DeviceError
            Work on the device failed; the device cannot be used any more.
        """
        ...

    def wait_for(self, stream: Stream) -> None:
        """Let the host wait until all that is queued on `stream` is done.

        Raises
        ------
        DeviceError
            As of `wait`.
        """
        ...


class StreamDecoder(Protocol):
    """What decodes many streams of a device's memory in one call (nvCOMP)."""

    @property
    def label(self) -> str:
        """What decodes, for reports: "nvCOMP 6.0.0"."""
        ...

    def alignments(self, algorithm: Algorithm) -> Alignments:
        """What addresses must be multiples of."""
        ...

    def temp_nbytes(
        self, algorithm: Algorithm, count: int, max_nbytes: int, total_nbytes: int
    ) -> int:
        """Scratch for decoding `count` streams to `total_nbytes` bytes at most."""
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
        """What addresses must be multiples of when streams are encoded."""
        ...

    def encoded_limit(self, algorithm: Algorithm, nbytes: int) -> int:
        """Most bytes that `nbytes` bytes are encoded in."""
        ...

    def encoding_temp_nbytes(
        self, algorithm: Algorithm, count: int, max_nbytes: int
    ) -> int:
        """Scratch for encoding `count` streams of `max_nbytes` decoded bytes each."""
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
