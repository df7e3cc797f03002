"""Columns of a block -> boxes: what each inner chunk contributes to each output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from gpushard.fused.columns import (
    FIRST_LENGTH,
    KEEP,
    LIST_AXIS,
    LIST_FIRST,
    LIST_INNER,
    LIST_OUTER,
    LIST_WORDS,
    LISTED,
    N_LISTED,
    OFFSET,
    PART,
    TARGET,
)
from gpushard.fused.patches import PatchLanding, cut_patches
from gpushard.fused.room import address_of
from gpushard.placing.scatter import GridTarget
from gpushard.planning.blocks import ShardBlock
from gpushard.planning.grid import GridPart
from gpushard.planning.patches import PatchPart
from gpushard.planning.plan import Part
from gpushard.selecting.selection import Ints, Members

# Average number of boxes per inner chunk above which their columns cost too much.
_MOST_BOXES = 16
# From this stride in the output on, any number of boxes is worth its columns.
_LARGE_NBYTES = 512
# Average length of a run from which on a box for each run is better than a list.
_LONG_RUN = 2


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
    def of(cls, members: Members, axis: int, out_stride: int) -> Lists | None:
        """Lists of an axis; None if boxes of runs of its elements are better.

        Parameters
        ----------
        out_stride
            Bytes between neighbouring elements of the output along the axis.
        """
        if abs(out_stride) < _LARGE_NBYTES:
            return None
        inner, outer = map(np.ascontiguousarray, members[1:])
        begin, n_cells, n = members.bounds[:-1], len(members.bounds) - 1, len(inner)
        is_next = _follows(inner, outer)
        is_next[begin[1:] - 1] = False
        n_runs = n - np.count_nonzero(is_next)
        if n_runs <= n_cells or n >= _LONG_RUN * n_runs:
            return None
        first = np.minimum.reduceat(inner, begin)
        last = np.maximum.reduceat(inner, begin)
        words = np.empty((n_cells, LIST_WORDS), np.int64)
        words[:, N_LISTED], words[:, LIST_AXIS] = np.diff(members.bounds), axis
        words[:, LIST_FIRST] = first
        words[:, LIST_INNER] = address_of(inner) + begin * inner.itemsize
        words[:, LIST_OUTER] = address_of(outer) + begin * outer.itemsize
        address = address_of(words) + np.arange(n_cells) * words.strides[0]
        return cls(words, address, first, last - first + 1, (inner, outer))


class Landing(NamedTuple):
    """One part of a plan and the output that it is written to.

    Attributes
    ----------
    part
        The selection, laid over the grid.
    address
        Address of the output's first element, once reversed axes are turned around.
    extents, strides
        Shape of that output, and its strides in bytes.
    lists
        Elements of the axis that is taken by an index; None if there is no such axis,
        or if its elements are taken in runs.
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
    def of(cls, target: GridTarget) -> Landing:
        """Landing of a part, from its target."""
        out, lists = target.out, None
        for axis, projection in enumerate(target.part.projections):
            if projection.members is not None:
                lists = Lists.of(projection.members, axis, out.strides[axis])
        return cls(target.part, address_of(out), out.shape, out.strides, lists)


Landings = Sequence[Landing | PatchLanding]
"""One for each part of a plan."""


def can_cut(part: Part) -> TypeGuard[GridPart | PatchPart]:
    """Whether a part of a plan can be cut into boxes."""
    if not isinstance(part, GridPart):
        return isinstance(part, PatchPart)
    return sum(p.members is not None for p in part.projections) <= 1


def landing_of(part: GridPart | PatchPart, out: NDArray[Any]) -> Landing | PatchLanding:
    """Landing of a part in its output."""
    if isinstance(part, PatchPart):
        return PatchLanding.of(part, out)
    return Landing.of(GridTarget(part, out))


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
) -> tuple[Ints, Ints] | None:
    """Boxes of the inner chunks `rows` of a block.

    Returns
    -------
    boxes : numpy.ndarray
        int64, shape (n_boxes, FIRST_LENGTH + n_axes). All columns are set except for
        the place of the encoded bytes.
    row : numpy.ndarray
        int64, shape (n_boxes,), ascending. The entry of `rows` that each belongs to.

    None if inner chunks are cut into too many boxes.
    """
    if len(landings) == 1:
        return _cut_part(landings[0], 0, chunk_strides, block.position[:, rows])
    found: list[tuple[Ints, Ints]] = []
    part = block.part[rows]
    for p in np.unique(part).tolist():
        mine = np.flatnonzero(part == p)
        one = _cut_part(landings[p], p, chunk_strides, block.position[:, rows[mine]])
        if one is None:
            return None
        found.append((one[0], mine[one[1]]))
    row = np.concatenate([row for _, row in found])
    order = np.argsort(row, kind="stable")
    return np.concatenate([boxes for boxes, _ in found])[order], row[order]


