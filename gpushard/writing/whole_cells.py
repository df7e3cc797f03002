"""Inner chunks that a write replaces as a whole -> their elements, many at a time.

Along each axis of a box, the cells that it covers lie side by side, with cells that it
covers in part before and behind them. So the whole cells are a box of cells themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.layout import ArrayLayout, GridAxis
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
        ranges = part.ranges if isinstance(part, Box) else None
        if not ranges:  # or no axes, along which cells would lie
            return None
        axes = [*ranges]
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

    @property
    def n_cells(self) -> int:
        """Number of whole cells."""
        return prod(end - first for first, end in self.spans)

    def coordinates(self, start: int = 0, stop: int | None = None) -> Ints:
        """Coordinates of the whole cells, in C order: int64, shape (ndim, n_cells).

        Those from number `start` to `stop` only, if it is given.
        """
        firsts = np.array([[first] for first, _ in self.spans], np.int64)
        counts = [end - first for first, end in self.spans]
        numbers = np.arange(start, self.n_cells if stop is None else stop)
        return np.stack(np.unravel_index(numbers, counts)) + firsts

    def elements(self, cells: Ints, values: NDArray[Any]) -> NDArray[Any]:
        """The values for cells with these coordinates: shape (n_cells, *cell_shape)."""
        split: list[int] = []
        for axis, (first, end) in zip(self.grid, self.spans, strict=True):
            split += [end - first, axis.cell]
        n = len(split)
        picked = values[tuple(axis.landing for axis in self.axes)]
        view = picked.reshape(split).transpose(*range(0, n, 2), *range(1, n, 2))
        at = (
            along - first for along, (first, _) in zip(cells, self.spans, strict=True)
        )
        return view[tuple(at)]

    def chunks(
        self, cells: Ints, values: NDArray[Any], layout: ArrayLayout
    ) -> NDArray[Any]:
        """The same as inner chunks: in stored axes, one after the other."""
        turned = (0, *(1 + axis for axis in layout.outer_order))
        chunks = self.elements(cells, values).transpose(turned)
        return np.ascontiguousarray(chunks, layout.dtype)


def _whole_span(part: SliceAxis, axis: GridAxis) -> Span:
    """The cells along an axis that a slice covers; empty if it covers none."""
    return -(-part.start // axis.cell), (part.start + part.length) // axis.cell


def _cut(part: SliceAxis, begin: int, end: int) -> SliceAxis:
    """Elements ``begin:end`` of a slice without steps, which has all of them."""
    out_start = part.out_start + (begin - part.start) * part.out_step
    return part._replace(start=begin, length=end - begin, out_start=out_start)
