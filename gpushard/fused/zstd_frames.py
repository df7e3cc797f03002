"""zstd frames, looked at in compiled loops before a library sees them.

In one call libzstd decodes any number of frames, with any window. The plain way
(`gpushard.codecs.zstd`) decodes frame by frame, and where one does not tell its size
libzstd refuses a large window. Which way a read takes must not show, so the loops take
what both decode alike.
"""

from __future__ import annotations

from gpushard.fused import calls

# RFC 8878: 3.1.1.1 (frame header), 3.1.1.2 (blocks).
_MAGIC = 0xFD2FB528
_RLE_BLOCK = 1
_LEAST_NBYTES = 9  # a header without window or size, and that of a block
_UNTOLD = -1  # what libzstd takes for no size, where a frame tells one in 8 bytes
# zstd_decompress.c, ZSTD_MAXWINDOWSIZE_DEFAULT: the largest window of a stream.
_WINDOW_MAX_NBYTES = (1 << 27) + 1


@calls.inner
def is_one_frame(source: int, nbytes: int) -> bool:
    """Whether the bytes are one frame that is decoded alike by whoever decodes it."""
    if nbytes < _LEAST_NBYTES or calls.load_32(source) != _MAGIC:
        return False
    flags = calls.load_8(source + 4)
    is_single, has_checksum = flags >> 5 & 1, flags >> 2 & 1
    size_nbytes = 1 << (flags >> 6) if flags >> 6 else is_single
    dictionary_nbytes = (1 << (flags & 3)) >> 1
    blocks = 6 - is_single + dictionary_nbytes + size_nbytes
    stop = nbytes - 4 * has_checksum
    if blocks > stop:
        return False
    is_told = size_nbytes and not (
        size_nbytes == 8 and calls.load_64(source + blocks - 8) == _UNTOLD
    )
    if not is_told and (is_single or _window_nbytes(source) > _WINDOW_MAX_NBYTES):
        return False
    return _end_of_blocks(source, blocks, stop) == stop


@calls.inner
def _window_nbytes(source: int) -> int:
    window = calls.load_8(source + 5)
    base = 1 << (10 + (window >> 3))
    return base + (base >> 3) * (window & 7)


@calls.inner
def _end_of_blocks(source: int, position: int, stop: int) -> int:
    """Where the last block ends; beyond `stop`, or at 0, if none does before."""
    while position + 3 <= stop:
        low, middle = (
            calls.load_8(source + position),
            calls.load_8(source + position + 1),
        )
        header = low | middle << 8 | calls.load_8(source + position + 2) << 16
        position += 3 + (1 if header >> 1 & 3 == _RLE_BLOCK else header >> 3)
        if header & 1:
            return position
    return 0
