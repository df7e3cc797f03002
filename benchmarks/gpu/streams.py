"""Streams for the vendor's decoder alone: encoded here, decoded on the device."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cramjam
import numpy as np
import zstandard
from numpy.typing import NDArray

from benchmarks.gpu.gpu import fetched
from gpushard.devices.base import Device
from gpushard.devices.nvcomp import StreamTables
from gpushard.devices.nvcomp_abi import Algorithm, status_name

_PADDING_NBYTES = 64
_PAGE_NBYTES = 256
CANARY = 0xA5
"""What lies behind outputs until something is written there."""


def _deflate(data: bytes) -> bytes:
    encoder = zlib.compressobj(5, zlib.DEFLATED, -zlib.MAX_WBITS)
    return encoder.compress(data) + encoder.flush()


ENCODERS: dict[Algorithm, Callable[[bytes], bytes]] = {
    Algorithm.ZSTD: lambda data: zstandard.ZstdCompressor(3).compress(data),
    Algorithm.LZ4: lambda data: bytes(
        cramjam.lz4.compress_block(data, store_size=False)
    ),
    Algorithm.SNAPPY: lambda data: bytes(cramjam.snappy.compress_raw(data)),
    Algorithm.DEFLATE: _deflate,
    Algorithm.GZIP: lambda data: gzip.compress(data, 5, mtime=0),
}


@dataclass
class Batch:
    """Streams in device memory, and where they are decoded to.

    Attributes
    ----------
    algorithm
        Their format.
    tables
        As the decoder takes them.
    pitches
        Bytes from one output to the next.
    memory
        What must be kept.
    """

    algorithm: Algorithm
    device: Device
    tables: StreamTables
    decoded: int
    capacities: NDArray[np.uint64]
    pitches: NDArray[np.uint64]
    temp: int
    temp_nbytes: int
    memory: list[Any]

    @classmethod
    def lay(  # noqa: PLR0913 - four by position, the rest by name
        cls,
        device: Device,
        algorithm: Algorithm,
        encoded: Sequence[bytes],
        capacities: Sequence[int],
        *,
        repeat: int = 1,
        offset: int = 0,
        behind: int = 0,
    ) -> Batch:
        """Batch of streams, each as often as `repeat` says.

        `offset` bytes are left between a multiple of 64 and each stream, and at least
        `behind` bytes behind each output.
        """
        stream = device.create_stream()
        room = [-(-(len(e) + offset) // 64) * 64 + _PADDING_NBYTES for e in encoded]
        starts = np.cumsum([0, *room])
        content = np.zeros(int(starts[-1]), np.uint8)
        for piece, start in zip(encoded, starts.tolist(), strict=False):
            first = start + offset
            content[first : first + len(piece)] = np.frombuffer(piece, np.uint8)
        source = uploaded(device, content, stream)
        sizes = np.tile(np.array(capacities, np.uint64), repeat)
        pages = -(-sizes // _PAGE_NBYTES) + max(1, -(-behind // _PAGE_NBYTES))
        pitch = pages * np.uint64(_PAGE_NBYTES)
        canaries = np.full(int(pitch.sum()), CANARY, np.uint8)
        decoded = uploaded(device, canaries, stream)
        count = len(sizes)
        columns = [
            np.tile((starts[:-1] + offset + source.address).astype(np.uint64), repeat),
            np.tile(np.array([len(e) for e in encoded], np.uint64), repeat),
            (np.cumsum(pitch) - pitch + decoded.address).astype(np.uint64),
            sizes,
        ]
        packed = np.concatenate(columns).view(np.uint8)
        table = uploaded(device, packed, stream)
        told = device.allocate(12 * count)
        src, src_nbytes, dst, capacity = (
            table.address + 8 * count * k for k in range(len(columns))
        )
        tables = StreamTables(
            count,
            src,
            src_nbytes,
            dst,
            capacity,
            actual_nbytes=told.address,
            statuses=told.address + 8 * count,
        )
        temp_nbytes = device.decoder.temp_nbytes(
            algorithm, count, int(sizes.max()), int(sizes.sum())
        )
        temp = device.allocate(max(temp_nbytes, 256))
        kept = [source, decoded, table, told, temp]
        return cls(
            algorithm,
            device,
            tables,
            decoded.address,
            sizes,
            pitch,
            temp.address,
            temp_nbytes,
            kept,
        )

    @property
    def nbytes(self) -> int:
        """Decoded bytes."""
        return int(self.capacities.sum())

    def enqueue(self, stream: int) -> None:
        """Decode on a stream."""
        self.device.decoder.decompress_async(
            self.algorithm, self.tables, self.temp, self.temp_nbytes, stream
        )

    def results(self) -> list[tuple[str, int, bytes]]:
        """Status, size that is claimed and what lies there, of each stream."""
        stream = self.device.create_stream()
        self.enqueue(stream)
        self.device.wait_for(stream)
        self.device.release_stream(stream)
        count = self.tables.count
        told = fetched(self.device, self.tables.actual_nbytes, 12 * count)
        actual = told[: 8 * count].view(np.uint64)
        statuses = told[8 * count :].view(np.int32)
        decoded = [self._bytes(k)[:n] for k, n in enumerate(self.capacities.tolist())]
        return [
            (status_name(int(s)), int(n), d)
            for s, n, d in zip(statuses, actual, decoded, strict=True)
        ]

    def changed_behind(self, k: int) -> tuple[int, int]:
        """How many bytes behind output `k` were written to, and up to which one."""
        behind = np.frombuffer(self._bytes(k)[int(self.capacities[k]) :], np.uint8)
        changed = np.flatnonzero(behind != CANARY)
        return len(changed), int(changed[-1]) + 1 if len(changed) else 0

    def _bytes(self, k: int) -> bytes:
        """An output, and what lies behind it."""
        start = self.decoded + int(self.pitches[:k].sum())
        return fetched(self.device, start, int(self.pitches[k])).tobytes()


def uploaded(device: Device, content: NDArray[np.uint8], stream: int) -> Any:
    """Buffer with that content."""
    host = device.allocate_pinned(len(content))[: len(content)]
    host[:] = content
    buffer = device.allocate(len(content) + _PADDING_NBYTES)
    device.upload(buffer.address, host, stream)
    device.wait_for(stream)
    return buffer
