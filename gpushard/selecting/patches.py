"""Many boxes of elements of one array, in columns, which land in one output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpushard.selecting.clipping import homes, shares_of_columns
from gpushard.selecting.numbering import Ints
from gpushard.selecting.selection import Selection


@dataclass(frozen=True, slots=True)
class Patches:
    """Boxes of elements, and the boxes of an output that they land in.

    None of them is empty, and all lie inside the array.

    Attributes
    ----------
    first, length, out_first
        For each axis of the array int64, shape (n_patches,), or (1,) where all have the
        same: the first element, how many there are, and where the first lands.
    shape
        Shape of the output, which has as many axes.
    """

    n_patches: int
    first: tuple[Ints, ...]
    length: tuple[Ints, ...]
    out_first: tuple[Ints, ...]
    shape: tuple[int, ...]

    def within(self, axis: int, start: int, stop: int) -> Patches | None:
        """What of them lies in elements ``start:stop`` of an axis, counted from it."""
        first, out_first = self.first[axis], self.out_first[axis]
        begin = np.maximum(first, start)
        length = np.minimum(first + self.length[axis], stop) - begin
        is_there = np.broadcast_to(length > 0, self.n_patches)
        if not is_there.any():
            return None
        cut = Patches(
            self.n_patches,
            _replaced(self.first, axis, begin - start),
            _replaced(self.length, axis, length),
            _replaced(self.out_first, axis, out_first + (begin - first)),
            self.shape,
        )
        return cut if is_there.all() else cut.at(np.flatnonzero(is_there))

    def at(self, which: Ints) -> Patches:
        """Some of them."""
        return self._some(which, len(which))

    def between(self, first: int, last: int) -> Patches:
        """Those of ``first:last``, their columns as views."""
        return self._some(slice(first, last), last - first)

    def _some(self, which: Ints | slice, n: int) -> Patches:
        first, length, out_first = (
            tuple(entries_of(column, which) for column in columns)
            for columns in (self.first, self.length, self.out_first)
        )
        return Patches(n, first, length, out_first, self.shape)


PlannableSelection = Selection | Patches
"""The kinds of selection that a read can be planned of."""


def parts_of(
    taken: PlannableSelection, axis: int, starts: Ints
) -> Iterator[tuple[int, PlannableSelection]]:
    """What is taken of each array of a concatenation; as `clipping.shares_of`."""
    if not isinstance(taken, Patches):
        yield from shares_of_columns(taken, axis, starts)
        return
    first, length = np.broadcast_arrays(taken.first[axis], taken.length[axis])
    begins, ends = homes(first, starts), homes(first + length - 1, starts) + 1
    n_begun, n_ended = (np.bincount(n, minlength=len(starts)) for n in (begins, ends))
    for number in np.flatnonzero(np.cumsum(n_begun - n_ended)).tolist():
        begin, end = starts[number : number + 2].tolist()
        part = taken.within(axis, begin, end)
        if part is not None:  # an array may be empty
            yield number, part


def entries_of(column: Ints, which: Ints | slice) -> Ints:
    """Entries of a column; of one that all share, that one."""
    return column if len(column) == 1 else column[which]


def _replaced(columns: Sequence[Ints], axis: int, column: Ints) -> tuple[Ints, ...]:
    return (*columns[:axis], column, *columns[axis + 1 :])
