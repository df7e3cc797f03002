"""Single blocks of a Blosc frame, and frames of snappy streams.

numcodecs' build of c-blosc cannot read snappy, so such frames are decoded stream by
stream, and NumPy undoes their filter.
"""

from __future__ import annotations

from struct import pack, pack_into

import numcodecs.blosc
import numpy as np
from numpy.typing import NDArray

from gpushard.codecs.base import HostBytes, stream_error
from gpushard.codecs.blosc_frame import (
    BIT_SHUFFLE,
    BYTE_SHUFFLE,
    DONT_SPLIT,
    HEADER_NBYTES,
    SNAPPY,
    BloscHeader,
    parse_header,
    streams_of,
)


def decode_snappy(
    encoded: HostBytes, header: BloscHeader, codec: str
) -> NDArray[np.uint8]:
    """Decoded bytes of a frame of snappy streams: uint8, shape (nbytes,), host."""
    source = memoryview(encoded)
    filtered = np.empty(header.nbytes, np.uint8)
    end = 0
    for block in range(header.n_blocks):
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
    return _undo_filter(filtered, header)


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


def _undo_filter(filtered: NDArray[np.uint8], header: BloscHeader) -> NDArray[np.uint8]:
    """Unfiltered bytes, block by block; all full blocks at once."""
    if header.flags & BYTE_SHUFFLE and header.typesize > 1:
        undo = _undo_byte_shuffle
    elif header.flags & BIT_SHUFFLE:
        undo = _undo_bit_shuffle
    else:
        return filtered
    n_full = header.nbytes // header.block_nbytes
    split = n_full * header.block_nbytes
    out = np.empty_like(filtered)
    for part in (slice(0, split), slice(split, header.nbytes)):
        length = header.block_nbytes if part.start == 0 else header.nbytes - split
        if length:
            undo(
                filtered[part].reshape(-1, length),
                out[part].reshape(-1, length),
                header.typesize,
            )
    return out


def _undo_byte_shuffle(
    blocks: NDArray[np.uint8], out: NDArray[np.uint8], typesize: int
) -> None:
    """Both of shape (n_blocks, block_nbytes); bytes past the last item stay put."""
    n_items = blocks.shape[1] // typesize
    n_shuffled = n_items * typesize
    # There may be no item at all, so both shapes are given in full.
    planes = blocks[:, :n_shuffled].reshape(len(blocks), typesize, n_items)
    items = out[:, :n_shuffled].reshape(len(blocks), n_items, typesize)
    items[...] = planes.transpose(0, 2, 1)
    out[:, n_shuffled:] = blocks[:, n_shuffled:]


def _undo_bit_shuffle(
    blocks: NDArray[np.uint8], out: NDArray[np.uint8], typesize: int
) -> None:
    """Both of shape (n_blocks, block_nbytes).

    c-blosc leaves a block as it is unless its items come in eights. Bit b of an item is
    plane b, and a plane's byte k holds items 8k to 8k + 7, the lowest bit first.
    """
    n_items = blocks.shape[1] // typesize
    out[...] = blocks
    if n_items % 8 or not n_items:
        return
    n_shuffled = n_items * typesize
    planes = blocks[:, :n_shuffled].reshape(-1, typesize * 8, n_items // 8)
    bits = np.unpackbits(planes, axis=2, bitorder="little")
    items = np.packbits(bits.transpose(0, 2, 1), axis=2, bitorder="little")
    out[:, :n_shuffled] = items.reshape(-1, n_shuffled)
