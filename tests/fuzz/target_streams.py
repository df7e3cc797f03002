"""Each decoder of encoded bytes, against another decoder of the same format.

Input: two bytes that choose the codec and the size it is told, then one stream. The
stream lies against an unreadable page, so a library that reads beyond it ends the run.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import cramjam
import google_crc32c
import numcodecs
import numpy as np
import zstandard
from numcodecs.blosc import Blosc

import blosc_frames
from blosc_frames import decode_streams
from fuzz.guard import GuardedRoom
from fuzz.refusals import assert_is_told
from gpushard import codecs
from gpushard.codecs import blosc_blocks, blosc_frame
from gpushard.errors import CorruptShardError
from gpushard.layout import CodecSpec

NAME = "streams"

NAMES = (
    *("zstd", "gzip", "numcodecs.zlib", "numcodecs.lz4", "blosc", "numcodecs.bz2"),
    *("numcodecs.lzma", "crc32c", "numcodecs.shuffle", "numcodecs.adler32"),
)
_ELEMENTS = np.cumsum(np.arange(400) % 5).astype("<i4")
RAW = _ELEMENTS.tobytes()
# Limit, and whether the stream must decode to exactly as many bytes.
_SIZES = ((len(RAW), True), (len(RAW), False), (100, False), (65536, False), (0, False))
_DTYPE = np.dtype(np.int32)

_room = GuardedRoom(1 << 20)


def _blosc(cname: str, shuffle: int, blocksize: int = 0) -> bytes:
    return bytes(Blosc(cname, 5, shuffle, blocksize).encode(_ELEMENTS))


def _snappy_blosc() -> bytes:
    stream = bytes(cramjam.snappy.compress_raw(RAW))
    head = np.array([len(RAW), len(RAW), 24 + len(stream)], "<u4").tobytes()
    lengths = np.array([20, len(stream)], "<i4").tobytes()
    return bytes([2, 1, 0x50, 4]) + head + lengths + stream


def _zstd_streams() -> list[bytes]:
    unsized = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    whole = zstandard.ZstdCompressor().compress(RAW)
    halves = [zstandard.ZstdCompressor().compress(half) for half in (RAW[:8], RAW[8:])]
    skippable = (0x184D2A53).to_bytes(4, "little") + (3).to_bytes(4, "little") + b"abc"
    return [
        *(whole, halves[0] + skippable + halves[1], skippable + whole),
        unsized.compress(RAW) + unsized.flush(),
    ]


def _streams() -> dict[str, list[bytes]]:
    halves = RAW[:8], RAW[8:]
    compressors = ("lz4", "zstd", "zlib", "blosclz", "lz4hc")
    return {
        "zstd": _zstd_streams(),
        "gzip": [gzip.compress(RAW, mtime=0), b"".join(map(gzip.compress, halves))],
        "numcodecs.zlib": [zlib.compress(RAW), zlib.compress(RAW, 0)],
        "numcodecs.lz4": [bytes(numcodecs.LZ4().encode(RAW)), bytes(4) + b"\0"],
        "blosc": [
            *(_blosc(name, 1) for name in compressors),
            *(_blosc(name, 2, 256) for name in compressors),
            *(_blosc(name, 0, 1024) for name in compressors),
            *(_snappy_blosc(), bytes(Blosc("lz4", 0).encode(_ELEMENTS))),
        ],
        "numcodecs.bz2": [bz2.compress(RAW), b"".join(map(bz2.compress, halves))],
        "numcodecs.lzma": [lzma.compress(RAW), lzma.compress(RAW[:8])],
        "crc32c": [RAW + google_crc32c.value(RAW).to_bytes(4, "little")],
        "numcodecs.shuffle": [bytes(numcodecs.Shuffle(4).encode(_ELEMENTS))],
        "numcodecs.adler32": [bytes(numcodecs.Adler32().encode(RAW))],
    }


def seeds() -> list[bytes]:
    streams = _streams()
    found = [
        bytes([k, size]) + stream
        for k, name in enumerate(NAMES)
        for stream in streams[name]
        for size in (0, 1, 3)
    ]
    # Some compressors give the same frame.
    return [*dict.fromkeys(found)]


@cache
def _decoder(name: str) -> Any:
    is_shuffle = name == "numcodecs.shuffle"
    sizes = {"elementsize": _DTYPE.itemsize} if is_shuffle else {}
    return codecs.bytes_codec(CodecSpec(name, sizes))


def check(data: bytes) -> bool:
    if len(data) < 2:
        return False
    name = NAMES[data[0] % len(NAMES)]
    limit, exact = _SIZES[data[1] % len(_SIZES)]
    stream = data[2:]
    encoded = _room.hold(stream, at_end=not data[1] & 0x80)
    try:
        decoded = bytes(_decoder(name).decode(encoded, limit, exact=exact))
    except CorruptShardError as error:
        assert_is_told(error, codec=...)
        return False
    assert len(decoded) <= limit
    assert len(decoded) == limit or not exact
    other = _OTHERS.get(name)
    if other is not None:
        other(stream, decoded)
    return True


def _zstd_streamed(stream: bytes, decoded: bytes) -> None:
    if not stream.startswith(b"\x28\xb5\x2f\xfd"):
        return  # the library's reader does not begin with a skippable frame
    reader = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
    try:
        streamed = reader.read(len(decoded) + 1)
    except zstandard.ZstdError as error:
        if "memory" in str(error):
            return  # a stream takes room for its window, whatever is in it
        raise
    assert streamed == decoded


def _gzip_streamed(stream: bytes, decoded: bytes) -> None:
    assert gzip.decompress(stream) == decoded


def _zlib_at_once(stream: bytes, decoded: bytes) -> None:
    assert zlib.decompress(stream) == decoded


def _lz4_elsewhere(stream: bytes, decoded: bytes) -> None:
    if decoded:
        size = len(decoded)
        other = cramjam.lz4.decompress_block(stream[4:], output_len=size)
        assert bytes(other) == decoded


def _blosc_by_streams(stream: bytes, decoded: bytes) -> None:
    """The frame's streams one by one, and its blocks one by one."""
    if not decoded:
        return
    frame = blosc_frames.parse(stream)
    header = frame.header
    stored = header.flags & blosc_frame.MEMCPYED
    n_blocks = 0 if stored else min(header.n_blocks, 16)
    for block in range(n_blocks):
        part = blosc_blocks.decode_blocks(stream, header, block, block + 1, "blosc")
        start = block * header.block_nbytes
        want = decoded[start : min(start + header.block_nbytes, len(decoded))]
        assert bytes(part) == want, f"block {block}"
    if header.compressor != blosc_frame.BLOSCLZ and not stored:
        assert decode_streams(stream, frame) == decoded


_OTHERS: dict[str, Callable[[bytes, bytes], None]] = {
    "zstd": _zstd_streamed,
    "gzip": _gzip_streamed,
    "numcodecs.zlib": _zlib_at_once,
    "numcodecs.lz4": _lz4_elsewhere,
    "blosc": _blosc_by_streams,
    "numcodecs.bz2": lambda stream, decoded: _equal(bz2.decompress(stream), decoded),
    "numcodecs.lzma": lambda stream, decoded: _equal(lzma.decompress(stream), decoded),
}


def _equal(other: bytes, decoded: bytes) -> None:
    assert other == decoded


DICTIONARY = (b"\x28\xb5\x2f\xfd", b"\x53\x2a\x4d\x18", b"\x1f\x8b\x08", b"BZh9")
