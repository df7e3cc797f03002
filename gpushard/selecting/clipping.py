"""A selection over concatenated arrays -> the selection of each array."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.selecting.listing import ListedBlock, Listing, Marks, elements_changed
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
) -> Iterator[ParsedSelection | None]:
    """Selection of each array; None for an array without a selected element.

    `wanted` is of all arrays as one. They are joined along `axis`, where each begins,
    and the last one ends, at `starts`: int64, shape (n_arrays + 1,).
    """
    ranges = pairwise(starts.tolist())
    if not isinstance(wanted, Listed):
        for start, stop in ranges:
            yield share_of(wanted, axis, start, stop)
    elif wanted.around is None or wanted.axis == axis:
        along = axis if wanted.around is None else 0
        for listing in clipped(wanted.listing, along, starts):
            yield wanted._replace(listing=listing) if listing else None
    else:
        for start, stop in ranges:
            around = _share_of_axes(wanted.around, axis, start, stop)
            yield wanted._replace(around=around) if around else None


def share_of(
    selection: Selection, axis: int, start: int, stop: int
) -> Selection | None:
    """The part of a selection that lies in elements ``start:stop`` of an axis."""
    if isinstance(selection, Points):
        return _share_of_points(selection, axis, start, stop)
    return _share_of_axes(selection, axis, start, stop)


def _share_of_axes(
    selection: Orthogonal, axis: int, start: int, stop: int
) -> Orthogonal | None:
    taken = _clipped(selection.axes[axis], start, stop)
    if taken is None:
        return None
    axes = (*selection.axes[:axis], taken, *selection.axes[axis + 1 :])
    return selection._replace(axes=axes)


def _share_of_points(
    selection: Points, axis: int, start: int, stop: int
) -> Points | None:
    along = selection.coordinates[axis]
    mine = np.flatnonzero((along >= start) & (along < stop))
    if not len(mine):
        return None
    coordinates = tuple(
        c[mine] - start if d == axis else c[mine]
        for d, c in enumerate(selection.coordinates)
    )
    return Points(coordinates, selection.out_index[mine], selection.shape)


def _clipped(axis: AxisSelection, start: int, stop: int) -> AxisSelection | None:
    """The part of one axis in elements ``start:stop``, counted from `start`."""
    if isinstance(axis, IndexAxis):
        mine = np.flatnonzero((axis.element >= start) & (axis.element < stop))
        if not len(mine):
            return None
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
