"""Blosc frames as numcodecs writes them, and with snappy streams, as C-Blosc could."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import cramjam
import numcodecs.lz4
import numpy as np
import zstandard
from numcodecs.blosc import Blosc
from numpy.typing import NDArray

from gpushard.codecs import blosc_blocks, blosc_frame
from gpushard.codecs.blosc_frame import BloscHeader


def elements(kind: str, dtype: str, n_elements: int) -> NDArray[Any]:
    rng = np.random.default_rng(n_elements)
    nbytes = n_elements * np.dtype(dtype).itemsize
    if kind == "noise":
        raw = rng.integers(0, 256, nbytes, dtype=np.uint8)
    elif kind == "zeros":
        raw = np.zeros(nbytes, np.uint8)
    else:
        steps = rng.integers(-3, 4, nbytes // 4 + 1)
        raw = np.cumsum(steps).astype("<i4").view(np.uint8)[:nbytes].copy()
    return raw.view(dtype)


def encode(array: NDArray[Any], cname: str, shuffle: int, blocksize: int = 0) -> bytes:
    return bytes(Blosc(cname, 5, shuffle, blocksize).encode(array))


@dataclass(frozen=True)
class Frame:
    """Streams of a frame in the order of the decoded bytes, as columns.

    Offsets count from the start of the frame, and of the decoded bytes before the
    filter is undone.
    """

    header: blosc_frame.BloscHeader
    source_offset: NDArray[np.int64]
    source_nbytes: NDArray[np.int64]
    decoded_offset: NDArray[np.int64]
    decoded_nbytes: NDArray[np.int64]
    block_index: NDArray[np.int64]

    @property
    def is_raw(self) -> NDArray[np.bool_]:
        return self.source_nbytes == self.decoded_nbytes


def parse(encoded: bytes) -> Frame:
    header = blosc_frame.parse_header(encoded, "blosc")
    size, start = header.block_nbytes, blosc_frame.HEADER_NBYTES
    rows: list[tuple[int, ...]] = []
    if header.flags & blosc_frame.MEMCPYED and header.nbytes:
        rows = [(start, header.nbytes, 0, header.nbytes, 0)]
    elif header.nbytes:
        for block in range(header.n_blocks):
            found = blosc_frame.streams_of(encoded, header, block, "blosc")
            streams, end = [*found], min((block + 1) * size, header.nbytes)
            each = (end - block * size) // len(streams)
            rows += [
                (offset, nbytes, block * size + k * each, each, block)
                for k, (offset, nbytes) in enumerate(streams)
            ]
    return Frame(header, *np.array(rows, np.int64).reshape(-1, 5).T)


def decode_stream(compressor: int, stream: bytes, nbytes: int) -> bytes:
    """One stream of a frame; no library decodes a single one of blosclz."""
    if compressor == blosc_frame.LZ4:  # numcodecs wants the size ahead of the block
        return bytes(numcodecs.lz4.decompress(struct.pack("<I", nbytes) + stream))
    if compressor == blosc_frame.SNAPPY:
        return bytes(cramjam.snappy.decompress_raw(stream))
    if compressor == blosc_frame.ZLIB:
        return zlib.decompress(stream)
    assert compressor == blosc_frame.ZSTD
    return zstandard.ZstdDecompressor().decompress(stream, max_output_size=nbytes)


def decode_streams(encoded: bytes, frame: Frame) -> bytes:
    """A frame decoded stream by stream, each where its columns say that it lies."""
    filtered = np.zeros(frame.header.nbytes, np.uint8)
    for k, start in enumerate(frame.source_offset.tolist()):
        stream = bytes(encoded[start : start + int(frame.source_nbytes[k])])
        nbytes, offset = int(frame.decoded_nbytes[k]), int(frame.decoded_offset[k])
        if not frame.is_raw[k]:
            stream = decode_stream(frame.header.compressor, stream, nbytes)
        filtered[offset : offset + nbytes] = np.frombuffer(stream, np.uint8)
    if frame.header.flags & blosc_frame.MEMCPYED:
        return filtered.tobytes()
    return undo_filter(filtered, frame.header)


def undo_filter(filtered: NDArray[np.uint8], header: BloscHeader) -> bytes:
    """Decoded bytes of a frame, by those of its decoded streams."""
    cuts = range(header.block_nbytes, len(filtered), header.block_nbytes)
    blocks = np.split(filtered, cuts)
    return b"".join(blosc_blocks.undo_filter(block, header) for block in blocks)


def as_snappy(encoded: bytes) -> bytes:
    """The same frame with its lz4 streams written as snappy."""
    frame = parse(encoded)
    header = frame.header
    out = bytearray(encoded[: 16 + 4 * header.n_blocks])
    block = -1
    for k in range(len(frame.source_offset)):
        if frame.block_index[k] != block:
            block = int(frame.block_index[k])
            struct.pack_into("<i", out, 16 + 4 * block, len(out))
        start, nbytes = int(frame.source_offset[k]), int(frame.source_nbytes[k])
        stream = encoded[start : start + nbytes]
        if not frame.is_raw[k]:
            raw = decode_stream(blosc_frame.LZ4, stream, int(frame.decoded_nbytes[k]))
            stream = bytes(cramjam.snappy.compress_raw(raw))
        out += struct.pack("<i", len(stream)) + stream
    out[2] = (out[2] & 0x1F) | blosc_frame.SNAPPY << 5
    struct.pack_into("<I", out, 12, len(out))
    return bytes(out)
