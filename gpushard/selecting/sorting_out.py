"""Listed elements, sorted out by group and held as few bytes each.

A listing in any order has elements of every group in every block. So each block is
looked at once for many groups together: the marks of its elements are held, sorted by
group, and the elements of a group are made of its marks when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.selecting import listing as listings
from gpushard.selecting.listing import ListedBlock, Listing, Marks, elements_changed
from gpushard.selecting.numbering import Ints, stable_order

# Groups that are told apart in one look; their numbers have 16 bits.
MOST_GROUPS = 1 << 16


class Room(NamedTuple):
    """Memory in which elements may be sorted out, and how often that saves a look.

    Attributes
    ----------
    element_nbytes
        That of each element of a portion, part of which marks may take instead. 0 if
        nothing is to be sorted out.
    n_kept
        Number of split groups that may be kept while others are made, each with memory
        of its own for a portion.
    n_passes
        How often the portions of a split group are gone through.
    """

    element_nbytes: int = 0
    n_kept: int = 0
    n_passes: int = 1


NO_ROOM = Room()


class SortedOut:
    """The elements of a group, of a listing whose marks are sorted by group.

    Parameters
    ----------
    numbers
        int64, shape (n_blocks,). Blocks of `listing` that may have such elements.
    marks
        Those of this group and of others.
    starts
        int64, same shape. Where in `marks` those of this group begin, for each block.
    counts
        int64, same shape. How many of them there are.
    """

    n_marks = 1  # the place in the block
    sum_of_places: int | None = None

    def __init__(
        self, listing: Listing, numbers: Ints, marks: Marks, starts: Ints, counts: Ints
    ) -> None:
        self._listing, self._marks = listing, marks
        has_any = np.flatnonzero(counts)
        self._numbers = numbers[has_any]
        self._cuts: Ints = np.append(0, np.cumsum(counts[has_any]))
        # From the place among the elements of the group to that in `marks`.
        self._shifts = starts[has_any] - self._cuts[:-1]
        self.n_axes = listing.n_axes
        self.n_elements = int(self._cuts[-1])
        self.n_blocks = -(-self.n_elements // listings.BLOCK_ELEMENTS)

    def block(self, number: int) -> ListedBlock:
        """Elements of a block; see `Listing`."""
        first = number * listings.BLOCK_ELEMENTS
        last = min(first + listings.BLOCK_ELEMENTS, self.n_elements)
        low = int(np.searchsorted(self._cuts, first, side="right")) - 1
        high = int(np.searchsorted(self._cuts, last))
        lengths = np.diff(np.clip(self._cuts[low : high + 1], first, last))
        place = np.arange(first, last)
        place += np.repeat(self._shifts[low:high], lengths)
        return self._taken(place, np.repeat(self._numbers[low:high], lengths))

    def marks(self, number: int, rows: Ints) -> Marks:
        """Marks of elements of a block; see `Listing`."""
        del number  # places are counted within any block
        return rows[np.newaxis].astype(np.uint16)

    def at(self, numbers: Ints, marks: Marks) -> ListedBlock:
        """Elements with these marks; see `Listing`."""
        place: Ints = numbers * listings.BLOCK_ELEMENTS
        place += marks[0]
        nth = np.searchsorted(self._cuts, place, side="right") - 1
        return self._taken(place + self._shifts[nth], self._numbers[nth])

    def overlaps(self, array: NDArray[Any]) -> bool:
        """Whether writing to `array` may change the elements; see `Listing`."""
        return self._listing.overlaps(array)

    def _taken(self, place: Ints, numbers: Ints) -> ListedBlock:
        """Elements whose marks are at some places, of blocks of these numbers."""
        return self._listing.at(numbers, self._marks.take(place, axis=1))


def sort_out(
    listing: Listing,
    numbers: Ints,
    n_elements: Ints,
    groups_in: Callable[[ListedBlock], tuple[Ints, NDArray[np.uint16]]],
) -> Iterator[SortedOut]:
    """The elements of some groups, one group after the other.

    Parameters
    ----------
    numbers
        Blocks of the listing that may have such elements.
    n_elements
        int64, shape (n_groups,). Number of elements of each group.
    groups_in
        Rows of a block with such elements, ascending, and which group each is of.

    Raises
    ------
    SelectionError
        A group has another number of elements: the user's array was changed.
    """
    n_groups = len(n_elements)
    marks = np.empty((listing.n_marks, int(n_elements.sum())), np.uint16)
    starts = np.empty(len(numbers), np.int64)
    # Of the marks of each block, where those of each group begin.
    bounds = np.zeros((n_groups + 1, len(numbers)), np.int32)
    done = 0
    for i, number in enumerate(numbers.tolist()):
        rows, group = groups_in(listing.block(number))
        order = stable_order(group)
        end = done + len(rows)
        if end > marks.shape[1]:
            raise elements_changed()
        marks[:, done:end] = listing.marks(
            number, rows if order is None else rows[order]
        )
        np.cumsum(np.bincount(group, minlength=n_groups), out=bounds[1:, i])
        starts[i], done = done, end
    for g, n in enumerate(n_elements.tolist()):
        counts = (bounds[g + 1] - bounds[g]).astype(np.int64)
        found = SortedOut(listing, numbers, marks, starts + bounds[g], counts)
        if found.n_elements != n:
            raise elements_changed()
        yield found
