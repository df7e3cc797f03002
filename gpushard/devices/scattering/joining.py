"""Parts of a plan with the same layout -> one part, which a single launch writes.

A scatter looks up where a row lands in tables of touched cells, by the row's position
along each axis. The cells of several parts form one such table, one part after the
other. One more table has the place of each part's output, by the part's number.

    part 0     cells 0 1 2       position 1 in part 1 -> cell 4
    part 1     cells 3 4         and beyond, to output 1
    outputs    0  out[1] - out[0]

Pure: NumPy only, no device.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from gpushard.devices.scattering.transfer import LIMIT, MAX_AXES, Transfer
from gpushard.planning.axes import Projected
from gpushard.planning.grid import GridPart
from gpushard.planning.patches import PatchPart
from gpushard.planning.plan import Part
from gpushard.planning.points import PointPart
from gpushard.selecting.numbering import columns_at
from gpushard.selecting.projection import Members, Projection
from gpushard.selecting.selection import Ints


@dataclass(frozen=True, slots=True)
class JoinedGrids:
    """Orthogonal selections whose outputs have the same strides.

    Attributes
    ----------
    projections
        One projection for each axis of the array, over the cells of all selections.
    out_offset
        int64, shape (n_parts,). Bytes from the first output to each; None if there is
        only one.
    """

    projections: tuple[Projection, ...]
    out_offset: Ints | None


@dataclass(frozen=True, slots=True)
class Grouping:
    """Which parts form a group, and how positions change in a group.

    Attributes
    ----------
    groups
        Numbers of the parts in each group.
    of_part
        int64, shape (n_parts,). Group of each part.
    shift
        int64, shape (n, n_parts); None if each part is a group of its own. Added to the
        positions of a part's rows; the last row is the part's number in its group.
    """

    groups: tuple[tuple[int, ...], ...]
    of_part: Ints
    shift: Ints | None

    def positions(self, position: Ints, part: Ints) -> Ints:
        """Positions of rows in their groups, from their positions in their parts.

        `position` is int64, of shape (n, n_rows), as in `ShardBlock`; so is the result,
        with one more row if parts were joined.
        """
        if self.shift is None:
            return position
        shift = columns_at(self.shift, part)
        return np.vstack([position + shift[: len(position)], shift[-1:]])

    def rows_of_groups(self, part: Ints) -> list[tuple[int, slice]]:
        """The groups that have rows, and the slice of each one's rows.

        `part`, int64 of shape (n_rows,), is the part of each row; rows are sorted by
        the groups of their parts.
        """
        if len(self.groups) == 1:
            return [(0, slice(0, len(part)))]
        group = self.of_part[part]
        found: list[tuple[int, slice]] = []
        first = 0
        while first < len(group):
            number = int(group[first])
            last = int(np.searchsorted(group, number, side="right"))
            found.append((number, slice(first, last)))
            first = last
        return found


class _Along(NamedTuple):
    """Properties that axes must share for their cells to stand in one table.

    `longest` bounds the elements taken from any cell.
    """

    longest: int
    step: int
    out_step: int
    has_members: bool


def layout_of(
    part: Part,
    strides: Sequence[int],
    transfer: Transfer,
    chunk_shape: tuple[int, ...],
) -> Hashable | None:
    """Layout that parts must share to be joined; None if this part stays alone.

    `strides` are bytes between neighbours in the output, for each axis of the array;
    points need none. Every inner chunk has the shape `chunk_shape`.
    """
    if isinstance(part, PatchPart):
        return None
    if isinstance(part, PointPart):
        return "points", transfer
    several = [p for p in part.projections if isinstance(p, Projection)]
    if len(several) < len(part.projections) or len(several) == MAX_AXES:
        return None  # columns are computed on demand, or a further one has no room
    axes = tuple(map(_along, several, chunk_shape))
    if prod(axis.longest for axis in axes) * transfer.out_nbytes >= LIMIT:
        return None  # together they might take more of an inner chunk than alone
    return "grid", transfer, tuple(strides), axes


def group(parts: Sequence[Part], layouts: Sequence[Hashable | None]) -> Grouping:
    """Groups of parts that have the same layout."""
    found: dict[Hashable, list[int]] = {}
    for k, layout in enumerate(layouts):
        found.setdefault((k,) if layout is None else layout, []).append(k)
    groups = tuple(map(tuple, found.values()))
    of_part = np.zeros(len(parts), np.int64)
    for number, members in enumerate(groups):
        of_part[list(members)] = number
    if len(groups) == len(parts):
        return Grouping(groups, of_part, None)
    n_rows = max(len(_n_cells(part)) for part in parts)
    shift = np.zeros((max(n_rows, 1) + 1, len(parts)), np.int64)
    for members in groups:
        n_cells = np.array([_n_cells(parts[k]) for k in members], np.int64).T
        shift[: len(n_cells), members] = np.cumsum(n_cells, axis=1) - n_cells
        shift[-1, members] = np.arange(len(members))
    return Grouping(groups, of_part, shift)


def join_grids(parts: Sequence[GridPart], out: Sequence[int]) -> JoinedGrids:
    """Orthogonal selections of the same layout, joined.

    `out` has the address of element 0 of each output.
    """
    along = zip(*(part.projections for part in parts), strict=True)
    return JoinedGrids(tuple(map(_join_axis, along)), offsets_of(out))


def patch_grid(part: PatchPart) -> JoinedGrids:
    """Patches as one grid, in which box k has position k along each axis."""
    along = zip(part.cell, part.in_first, part.length, part.out_first, strict=True)
    return JoinedGrids(tuple(_patch_axis(*axis) for axis in along), None)


def _patch_axis(cell: Ints, *columns: Ints) -> Projection:
    in_start, length, out_start = np.broadcast_arrays(*columns)
    return Projection(cell, in_start, length, out_start)


def offsets_of(out: Sequence[int]) -> Ints:
    """Bytes from the first output to each: int64, shape (n_parts,)."""
    return np.array([address - out[0] for address in out], np.int64)


def _along(projection: Projection, extent: int) -> _Along:
    longest = extent
    if projection.members is not None:  # index arrays may repeat elements
        longest = 1 << len(projection.members.in_index).bit_length()
    has_members = projection.members is not None
    return _Along(longest, projection.step, projection.out_step, has_members)


def _n_cells(part: Part) -> list[int]:
    """Number of positions that rows of a part may have, along each axis."""
    if isinstance(part, GridPart):
        return [projection.n_cells for projection in part.projections]
    return [part.n_chunks]


def _join_axis(projections: Sequence[Projected]) -> Projection:
    """One axis of several selections, with their cells one after the other."""
    several = [p for p in projections if isinstance(p, Projection)]
    first = several[0]
    members = [p.members for p in several if p.members is not None]
    return Projection(
        np.concatenate([p.cell for p in several]),
        np.concatenate([p.in_start for p in several]),
        np.concatenate([p.length for p in several]),
        np.concatenate([p.out_start for p in several]),
        first.step,
        first.out_step,
        _join_members(members) if members else None,
    )


def _join_members(several: Sequence[Members]) -> Members:
    n_before = np.cumsum([0, *(len(m.in_index) for m in several)])
    starts = [m.bounds[:-1] + n for m, n in zip(several, n_before, strict=False)]
    return Members(
        np.concatenate([*starts, n_before[-1:]]),
        np.concatenate([m.in_index for m in several]),
        np.concatenate([m.out_index for m in several]),
    )
