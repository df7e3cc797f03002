"""Boxes whose axes change places in the output -> loops over squares for a kernel.

Neighbours in the output are far apart in the inner chunk, and vice versa. A kernel of
its own moves such boxes in squares, which it transposes in registers or in shared
memory. Its loops 0 and 1 are the sides of the squares.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from sys import maxsize

from gpushard.devices.scattering.boxes import Boxes, Loop
from gpushard.devices.scattering.transfer import Transfer
from gpushard.selecting.selection import Ints

TURN_RANK = 4
"""Number of loops that the kernel takes."""

_SIDE = 64
# Sizes of units that the kernel moves. Wider units fill half a sector or more anyway.
_UNITS = (1, 2, 4, 8)
# Bytes of one memory transaction. Neighbours further apart share no transaction.
_SECTOR_NBYTES = 32
# In shorter lines more than half of each quarter of a square is empty.
_MIN_LENGTH = _SIDE // 4


def turned(boxes: Boxes, transfer: Transfer, item_nbytes: int) -> Boxes | None:
    """Same boxes, with the sides of squares as loops 0 and 1; None if it does not pay.

    `item_nbytes` is the size of the items that a byte shuffle may have split; 1 if
    there is no shuffle.
    """
    if not _has_units(boxes, transfer, item_nbytes):
        return None
    if not 2 <= len(boxes.loops) <= TURN_RANK:
        return None
    distances = [
        maxsize if loop.members is not None else abs(loop.in_stride)
        for loop in boxes.loops
    ]
    across = distances.index(min(distances))
    inner, outer = boxes.loops[0], boxes.loops[across]
    if across == 0 or not (_is_side(inner) and _is_side(outer)):
        return None
    is_far = abs(inner.in_stride) >= _SECTOR_NBYTES <= abs(outer.out_stride)
    is_near = abs(outer.in_stride) < _SECTOR_NBYTES > abs(inner.out_stride)
    if not (is_far and is_near):
        return None
    rest = [loop for d, loop in enumerate(boxes.loops) if d not in (0, across)]
    return replace(boxes, loops=(inner, outer, *rest))


def n_squares(boxes: Boxes, position: Ints) -> int | Ints:
    """Squares of each row's box, int64 of shape (n_rows,), or one int for all rows."""
    sides = [-(-loop.lengths(position) // _SIDE) for loop in boxes.loops[:2]]
    return prod(sides) * prod(loop.lengths(position) for loop in boxes.loops[2:])


def _has_units(boxes: Boxes, transfer: Transfer, item_nbytes: int) -> bool:
    """Whether the run is exactly one unit that the kernel moves."""
    if not isinstance(boxes.run.length, int):
        return False
    if transfer.kernel == "cast":
        is_number = transfer.in_unit_nbytes == transfer.in_nbytes
        return is_number and boxes.run.length == transfer.out_nbytes
    is_item = item_nbytes in (1, boxes.run.length)
    return is_item and boxes.run.length in _UNITS


def _is_side(loop: Loop) -> bool:
    return loop.members is None and loop.longest >= _MIN_LENGTH
