"""Decodes LZ4 blocks in a compiled loop.

The format is that of lz4_Block_format.md. Three kinds of blocks are refused: with a
match of distance 0, with a match that ends in the last five bytes, and with literals
that end in the last twelve bytes without being the last. The reference decoder accepts
some of the first two kinds. Nothing is read or written outside the two given ranges:
near the ends, bytes are copied one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from gpushard.fused.compiled import calls

_LAST_LITERALS = 5
_MATCH_LIMIT = 12
_MIN_MATCH = 4
_LONG = 15  # the length continues in the next bytes
# Bytes that are left behind each sequence that is decoded with few checks: in the input
# more than the copies of its literals read too many, in the output for those and for
# the copies of a short match.
_INPUT_LEFT, _OUTPUT_LEFT = 32, 40
# By the number of lower bytes of a word: the factor that repeats them up to its end,
# and how many of its bytes are whole repetitions.
_FACTORS = np.array([sum(1 << k for k in range(0, 64, 8 * n or 64)) for n in range(8)])
_STEPS = np.array([n and n * (8 // n) for n in range(8)])


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
def _copy_literals(target: int, source: int, nbytes: int) -> None:
    """Copy bytes, and up to 31 more behind them, or 32 instead of none."""
    done = 0
    # One turn usually suffices, which the CPU predicts well.
    while True:
        calls.copy_128(target + done, source + done)
        calls.copy_128(target + done + 16, source + done + 16)
        done += 32
        if done >= nbytes:
            return


@calls.inner
def copy_match(target: int, source: int, nbytes: int, stop: int) -> None:
    """Copy bytes from earlier in the output, which may overlap those written."""
    distance = target - source
    most, done = stop - target, 0
    if distance >= 16:
        while done < nbytes and done + 16 <= most:
            calls.copy_128(target + done, source + done)
            done += 16
    elif distance >= 8:
        while done < nbytes and done + 8 <= most:
            calls.copy_64(target + done, source + done)
            done += 8
    else:
        done = _repeat(target, distance, nbytes, most)
    for k in range(done, nbytes):
        calls.copy_8(target + k, source + k)


@calls.inner
def _pattern(target: int, distance: int) -> tuple[int, int]:
    """The last bytes, fewer than eight, repeated in a word; and the step of its copies.

    Written at such steps, no store depends on one before it. All eight bytes that are
    read lie in the output, because literals follow the match.
    """
    last = calls.load_64(target - distance) & ((1 << 8 * distance) - 1)
    return last * _FACTORS[distance & 7], _STEPS[distance & 7]


@calls.inner
def _repeat(target: int, distance: int, nbytes: int, most: int) -> int:
    """Repeat the last bytes, fewer than eight, while there is room for whole words.

    Of the match, so many bytes are done as this returns, or all.
    """
    pattern, step = _pattern(target, distance)
    done = 0
    while done < nbytes and done + step + 8 <= most:
        calls.store_int64(target + done, pattern)
        calls.store_int64(target + done + step, pattern)
        done += 2 * step
    return done


@calls.inner
def _copy_short_match(target: int, distance: int) -> None:
    """Copy a match of at most 18 bytes; up to 24 are written."""
    if distance >= 8:
        source = target - distance
        calls.copy_64(target, source)
        calls.copy_64(target + 8, source + 8)
        calls.copy_16(target + 16, source + 16)
    else:
        pattern, step = _pattern(target, distance)
        calls.store_int64(target, pattern)
        calls.store_int64(target + step, pattern)
        calls.store_int64(target + 2 * step, pattern)


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
    calls.copy_bytes(target, source, nbytes)
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
    copy_match(target, target - distance, nbytes, stop)
    return source, target + nbytes


@calls.inner
def _decode_inside(
    source: int, target: int, ends: tuple[int, int], start: int, needed: int
) -> tuple[int, int]:
    """Decode sequences that lie well inside of input and output, with few checks.

    Returns the addresses of the first sequence that does not, has lengths of more than
    one additional byte, or is damaged; or of one behind the address `needed`.
    """
    last, stop = ends[0] - _INPUT_LEFT, ends[1]
    last_target = min(stop - _OUTPUT_LEFT, needed - 1)
    while source <= last and target <= last_target:
        token = calls.load_8(source)
        at, place = source + 1, target
        nbytes: Any = token >> 4
        if nbytes < _LONG:
            calls.copy_128(place, at)
        else:
            more = calls.load_8(at)
            at += 1
            nbytes += more
            if more == 255 or at + nbytes > last or place + nbytes > last_target:
                break
            _copy_literals(place, at, nbytes)
        at += nbytes
        place += nbytes
        distance = calls.load_16(at)
        if distance > place - start or distance == 0:
            break
        nbytes = (token & 15) + _MIN_MATCH
        at += 2
        if token & 15 < _LONG:
            _copy_short_match(place, distance)
        else:
            more = calls.load_8(at)
            at += 1
            nbytes += more
            if more == 255 or place + nbytes > last_target:
                break
            copy_match(place, place - distance, nbytes, stop)
        source, target = at, place + nbytes
    return source, target


@njit(nogil=True)
def decode_lz4(
    source: int, nbytes: int, target: int, expected: int, enough: int
) -> bool:
    """Whether a block decodes to exactly `expected` bytes, at `target`.

    If fewer are `enough`, the block is decoded and checked no further than these.
    """
    end, start, stop = source + nbytes, target, target + expected
    needed = start + enough
    while source < end:
        source, target = _decode_inside(source, target, (end, stop), start, needed)
        # No match ends where the output does.
        if target >= needed:
            return True
        token = calls.load_8(source)
        source += 1
        source, target = _take_literals(token, source, end, target, stop)
        if not source or source == end:
            return source != 0 and target == stop
        source, target = _take_match(token, source, end, target, (start, stop))
        if not source:
            return False
    return False
