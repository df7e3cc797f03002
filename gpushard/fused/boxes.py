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
from gpushard.fused.points import PointLanding, are_apart, cut_points, is_flat
from gpushard.placing.scatter import GridTarget
from gpushard.planning.blocks import ShardBlock
from gpushard.planning.grid import GridPart
from gpushard.planning.patches import PatchPart
from gpushard.planning.plan import Part, ReadPlan
from gpushard.planning.points import PointPart
from gpushard.selecting.numbering import distinct
from gpushard.selecting.projection import Members
from gpushard.selecting.selection import Ints

# Number of boxes of an inner chunk above which their columns cost too much.
_MOST_PER_CHUNK = 16
# From this stride in the output on, any number of boxes is worth its columns.
_FAR_NBYTES = 512
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
    def of(
        cls, members: Members, axis: int, out_stride: int, read_stride: int = 0
    ) -> Lists | None:
        """Lists of an axis; None if boxes of runs of its elements are better.

        Parameters
        ----------
        out_stride
            Bytes between neighbouring elements of the output along the axis.
        read_stride
            The same of plain elements in a file; 0 if inner chunks are decoded.
        """
        inner, outer = map(np.ascontiguousarray, members[1:])
        begin, n_cells, n = members.bounds[:-1], len(members.bounds) - 1, len(inner)
        is_first = np.append(True, ~_follows(inner, outer))
        is_first[begin] = True
        n_runs = np.add.reduceat(is_first, begin, dtype=np.int64)
        most_runs = n_runs.max(initial=0)
        are_few = abs(out_stride) >= _FAR_NBYTES or most_runs <= _MOST_PER_CHUNK
        if most_runs <= 1 or (n >= _LONG_RUN * n_runs.sum() and are_few):
            return None
        first = np.minimum.reduceat(inner, begin)
        last = np.maximum.reduceat(inner, begin)
        # What lies between the elements of a list is read, too.
        n_between = int((last - first + 1).sum()) - n
        if are_apart(int(n_runs.sum()), n_between * read_stride):
            return None
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
    def of(
        cls, part: GridPart, out: NDArray[Any], raw_strides: Sequence[int] | None
    ) -> GridLanding:
        """Landing of a selection in a host array of its shape.

        `raw_strides` are those of the array's `StoredArray`.
        """
        out, lists = GridTarget(part, out).out, None
        for axis, projection in enumerate(part.projections):
            if projection.members is not None:
                stride = 0 if raw_strides is None else raw_strides[axis]
                lists = Lists.of(projection.members, axis, out.strides[axis], stride)
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


def landing_of(
    part: Part, out: NDArray[Any], raw_strides: Sequence[int] | None
) -> Landing:
    """Landing of a part in its output; `raw_strides` are the `StoredArray`'s."""
    if isinstance(part, PatchPart):
        return PatchLanding.of(part, out)
    if isinstance(part, PointPart):
        return PointLanding.of(part, out, is_plain=raw_strides is not None)
    return GridLanding.of(part, out, raw_strides)


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
    row, is_cut = np.arange(position.shape[1]), False
    for _, nth in along:
        if nth is not None:
            row, is_cut = nth, True
    boxes = np.empty((len(row), FIRST_LENGTH + len(along)), np.int64)
    offset, listed = np.zeros((2, len(row)), np.int64)
    target = np.full(len(row), landing.address, np.int64)
    for axis, (cells, nth) in enumerate(along):
        columns = cells[:, row] if is_cut and nth is None else cells
        offset += columns[INNER]
        target += columns[OUTER]
        listed |= columns[LIST]
        boxes[:, FIRST_LENGTH + axis] = columns[LENGTH]
    boxes[:, OFFSET], boxes[:, TARGET], boxes[:, LISTED] = offset, target, listed
    boxes[:, PART], boxes[:, KEEP] = p, 0
    return boxes, row


def cells_at(
    landing: GridLanding, axis: int, chunk_stride: int, at: Ints
) -> tuple[Ints, Ints | None]:
    """What some of the touched cells along one axis contribute to boxes.

    Parameters
    ----------
    at
        int64, shape (n,). Positions among the touched cells.

    Returns
    -------
    columns : numpy.ndarray
        int64, shape (CELL_ROWS, n_cells). The rows from `columns.INNER` on: the first
        wanted element's place in the inner chunk and in the output, in bytes; the
        number of wanted elements; the address of a list of these (`Lists`), or 0. The
        row `columns.ORDINAL` is not set.
    nth : numpy.ndarray
        int64, shape (n_cells,), ascending. If an index takes elements and there is no
        list, each run of them is a separate cell, which belongs to this entry of `at`.
        Otherwise None, and there is one cell for each entry.
    """
    projection = landing.part.projections[axis]
    members, nth = projection.members, None
    listed: Ints | int = 0
    if members is None:
        first, length, out_first = projection.takings(at)
        if projection.out_step < 0:
            out_first = landing.extents[axis] - 1 - out_first
    elif landing.lists is not None:
        lists = landing.lists
        first, length, listed = lists.first[at], lists.reach[at], lists.address[at]
        out_first = np.zeros_like(at)
    else:
        nth, first, out_first, length = _runs_at(members, at)
    columns = np.empty((CELL_ROWS, len(first)), np.int64)
    np.multiply(first, chunk_stride, out=columns[INNER])
    np.multiply(out_first, landing.strides[axis], out=columns[OUTER])
    columns[LENGTH], columns[LIST] = length, listed
    return columns, nth


def _runs_at(members: Members, at: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Runs of the elements that an index takes of cells `at`: int64, shape (n_runs,).

    The entry of `at` of each run, its first element in the cell and in the output, and
    its length.
    """
    first = members.bounds[at]
    count = members.bounds[at + 1] - first
    nth = np.repeat(np.arange(len(at)), count)
    element = np.arange(len(nth)) - (np.cumsum(count) - count)[nth] + first[nth]
    inner, outer = members.in_index[element], members.out_index[element]
    starts, length = runs(nth, inner, outer)
    return nth[starts], inner[starts], outer[starts], length


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
