"""Decodes Blosc frames in compiled loops, and checks them before a library sees them.

The rules are those of `gpushard.codecs.blosc_frame`.
"""

from __future__ import annotations

from typing import Any

from gpushard.codecs import blosc_frame
from gpushard.fused import calls
from gpushard.fused.lz4 import decode_lz4

_HEADER_NBYTES = blosc_frame.HEADER_NBYTES
_SHUFFLE, _MEMCPYED = blosc_frame.BYTE_SHUFFLE, blosc_frame.MEMCPYED
_BITSHUFFLE, _RESERVED = blosc_frame.BIT_SHUFFLE, blosc_frame.RESERVED
_DONT_SPLIT, _SNAPPY = blosc_frame.DONT_SPLIT, blosc_frame.SNAPPY
_LARGE_BLOCK_NBYTES = blosc_frame.LARGE_BLOCK_NBYTES
# blosclz may count wrong in longer streams, so the general path decodes these.
_BLOSCLZ_MAX = (1 << 31) // 255

# Results of a check.
_REFUSED, _FOR_LIBRARY, _STORED, _PLAIN_LZ4 = range(4)


@calls.inner
def _check_frame(source: int, nbytes: int, expected: int) -> int:
    """How to decode a frame; a legal frame of a rare kind is `_REFUSED`, too."""
    if nbytes < _HEADER_NBYTES:
        return _REFUSED
    flags, typesize = calls.load_8(source + 2), calls.load_8(source + 3)
    block_nbytes = calls.load_32(source + 8)
    if (
        calls.load_8(source) != 2
        or flags & _RESERVED
        or flags >> 5 > blosc_frame.ZSTD
        or not typesize
        or not block_nbytes
        or calls.load_32(source + 4) != expected
        or calls.load_32(source + 12) != nbytes
    ):
        return _REFUSED
    if flags & _MEMCPYED:
        return _STORED if nbytes == _HEADER_NBYTES + expected else _REFUSED
    n_splits = 1 if flags & _DONT_SPLIT else typesize
    if (
        block_nbytes > expected
        or block_nbytes % n_splits
        or flags >> 5 == _SNAPPY
        # Version of the stream format; c-blosc wants 1.
        or calls.load_8(source + 1) != 1
        # To libblosc2, both filters at once mark another version of the format.
        or (flags & _SHUFFLE and flags & _BITSHUFFLE)
        # For items that are cut short, libblosc2 leaves old bytes in memory.
        or (
            flags & _BITSHUFFLE
            and (block_nbytes % typesize or expected % block_nbytes % typesize)
        )
        # Libraries disagree on whether such a block is split.
        or (n_splits > 1 and (n_splits > 16 or block_nbytes < 128 * typesize))
        or not _holds_its_streams(source, nbytes, expected, n_splits)
    ):
        return _REFUSED
    # A byte shuffle of one-byte elements changes nothing.
    is_filtered = flags & _BITSHUFFLE or (flags & _SHUFFLE and typesize > 1)
    if flags >> 5 == blosc_frame.LZ4 and n_splits == 1 and not is_filtered:
        return _PLAIN_LZ4
    # The memory that libblosc2 needs for larger blocks is not counted here.
    return _FOR_LIBRARY if block_nbytes <= _LARGE_BLOCK_NBYTES else _REFUSED


@calls.inner
def _holds_its_streams(source: int, nbytes: int, expected: int, n_splits: int) -> bool:
    """Whether every stream of a frame lies inside it."""
    block_nbytes = calls.load_32(source + 8)
    n_full = expected // block_nbytes
    n_blocks = n_full + (1 if expected % block_nbytes else 0)
    first = _HEADER_NBYTES + 4 * n_blocks
    if first > nbytes:
        return False
    is_blosclz = calls.load_8(source + 2) >> 5 == blosc_frame.BLOSCLZ
    for block in range(n_blocks):
        offset = calls.load_32(source + _HEADER_NBYTES + 4 * block)
        for _ in range(n_splits if block < n_full else 1):
            if offset < first or offset > nbytes - 4:
                return False
            stream_nbytes = calls.load_32(source + offset)
            offset += 4 + stream_nbytes
            # libblosc2 takes an empty stream as zeros, c-blosc as damage.
            if (
                not stream_nbytes
                or offset > nbytes
                or (is_blosclz and stream_nbytes >= _BLOSCLZ_MAX)
            ):
                return False
    return True


