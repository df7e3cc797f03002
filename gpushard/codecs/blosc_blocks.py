"""Single blocks of a Blosc frame, and frames of snappy streams.

numcodecs' build of c-blosc cannot read snappy, so such frames are decoded stream by
stream, before it undoes their filter.
"""

from __future__ import annotations

from struct import pack, pack_into

import numcodecs.blosc
import numpy as np
from numpy.typing import NDArray

from gpushard.codecs.base import HostBytes, stream_error
from gpushard.codecs.blosc_frame import (
    DONT_SPLIT,
    HEADER_NBYTES,
    LZ4,
    SNAPPY,
    BloscHeader,
    parse_header,
    splits_of,
    streams_of,
)

_NO_COMPRESSOR = 31  # the flags of a header without the number of the compressor
# Of the format, and of LZ4 in it.
_VERSIONS = (2, 1)
# Where the first stream of a frame of one block begins.
_FIRST = HEADER_NBYTES + 4


def decode_snappy(
    encoded: HostBytes, header: BloscHeader, codec: str
) -> NDArray[np.uint8]:
    """Decoded bytes of a frame of snappy streams: uint8, shape (nbytes,), host."""
    source = memoryview(encoded)
    filtered = np.empty(header.nbytes, np.uint8)
    end = 0
    for block in range(header.n_blocks):
        start = end
        streams = [*streams_of(encoded, header, block, codec)]
        each = min(header.block_nbytes, header.nbytes - end) // len(streams)
        for offset, nbytes in streams:
            stream = source[offset : offset + nbytes]
            target = filtered[end : end + each]
            if nbytes == each:
                target[:] = np.frombuffer(stream, np.uint8)
            else:
                _decode_into(stream, target, codec)
            end += each
        unfiltered = undo_filter(filtered[start:end], header)
        filtered[start:end] = np.frombuffer(unfiltered, np.uint8)
    return filtered


def decode_blocks(
    encoded: HostBytes, header: BloscHeader, first: int, stop: int, codec: str
) -> HostBytes:
    """Decoded bytes of blocks ``first`` to ``stop`` (half-open) of a frame."""
    small = _cut_frame(encoded, header, first, stop, codec)
    if header.compressor == SNAPPY:
        return decode_snappy(small, parse_header(small, codec), codec)
    try:
        return numcodecs.blosc.decompress(small)
    except (RuntimeError, ValueError) as error:
        raise stream_error(codec, error) from error


def _cut_frame(
    encoded: HostBytes, header: BloscHeader, first: int, stop: int, codec: str
) -> bytearray:
    """A frame that holds these blocks only, in order."""
    source = memoryview(encoded)
    nbytes = min(stop * header.block_nbytes, header.nbytes)
    nbytes -= first * header.block_nbytes
    flags, block_nbytes = header.flags, min(header.block_nbytes, nbytes)
    if block_nbytes < header.block_nbytes:
        flags |= DONT_SPLIT  # the last block is no longer shorter
    small = bytearray(HEADER_NBYTES + 4 * (stop - first))
    for block in range(first, stop):
        place = HEADER_NBYTES + 4 * (block - first)
        pack_into("<i", small, place, len(small))
        for offset, stream_nbytes in streams_of(encoded, header, block, codec):
            small += source[offset - 4 : offset + stream_nbytes]
            # Thousands of blocks may name one large stream.
            if len(small) > header.frame_nbytes:
                raise stream_error(codec, "blocks share their streams")
    versions = source[0], source[1]
    sizes = nbytes, block_nbytes, len(small)
    small[:HEADER_NBYTES] = pack("<4B3I", *versions, flags, header.typesize, *sizes)
    return small


def _decode_into(stream: memoryview, target: NDArray[np.uint8], codec: str) -> None:
    import cramjam

    try:
        # The size that the stream claims is never allocated: the target has a size.
        nbytes = cramjam.snappy.decompress_raw_into(stream, target)
    except Exception as error:
        raise stream_error(codec, error) from error
    if nbytes != len(target):
        raise stream_error(
            codec, f"a block part decodes to {nbytes} of {len(target)} bytes"
        )


def undo_filter(filtered: NDArray[np.uint8], header: BloscHeader) -> HostBytes:
    """Bytes of a block by those of its decoded streams: uint8, shape (n_bytes,), host.

    numcodecs undoes the filter: it takes streams of the size that they decode to for
    stored ones, whatever the compressor.
    """
    flags, nbytes = header.flags & _NO_COMPRESSOR | LZ4 << 5, len(filtered)
    if nbytes < header.block_nbytes:
        flags |= DONT_SPLIT
    streams = filtered.reshape(splits_of(flags, header.typesize, nbytes), -1)
    sizes = np.full((len(streams), 1), streams.shape[1], "<i4").view(np.uint8)
    stored = np.hstack((sizes, streams))
    sizes_and_start = nbytes, nbytes, _FIRST + stored.size, _FIRST
    head = pack("<4B4I", *_VERSIONS, flags, header.typesize, *sizes_and_start)
    return numcodecs.blosc.decompress(head + stored.data)
