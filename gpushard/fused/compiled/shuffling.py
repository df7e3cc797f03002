"""Undoes byte and bit shuffles in compiled loops.

Shuffled bytes are planes, one after the other: byte k of all items is plane k. Of bits,
bit b of all items is plane b, each byte of which has the bits of eight items.
"""

from __future__ import annotations

from typing import Any

from gpushard.fused.compiled import calls, vectors
from gpushard.fused.compiled.vectors import WIDTH
from gpushard.fused.words import TILE_NBYTES

# So many bytes of each plane of bits are put together at a time. Planes often lie as
# far apart as cache lines that share a place in the cache, so that no line would stay
# until its next bytes are wanted.
_LINE = 64
_MOST_IN_TILE = TILE_NBYTES // (8 * _LINE)


def _joining(itemsize: int, interleave: Any) -> Any:
    """Puts items ``first:stop`` of `n` together; a vector's width or more exist."""

    @calls.inner
    def join(source: int, target: int, n: int, first: int, stop: int) -> None:
        for k in range(first, stop, WIDTH):
            # The last vectors overlap those before.
            i = min(k, n - WIDTH)
            interleave(target + itemsize * i, source + i, n)

    return join


_join_2 = _joining(2, vectors.interleave_2)
_join_4 = _joining(4, vectors.interleave_4)
_join_8 = _joining(8, vectors.interleave_8)
_join_16 = _joining(16, vectors.interleave_16)


@calls.inner
def unshuffle(
    source: int, target: int, nbytes: int, itemsize: int, wanted: Any
) -> None:
    """Put items together from planes of their bytes.

    Bytes behind the last whole item are copied. Bytes of the target outside the
    half-open range `wanted`, which may go beyond its end, may be missing.
    """
    n = nbytes // itemsize
    first, stop = wanted[0] // itemsize, min(-(-wanted[1] // itemsize), n)
    if n < WIDTH:
        _join_slowly(source, target, n, itemsize)
    elif itemsize == 2:
        _join_2(source, target, n, first, stop)
    elif itemsize == 4:
        _join_4(source, target, n, first, stop)
    elif itemsize == 8:
        _join_8(source, target, n, first, stop)
    elif itemsize == 16:
        _join_16(source, target, n, first, stop)
    else:
        _join_slowly(source, target, n, itemsize)
    done = n * itemsize
    if done < nbytes:
        calls.copy_bytes(target + done, source + done, nbytes - done)


@calls.inner
def _join_slowly(source: int, target: int, n: int, itemsize: int) -> None:
    """Put all of `n` items together."""
    if itemsize % 4 == 0:
        for k in range(0, itemsize, 4):
            first = source + k * n
            for i in range(n):
                at = first + i
                low = calls.load_8(at) | calls.load_8(at + n) << 8
                high = calls.load_8(at + 2 * n) | calls.load_8(at + 3 * n) << 8
                calls.store_int32(target + itemsize * i + k, low | high << 16)
        return
    for k in range(itemsize):
        for i in range(n):
            calls.copy_8(target + itemsize * i + k, source + k * n + i)


@calls.inner
def unshuffle_bits(
    source: int, target: int, sizes: tuple[int, int], wanted: Any, tile: int
) -> None:
    """Put items together from planes of their bits.

    `sizes` are the number of bytes and the item size, and `tile` is the address of
    memory of `TILE_NBYTES`. Bytes of the target outside the half-open range `wanted`
    may be missing. c-blosc leaves all bytes as they are unless items come in eights
    (shuffle.c, `bitunshuffle`).
    """
    nbytes, itemsize = sizes
    n = nbytes // itemsize
    if n % 8:
        calls.copy_bytes(target, source, nbytes)
        return
    stride = n // 8
    if stride < WIDTH or itemsize > _MOST_IN_TILE:
        _join_bits_slowly(source, target, stride, itemsize)
    else:
        width = _LINE if stride >= _LINE else WIDTH
        first, stop = wanted[0] // itemsize // 8, min(-(-wanted[1] // itemsize), n)
        for k in range(first, -(-stop // 8), width):
            # The last tile overlaps that before.
            i = min(k, stride - width)
            place = target + 8 * i * itemsize
            _join_tile(source + i, place, (stride, width), itemsize, tile)
    done = n * itemsize
    if done < nbytes:
        calls.copy_bytes(target + done, source + done, nbytes - done)


@calls.inner
def _join_tile(
    source: int, target: int, sizes: tuple[int, int], itemsize: int, tile: int
) -> None:
    """Put items together; `sizes` are those of a plane and of the part to take."""
    stride, width = sizes
    planes = target if itemsize == 1 else tile
    for byte in range(itemsize):
        for k in range(0, width, WIDTH):
            at = source + 8 * byte * stride + k
            vectors.bytes_of_bits(planes + 8 * (width * byte + k), at, stride)
    if itemsize > 1:
        nbytes = 8 * width * itemsize
        unshuffle(tile, target, nbytes, itemsize, (0, nbytes))


@calls.inner
def _join_bits_slowly(source: int, target: int, stride: int, itemsize: int) -> None:
    """Put all items together, eight at a time; `stride` is the size of a plane."""
    for byte in range(itemsize):
        for i in range(stride):
            at = source + 8 * byte * stride + i
            rows = 0
            for bit in range(8):
                rows |= calls.load_8(at + bit * stride) << 8 * bit
            columns = _transposed(rows)
            place = target + 8 * i * itemsize + byte
            for k in range(8):
                calls.store_int8(place + k * itemsize, columns >> 8 * k)


@calls.inner
def _transposed(rows: Any) -> Any:
    """Eight bytes, whose bits are the rows of a matrix -> the same of its columns."""
    changed = (rows ^ rows >> 7) & 0x00AA00AA00AA00AA
    rows ^= changed ^ changed << 7
    changed = (rows ^ rows >> 14) & 0x0000CCCC0000CCCC
    rows ^= changed ^ changed << 14
    changed = (rows ^ rows >> 28) & 0x00000000F0F0F0F0
    return rows ^ changed ^ changed << 28
