"""A basic index cut into pieces along a grid's borders, to read them one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np

from gpushard.layout import GridAxis
from gpushard.selecting.expressions import basic
from gpushard.selecting.projection import project
from gpushard.selecting.selection import Orthogonal, SliceAxis

AxisItem = int | range
"""The part of a basic index along one axis: one element, or a range of elements."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a selection, with an item for each axis of the array.

    `place` is the index of the piece in the result of the whole selection.
    """

    items: tuple[AxisItem, ...]
    place: tuple[slice, ...]

    @property
    def key(self) -> tuple[int | slice, ...]:
        """The piece as an index of the array."""
        return tuple(i if isinstance(i, int) else slice_of(i) for i in self.items)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the piece's result."""
        return result_shape(self.items)


def per_axis(key: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[AxisItem, ...]:
    """The part of a basic index without new axes along each axis of an array.

    Raises `SelectionError` if the key does not fit `shape`.
    """
    axes = cast("tuple[SliceAxis, ...]", cast("Orthogonal", basic(key, shape)).axes)
    return tuple(axis.start if axis.drop else _slice_elements(axis) for axis in axes)


def _slice_elements(axis: SliceAxis) -> range:
    """Elements of a slice, in the order of the result."""
    up = range(axis.start, axis.start + axis.length * axis.step, axis.step)
    return up if axis.out_step > 0 else up[::-1]


def result_shape(items: Sequence[AxisItem]) -> tuple[int, ...]:
    """Shape of the result that `items` select."""
    return tuple(len(item) for item in items if isinstance(item, range))


def slice_of(item: range) -> slice:
    """Slice that takes the elements of `item`."""
    if not item:
        return slice(0, 0)
    # The stop of a descending range that ends with element 0 is -1, which a slice would
    # count from the end.
    stop = item.stop if item.stop >= 0 else None
    return slice(item.start, stop, item.step)


def cut_selection(
    items: tuple[AxisItem, ...],
    grid: Sequence[GridAxis],
    itemsize: int,
    piece_nbytes: int,
) -> list[Piece]:
    """Pieces of a selection, each of about `piece_nbytes` or more.

    The first axis that touches several cells is cut between cells, so no cell is read
    for two pieces. `grid` is that of the array's shards, or of its inner chunks.
    """
    shape = result_shape(items)
    whole = tuple(slice(0, n) for n in shape)
    nbytes = prod(shape) * itemsize
    kept = 0
    for axis, (item, cells) in enumerate(zip(items, grid, strict=True)):
        if nbytes <= piece_nbytes:
            break
        if isinstance(item, int):
            continue
        borders = _borders(item, cells)
        if len(borders) > 2:
            n_rows = -(-piece_nbytes * len(item) // nbytes)
            return [
                Piece(
                    (*items[:axis], item[first:last], *items[axis + 1 :]),
                    (*whole[:kept], slice(first, last), *whole[kept + 1 :]),
                )
                for first, last in _joined_borders(borders, n_rows)
            ]
        kept += 1
    return [Piece(items, whole)]


def _borders(item: range, cells: GridAxis) -> list[int]:
    """Positions in `item` where another cell begins, then its length."""
    up = item if item.step > 0 else item[::-1]
    lengths = project(SliceAxis(up.start, up.step, len(up)), cells).length
    if item.step < 0:
        lengths = lengths[::-1]
    return [0, *np.cumsum(lengths).tolist()]


def _joined_borders(borders: list[int], n_rows: int) -> list[tuple[int, int]]:
    """Neighbouring borders joined to runs of at least `n_rows`, except the last run."""
    runs: list[tuple[int, int]] = []
    first = borders[0]
    for border in borders[1:]:
        if border - first >= n_rows or border == borders[-1]:
            runs.append((first, border))
            first = border
    return runs
