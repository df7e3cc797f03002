"""Plain elements that land as they are: copied to the output, and nothing else.

What is stored without a codec to undo, and is side by side in the inner chunk and in
the output alike, needs neither an arena nor a scatter. Inner chunks that are neighbours
at both ends, of one output, are one copy. Pure: what is copied, not how.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.batch import Rows
from gpushard.devices.scattering.targets import PlacedTarget
from gpushard.selecting.selection import Ints

# A copy is a call of the driver, of which a batch takes few (20); beyond, one scatter
# behind one copy is cheaper: memory of a device is much faster than the bus.
MAX_COPIES = 8


class Copies(NamedTuple):
    """Copies from where bytes were fetched to into outputs: int64, shape (n,).

    Attributes
    ----------
    at
        Where the bytes lie in their landing.
    address
        Where they go in device memory.
    nbytes
        How many.
    """

    at: Ints
    address: Ints
    nbytes: Ints


def straight_copies(
    targets: Sequence[PlacedTarget], rows: Rows, at: Ints
) -> Copies | None:
    """Copies that land inner chunks as they are stored.

    Parameters
    ----------
    at
        int64, shape (n_rows,). Where byte 0 of each lies in its landing, or would.

    Returns
    -------
    None if one of them does not land so, or it would take too many.
    """
    n_rows = len(rows.target)
    source, address = np.empty(n_rows, np.int64), np.empty(n_rows, np.int64)
    nbytes = np.empty(n_rows, np.int64)
    for t, some in rows.by_target():
        target = targets[t].target
        runs = target.scatter.runs(rows.position[:, some])
        if runs is None:
            return None
        source[some] = at[some] + runs.in_offset
        address[some] = target.out + runs.out_offset
        nbytes[some] = runs.nbytes
    return _joined(rows.part, source, address, nbytes)


def _joined(part: Ints, source: Ints, address: Ints, nbytes: Ints) -> Copies | None:
    """Neighbours at both ends as one; None if too many are left.

    Outputs that are neighbours may be allocations of their own, which no copy spans.
    """
    order = np.argsort(source, kind="stable")
    part, source = part[order], source[order]
    address, nbytes = address[order], nbytes[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = part[1:] != part[:-1]
    is_first[1:] |= _gaps(source, nbytes) | _gaps(address, nbytes)
    firsts = np.flatnonzero(is_first)
    if len(firsts) > MAX_COPIES:
        return None
    return Copies(source[firsts], address[firsts], np.add.reduceat(nbytes, firsts))


def _gaps(start: Ints, nbytes: Ints) -> NDArray[np.bool_]:
    """Whether each but the first begins elsewhere than where the one before ends."""
    return start[1:] != start[:-1] + nbytes[:-1]
