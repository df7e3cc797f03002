"""Blosc 1 frames: the header, and where the streams lie.

The layout is that of c-blosc's README_CHUNK_FORMAT.rst, read together with blosc.c
where they differ: block starts count from the start of the frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from gpushard.codecs.base import HostBytes, stream_error
from gpushard.errors import CorruptShardError

HEADER_NBYTES = 16
COMPRESSORS = ("blosclz", "lz4", "snappy", "zlib", "zstd")
BLOSCLZ, LZ4, SNAPPY, ZLIB, ZSTD = range(5)

BYTE_SHUFFLE, MEMCPYED, BIT_SHUFFLE, RESERVED, DONT_SPLIT = 1, 2, 4, 8, 16
_FLAGS_END = len(COMPRESSORS) << 5

# Largest block that c-blosc chooses by default (blosc.c, `compute_blocksize`).
# Libraries need working memory for several blocks.
LARGE_BLOCK_NBYTES = 1 << 20

_FORMAT_VERSION = 2
_MAX_SPLITS = 16  # blosc.c, MAX_SPLITS
_MIN_SPLIT_NBYTES = 128  # blosc.c, MIN_BUFFERSIZE
# blosclz sums a match length in 32 bits, 255 for each 0xFF byte, and writes out of
# bounds when the sum wraps (Blosc/c-blosc#405). No honest stream has such a run.
_BLOSCLZ_RUN_NBYTES = (1 << 31) // 255

_header = Struct("<4B3I").unpack_from
_int32 = Struct("<i").unpack_from


class BloscHeader(NamedTuple):
    """The 16 bytes at the head of a frame, and values derived from them.

    A tuple costs a fifth of a dataclass, and one is made for every inner chunk.

    Attributes
    ----------
    flags
        Filters (`BYTE_SHUFFLE`, `BIT_SHUFFLE`), `MEMCPYED`, `DONT_SPLIT`, and the
        compressor in the upper three bits.
    typesize
        Item size of the filters and of the splitting, at least 1.
    nbytes
        Decoded size.
    block_nbytes
        Decoded size of every block but the last, at least 1.
    frame_nbytes
        Encoded size, header included.
    n_splits
        Streams in a block of full size; a shorter last block has one.
    """

    flags: int
    typesize: int
    nbytes: int
    block_nbytes: int
    frame_nbytes: int
    n_splits: int

    @property
    def compressor(self) -> int:
        """Index into `COMPRESSORS`."""
        return self.flags >> 5

    @property
    def n_blocks(self) -> int:
        """Number of blocks, the shorter last one included."""
        return -(-self.nbytes // self.block_nbytes)


def splits_of(flags: int, typesize: int, block_nbytes: int) -> int:
    """Number of streams in a block of full size, by these fields of a header."""
    if flags & DONT_SPLIT or not 1 <= typesize <= _MAX_SPLITS:
        return 1
    return typesize if block_nbytes >= _MIN_SPLIT_NBYTES * typesize else 1


def parse_header(encoded: HostBytes, codec: str) -> BloscHeader:
    """Header of the frame that fills `encoded`.

    The size in the header must be that of the bytes: no decoder compares them, and
    c-blosc would read past the end. A frame of zero bytes may have any block size.
    """
    if len(encoded) < HEADER_NBYTES:
        raise stream_error(codec, f"{len(encoded)} bytes hold no blosc header")
    version, _, flags, typesize, nbytes, block_nbytes, frame_nbytes = _header(encoded)
    if (
        frame_nbytes != len(encoded)
        or version != _FORMAT_VERSION
        or flags >= _FLAGS_END
        or flags & RESERVED
        or not typesize
    ):
        raise _header_error(encoded, codec)
    n_splits = 1
    if flags & MEMCPYED:
        consistent = frame_nbytes == HEADER_NBYTES + nbytes and block_nbytes
    else:
        n_splits = splits_of(flags, typesize, block_nbytes)
        # Each block takes four bytes for its start and four for a stream's size.
        # c-blosc would leave bytes that no stream covers as they were in memory.
        n_blocks_max = (frame_nbytes - HEADER_NBYTES) // 8
        consistent = (
            0 < block_nbytes <= nbytes <= n_blocks_max * block_nbytes
            and not block_nbytes % n_splits
        )
    if nbytes and not consistent:
        raise _header_error(encoded, codec)
    return BloscHeader(flags, typesize, nbytes, block_nbytes, frame_nbytes, n_splits)


def _header_error(encoded: HostBytes, codec: str) -> CorruptShardError:
    version, _, flags, typesize, nbytes, block_nbytes, frame_nbytes = _header(encoded)
    if version != _FORMAT_VERSION:
        reason = (
            f"its version is {version} and only {_FORMAT_VERSION} (Blosc 1) is read"
        )
    elif frame_nbytes != len(encoded):
        reason = f"its header claims {frame_nbytes} of {len(encoded)} bytes"
    elif flags & RESERVED or flags >= _FLAGS_END:
        reason = f"its header names no known compressor (flags {flags:#04x})"
    else:
        reason = (
            f"its header contradicts itself (item size {typesize}, block size "
            f"{block_nbytes}, decoded size {nbytes}, encoded size {frame_nbytes})"
        )
    return stream_error(codec, reason)


def check_streams(encoded: HostBytes, header: BloscHeader, codec: str) -> None:
    """Check that every stream of a compressed frame lies inside it."""
    flags, _, nbytes, block_nbytes, frame_nbytes, n_splits = header
    n_full, rest = divmod(nbytes, block_nbytes)
    n_blocks = n_full + (1 if rest else 0)
    first, last = HEADER_NBYTES + 4 * n_blocks, frame_nbytes - 4
    is_blosclz = not flags >> 5
    for block in range(n_blocks):
        (offset,) = _int32(encoded, HEADER_NBYTES + 4 * block)
        for _ in range(n_splits if block < n_full else 1):
            if not first <= offset <= last:
                raise _stream_bounds_error(codec, block)
            (source_nbytes,) = _int32(encoded, offset)
            offset += 4 + source_nbytes
            if source_nbytes < 0 or offset > frame_nbytes:
                raise _stream_bounds_error(codec, block)
            if is_blosclz and source_nbytes >= _BLOSCLZ_RUN_NBYTES:
                _check_blosclz(encoded, offset - source_nbytes, offset, codec)


def _check_blosclz(encoded: HostBytes, start: int, stop: int, codec: str) -> None:
    run = b"\xff" * _BLOSCLZ_RUN_NBYTES
    if bytes(memoryview(encoded)[start:stop]).find(run) >= 0:
        raise stream_error(codec, "a match is longer than blosclz can count")


def _stream_bounds_error(codec: str, block: int) -> CorruptShardError:
    return stream_error(codec, f"block {block} reaches beyond the frame")


def streams_of(
    encoded: HostBytes, header: BloscHeader, block: int, codec: str
) -> Iterator[tuple[int, int]]:
    """Offset and size of each stream of a block, without the length prefix.

    A stream of the size that it decodes to is stored, not compressed.
    """
    first = HEADER_NBYTES + 4 * header.n_blocks
    is_full = (block + 1) * header.block_nbytes <= header.nbytes
    (offset,) = _int32(encoded, HEADER_NBYTES + 4 * block)
    for _ in range(header.n_splits if is_full else 1):
        if not first <= offset <= header.frame_nbytes - 4:
            raise _stream_bounds_error(codec, block)
        (nbytes,) = _int32(encoded, offset)
        offset += 4
        if nbytes < 0 or offset + nbytes > header.frame_nbytes:
            raise _stream_bounds_error(codec, block)
        if header.compressor == BLOSCLZ and nbytes >= _BLOSCLZ_RUN_NBYTES:
            _check_blosclz(encoded, offset, offset + nbytes, codec)
        yield offset, nbytes
        offset += nbytes
