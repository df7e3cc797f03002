"""Elements of an index, in any order -> sorted by cell, in a compiled loop.

Every wanted element has a place of its own in a table, so two passes over the elements
and one over the table sort them. Like `loops`, this is imported only once reads pay for
it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpushard.fused import calls

# Types that numba converts to, which type checkers take for more.
_signed: Any = np.int64
_unsigned: Any = np.uint64


@calls.inner
def _cell_of(element: int, length: int, shift: int) -> int:
    """Cell of an element; `shift` divides by a length that is a power of two, or -1."""
    if shift >= 0:
        return element >> shift
    # Unsigned numbers are divided faster, because there is nothing to round down.
    return _signed(_unsigned(element) // _unsigned(length))


@calls.inner
def _shift_of(length: int) -> int:
    """Logarithm of a power of two; -1 for another number."""
    shift = 0
    while 1 << shift < length:
        shift += 1
    return shift if 1 << shift == length else -1


@calls.inner
def _begin_rows(slots: Any, length: int, cells: Any) -> int:
    """Turn the count of each cell into where its row of the table begins.

    Returns the number of cells that have elements, whose numbers go to `cells`.
    """
    n = 0
    for cell in range(slots.shape[0]):
        if slots[cell]:
            slots[cell] = n * length
            cells[n] = cell
            n += 1
    return n


@calls.inner
def _compress(table: Any, n: int, length: int, bounds: Any, members: Any) -> None:
    """Write the entries of the table that are set, row by row."""
    done = 0
    for i in range(n):
        bounds[i] = done
        for k in range(length):
            number = table[i * length + k]
            if number >= 0:
                members[0, done], members[1, done] = k, number
                done += 1
    bounds[n] = done


@calls.inner
def sort_by_cell(
    elements: Any, length: int, room: Any, cells: Any, bounds: Any, members: Any
) -> int:
    """Sort elements by cell, and within a cell in ascending order.

    Parameters
    ----------
    elements
        int64, shape (n,), each from 0 on and in one of the cells.
    length
        Number of elements in a cell.
    room
        Memory to work in: int64, one per cell, and the table.
    cells, bounds, members
        Written: the cells that have elements; the bounds of their members; and each
        member's place in its cell and number among `elements`, int64, shape (2, n).

    Returns
    -------
    Number of cells that have elements. -1 if an element comes twice, or if the table
    has no room for all their elements.
    """
    slots, table = room
    shift = _shift_of(length)
    for cell in range(slots.shape[0]):
        slots[cell] = 0
    for k in range(elements.shape[0]):
        slots[_cell_of(elements[k], length, shift)] += 1
    n = _begin_rows(slots, length, cells)
    if n * length > table.shape[0]:
        return -1
    for k in range(n * length):
        table[k] = -1
    for k in range(elements.shape[0]):
        cell = _cell_of(elements[k], length, shift)
        at = slots[cell] + elements[k] - cell * length
        if table[at] >= 0:
            return -1
        table[at] = k
    _compress(table, n, length, bounds, members)
    return n
