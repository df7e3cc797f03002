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
    memory
        What must be kept.
    """

    algorithm: Algorithm
    device: Device
    tables: StreamTables
    decoded: int
    capacities: NDArray[np.uint64]
    temp: int
    temp_nbytes: int
    memory: list[Any]

    @classmethod
    def lay(
        cls,
        device: Device,
        algorithm: Algorithm,
        encoded: Sequence[bytes],
        capacities: Sequence[int],
        *,
        repeat: int = 1,
        offset: int = 0,
    ) -> Batch:
        """Batch of streams, each as often as `repeat` says.

        `offset` bytes are left between a multiple of 64 and each stream.
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
        pitch = -(-sizes // 256) * 256 + 256
        decoded = device.allocate(int(pitch.sum()))
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
        at = [table.address + 8 * count * k for k in range(4)]
        tables = StreamTables(count, *at, told.address, told.address + 8 * count)
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
        decoded, at = [], self.decoded
        for nbytes in self.capacities.tolist():
            decoded.append(fetched(self.device, at, nbytes).tobytes())
            at += -(-nbytes // 256) * 256 + 256
        return [
            (status_name(int(s)), int(n), d)
            for s, n, d in zip(statuses, actual, decoded, strict=True)
        ]


def uploaded(device: Device, content: NDArray[np.uint8], stream: int) -> Any:
    """Buffer with that content."""
    host = device.allocate_pinned(len(content))[: len(content)]
    host[:] = content
    buffer = device.allocate(len(content) + _PADDING_NBYTES)
    device.upload(buffer.address, host, stream)
    device.wait_for(stream)
    return buffer
