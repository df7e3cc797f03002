"""Masks with many true elements -> parts that keep a piece of the mask.

Columns say for each listed element where it lies and which value it gets. Of a mask of
several axes they take longer to make than it takes to write all elements around. Of a
piece of the mask it is enough to know where the values of each of its rows begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.layout import GridAxis
from gpushard.selecting.listing import TrueElements, elements_changed
from gpushard.selecting.numbering import Ints
from gpushard.selecting.selection import Listed
from gpushard.source import Source

# Elements around that are counted in the time in which one is listed.
_AROUND_PER_TRUE = 16
# The part of the memory limit that rows may take: where the values of each begin, the
# next ones while these are kept, and how many there are.
_ROWS_SHARE, _ROW_NBYTES = 8, 24
# Elements whose values are picked at a time: this bounds their places, of 8 bytes.
_PICKED = 1 << 18

_Mask = NDArray[np.bool_]
Cell = tuple[int, ...]


class _Range(NamedTuple):
    """A cell along an axis, and its elements, half-open."""

    cell: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Masked:
    """The elements of a region where a mask is true.

    Attributes
    ----------
    mask
        For a box of the region, or all of it within the array; the user's own memory.
    begins
        int64, of the shape of the mask without its last axis: where the values of the
        true elements of each row begin.
    n_true
        Number of true elements.
    origin
        Where the mask begins in the region; at a border of cells, if it is cut.
    """

    mask: _Mask
    begins: Ints
    n_true: int
    origin: tuple[int, ...]

    @property
    def columns_nbytes(self) -> int:
        """Memory of its columns."""
        return self.begins.nbytes

    def cells(self, grid: Sequence[GridAxis]) -> Iterator[tuple[Cell, Masked]]:
        """Cells of `grid` with true elements, each with its part."""
        n_left = self.n_true
        for shelf in _shelves(grid, self.origin, self.mask.shape):
            inside = _elements(shelf)
            mask, begins = self.mask[inside], self.begins[inside]
            for cell, part in _cells(grid, shelf, mask, begins, self.origin):
                n_left -= part.n_true
                yield cell, part
        if n_left:
            raise elements_changed()

    def moved(self, origin: Sequence[int]) -> Masked:
        """The same elements, counted from `origin`: not before that of the mask."""
        pairs = zip(self.origin, origin, strict=True)
        behind = tuple(slice(start - first, None) for first, start in pairs)
        mask, begins = self.mask[behind], self.begins[behind[:-1]]
        return Masked(mask, begins, self.n_true, (0,) * len(origin))

    def within(self, axis: int, begin: int, end: int) -> Masked:
        """Those at ``begin:end`` along an axis, of which there must be some."""
        if np.count_nonzero(self.mask) != self.n_true:
            raise elements_changed()
        first = self.origin[axis]
        cut = slice(max(0, begin - first), max(0, end - first))
        inside = (*(slice(None) for _ in range(axis)), cut)
        mask = self.mask[inside]
        if axis < self.begins.ndim:
            begins = self.begins[inside]
        else:
            begins = self.begins + np.count_nonzero(
                self.mask[..., : cut.start], axis=-1
            )
        origin = list(self.origin)
        origin[axis] += cut.start
        return Masked(mask, begins, int(np.count_nonzero(mask)), tuple(origin))

    def covers(self, extents: tuple[int, ...]) -> bool:
        """Whether every element of a region of `extents` is written."""
        return self.n_true == prod(extents)

    def touched(self, grid: Sequence[GridAxis]) -> NDArray[np.bool_]:
        """Which cells have true elements, of those that the mask is for."""
        found = self.mask
        for d, axis in enumerate(grid):
            starts = np.arange(0, found.shape[d], axis.cell)
            found = np.logical_or.reduceat(found, starts, axis=d)
        if not found.any():
            raise elements_changed()
        return found

    def assign(self, region: NDArray[Any], values: NDArray[Any]) -> None:
        """Copy the values into their elements of `region`."""
        pairs = zip(self.origin, self.mask.shape, strict=True)
        to = region[tuple(slice(first, first + n) for first, n in pairs)]
        cut = tuple(map(slice, to.shape))  # a region may end before the mask does
        mask, begins = self.mask[cut], self.begins[cut[:-1]]
        if _put(to, mask, begins, values) != self.n_true:
            raise elements_changed()


def masked_cells(
    source: Source, listed: Listed, n_at_once: int
) -> Iterator[tuple[Cell, Masked]] | None:
    """Stored objects to write, each with its part; None if it is better to list them.

    So many are written at the same time. If the user changed the mask meanwhile, that
    is a `SelectionError`.
    """
    listing, shape = listed.listing, source.layout.shape
    if not isinstance(listing, TrueElements) or listing.mask.shape != shape:
        return None
    if listing.n_elements * _AROUND_PER_TRUE < listing.mask.size:
        return None
    n_rows = prod(shape[:-1])
    if len(shape) > 1:
        outer = source.layout.axes[0]
        n_rows = min(outer.longest, outer.extent) * prod(shape[1:-1])
    # Objects of a range of the first axis are written while the next ones are counted.
    nbytes = _ROW_NBYTES * n_rows * (n_at_once + 2)
    if nbytes * _ROWS_SHARE > source.options.memory_limit:
        return None
    return _counted_cells(listing, source.layout.axes)


def _counted_cells(
    listing: TrueElements, grid: Sequence[GridAxis]
) -> Iterator[tuple[Cell, Masked]]:
    """Cells of `grid` with true elements of a mask of the whole array."""
    n_before = 0
    nowhere = (0,) * len(grid)
    for shelf in _shelves(grid, nowhere, listing.mask.shape):
        mask = listing.mask[_elements(shelf)]
        n_true = np.asarray(np.count_nonzero(mask, axis=-1))
        ends = n_before + np.cumsum(n_true).reshape(n_true.shape)
        n_before = int(ends.reshape(-1)[-1])
        yield from _cells(grid, shelf, mask, ends - n_true, nowhere)
    if n_before != listing.n_elements:
        raise elements_changed()


def _shelves(
    grid: Sequence[GridAxis], origin: Sequence[int], shape: Sequence[int]
) -> Iterator[tuple[_Range, ...]]:
    """Ranges of the first axis; one without any, if that is the last axis, too."""
    if len(grid) == 1:
        return iter([()])
    return ((along,) for along in _ranges(grid[0], origin[0], shape[0]))


def _cells(
    grid: Sequence[GridAxis],
    shelf: tuple[_Range, ...],
    mask: _Mask,
    begins: Ints,
    origin: Sequence[int],
) -> Iterator[tuple[Cell, Masked]]:
    """Cells in a range of the first axis: the first ones along the last axis first."""
    if not mask.any():
        return
    nowhere = (0,) * len(grid)
    middle = [
        [*_ranges(grid[d], origin[d], mask.shape[d])]
        for d in range(len(shelf), len(grid) - 1)
    ]
    for column in _ranges(grid[-1], origin[-1], mask.shape[-1]):
        here = mask[..., column.begin : column.end]
        n_true = np.asarray(np.count_nonzero(here, axis=-1))
        for some in product(*middle):
            inside = (*(slice(None) for _ in shelf), *_elements(some))
            if n := int(n_true[inside].sum()):
                cell = tuple(along.cell for along in (*shelf, *some, column))
                yield cell, Masked(here[inside], begins[inside], n, nowhere)
        begins = begins + n_true


def _ranges(axis: GridAxis, first: int, n: int) -> Iterator[_Range]:
    """The cells of `n` elements of an axis, from a border on; counted from there."""
    begin = 0
    while begin < n:
        cell = int(axis.cell_at(first + begin))
        end = min(int(axis.start_of(cell) + axis.length_of(cell)) - first, n)
        yield _Range(cell, begin, end)
        begin = end


def _elements(ranges: Sequence[_Range]) -> tuple[Any, ...]:
    """Index of the elements in ranges of the first axes."""
    return (*(slice(along.begin, along.end) for along in ranges), ...)


def _put(to: NDArray[Any], mask: _Mask, begins: Ints, values: NDArray[Any]) -> int:
    """Copy values to where a mask is true, some at a time; returns how many."""
    if mask.ndim > 1 and mask.size > _PICKED:
        step = _PICKED * len(mask) // mask.size
        if not step:
            rows = zip(to, mask, begins, strict=True)
            return sum(_put(*row, values) for row in rows)
        cuts = (slice(at, at + step) for at in range(0, len(mask), step))
        return sum(_put(to[at], mask[at], begins[at], values) for at in cuts)
    mask = mask.copy()  # the user may change the mask between two looks at it
    n_true = np.asarray(np.count_nonzero(mask, axis=-1)).reshape(-1)
    n = int(n_true.sum())
    begins = begins.reshape(-1)
    if (begins + n_true).max() > len(values):
        raise elements_changed()
    if len(begins) == 1:
        to[mask] = values[begins[0] : begins[0] + n]
        return n
    places = np.repeat(begins - (np.cumsum(n_true) - n_true), n_true)
    places += np.arange(n)
    to[mask] = values[places]
    return n
