"""Decodes Blosc frames in compiled loops.

The rules are those of `gpushard.codecs.blosc_frame`. Streams of LZ4 and of blosclz are
decoded here. One library decodes others: libzstd those of zstd, or libdeflate those of
zlib. Frames of other compressors are refused.
"""

from __future__ import annotations

from typing import Any

from gpushard.codecs import blosc_frame
from gpushard.fused.compiled import calls
from gpushard.fused.compiled.blosclz import decode_blosclz
from gpushard.fused.compiled.lz4 import decode_lz4
from gpushard.fused.compiled.shuffling import unshuffle, unshuffle_bits
from gpushard.fused.compiled.zstd_frames import is_one_frame
from gpushard.fused.words import TILE_NBYTES

_HEADER_NBYTES = blosc_frame.HEADER_NBYTES
_SHUFFLE, _MEMCPYED = blosc_frame.BYTE_SHUFFLE, blosc_frame.MEMCPYED
_BITSHUFFLE, _RESERVED = blosc_frame.BIT_SHUFFLE, blosc_frame.RESERVED
_DONT_SPLIT = blosc_frame.DONT_SPLIT
_LARGE_BLOCK_NBYTES = blosc_frame.LARGE_BLOCK_NBYTES

# Results of a check.
_REFUSED, _STORED, _LZ4, _ZSTD, _BLOSCLZ, _ZLIB = range(6)
# In place of a function and its context, for streams that need none.
_LZ4_STREAMS, _BLOSCLZ_STREAMS = (0, 0, 0), (0, 1, 0)


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
        # Version of the stream format; c-blosc wants 1.
        or calls.load_8(source + 1) != 1
        # To some libraries, both filters at once mark another version of the format.
        or (flags & _SHUFFLE and flags & _BITSHUFFLE)
        # Libraries disagree on items that are cut short.
        or (
            flags & _BITSHUFFLE
            and (block_nbytes % typesize or expected % block_nbytes % typesize)
        )
        # Libraries disagree on whether such a block is split.
        or (n_splits > 1 and (n_splits > 16 or block_nbytes < 128 * typesize))
        or not _holds_its_streams(source, nbytes, expected, n_splits)
    ):
        return _REFUSED
    return _decoder_of(source)


@calls.inner
def _decoder_of(source: int) -> int:
    """What decodes the blocks of a frame: `_LZ4` to `_ZLIB`, or nothing."""
    # Larger blocks need more memory than is counted.
    if calls.load_32(source + 8) > _LARGE_BLOCK_NBYTES and _is_filtered(source):
        return _REFUSED
    compressor = calls.load_8(source + 2) >> 5
    if compressor == blosc_frame.LZ4:
        return _LZ4
    if compressor == blosc_frame.BLOSCLZ:
        return _BLOSCLZ
    if compressor == blosc_frame.ZLIB:
        return _ZLIB
    return _ZSTD if compressor == blosc_frame.ZSTD else _REFUSED


@calls.inner
def _is_filtered(source: int) -> bool:
    """Whether decoded streams are not yet the bytes of a block."""
    flags = calls.load_8(source + 2)
    # A byte shuffle of one-byte items changes nothing.
    is_shuffled = flags & _SHUFFLE and calls.load_8(source + 3) > 1
    return is_shuffled or flags & _BITSHUFFLE != 0


@calls.inner
def _holds_its_streams(source: int, nbytes: int, expected: int, n_splits: int) -> bool:
    """Whether every stream of a frame lies inside it."""
    block_nbytes = calls.load_32(source + 8)
    n_full = expected // block_nbytes
    n_blocks = n_full + (1 if expected % block_nbytes else 0)
    first = _HEADER_NBYTES + 4 * n_blocks
    if first > nbytes:
        return False
    for block in range(n_blocks):
        offset = calls.load_32(source + _HEADER_NBYTES + 4 * block)
        for _ in range(n_splits if block < n_full else 1):
            if offset < first or offset > nbytes - 4:
                return False
            stream_nbytes = calls.load_32(source + offset)
            offset += 4 + stream_nbytes
            # To c-blosc, an empty stream is damage.
            if not stream_nbytes or offset > nbytes:
                return False
    return True


