"""Inner chunks that a write replaces as a whole -> their elements, many at a time.

Along each axis of a box, the cells that it covers lie side by side, with cells that it
covers in part before and behind them. So the whole cells are a box of cells themselves.
A cell that reaches beyond the array is covered if its elements in the array are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.layout import ArrayLayout, GridAxis
from gpushard.selecting.numbering import distinct
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
        The whole cells along each axis; only the last may reach beyond the array.
    rest
        Boxes of the other elements; no two of them share a cell.
    """

    axes: Sequence[SliceAxis]
    grid: Sequence[GridAxis]
    spans: Sequence[Span]
    rest: Sequence[Box]

    @classmethod
    def of(
        cls, part: Part, grid: Sequence[GridAxis], extents: Sequence[int]
    ) -> WholeCells | None:
        """The whole cells of a part; None if there are none, or if it is no box.

        `extents` has the number of elements along each axis that lie in the array.
        """
        ranges = part.ranges if isinstance(part, Box) else None
        if not ranges:  # or no axes, along which cells would lie
            return None
        axes = [*ranges]
        spans = [*map(_whole_span, axes, grid, extents)]
        if any(first >= end for first, end in spans):
            return None
        rest: list[Box] = []
        for d, (first, end) in enumerate(spans):
            axis, begin = axes[d], first * grid[d].cell
            stop = min(end * grid[d].cell, extents[d])
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

    def chunks(
        self, cells: Ints, values: NDArray[Any], layout: ArrayLayout
    ) -> NDArray[Any]:
        """The values for cells with these coordinates, as inner chunks in stored axes.

        Contiguous; the cells along the first axis, and the fill value beyond the array.
        """
        turned = (0, *(1 + axis for axis in layout.outer_order))
        at = cells - np.array([[first] for first, _ in self.spans])
        n_full = [axis.length // grid.cell for axis, grid in self._along]
        is_cut = at >= np.array(n_full)[:, np.newaxis]
        if not is_cut.any():
            chunks = self._elements(at, is_cut[:, 0], values)
            return np.ascontiguousarray(chunks.transpose(turned), layout.dtype)
        shape = [len(at[0]), *(axis.cell for axis in self.grid)]
        stored = np.empty([shape[axis] for axis in turned], layout.dtype)
        stored[...] = layout.fill_value
        chunks = stored.transpose(np.argsort(turned))
        kind = (is_cut.T << np.arange(len(at))).sum(axis=1)
        for one in distinct(kind).tolist():
            mine = np.flatnonzero(kind == one)
            found = self._elements(at[:, mine], is_cut[:, mine[0]], values)
            chunks[(mine, *map(slice, found.shape[1:]))] = found
        return stored

    @property
    def _along(self) -> Iterator[tuple[SliceAxis, GridAxis]]:
        return zip(self.axes, self.grid, strict=True)

    def _elements(
        self, at: Ints, is_cut: NDArray[np.bool_], values: NDArray[Any]
    ) -> NDArray[Any]:
        """The values for cells `at` these places: shape (n_cells, *elements).

        `is_cut` has the axes along which all these cells reach beyond the array.
        """
        split: list[int] = []
        inside: list[slice] = []
        for (axis, grid), cuts in zip(self._along, is_cut.tolist(), strict=True):
            n_full, n_left = divmod(axis.length, grid.cell)
            whole = n_full * grid.cell
            split += [1, n_left] if cuts else [n_full, grid.cell]
            inside.append(slice(whole, None) if cuts else slice(whole))
        n = len(split)
        picked = values[tuple(axis.landing for axis in self.axes)][tuple(inside)]
        view = picked.reshape(split).transpose(*range(0, n, 2), *range(1, n, 2))
        return view[tuple(np.where(is_cut[:, np.newaxis], 0, at))]


def _whole_span(part: SliceAxis, axis: GridAxis, extent: int) -> Span:
    """The cells along an axis that a slice covers; empty if it covers none."""
    stop = part.start + part.length
    end = -(-stop // axis.cell) if stop == extent else stop // axis.cell
    return -(-part.start // axis.cell), end


def _cut(part: SliceAxis, begin: int, end: int) -> SliceAxis:
    """Elements ``begin:end`` of a slice without steps, which has all of them."""
    out_start = part.out_start + (begin - part.start) * part.out_step
    return part._replace(start=begin, length=end - begin, out_start=out_start)
