"""Decodes streams of blosclz in a compiled loop.

The format is that of c-blosc's blosclz.c: literals and matches in turn, each behind a
byte that tells which of them follow, and how many. A stream that ends with a match is
refused, as releases of c-blosc disagree on it; encoders end with literals. Nothing is
read or written outside the two given ranges.
"""

from __future__ import annotations

from numba import njit

from gpushard.fused.compiled import calls
from gpushard.fused.compiled.lz4 import copy_match

# A byte below this counts literals. The first byte always does, whatever else it has.
_MATCH = 32
_MIN_MATCH = 3
_LONG = 7  # the length continues in the next bytes
# This distance continues in two more bytes, which are added to it.
_FAR = 8191
# Bytes that must follow a match in the output, so that words can be copied.
_LEFT = 8


@calls.inner
def _match_of(control: int, source: int, end: int) -> tuple[int, int, int]:
    """Length and distance of a match, and the address after it; 0 if bytes run out."""
    nbytes, distance = control >> 5, (control & 31) << 8
    more = 255 if nbytes == _LONG else 0
    while more == 255:
        if source == end:
            return 0, 0, 0
        more = calls.load_8(source)
        source += 1
        nbytes += more
    if source == end:
        return 0, 0, 0
    distance += calls.load_8(source)
    source += 1
    if distance == _FAR:
        if end - source < 2:
            return 0, 0, 0
        distance += (calls.load_8(source) << 8) + calls.load_8(source + 1)
        source += 2
    return nbytes + _MIN_MATCH - 1, distance + 1, source


@calls.inner
def _copy_inside(target: int, distance: int, nbytes: int, stop: int) -> None:
    """Copy bytes from earlier in the output, which may overlap those written."""
    if stop - target - nbytes >= _LEFT:
        copy_match(target, target - distance, nbytes, stop)
        return
    for k in range(nbytes):
        calls.copy_8(target + k, target + k - distance)


@njit(nogil=True)
def decode_blosclz(
    source: int, nbytes: int, target: int, expected: int, enough: int
) -> bool:
    """Whether a stream decodes to exactly `expected` bytes, at `target`.

    If fewer are `enough`, the stream is decoded and checked no further than these.
    """
    end, start, stop = source + nbytes, target, target + expected
    needed = start + enough
    control = calls.load_8(source) & (_MATCH - 1)
    source += 1
    while True:
        if control < _MATCH:
            n = control + 1
            if n > end - source or n > stop - target:
                return False
            calls.copy_bytes(target, source, n)
            source += n
        else:
            n, distance, source = _match_of(control, source, end)
            if not source or distance > target - start or n > stop - target:
                return False
            _copy_inside(target, distance, n, stop)
        target += n
        if source == end:
            return control < _MATCH and target == stop
        if target >= needed and needed < stop:
            return True
        control = calls.load_8(source)
        source += 1
