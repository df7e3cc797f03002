"""Rows in any order -> their places in the inner chunks, in a compiled loop."""

from __future__ import annotations

import numpy as np

from gpushard.fused.choice import compiled_loops
from gpushard.layout import GridAxis
from gpushard.selecting.selection import Ints, Members, Projection

# The loops take so many words of memory per row, and pass over most of them. If more
# are needed, sorting the rows is faster.
_MOST_WORDS = 8


def laid_rows(rows: Ints, axis: GridAxis) -> Projection | None:
    """Projection of an index on an axis, as `selecting.selection.project` makes it.

    Takes a third of the time that NumPy takes to sort the rows and to lay them out.

    Parameters
    ----------
    rows
        int64, shape (n_rows,), elements of the axis.
    axis
        The axis, cut into inner chunks.

    Returns
    -------
    None if the loops are not loaded, if rows lie too far apart, or if one comes twice.
    """
    compiled = compiled_loops()
    most = _MOST_WORDS * len(rows)
    if compiled is None or axis.boundaries is not None:
        return None
    if max(axis.n_cells, axis.cell) > most:
        return None
    found = compiled.sort_by_cell(
        np.ascontiguousarray(rows), axis.cell, axis.n_cells, most
    )
    if found is None:
        return None
    cell, bounds, members = found
    zeros = np.zeros(len(cell), np.int64)
    taken = Members(bounds, members[0], members[1])
    return Projection(cell, zeros, np.diff(bounds), zeros, members=taken)
