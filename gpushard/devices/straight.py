"""Plain elements that need no scatter -> copies from landed bytes into the outputs.

Elements need neither an arena nor a scatter if no codec changes them and if they are
contiguous both in the inner chunk and in the output. Inner chunks of one output that
are neighbours at both ends become one copy. Pure: this module copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.scattering.targets import DeviceTarget, Rows
from gpushard.selecting.selection import Ints

# A copy is a driver call, and a scattered batch takes few calls (20). With more copies,
# one large copy and a scatter are cheaper: device memory is much faster than the bus.
MAX_COPIES = 8


class Copies(NamedTuple):
    """Copies of fetched bytes into outputs: int64, shape (n,).

    `nbytes` bytes at offset `at` of their landing go to the device address `address`.
    """

    at: Ints
    address: Ints
    nbytes: Ints


def straight_copies(
    targets: Sequence[DeviceTarget], rows: Rows, at: Ints
) -> Copies | None:
    """Copies that move inner chunks to the outputs exactly as they are stored.

    `at`, int64 of shape (n_rows,), is the offset in the landing of byte 0 of each inner
    chunk, also if that byte was not fetched. None if one inner chunk needs a scatter,
    or if there would be too many copies.
    """
    n_rows = len(rows.target)
    source, address = np.empty(n_rows, np.int64), np.empty(n_rows, np.int64)
    nbytes = np.empty(n_rows, np.int64)
    for t, some in rows.by_target():
        target = targets[t]
        runs = target.scatter.runs(rows.position[:, some])
        if runs is None:
            return None
        source[some] = at[some] + runs.in_offset
        address[some] = target.out + runs.out_offset
        nbytes[some] = runs.nbytes
    return _joined(rows.part, source, address, nbytes)


def _joined(part: Ints, source: Ints, address: Ints, nbytes: Ints) -> Copies | None:
    """Copies with neighbours at both ends joined; None if too many remain.

    Outputs that are neighbours are not joined: they may be separate allocations, and no
    copy may span two of these.
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
    """Whether each item except the first starts elsewhere than the one before ends."""
    return start[1:] != start[:-1] + nbytes[:-1]
