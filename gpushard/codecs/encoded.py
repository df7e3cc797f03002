"""Encoded arrays as columns: which bytes of which buffer each of them has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.options import KIB

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

# Encoded arrays of less than this are copied into one buffer, which costs less than to
# name each of them when they are written.
LARGE_NBYTES = 64 * KIB


class EncodedArrays(NamedTuple):
    """Bytes of each of some arrays.

    Attributes
    ----------
    buffers
        uint8, one axis, host.
    buffer
        Number of the buffer of each array: int64, shape (n_arrays,).
    offset, nbytes
        Its bytes there: int64, shape (n_arrays,).
    """

    buffers: Sequence[Bytes]
    buffer: Ints
    offset: Ints
    nbytes: Ints

    @classmethod
    def of_rows(cls, rows: Bytes) -> EncodedArrays:
        """Arrays of one size: uint8, shape (n_arrays, nbytes), in C order."""
        zeros, nbytes = np.zeros(len(rows), np.int64), rows.shape[1]
        offset = np.arange(len(rows), dtype=np.int64) * nbytes
        return cls([rows.reshape(-1)], zeros, offset, zeros + nbytes)

    @classmethod
    def of(cls, items: Sequence[Any]) -> EncodedArrays:
        """Arrays of which each item has the bytes, or is them; many small copied."""
        nbytes = _lengths(items)
        if len(items) > 1 and int(nbytes.sum()) < LARGE_NBYTES * len(items):
            return cls.joined(items)
        buffers = [np.frombuffer(item, np.uint8) for item in items]
        numbers = np.arange(len(items), dtype=np.int64)
        return cls(buffers, numbers, np.zeros_like(numbers), nbytes)

    @classmethod
    def joined(cls, items: Sequence[Any]) -> EncodedArrays:
        """The same, in one new buffer."""
        nbytes = _lengths(items)
        buffer = np.frombuffer(b"".join(items), np.uint8)
        offset = np.cumsum(nbytes) - nbytes
        return cls([buffer], np.zeros_like(nbytes), offset, nbytes)

    def items(self) -> list[Bytes]:
        """Bytes of each array: views."""
        columns = (self.buffer, self.offset, self.offset + self.nbytes)
        places = zip(*(column.tolist() for column in columns), strict=True)
        return [self.buffers[i][start:stop] for i, start, stop in places]


def _lengths(items: Sequence[Any]) -> Ints:
    return np.fromiter(map(len, items), np.int64, len(items))