@calls.inner
def _decode_plain_lz4(source: int, target: int, expected: int, wanted: Any) -> bool:
    """Decode the blocks with the wanted bytes to their places; False on damage."""
    block_nbytes = calls.load_32(source + 8)
    first, last = wanted[0] // block_nbytes, -(-wanted[1] // block_nbytes)
    for block in range(first, last):
        stream = source + calls.load_32(source + _HEADER_NBYTES + 4 * block)
        stream_nbytes = calls.load_32(stream)
        done = block * block_nbytes
        n = min(block_nbytes, expected - done)
        if stream_nbytes == n:
            calls.copy_bytes(target + done, stream + 4, n)
        elif decode_lz4(stream + 4, stream_nbytes, target + done, n) != n:
            return False
    return True


@calls.inner
def _cut_frame(source: int, expected: int, staging: Any, first: int, last: int) -> int:
    """Write a frame of the blocks ``first:last`` of another to `staging`; its size.

    0 if there is too little room. libblosc2 could decode a range of a frame's items,
    but it decodes large split blocks wrongly.
    """
    room, room_nbytes = staging
    block_nbytes = calls.load_32(source + 8)
    flags = calls.load_8(source + 2)
    n_splits = 1 if flags & _DONT_SPLIT else calls.load_8(source + 3)
    nbytes = min(last * block_nbytes, expected) - first * block_nbytes
    end = _HEADER_NBYTES + 4 * (last - first)
    if end > room_nbytes:
        return 0
    for block in range(first, last):
        begin = calls.load_32(source + _HEADER_NBYTES + 4 * block)
        stop = begin
        is_full = (block + 1) * block_nbytes <= expected
        for _ in range(n_splits if is_full else 1):
            stop += 4 + calls.load_32(source + stop)
        if end + stop - begin > room_nbytes:
            return 0
        calls.store_int32(room + _HEADER_NBYTES + 4 * (block - first), end)
        calls.copy_bytes(room + end, source + begin, stop - begin)
        end += stop - begin
    calls.copy_bytes(room, source, _HEADER_NBYTES)
    calls.store_int32(room + 4, nbytes)
    calls.store_int32(room + 12, end)
    return end


@calls.inner
def _decode_blocks(
    library: Any, source: int, target: int, expected: int, wanted: Any
) -> bool:
    """Decode the blocks with the wanted bytes to their places; False on failure."""
    function, context, room, room_nbytes = library
    block_nbytes = calls.load_32(source + 8)
    first, last = wanted[0] // block_nbytes, -(-wanted[1] // block_nbytes)
    # A short last block is never split. It must stay the last block for that.
    if first > 0 and (first + 1) * block_nbytes > expected:
        first -= 1
    n = min(last * block_nbytes, expected) - first * block_nbytes
    nbytes = _cut_frame(source, expected, (room, room_nbytes), first, last)
    frame = (context, room, nbytes, target + first * block_nbytes, n)
    return nbytes > 0 and calls.call_blosc(function, frame) == n


@calls.inner
def decode_frame(
    library: Any, source: int, nbytes: int, target: int, expected: int, wanted: Any
) -> int:
    """Address where decoded byte 0 lies or would lie; 0 on failure.

    It is `target` or in the source. `library` has the addresses of the decompressor and
    of its context, and address and size of memory for a frame. `wanted` is the
    half-open range of decoded bytes that are needed; only blocks that contain some of
    them are decoded.
    """
    found = _check_frame(source, nbytes, expected)
    if found == _REFUSED:
        return 0
    if found == _STORED:
        return source + _HEADER_NBYTES
    if found == _PLAIN_LZ4:
        return target if _decode_plain_lz4(source, target, expected, wanted) else 0
    is_part = wanted[1] - wanted[0] < expected
    if is_part and _decode_blocks(library, source, target, expected, wanted):
        return target
    frame = (library[1], source, nbytes, target, expected)
    return target if calls.call_blosc(library[0], frame) == expected else 0
