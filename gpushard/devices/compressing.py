"""Inner chunks in device memory -> compressed streams on the host, by nvCOMP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.base import Device, Event, RowCopy, Stream, wait_out
from gpushard.devices.nvcomp import StreamTables
from gpushard.devices.nvcomp_abi import Algorithm

Bytes = NDArray[np.uint8]

# Enough streams to fill any device with inner chunks of 64 KiB.
_MOST_ROWS = 1024
_ALIGNMENT = 16
# Bytes of a row in the tables: source, size and destination; then size and status.
_GIVEN_NBYTES, _FOUND_NBYTES = 24, 12


class GatheredChunk(NamedTuple):
    """How one inner chunk is assembled.

    `copies` go to addresses relative to its start. If they leave gaps, it `is_partial`,
    and is filled beforehand.
    """

    copies: Sequence[RowCopy]
    is_partial: bool


class EncodedChunk(NamedTuple):
    """Stream of an inner chunk, and its decoded bytes if they were asked for.

    Both are uint8, (nbytes,), host. `stream` is None if the vendor's encoder failed.
    """

    stream: Bytes | None
    decoded: Bytes | None = None


class BatchCompressor:
    """Encoder of inner chunks that all have the same size.

    Parameters
    ----------
    chunk_nbytes
        Size of an inner chunk, at most ``algorithm.max_encodable_nbytes``.
    batch_nbytes
        Bytes that inner chunks of a batch may take, with the room for their streams:
        the host holds the streams, too.
    limit_nbytes
        Device memory that a batch may take with its scratch. nvCOMP's Zstd asks for
        half a gigabyte even for four bytes (NVIDIA/nvcomp#113).
    patience_s
        As `Options.device_patience_s`.

    Attributes
    ----------
    most_rows
        Inner chunks in a batch; 0 if not even one fits the limits.
    """

    def __init__(
        self,
        device: Device,
        algorithm: Algorithm,
        *,
        chunk_nbytes: int,
        batch_nbytes: int,
        limit_nbytes: int,
        patience_s: float | None,
    ) -> None:
        self._device = device
        self._patience_s = patience_s
        self._algorithm = algorithm
        self.chunk_nbytes = chunk_nbytes
        encoder = device.decoder
        needed = encoder.encoding_alignments(algorithm)
        self._limit = encoder.encoded_limit(algorithm, chunk_nbytes)
        self._pitch = _rounded(chunk_nbytes, needed.input)
        self._room = _rounded(self._limit, needed.output)
        self.most_rows = min(_MOST_ROWS, batch_nbytes // (self._pitch + self._room))
        while self.most_rows and self._nbytes(self.most_rows) > limit_nbytes:
            self.most_rows //= 2

    def _temp_nbytes(self, n_rows: int) -> int:
        encoder = self._device.decoder
        return encoder.encoding_temp_nbytes(self._algorithm, n_rows, self.chunk_nbytes)

    def _nbytes(self, n_rows: int) -> int:
        return n_rows * (self._pitch + self._room) + self._temp_nbytes(n_rows)

    def compress(
        self,
        batch: Sequence[GatheredChunk],
        fill: Bytes,
        ready: Sequence[Event],
        is_looked_at: Callable[[int], bool],
    ) -> list[EncodedChunk]:
        """Streams of at most `most_rows` inner chunks, complete on return.

        Parameters
        ----------
        fill
            One inner chunk full of the fill value.
        ready
            Events that are done when the sources of the copies have been written.
        is_looked_at
            Size of a stream -> whether its decoded bytes are wanted too.

        Raises
        ------
        DeviceError
            The work could not be queued, or failed.
        """
        device = self._device
        run = _Run(device, len(batch))
        try:
            device.limit_waits(run.stream, self._patience_s, ready)
            for event in ready:
                device.await_event(run.stream, event)
            inputs = run.memory(len(batch) * self._pitch)
            self._gather(run, inputs, batch, fill)
            outputs = run.memory(len(batch) * self._room)
            nbytes, statuses = self._encode(run, inputs, outputs)
            return self._fetch(run, inputs, outputs, nbytes, statuses, is_looked_at)
        finally:
            run.end()

    def _gather(
        self, run: _Run, inputs: int, batch: Sequence[GatheredChunk], fill: Bytes
    ) -> None:
        device = self._device
        filled = None
        for i, gathered in enumerate(batch):
            place = inputs + i * self._pitch
            if gathered.is_partial:
                if filled is None:
                    filled = run.pinned(len(fill))
                    filled[:] = fill
                device.upload(place, filled, run.stream)
            for copy in gathered.copies:
                to = place + copy.address
                if copy.n_rows == 1:
                    device.copy(to, copy.source, copy.nbytes, run.stream)
                else:
                    device.copy_rows(copy._replace(address=to), run.stream)

    def _encode(
        self, run: _Run, inputs: int, outputs: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
        """Size and status of each stream."""
        device, n = self._device, run.n_rows
        rows = np.arange(n, dtype=np.uint64)
        given = run.pinned(n * _GIVEN_NBYTES)
        columns = given.view(np.uint64).reshape(3, n)
        columns[0] = rows * np.uint64(self._pitch) + np.uint64(inputs)
        columns[1] = self.chunk_nbytes
        columns[2] = rows * np.uint64(self._room) + np.uint64(outputs)
        page = run.memory(n * (_GIVEN_NBYTES + _FOUND_NBYTES))
        device.upload(page, given, run.stream)
        src, src_nbytes, dst, actual, statuses = (page + 8 * n * k for k in range(5))
        tables = StreamTables(n, src, src_nbytes, dst, 0, actual, statuses)
        temp_nbytes = self._temp_nbytes(n)
        temp = run.memory(temp_nbytes)
        device.decoder.compress_async(
            self._algorithm, tables, self.chunk_nbytes, temp, temp_nbytes, run.stream
        )
        found = run.pinned(n * _FOUND_NBYTES)
        device.download(found, actual, run.stream)
        run.wait()
        return found[: 8 * n].view(np.uint64), found[8 * n :].view(np.int32)

    def _fetch(
        self,
        run: _Run,
        inputs: int,
        outputs: int,
        nbytes: NDArray[np.uint64],
        statuses: NDArray[np.int32],
        is_looked_at: Callable[[int], bool],
    ) -> list[EncodedChunk]:
        device, chunk_nbytes = self._device, self.chunk_nbytes
        # A status of success does not count if the size is impossible.
        is_good = (statuses == 0) & (nbytes > 0) & (nbytes <= self._limit)
        sizes = np.where(is_good, nbytes, 0).tolist()
        looks = [size > 0 and is_looked_at(size) for size in sizes]
        room = run.pinned(max(1, sum(sizes) + chunk_nbytes * sum(looks)))
        encoded: list[EncodedChunk] = []
        for i, (size, is_wanted) in enumerate(zip(sizes, looks, strict=True)):
            stream, decoded, room = np.split(
                room, (size, size + chunk_nbytes * is_wanted)
            )
            if size:
                device.download(stream, outputs + i * self._room, run.stream)
            if is_wanted:
                device.download(decoded, inputs + i * self._pitch, run.stream)
            encoded.append(
                EncodedChunk(stream if size else None, decoded if is_wanted else None)
            )
        run.wait()
        # Pinned memory is scarce, and a shard is held until it is written.
        return [
            EncodedChunk(*(None if x is None else x.copy() for x in e)) for e in encoded
        ]


class _Run:
    """Stream and memory of one batch, held until no work is under way."""

    def __init__(self, device: Device, n_rows: int) -> None:
        self._device = device
        self.n_rows = n_rows
        self.stream: Stream = device.create_stream()
        self._held: list[Any] = []

    def memory(self, nbytes: int) -> int:
        """Address of `nbytes` bytes of device memory."""
        buffer = self._device.allocate(max(nbytes, 1))
        self._held.append(buffer)
        return buffer.address

    def pinned(self, nbytes: int) -> Bytes:
        """Pinned host memory: uint8, (nbytes,)."""
        memory = self._device.allocate_pinned(nbytes)
        self._held.append(memory)
        return memory

    def wait(self) -> None:
        """Wait until all queued work is done."""
        self._device.wait_for(self.stream)

    def end(self) -> None:
        """Wait, and give stream and memory back; also after a failure."""
        try:
            wait_out(self._device, (self.stream,))
        finally:
            self._device.release_stream(self.stream)
            self._held.clear()


def _rounded(nbytes: int, alignment: int) -> int:
    step = max(_ALIGNMENT, alignment)
    return -(-nbytes // step) * step
