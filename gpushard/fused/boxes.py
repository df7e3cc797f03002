"""Columns of a block -> boxes: what each inner chunk contributes to each output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.fused.addresses import address_of
from gpushard.fused.columns import (
    CELL_ROWS,
    FIRST_LENGTH,
    INNER,
    KEEP,
    LENGTH,
    LIST,
    LIST_AXIS,
    LIST_FIRST,
    LIST_INNER,
    LIST_OUTER,
    LIST_WORDS,
    LISTED,
    N_LISTED,
    OFFSET,
    OUTER,
    PART,
    TARGET,
)
from gpushard.fused.patches import PatchLanding, cut_patches
from gpushard.fused.points import PointLanding, cut_points, is_flat
from gpushard.placing.scatter import GridTarget
from gpushard.planning.blocks import ShardBlock
from gpushard.planning.grid import GridPart
from gpushard.planning.patches import PatchPart
from gpushard.planning.plan import Part, ReadPlan
from gpushard.planning.points import PointPart
from gpushard.selecting.numbering import distinct
from gpushard.selecting.projection import Members
from gpushard.selecting.selection import Ints


class Lists(NamedTuple):
    """Lists of the elements that an index takes of each cell, in the loops' format.

    Attributes
    ----------
    words
        int64, shape (n_cells, LIST_WORDS): a list per cell (from `columns.N_LISTED`
        on).
    address
        int64, shape (n_cells,). Address of each list.
    first, reach
        int64, shape (n_cells,). First element taken of each cell, and the number of
        elements from there to the last one taken.
    held
        The arrays whose addresses are in the lists.
    """

    words: Ints
    address: Ints
    first: Ints
    reach: Ints
    held: tuple[Ints, Ints]

    @classmethod
    def of(cls, members: Members, axis: int) -> Lists:
        """Lists of an axis."""
        inner, outer = map(np.ascontiguousarray, members[1:])
        begin, n_cells = members.bounds[:-1], len(members.bounds) - 1
        first = np.minimum.reduceat(inner, begin)
        last = np.maximum.reduceat(inner, begin)
        words = np.empty((n_cells, LIST_WORDS), np.int64)
        words[:, N_LISTED], words[:, LIST_AXIS] = np.diff(members.bounds), axis
        words[:, LIST_FIRST] = first
        words[:, LIST_INNER] = address_of(inner) + begin * inner.itemsize
        words[:, LIST_OUTER] = address_of(outer) + begin * outer.itemsize
        address = address_of(words) + np.arange(n_cells) * words.strides[0]
        return cls(words, address, first, last - first + 1, (inner, outer))


class GridLanding(NamedTuple):
    """A `GridTarget` as the loops need it: with addresses and strides.

    Attributes
    ----------
    part
        The selection, laid over the grid.
    address
        Address of the output's first element, once reversed axes are turned around.
    extents, strides
        Shape of that output, and its strides in bytes.
    lists
        Elements of the axis that is taken by an index; None if there is no such axis.
    """

    part: GridPart
    address: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    lists: Lists | None = None

    @property
    def steps(self) -> tuple[int, ...]:
        """Step between wanted elements of an inner chunk, along each axis."""
        return tuple(projection.step for projection in self.part.projections)

    @classmethod
    def of(cls, part: GridPart, out: NDArray[Any]) -> GridLanding:
        """Landing of a selection in a host array of its shape."""
        out, lists = GridTarget(part, out).out, None
        for axis, projection in enumerate(part.projections):
            if projection.members is not None:
                lists = Lists.of(projection.members, axis)
        return cls(part, address_of(out), out.shape, out.strides, lists)


Landing = GridLanding | PatchLanding | PointLanding
Landings = Sequence[Landing]
"""One for each part of a plan."""


def can_cut(plan: ReadPlan, outs: Sequence[NDArray[Any]]) -> bool:
    """Whether the parts of a plan can be cut into boxes, given their outputs.

    Points can be if they are the only part: the boxes hold the lists of their points,
    and no longer do so once they are merged with others.
    """
    if len(plan.parts) == 1 and isinstance(plan.parts[0], PointPart):
        return is_flat(outs[0])
    return all(map(_can_cut, plan.parts))


def _can_cut(part: Part) -> bool:
    if not isinstance(part, GridPart):
        return isinstance(part, PatchPart)
    return sum(p.members is not None for p in part.projections) <= 1


def landing_of(part: Part, out: NDArray[Any]) -> Landing:
    """Landing of a part in its output."""
    if isinstance(part, PatchPart):
        return PatchLanding.of(part, out)
    if isinstance(part, PointPart):
        return PointLanding.of(part, out)
    return GridLanding.of(part, out)


def stride_columns(landings: Landings, chunk_strides: tuple[int, ...]) -> Ints:
    """Bytes between wanted neighbours: int64, shape (2, n_parts, n_axes).

    The first half is for decoded inner chunks, the second for the output of each part.
    """
    inner = [
        [
            stride * step
            for stride, step in zip(chunk_strides, landing.steps, strict=True)
        ]
        for landing in landings
    ]
    return np.array([inner, [landing.strides for landing in landings]], np.int64)


def cut(
    landings: Landings,
    chunk_strides: tuple[int, ...],
    block: ShardBlock,
    rows: Ints,
) -> tuple[Ints, Ints]:
    """Boxes of the inner chunks `rows` of a block.

    Returns
    -------
    boxes : numpy.ndarray
        int64, shape (n_boxes, FIRST_LENGTH + n_axes). All columns are set except for
        the place of the encoded bytes.
    row : numpy.ndarray
        int64, shape (n_boxes,), ascending. The entry of `rows` that each belongs to.
    """
    if len(landings) == 1:
        return _cut_part(landings[0], 0, chunk_strides, block.position[:, rows])
    found: list[tuple[Ints, Ints]] = []
    part = block.part[rows]
    for p in distinct(part).tolist():
        mine = np.flatnonzero(part == p)
        boxes, nth = _cut_part(
            landings[p], p, chunk_strides, block.position[:, rows[mine]]
        )
        found.append((boxes, mine[nth]))
    row = np.concatenate([row for _, row in found])
    order = np.argsort(row, kind="stable")
    return np.concatenate([boxes for boxes, _ in found])[order], row[order]


def _cut_part(
    landing: Landing,
    p: int,
    chunk_strides: tuple[int, ...],
    position: Ints,
) -> tuple[Ints, Ints]:
    if isinstance(landing, PatchLanding):
        return cut_patches(landing, p, chunk_strides, position)
    if isinstance(landing, PointLanding):
        return cut_points(landing, chunk_strides, position)
    along = [
        cells_at(landing, axis, stride, at)
        for axis, (stride, at) in enumerate(zip(chunk_strides, position, strict=False))
    ]
    n = position.shape[1]
    boxes = np.empty((n, FIRST_LENGTH + len(along)), np.int64)
    offset, listed = np.zeros((2, n), np.int64)
    target = np.full(n, landing.address, np.int64)
    for axis, columns in enumerate(along):
        offset += columns[INNER]
        target += columns[OUTER]
        listed |= columns[LIST]
        boxes[:, FIRST_LENGTH + axis] = columns[LENGTH]
    boxes[:, OFFSET], boxes[:, TARGET], boxes[:, LISTED] = offset, target, listed
    boxes[:, PART], boxes[:, KEEP] = p, 0
    return boxes, np.arange(n)


def cells_at(landing: GridLanding, axis: int, chunk_stride: int, at: Ints) -> Ints:
    """What some of the touched cells along one axis contribute to boxes.

    Parameters
    ----------
    at
        int64, shape (n,). Positions among the touched cells.

    Returns
    -------
    int64, shape (CELL_ROWS, n). The rows from `columns.INNER` on: the first wanted
    element's place in the inner chunk and in the output, in bytes; the number of wanted
    elements, with those between them if there is a list (`Lists`); its address, or 0.
    The row `columns.ORDINAL` is not set.
    """
    projection, lists = landing.part.projections[axis], landing.lists
    listed: Ints | int = 0
    if lists is None or projection.members is None:
        first, length, out_first = projection.takings(at)
        if projection.out_step < 0:
            out_first = landing.extents[axis] - 1 - out_first
    else:
        first, length, listed = lists.first[at], lists.reach[at], lists.address[at]
        out_first = np.zeros_like(at)
    columns = np.empty((CELL_ROWS, len(first)), np.int64)
    np.multiply(first, chunk_stride, out=columns[INNER])
    np.multiply(out_first, landing.strides[axis], out=columns[OUTER])
    columns[LENGTH], columns[LIST] = length, listed
    return columns
