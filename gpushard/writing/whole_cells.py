"""Inner chunks that a write replaces as a whole -> their elements, many at a time.

Along each axis of a box, the cells that it covers lie side by side, with cells that it
covers in part before and behind them. So the whole cells are a box of cells themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.layout import GridAxis
from gpushard.selecting.selection import Ints, SliceAxis
from gpushard.writing.regions import Box, Part

Span = tuple[int, int]
"""Half-open range of cells along an axis."""


@dataclass(frozen=True, slots=True)
class WholeCells:
    """The cells of a regular grid that a box covers, and what it covers of others.

    Attributes
    ----------
    axes
        What is written along each axis, within whole cells.
    grid
        The grid along each axis.
    spans
        The whole cells along each axis.
    rest
        Boxes of the other elements; no two of them share a cell.
    """

    axes: Sequence[SliceAxis]
    grid: Sequence[GridAxis]
    spans: Sequence[Span]
    rest: Sequence[Box]

    @classmethod
    def of(cls, part: Part, grid: Sequence[GridAxis]) -> WholeCells | None:
        """The whole cells of a part; None if there are none, or if it is no box."""
        if not isinstance(part, Box) or not part.axes:
            return None
        axes = [axis for axis in part.axes if isinstance(axis, SliceAxis)]
        if len(axes) < len(part.axes) or any(axis.step != 1 for axis in axes):
            return None
        spans = [*map(_whole_span, axes, grid)]
        if any(first >= end for first, end in spans):
            return None
        rest: list[Box] = []
        for d, (first, end) in enumerate(spans):
            axis, begin, stop = axes[d], first * grid[d].cell, end * grid[d].cell
            others = (
                _cut(axis, axis.start, begin),
                _cut(axis, stop, axis.start + axis.length),
            )
            rest += [
                Box((*axes[:d], other, *axes[d + 1 :]))
                for other in others
                if other.length
            ]
            axes[d] = _cut(axis, begin, stop)
        return cls(axes, grid, spans, rest)

    def batches(self, n_most: int) -> Iterator[Sequence[Span]]:
        """Boxes that make up the cells, in C order, of `n_most` cells or of one."""
        lengths = [end - first for first, end in self.spans]
        # The axes behind axis `d` are taken whole, and of that one as much as fits.
        d = len(lengths) - 1
        while d > 0 and prod(lengths[d:]) <= n_most:
            d -= 1
        step = max(1, n_most // prod(lengths[d + 1 :]))
        first, end = self.spans[d]
        for at in product(*(range(*span) for span in self.spans[:d])):
            heads = [(i, i + 1) for i in at]
            for i in range(first, end, step):
                yield [*heads, (i, min(i + step, end)), *self.spans[d + 1 :]]

    def elements(self, cells: Sequence[Span], values: NDArray[Any]) -> NDArray[Any]:
        """The values for a box of the cells: a view with two axes for each axis.

        The first half of them counts cells, the other half the elements of a cell.
        """
        picked: list[slice] = []
        split: list[int] = []
        for part, axis, (first, end) in zip(self.axes, self.grid, cells, strict=True):
            picked.append(_cut(part, first * axis.cell, end * axis.cell).landing)
            split += [end - first, axis.cell]
        n = len(split)
        view = values[tuple(picked)].reshape(split)
        return view.transpose(*range(0, n, 2), *range(1, n, 2))


def entries_of(cells: Sequence[Span], strides: Sequence[int]) -> Ints:
    """Index entries of a box of cells, in C order: int64, shape (n_cells,)."""
    entries: Ints = np.zeros(1, np.int64)
    for (first, end), stride in zip(cells, strides, strict=True):
        along = np.arange(first, end, dtype=np.int64) * stride
        entries = np.add.outer(entries, along).reshape(-1)
    return entries


def _whole_span(part: SliceAxis, axis: GridAxis) -> Span:
    """The cells along an axis that a slice covers; empty if it covers none."""
    return -(-part.start // axis.cell), (part.start + part.length) // axis.cell


def _cut(part: SliceAxis, begin: int, end: int) -> SliceAxis:
    """Elements ``begin:end`` of a slice without steps, which has all of them."""
    out_start = part.out_start + (begin - part.start) * part.out_step
    return part._replace(start=begin, length=end - begin, out_start=out_start)
