"""Boxes of elements anywhere in device memory -> copies of rows to inner chunks."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from gpushard.devices.base import RowCopy

# Copies are queued one by one, and short rows are copied far below the memory's speed.
# A few of them, as at the edge of an array, still cost less than fetching all values.
_MOST_COPIES = 256
_SHORT_ROW_NBYTES, _MOST_SHORT_ROWS = 32, 1024
_LARGEST_PITCH = 2**31 - 1  # cudaDevAttrMaxPitch of every device so far


class Strided(NamedTuple):
    """Place of a box of elements: address of the first one, and byte strides."""

    address: int
    strides: tuple[int, ...]


class _Axis(NamedTuple):
    n: int
    source: int
    to: int


def row_copies(
    to: Strided, source: Strided, shape: tuple[int, ...], itemsize: int
) -> list[RowCopy] | None:
    """Copies of rows that move a box of `shape`; None if copies are unsuitable.

    Copies do not suit elements in reverse order, elements in too many short rows, or
    elements that the box has several times (broadcast).
    """
    axes = [
        axis for axis in map(_Axis, shape, source.strides, to.strides) if axis.n != 1
    ]
    nbytes = itemsize
    while axes and axes[-1].source == axes[-1].to == nbytes:
        nbytes *= axes.pop().n
    rows = axes.pop() if axes else _Axis(1, nbytes, nbytes)
    while axes and axes[-1][1:] == (rows.n * rows.source, rows.n * rows.to):
        rows = rows._replace(n=rows.n * axes.pop().n)
    pitches_fit = nbytes <= min(rows[1:]) and max(rows[1:]) <= _LARGEST_PITCH
    n_copies = prod(axis.n for axis in axes)
    is_slow = nbytes < _SHORT_ROW_NBYTES and n_copies * rows.n > _MOST_SHORT_ROWS
    if is_slow or n_copies > _MOST_COPIES or (rows.n > 1 and not pitches_fit):
        return None
    # A single row may be longer than the largest pitch.
    copies: list[RowCopy] = []
    for index in np.ndindex(*(axis.n for axis in axes)):
        begins = [
            (i * axis.to, i * axis.source) for i, axis in zip(index, axes, strict=True)
        ]
        first = to.address + sum(b for b, _ in begins)
        lies = source.address + sum(b for _, b in begins)
        copies.append(RowCopy(first, rows.to, lies, rows.source, nbytes, rows.n))
    return copies
