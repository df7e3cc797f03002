"""A selection over concatenated arrays -> the selection of each array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.selecting.listing import ListedBlock, Listing, Marks, elements_changed
from gpushard.selecting.numbering import distinct
from gpushard.selecting.selection import (
    AxisSelection,
    IndexAxis,
    Ints,
    Listed,
    Orthogonal,
    ParsedSelection,
    Points,
    Selection,
)


def shares_of(
    wanted: ParsedSelection, axis: int, starts: Ints
) -> Iterator[tuple[int, ParsedSelection]]:
    """Number of each array with a selected element, ascending, and its selection.

    `wanted` is of all arrays as one. They are joined along `axis`, where each begins,
    and the last one ends, at `starts`: int64, shape (n_arrays + 1,).
    """
    if not isinstance(wanted, Listed):
        yield from shares_of_columns(wanted, axis, starts)
    elif wanted.around is None or wanted.axis == axis:
        along = axis if wanted.around is None else 0
        for number, listing in enumerate(clipped(wanted.listing, along, starts)):
            if listing is not None:
                yield number, wanted._replace(listing=listing)
    else:
        for number, around in _shares_of_axes(wanted.around, axis, starts):
            yield number, wanted._replace(around=around)


def shares_of_columns(
    wanted: Selection, axis: int, starts: Ints
) -> Iterator[tuple[int, Selection]]:
    """As `shares_of`, of a selection that has all its elements in columns."""
    if isinstance(wanted, Orthogonal):
        yield from _shares_of_axes(wanted, axis, starts)
        return
    # Of thousands of joined files, most reads need a few, and look at no others.
    for number in distinct(homes(wanted.coordinates[axis], starts)).tolist():
        begin, end = starts[number : number + 2].tolist()
        yield number, _share_of_points(wanted, axis, begin, end)


def _shares_of_axes(
    wanted: Orthogonal, axis: int, starts: Ints
) -> Iterator[tuple[int, Orthogonal]]:
    """As `shares_of`, of an orthogonal selection."""
    along = wanted.axes[axis]
    numbers: Iterable[int]
    if isinstance(along, IndexAxis):
        numbers = distinct(homes(along.element, starts)).tolist()
    elif along.length:
        first, last = homes(np.array([along.start, along.last]), starts).tolist()
        numbers = range(first, last + 1)
    else:
        numbers = ()
    for number in numbers:
        begin, end = starts[number : number + 2].tolist()
        taken = _clipped(along, begin, end)
        if taken is not None:  # a slice may step over an array
            axes = (*wanted.axes[:axis], taken, *wanted.axes[axis + 1 :])
            yield number, wanted._replace(axes=axes)


def homes(elements: Ints, starts: Ints) -> Ints:
    """Number of the range that each element lies in."""
    return np.searchsorted(starts, elements, side="right") - 1


def _share_of_points(selection: Points, axis: int, start: int, stop: int) -> Points:
    along = selection.coordinates[axis]
    mine = np.flatnonzero((along >= start) & (along < stop))
    coordinates = tuple(
        c[mine] - start if d == axis else c[mine]
        for d, c in enumerate(selection.coordinates)
    )
    return Points(coordinates, selection.out_index[mine], selection.shape)


def _clipped(axis: AxisSelection, start: int, stop: int) -> AxisSelection | None:
    """The part of one axis in elements ``start:stop``, counted from `start`."""
    if isinstance(axis, IndexAxis):
        mine = np.flatnonzero((axis.element >= start) & (axis.element < stop))
        return IndexAxis(axis.element[mine] - start, axis.out_index[mine])
    return axis.within(start, stop)


class _Found(NamedTuple):
    """What a look at the elements of a range found.

    `blocks` are those that may have such elements, int64; `sum_of_places` is of where
    the elements land.
    """

    blocks: Ints
    n_elements: int
    sum_of_places: int


class Clipped:
    """The elements of a listing that have coordinates in a range along an axis.

    Their coordinates along that axis count from `start`. Made by `clipped`.
    """

    def __init__(
        self, listing: Listing, axis: int, start: int, stop: int, found: _Found
    ) -> None:
        self._listing = listing
        self._axis, self._start, self._stop = axis, start, stop
        self._blocks = found.blocks
        self.n_axes = listing.n_axes
        self.n_marks = listing.n_marks
        self.n_blocks = len(found.blocks)
        self.n_elements = found.n_elements
        self.sum_of_places = found.sum_of_places

    def block(self, number: int) -> ListedBlock:
        """Elements of a block; see `Listing`."""
        block = self._listing.block(int(self._blocks[number]))
        return self._moved(block.at(self._are_mine(block)))

    def marks(self, number: int, rows: Ints) -> Marks:
        """Marks of elements of a block; see `Listing`."""
        number = int(self._blocks[number])
        mine = np.flatnonzero(self._are_mine(self._listing.block(number)))
        if rows.max(initial=-1) >= len(mine):
            raise elements_changed()
        return self._listing.marks(number, mine[rows])

    def at(self, numbers: Ints, marks: Marks) -> ListedBlock:
        """Elements with these marks; see `Listing`."""
        block = self._listing.at(self._blocks[numbers], marks)
        if not self._are_mine(block).all():
            raise elements_changed()
        return self._moved(block)

    def overlaps(self, array: NDArray[Any]) -> bool:
        """Whether writing to `array` may change the elements; see `Listing`."""
        return self._listing.overlaps(array)

    def _are_mine(self, block: ListedBlock) -> NDArray[np.bool_]:
        along = block.coordinates[self._axis]
        return (along >= self._start) & (along < self._stop)

    def _moved(self, block: ListedBlock) -> ListedBlock:
        """The same elements, counted from `start`; the block is changed."""
        mine = block.coordinates[self._axis]
        mine -= self._start
        return block


def clipped(listing: Listing, axis: int, starts: Ints) -> Iterator[Clipped | None]:
    """The elements of a listing in each of several adjacent ranges; None for none.

    Each range begins, and the last one ends, at `starts`: int64, shape (n_ranges + 1,),
    ascending.
    """
    counts, sums = np.zeros((2, len(starts) - 1), np.int64)
    extremes = np.full((2, listing.n_blocks), -1, np.int64)
    for k in range(listing.n_blocks):
        block = listing.block(k)
        along = block.coordinates[axis]
        if len(along):
            extremes[:, k] = along.min(), along.max()
            nth = np.searchsorted(starts, along, side="right") - 1
            counts += np.bincount(nth, minlength=len(counts))
            # A block has so few elements that its sums are exact as float64.
            places = np.bincount(nth, block.out_index, minlength=len(counts))
            sums += places.astype(np.int64)
    low, high = extremes
    for n, places, (start, stop) in zip(
        counts.tolist(), sums.tolist(), pairwise(starts.tolist()), strict=True
    ):
        found = _Found(np.flatnonzero((low < stop) & (high >= start)), n, places)
        yield Clipped(listing, axis, start, stop, found) if n else None
