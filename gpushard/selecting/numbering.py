"""Elements -> numbers of the shards and inner chunks in which they lie.

A number counts the coordinates of shard and inner chunk in C order, so sorting by
number sorts by shard and inner chunk. One column of numbers is cheaper to sort than
columns of coordinates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.layout import GridAxis

Ints = NDArray[np.int64]

# Numbers are int64; larger grids are counted along some of their axes at a time.
_MOST_NUMBERS = 1 << 62
# NumPy sorts 16-bit numbers by counting; for few numbers the conversion does not pay.
_COUNTED_NUMBERS = 1 << 16
_MANY_ELEMENTS = 1 << 12


class Digit(NamedTuple):
    """The cell along an axis; in a nested grid, counted within its parent."""

    axis: int
    cells: GridAxis
    parent: GridAxis | None
    n_cells: int

    def of(self, coordinate: Ints) -> Ints:
        """Digit of each element: int64, shape (n,)."""
        cell: Ints = self.cells.cell_at(coordinate)
        if self.parent is not None:
            start = self.parent.start_of(self.parent.cell_at(coordinate))
            cell -= self.cells.cell_at(start)
        return cell


class Numbers(NamedTuple):
    """A number for each shard, or inner chunk of a shard, or both.

    Its most significant digit comes first. Every number is less than `n_numbers`.
    """

    digits: tuple[Digit, ...]
    n_numbers: int

    def of(self, coordinates: Sequence[Ints]) -> Ints:
        """Number of each element, from its coordinate along each axis: int64, (n,)."""
        first, *rest = self.digits
        number = first.of(coordinates[first.axis])
        for digit in rest:
            number *= digit.n_cells
            number += digit.of(coordinates[digit.axis])
        return number

    def cell_of(self, number: int) -> tuple[int, ...]:
        """Value of each digit of a number."""
        cell: list[int] = []
        for digit in reversed(self.digits):
            number, value = divmod(number, digit.n_cells)
            cell.append(value)
        return tuple(reversed(cell))


def shard_digits(outer: Sequence[GridAxis]) -> list[Digit]:
    """Digits that identify a shard."""
    return [Digit(d, axis, None, axis.n_cells) for d, axis in enumerate(outer)]


def chunk_digits(inner: Sequence[GridAxis], outer: Sequence[GridAxis]) -> list[Digit]:
    """Digits that identify an inner chunk within its shard."""
    return [
        Digit(d, fine, axis, -(-axis.longest // fine.cell))
        for d, (fine, axis) in enumerate(zip(inner, outer, strict=True))
    ]


def numbers_of(digits: Sequence[Digit]) -> Iterator[Numbers]:
    """Numbers made of digits: one, or several if one would not fit int64."""
    some: list[Digit] = []
    n_numbers = 1
    for digit in digits:
        if some and n_numbers * digit.n_cells >= _MOST_NUMBERS:
            yield Numbers(tuple(some), n_numbers)
            some, n_numbers = [], 1
        some.append(digit)
        n_numbers *= digit.n_cells
    if some:
        yield Numbers(tuple(some), n_numbers)


def as_slice(rows: Ints) -> slice | Ints:
    """The same rows as a slice, which copies nothing, if they are consecutive.

    `rows`: int64, shape (n,).
    """
    n = len(rows)
    # Two rows tell almost any other order, Morton's too, without a look at all.
    if not n or rows[-1] - rows[0] != n - 1 or rows[n // 3] - rows[0] != n // 3:
        return rows
    if not np.all(rows[1:] > rows[:-1]):
        return rows
    return slice(int(rows[0]), int(rows[-1]) + 1)


def columns_at(table: Ints, rows: slice | Ints) -> Ints:
    """The columns of `table` at `rows`: int64, shape (n, n_rows)."""
    if isinstance(rows, slice):
        return table[:, rows]
    return table.take(rows, axis=1)  # indexing takes six times as long


def distinct(numbers: Ints) -> Ints:
    """The different ones of some numbers, ascending: int64, shape (n,).

    As `numpy.unique`, which aborts the process (NumPy 2.5) if the interpreter
    ends while a daemon thread is in it, unless it also returns indices.
    """
    ascending = np.sort(numbers, axis=None)
    is_first = np.ones(len(ascending), np.bool_)
    np.not_equal(ascending[1:], ascending[:-1], out=is_first[1:])
    return ascending[is_first]


def stable_order(number: NDArray[np.integer[Any]]) -> Ints | None:
    """Stable sorting order of numbers from 0 on; None if they ascend already."""
    if not np.any(number[1:] < number[:-1]):
        return None
    if len(number) >= _MANY_ELEMENTS and int(number.max()) < _COUNTED_NUMBERS:
        return number.astype(np.uint16).argsort(kind="stable")
    return number.argsort(kind="stable")
