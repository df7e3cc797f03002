"""Chooses shapes of inner chunks and shards that the caller leaves open.

Pure arithmetic. `docs/convert.md` gives the reasons for the sizes.
"""

from __future__ import annotations

from math import isqrt, prod
from operator import index
from typing import Any

from gpushard.errors import OptionError
from gpushard.options import MIB

Shape = tuple[int, ...]

# A chunk up to this size is taken to suit how the array is read, so it stays.
KEPT_CHUNK_NBYTES = 4 * MIB
# Larger chunks are cut to this size, which allows thousands of streams in parallel.
CUT_CHUNK_NBYTES = MIB
# A shard has many inner chunks, but several shards still fit in memory.
SHARD_NBYTES = 64 * MIB


def along_axes(asked: Any, name: str, ndim: int) -> Shape | None:
    """The shape that an argument asks for; a number means all axes, None stays None."""
    if asked is None:
        return None
    try:
        items = asked if hasattr(asked, "__iter__") else (asked,) * ndim
        lengths = tuple(map(index, items))
    except TypeError:
        lengths = (0,)
    if len(lengths) != ndim or min(lengths, default=1) < 1:
        raise OptionError(
            f"{name} does not fit the array",
            expected=f"{ndim} lengths of 1 or more",
            got=repr(asked),
        )
    return lengths


def chunk_shape(
    shape: Shape, itemsize: int, known: Shape | None, shards: Shape | None
) -> Shape:
    """Shape of the inner chunks of an array; it divides `shards` if these are chosen.

    `known` is the chunk shape of the array that is converted, if it has one.
    """
    start = known or tuple(max(1, n) for n in shape)
    if shards is not None:
        start = tuple(map(min, start, shards))
    is_kept = known is not None and prod(start) * itemsize <= KEPT_CHUNK_NBYTES
    found = start if is_kept else halved_until(start, itemsize, CUT_CHUNK_NBYTES)
    if shards is None:
        return found
    return tuple(map(_largest_divisor, shards, found))


def shard_shape(
    shape: Shape,
    itemsize: int,
    chunks: Shape,
    known: Shape | None,
    most_nbytes: int = SHARD_NBYTES,
) -> Shape:
    """Shape of the shards of an array with inner chunks of shape `chunks`.

    `known`, that of the converted array, is kept if `chunks` divide it. Otherwise inner
    chunks are joined up to `most_nbytes`.
    """
    if known is not None and not any(map(int.__mod__, known, chunks)):
        return known
    counts = [1] * len(chunks)
    while True:
        # The axis with the least coverage, the last of equals: rows stay together.
        left = [
            (counts[axis] * chunks[axis] / shape[axis], -axis)
            for axis in range(len(chunks))
            if counts[axis] * chunks[axis] < shape[axis]
        ]
        nbytes = prod(counts) * prod(chunks) * itemsize
        if not left or 2 * nbytes > most_nbytes:
            break
        axis = -min(left)[1]
        counts[axis] = min(2 * counts[axis], -(-shape[axis] // chunks[axis]))
    return tuple(n * chunk for n, chunk in zip(counts, chunks, strict=True))


def halved_until(shape: Shape, itemsize: int, most_nbytes: int) -> Shape:
    """`shape` with its longest axis halved until it has at most `most_nbytes`."""
    lengths = list(shape)
    while prod(lengths) * itemsize > most_nbytes and max(lengths, default=1) > 1:
        axis = lengths.index(max(lengths))
        lengths[axis] = -(-lengths[axis] // 2)
    return tuple(lengths)


def _largest_divisor(length: int, most: int) -> int:
    """Largest divisor of `length` up to `most`."""
    found = 1
    # Each divisor above the square root has a partner below it.
    for n in range(1, min(most, isqrt(length)) + 1):
        if length % n == 0:
            found = max([found, *(d for d in (n, length // n) if d <= most)])
    return found
