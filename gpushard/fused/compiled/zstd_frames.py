"""Checks zstd frames in compiled loops, before a library sees them.

In one call libzstd decodes any number of frames, with any window. In contrast,
`gpushard.codecs.zstd` decodes frame by frame, and if a frame does not state its size,
libzstd refuses a large window. Both paths must give the same result, so the loops take
only frames that both decode alike.
"""

from __future__ import annotations

from typing import Any

from gpushard.codecs import libzstd
from gpushard.fused.compiled import calls

# RFC 8878: 3.1.1.1 (frame header), 3.1.1.2 (blocks).
_MAGIC = 0xFD2FB528
_RLE_BLOCK = 1
_LEAST_NBYTES = 9  # a header without window or size, and a block header
_NO_SIZE = -1  # libzstd takes this 8-byte size as no size
# zstd_decompress.c, ZSTD_MAXWINDOWSIZE_DEFAULT: the largest window of a stream.
_WINDOW_MAX_NBYTES = (1 << 27) + 1
_BLOCK_NBYTES = libzstd.BLOCK_NBYTES
_HAS_CHECKSUM = 1 << 2
# Offsets of `ZSTD_outBuffer`, of `ZSTD_inBuffer` after it, and of size and position.
_OUT, _IN, _SIZE, _POSITION = 0, 24, 8, 16


@calls.inner
def is_one_frame(source: int, nbytes: int) -> bool:
    """Whether the bytes are one frame that every decoder decodes alike."""
    if nbytes < _LEAST_NBYTES or calls.load_32(source) != _MAGIC:
        return False
    flags = calls.load_8(source + 4)
    is_single, has_checksum = flags >> 5 & 1, flags >> 2 & 1
    blocks, size_nbytes = _first_block(source)
    stop = nbytes - 4 * has_checksum
    if blocks > stop:
        return False
    states_size = size_nbytes and not (
        size_nbytes == 8 and calls.load_64(source + blocks - 8) == _NO_SIZE
    )
    if not states_size and (is_single or _window_nbytes(source) > _WINDOW_MAX_NBYTES):
        return False
    return _end_of_blocks(source, blocks, stop) == stop


@calls.inner
def _window_nbytes(source: int) -> int:
    window = calls.load_8(source + 5)
    base = 1 << (10 + (window >> 3))
    return base + (base >> 3) * (window & 7)


@calls.inner
def _first_block(source: int) -> tuple[int, int]:
    """Offset of the first block, and the width of the size field before it."""
    flags = calls.load_8(source + 4)
    is_single = flags >> 5 & 1
    size_nbytes = 1 << (flags >> 6) if flags >> 6 else is_single
    dictionary_nbytes = (1 << (flags & 3)) >> 1
    return 6 - is_single + dictionary_nbytes + size_nbytes, size_nbytes


@calls.inner
def _states_size(source: int, nbytes: int) -> bool:
    """Whether a frame states that it decodes to `nbytes` bytes."""
    blocks, size_nbytes = _first_block(source)
    at = source + blocks - size_nbytes
    if size_nbytes == 4:
        return calls.load_32(at) == nbytes
    return size_nbytes == 8 and calls.load_64(at) == nbytes


@calls.inner
def _block(source: int, position: int) -> tuple[int, int]:
    """End of a block, and whether the block is the last."""
    low, middle = (calls.load_8(source + position), calls.load_8(source + position + 1))
    header = low | middle << 8 | calls.load_8(source + position + 2) << 16
    position += 3 + (1 if header >> 1 & 3 == _RLE_BLOCK else header >> 3)
    return position, header & 1


@calls.inner
def _end_of_blocks(source: int, position: int, stop: int) -> int:
    """End of the last block; beyond `stop` or 0 if it does not end before."""
    while position + 3 <= stop:
        position, is_last = _block(source, position)
        if is_last:
            return position
    return 0


@calls.inner
def decode_first(library: Any, source: int, target: int, sizes: Any) -> bool:
    """Decode the first bytes of a frame, with no more blocks than needed.

    `library` has the addresses of a function that begins a stream, of one that decodes
    it, of their context, and of memory of `words.BUFFERS_NBYTES`. `sizes` are the
    number of bytes that the frame should decode to, and the number of them that are
    needed. The frame has passed `is_one_frame`. False if the frame must be decoded
    whole instead: it has a checksum, or its last block may be needed.
    """
    begin, decode, context, room = library
    expected, enough = sizes
    if (
        enough > expected - _BLOCK_NBYTES
        or calls.load_8(source + 4) & _HAS_CHECKSUM
        or not _states_size(source, expected)
        or calls.call_reset(begin, (context,)) < 0
    ):
        return False
    calls.store_int64(room + _OUT, target)
    calls.store_int64(room + _OUT + _SIZE, expected)
    calls.store_int64(room + _OUT + _POSITION, 0)
    calls.store_int64(room + _IN, source)
    calls.store_int64(room + _IN + _POSITION, 0)
    position, _ = _first_block(source)
    decoded = 0
    while decoded < enough:
        position, is_last = _block(source, position)
        calls.store_int64(room + _IN + _SIZE, position)
        call = (context, room + _OUT, room + _IN)
        if is_last or calls.call_stream(decode, call) < 0:
            return False
        decoded = calls.load_64(room + _OUT + _POSITION)
    return True