@calls.inner
def _decode_stream(
    library: tuple[int, int, int],
    source: int,
    nbytes: int,
    target: int,
    sizes: tuple[int, int],
) -> bool:
    """Whether a stream decodes to exactly so many bytes; with no function, here.

    `sizes` are this number, and how many of them are enough.
    """
    function, context, used = library
    expected, enough = sizes
    if function == 0:
        if context == 0:
            return decode_lz4(source, nbytes, target, expected, enough)
        return decode_blosclz(source, nbytes, target, expected, enough)
    if used:
        # Given no address for the decoded size, libdeflate requires the exact size.
        deflated = (context, source, nbytes, target, expected, used, 0)
        status = calls.call_libdeflate(function, deflated)
        return status == 0 and calls.load_64(used) == nbytes
    call = (context, target, expected, source, nbytes)
    # In one call libzstd would decode any number of frames.
    return is_one_frame(source, nbytes) and calls.call_zstd(function, call) == expected


@calls.inner
def _decode_streams(
    library: tuple[int, int, int], source: int, n_splits: int, target: int, sizes: Any
) -> bool:
    """Decode the streams of a block one behind the other; False on damage.

    `sizes` are those of each decoded stream, and of the first part of it that is
    enough.
    """
    each, enough = sizes
    for k in range(n_splits):
        stream_nbytes = calls.load_32(source)
        source += 4
        place = target + k * each
        if stream_nbytes == each:
            calls.copy_bytes(place, source, enough)
        elif not _decode_stream(library, source, stream_nbytes, place, sizes):
            return False
        source += stream_nbytes
    return True


@calls.inner
def _enough(source: int, n_splits: int, each: int, stop: int) -> int:
    """First part of each stream of a block that has the block's bytes up to `stop`."""
    is_split, has_planes = n_splits > 1, _is_filtered(source)
    # The streams of a split block are planes of bytes, or parts if nothing is shuffled.
    if calls.load_8(source + 2) & _BITSHUFFLE or is_split != has_planes:
        return each
    return min(-(-stop // n_splits), each)


@calls.inner
def _decode_blocks(
    library: tuple[int, int, int], source: int, target: int, expected: int, how: Any
) -> bool:
    """Decode the blocks with the wanted bytes to their places; False on damage."""
    wanted, room = how
    flags, itemsize = calls.load_8(source + 2), calls.load_8(source + 3)
    block_nbytes = calls.load_32(source + 8)
    is_filtered = _is_filtered(source)
    for block in range(wanted[0] // block_nbytes, -(-wanted[1] // block_nbytes)):
        done = block * block_nbytes
        n = min(block_nbytes, expected - done)
        n_splits = 1 if flags & _DONT_SPLIT or n < block_nbytes else itemsize
        streams = source + calls.load_32(source + _HEADER_NBYTES + 4 * block)
        place = room + TILE_NBYTES if is_filtered else target + done
        part = (max(wanted[0] - done, 0), wanted[1] - done)
        each = n // n_splits
        sizes = each, _enough(source, n_splits, each, part[1])
        if not _decode_streams(library, streams, n_splits, place, sizes):
            return False
        if is_filtered:
            if flags & _SHUFFLE:
                unshuffle(place, target + done, n, itemsize, part)
            else:
                unshuffle_bits(place, target + done, (n, itemsize), part, room)
    return True


@calls.inner
def decode_frame(
    library: tuple[int, int, int],
    source: int,
    nbytes: int,
    target: int,
    expected: int,
    how: Any,
) -> int:
    """Address where decoded byte 0 lies or would lie; 0 on failure.

    It is `target` or in the source. `library` has the addresses of libzstd's function
    and of its context, or zeros, and 0; or those of libdeflate, and of a word in which
    it says how many bytes it used. `how` has the half-open range of decoded bytes that
    are needed, and the address of memory for a tile and for a block
    (`words.TILE_NBYTES`).
    Only blocks that contain some of these bytes are decoded, of LZ4 and blosclz only as
    far.
    """
    found = _check_frame(source, nbytes, expected)
    if found == _STORED:
        return source + _HEADER_NBYTES
    is_done = False
    if found == _LZ4:
        is_done = _decode_blocks(_LZ4_STREAMS, source, target, expected, how)
    elif found == _BLOSCLZ:
        is_done = _decode_blocks(_BLOSCLZ_STREAMS, source, target, expected, how)
    elif found == (_ZLIB if library[2] else _ZSTD) and library[0] != 0:
        is_done = _decode_blocks(library, source, target, expected, how)
    return target if is_done else 0