def _cut_part(
    landing: Landing | PatchLanding,
    p: int,
    chunk_strides: tuple[int, ...],
    position: Ints,
) -> tuple[Ints, Ints] | None:
    if isinstance(landing, PatchLanding):
        return cut_patches(landing, p, chunk_strides, position)
    projections = landing.part.projections
    boxes = np.empty((position.shape[1], FIRST_LENGTH + len(projections)), np.int64)
    boxes[:, PART], boxes[:, KEEP], boxes[:, LISTED] = p, 0, 0
    offset = np.zeros(position.shape[1], np.int64)
    target = np.full(position.shape[1], landing.address, np.int64)
    gathered: tuple[int, Members] | None = None
    for axis, (projection, at) in enumerate(zip(projections, position, strict=False)):
        if projection.members is not None:
            gathered = axis, projection.members
            continue
        in_start, length, out_start = projection.takings(at)
        if projection.out_step < 0:
            out_start = landing.extents[axis] - 1 - out_start
        offset += in_start * chunk_strides[axis]
        target += out_start * landing.strides[axis]
        boxes[:, FIRST_LENGTH + axis] = length
    boxes[:, OFFSET], boxes[:, TARGET] = offset, target
    if gathered is None:
        return boxes, np.arange(len(boxes))
    axis, members = gathered
    if landing.lists is not None:
        at = position[axis]
        boxes[:, LISTED] = landing.lists.address[at]
        boxes[:, OFFSET] += landing.lists.first[at] * chunk_strides[axis]
        boxes[:, FIRST_LENGTH + axis] = landing.lists.reach[at]
        return boxes, np.arange(len(boxes))
    strides = chunk_strides[axis], landing.strides[axis]
    found = _cut_members(boxes, members, position[axis], strides)
    if found is None:
        return None
    boxes, row, length = found
    boxes[:, FIRST_LENGTH + axis] = length
    return boxes, row


def _cut_members(
    boxes: Ints, members: Members, at: Ints, strides: tuple[int, int]
) -> tuple[Ints, Ints, Ints] | None:
    """One box per run of elements taken along an axis, from boxes without that axis."""
    first = members.bounds[at]
    count = members.bounds[at + 1] - first
    row = np.repeat(np.arange(len(boxes)), count)
    nth = np.arange(len(row)) - (np.cumsum(count) - count)[row] + first[row]
    inner, outer = members.in_index[nth], members.out_index[nth]
    starts, length = runs(row, inner, outer)
    if are_too_many(len(starts), len(boxes), strides[1]):
        return None
    row = row[starts]
    cut_boxes: NDArray[np.int64] = boxes[row]
    cut_boxes[:, OFFSET] += inner[starts] * strides[0]
    cut_boxes[:, TARGET] += outer[starts] * strides[1]
    return cut_boxes, row, length


def are_too_many(n_boxes: int, n_chunks: int, out_stride: int) -> bool:
    """Whether that many boxes take longer than NumPy takes to place the inner chunks.

    Parameters
    ----------
    out_stride
        Bytes between neighbours in the output, along the axis that is cut.
    """
    return abs(out_stride) < _LARGE_NBYTES and n_boxes > _MOST_BOXES * n_chunks


def runs(cell: Ints, inner: Ints, outer: Ints) -> tuple[Ints, Ints]:
    """Runs of elements that are adjacent both in an inner chunk and in the output.

    Parameters
    ----------
    cell, inner, outer
        int64, shape (n,): inner chunk of each element, its place in that inner chunk,
        and its place in the output.

    Returns
    -------
    Start and length of each run: int64, shape (n_runs,).
    """
    is_next = _follows(inner, outer) & (cell[1:] == cell[:-1])
    starts = np.flatnonzero(np.append(True, ~is_next)[: len(inner)])
    return starts, np.diff(np.append(starts, len(inner)))


def _follows(inner: Ints, outer: Ints) -> NDArray[np.bool_]:
    """Whether each element follows the one before in both: bool, shape (n - 1,)."""
    return (inner[1:] - inner[:-1] == 1) & (outer[1:] - outer[:-1] == 1)
