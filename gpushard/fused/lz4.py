"""Decodes LZ4 blocks in a compiled loop.

The format is that of lz4_Block_format.md. Three kinds of blocks are refused: with a
match of distance 0, with a match that ends in the last five bytes, and with literals
that end in the last twelve bytes without being the last. The reference decoder accepts
some of the first two kinds. Nothing is read or written outside the two given ranges:
where a wide copy could reach further, bytes are copied one by one.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from gpushard.fused import calls

_LAST_LITERALS = 5
_MATCH_LIMIT = 12
_MIN_MATCH = 4
_LONG = 15  # the length continues in the next bytes


@calls.inner
def _long_length(source: int, end: int) -> tuple[int, int]:
    """Rest of a length, and the address after it; 0 if the bytes run out."""
    length = 0
    while source < end:
        more = calls.load_8(source)
        source += 1
        length += more
        if more != 255:
            return length, source
    return 0, 0


@calls.inner
def _copy_literals(target: int, source: int, nbytes: int, stop: int, end: int) -> None:
    # Copying 32 bytes a turn, one turn usually suffices, which the CPU predicts well.
    if source + nbytes + 32 <= end and target + nbytes + 32 <= stop:
        for k in range(0, nbytes, 32):
            calls.copy_128(target + k, source + k)
            calls.copy_128(target + k + 16, source + k + 16)
    else:
        calls.copy_bytes(target, source, nbytes)


@calls.inner
def _copy_match(target: int, source: int, nbytes: int, stop: int) -> None:
    """Copy bytes from earlier in the output, which may overlap those written."""
    distance = target - source
    if distance >= 16 and target + nbytes + 16 <= stop:
        for k in range(0, nbytes, 16):
            calls.copy_128(target + k, source + k)
    elif distance >= 8 and target + nbytes + 8 <= stop:
        for k in range(0, nbytes, 8):
            calls.copy_64(target + k, source + k)
    else:
        for k in range(nbytes):
            calls.copy_8(target + k, source + k)


@calls.inner
def _take_literals(
    token: int, source: int, end: int, target: int, stop: int
) -> tuple[int, int]:
    """Addresses in input and output after the literals; the first is 0 on damage."""
    nbytes: Any = token >> 4
    if nbytes == _LONG:
        more, source = _long_length(source, end)
        nbytes += more
    if not source or nbytes > end - source or nbytes > stop - target:
        return 0, 0
    _copy_literals(target, source, nbytes, stop, end)
    source += nbytes
    target += nbytes
    is_last = source == end
    if not is_last and (
        target > stop - _MATCH_LIMIT or source > end - 3 - _LAST_LITERALS
    ):
        return 0, 0
    return source, target


@calls.inner
def _take_match(
    token: int, source: int, end: int, target: int, bounds: tuple[int, int]
) -> tuple[int, int]:
    """Addresses in input and output after a match; the first is 0 on damage."""
    start, stop = bounds
    distance = calls.load_16(source)
    source += 2
    nbytes: Any = token & 15
    if nbytes == _LONG:
        more, source = _long_length(source, end)
        nbytes += more
    nbytes += _MIN_MATCH
    if (
        not source
        or not 0 < distance <= target - start
        or nbytes > stop - target - _LAST_LITERALS
    ):
        return 0, 0
    _copy_match(target, target - distance, nbytes, stop)
    return source, target + nbytes


@njit(nogil=True)
def decode_lz4(source: int, nbytes: int, target: int, room_nbytes: int) -> int:
    """Number of bytes that a block decodes to, at `target`; -1 if it is damaged."""
    end, start, stop = source + nbytes, target, target + room_nbytes
    while source < end:
        token = calls.load_8(source)
        source += 1
        # Room for 14 literals, the next offset, and the bytes that a copy of 16 reads
        # too many; and for the same in the output.
        if token < _LONG << 4 and source + 22 <= end and target + 40 <= stop:
            calls.copy_128(target, source)
            source += token >> 4
            target += token >> 4
        else:
            source, target = _take_literals(token, source, end, target, stop)
            if not source or source == end:
                return target - start if source else -1
        # A match of at most 18 bytes, copied 8 at a time, with five literals after it.
        distance = calls.load_16(source)
        is_near_end = target + 24 > stop
        if token & 15 < _LONG and 8 <= distance <= target - start and not is_near_end:
            calls.copy_64(target, target - distance)
            calls.copy_64(target + 8, target - distance + 8)
            calls.copy_64(target + 16, target - distance + 16)
            source += 2
            target += (token & 15) + _MIN_MATCH
            continue
        source, target = _take_match(token, source, end, target, (start, stop))
        if not source:
            return -1
    return -1
