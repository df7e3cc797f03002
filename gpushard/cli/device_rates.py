"""Rates of the vendor's decoders alone, on streams in a device's memory.

A batch is fetched whether the device decodes it or the host, so placement compares
decoding with decoding. A read would measure how fast it is fetched. The other launches
of a batch take some ten microseconds each.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import cramjam
import numpy as np
import zstandard
from numpy.typing import NDArray

from gpushard.devices.base import Device, DeviceBuffer, Stream, wait_out
from gpushard.devices.nvcomp import StreamTables
from gpushard.devices.nvcomp_abi import Algorithm
from gpushard.errors import DeviceError


def _deflate(data: bytes) -> bytes:
    return zlib.compress(data, 5)[2:-4]  # without zlib's header and checksum


def _lz4(data: bytes) -> bytes:
    return bytes(cramjam.lz4.compress_block(data, store_size=False))


_ENCODERS: Mapping[Algorithm, Callable[[bytes], bytes]] = {
    Algorithm.ZSTD: lambda data: zstandard.ZstdCompressor(3).compress(data),
    Algorithm.LZ4: _lz4,
    Algorithm.SNAPPY: lambda data: bytes(cramjam.snappy.compress_raw(data)),
    Algorithm.DEFLATE: _deflate,
    Algorithm.GZIP: lambda data: gzip.compress(data, 5, mtime=0),
}
_ALIGNMENT = 256


def decoding_rate(
    device: Device,
    algorithm: Algorithm,
    pieces: Sequence[bytes],
    n_streams: int,
    repetitions: int,
) -> float:
    """Decoded bytes per second of a batch of `n_streams` streams: its quickest time.

    They are those of `pieces`, which all have the same size, again and again. Raises
    `DeviceError` if one of them is not decoded: that would take less time.
    """
    stream = device.create_stream()
    try:
        encoded = [_ENCODERS[algorithm](piece) for piece in pieces]
        repeated = [encoded[k % len(encoded)] for k in range(n_streams)]
        batch = _Batch.uploaded(device, algorithm, repeated, len(pieces[0]), stream)
        seconds = [batch.decode(stream) for _ in range(repetitions + 1)]
        batch.check(stream)
    finally:
        try:
            wait_out(device, (stream,))
        finally:
            device.release_stream(stream)
    return n_streams * len(pieces[0]) / min(seconds[1:])


@dataclass
class _Batch:
    """Streams in device memory, which `kept_alive` is."""

    device: Device
    algorithm: Algorithm
    tables: StreamTables
    temp: DeviceBuffer
    kept_alive: Sequence[DeviceBuffer]

    @classmethod
    def uploaded(
        cls,
        device: Device,
        algorithm: Algorithm,
        streams: Sequence[bytes],
        decoded_nbytes: int,
        stream: Stream,
    ) -> _Batch:
        """Batch of streams that decode to `decoded_nbytes` bytes each."""
        n = len(streams)
        sizes = np.array([len(one) for one in streams])
        starts = np.cumsum(_aligned(sizes)) - _aligned(sizes)
        content = np.zeros(int(_aligned(sizes).sum()), np.uint8)
        for start, one in zip(starts.tolist(), streams, strict=True):
            content[start : start + len(one)] = np.frombuffer(one, np.uint8)
        source = _uploaded(device, content, stream)
        pitch = int(_aligned(np.array(decoded_nbytes)))
        decoded = device.allocate(n * pitch)
        columns = np.empty((4, n), np.uint64)
        columns[0] = starts + source.address
        columns[1] = sizes
        columns[2] = np.arange(n) * pitch + decoded.address
        columns[3] = decoded_nbytes
        table = _uploaded(device, columns.reshape(-1).view(np.uint8), stream)
        results = device.allocate(12 * n)
        src, src_nbytes, dst, capacity = (table.address + 8 * n * k for k in range(4))
        actual, statuses = results.address, results.address + 8 * n
        tables = StreamTables(n, src, src_nbytes, dst, capacity, actual, statuses)
        temp_nbytes = device.decoder.temp_nbytes(
            algorithm, n, decoded_nbytes, n * decoded_nbytes
        )
        temp = device.allocate(max(temp_nbytes, 1))
        return cls(device, algorithm, tables, temp, [source, decoded, table, results])

    def decode(self, stream: Stream) -> float:
        """Seconds that the batch takes."""
        started = perf_counter()
        self.device.decoder.decompress_async(
            self.algorithm, self.tables, self.temp.address, self.temp.nbytes, stream
        )
        self.device.wait_for(stream)
        return perf_counter() - started

    def check(self, stream: Stream) -> None:
        """Raise `DeviceError` unless all streams were decoded."""
        nbytes = 4 * self.tables.count
        statuses = self.device.allocate_pinned(nbytes)[:nbytes]
        self.device.download(statuses, self.tables.statuses, stream)
        self.device.wait_for(stream)
        if statuses.any():
            raise DeviceError(f"nvCOMP does not decode {self.algorithm.value}")


def _uploaded(
    device: Device, content: NDArray[np.uint8], stream: Stream
) -> DeviceBuffer:
    host = device.allocate_pinned(len(content))[: len(content)]
    host[:] = content
    buffer = device.allocate(len(content))
    device.upload(buffer.address, host, stream)
    device.wait_for(stream)
    return buffer


def _aligned(nbytes: NDArray[np.int64]) -> NDArray[np.int64]:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
