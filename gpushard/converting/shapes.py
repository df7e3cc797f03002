"""Shapes of inner chunks and shards, where the caller leaves them open.

Pure arithmetic. `docs/convert.md` gives the reasons for the sizes.
"""

from __future__ import annotations

from math import prod
from operator import index
from typing import Any

from gpushard.errors import OptionError
from gpushard.options import MIB

Shape = tuple[int, ...]

# A chunk up to this size was cut for how the array is read: it stays as it is.
KEPT_CHUNK_NBYTES = 4 * MIB
# Larger ones are cut down to this: small enough for thousands of streams side by side.
CUT_CHUNK_NBYTES = MIB
# Many inner chunks an object, and few enough bytes for several of them in memory.
SHARD_NBYTES = 64 * MIB


def along_axes(asked: Any, name: str, ndim: int) -> Shape | None:
    """A shape as it was asked for, one number meaning all axes; None stays None.

    Raises
    ------
    OptionError
        It has another number of axes, or a length below 1.
    """
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
    """Shape of the inner chunks of an array.

    Parameters
    ----------
    shape, itemsize
        Elements along each axis, and bytes of one.
    known
        Chunk shape of the array that is converted, where it has one.
    shards
        Shape of the shards, where it is settled: inner chunks divide it.
    """
    start = known or tuple(max(1, n) for n in shape)
    if shards is not None:
        start = tuple(map(min, start, shards))
    is_kept = known is not None and prod(start) * itemsize <= KEPT_CHUNK_NBYTES
    found = start if is_kept else cut(start, itemsize, CUT_CHUNK_NBYTES)
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

    Parameters
    ----------
    shape, itemsize
        Elements along each axis, and bytes of one.
    known
        Shard shape of the array that is converted, kept where `chunks` divide it.
    most_nbytes
        Size of the elements of a shard that is grown of inner chunks.
    """
    if known is not None and not any(map(int.__mod__, known, chunks)):
        return known
    counts = [1] * len(chunks)
    while True:
        # The axis that a shard covers least of; the last of them keeps rows together.
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


def cut(shape: Shape, itemsize: int, most_nbytes: int) -> Shape:
    """`shape`, its longest axis halved until that many bytes hold it."""
    lengths = list(shape)
    while prod(lengths) * itemsize > most_nbytes and max(lengths, default=1) > 1:
        axis = lengths.index(max(lengths))
        lengths[axis] = -(-lengths[axis] // 2)
    return tuple(lengths)


def _largest_divisor(length: int, most: int) -> int:
    """Largest divisor of `length` up to `most`."""
    found = 1
    for n in range(1, int(length**0.5) + 1):
        if length % n == 0:
            found = max([found, *(d for d in (n, length // n) if d <= most)])
    return found
