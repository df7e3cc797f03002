"""Projections of a selection -> few nested loops over long runs of elements.

Each inner chunk contributes a box: some elements of its cell along each axis of the
array. Axes that are contiguous to one another in the inner chunk and in the output are
merged. An axis of one element becomes an offset. Elements that are contiguous at both
ends become the run.

    axis lengths       columns, loops and run
    (1, 16, 8, 8)      axis 0: a column of offsets
                       axis 1: a loop with a stride at both ends
                       axes 2, 3: the run, 64 elements
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import numpy as np

from gpushard.devices.scattering.transfer import Transfer
from gpushard.planning.axes import LongSlice, Projected
from gpushard.selecting.selection import Ints


class Landings(NamedTuple):
    """Byte offsets into the inner chunk and into the output: int64, shape (n,)."""

    in_offset: Ints
    out_offset: Ints

    def at(self, position: Ints) -> Landings:
        """Offsets of the touched cells at these positions."""
        return Landings(self.in_offset[position], self.out_offset[position])


@dataclass(frozen=True, slots=True)
class FarLandings:
    """`Landings` of the cells of a long slice, computed only for requested cells."""

    projection: LongSlice
    in_stride: int
    out_stride: int

    def at(self, position: Ints) -> Landings:
        """Offsets of the touched cells at these positions."""
        in_start, _, out_start = self.projection.takings(position)
        return Landings(in_start * self.in_stride, out_start * self.out_stride)


@dataclass(frozen=True, slots=True)
class FarLengths:
    """Number of elements taken from each cell of a long slice, times `factor`."""

    projection: LongSlice
    factor: int = 1

    def __mul__(self, factor: int) -> FarLengths:
        return FarLengths(self.projection, self.factor * factor)

    def __getitem__(self, position: Ints) -> Ints:
        return self.projection.takings(position).length * self.factor

    @property
    def longest(self) -> int:
        """Upper bound of all lengths."""
        return self.projection.most_taken * self.factor


class Loop(NamedTuple):
    """One axis of the boxes, or several axes that were merged.

    Attributes
    ----------
    length
        Number of elements, if it is the same in every row; or int64, shape
        (n_cells_touched,), if it depends on the touched cell of `axis`. That column
        may be computed on demand.
    in_stride, out_stride
        Bytes between neighbours in the inner chunk and in the output; unused if there
        are members.
    axis, starts
        For a length that depends on the row: the array's axis whose position selects
        the cell, and the offsets of each touched cell. If the loop has members,
        `in_offset` is the index of the first member of the cell.
    members
        Offsets of elements that have no common stride.
    """

    length: int | Ints | FarLengths
    in_stride: int
    out_stride: int
    axis: int = -1
    starts: Landings | FarLandings | None = None
    members: Landings | None = None

    @property
    def longest(self) -> int:
        """Largest length in any row; 1 if there are no rows."""
        if isinstance(self.length, FarLengths):
            return self.length.longest
        return int(np.max(self.length, initial=1))

    def lengths(self, position: Ints) -> int | Ints:
        """Length in each row, int64 of shape (n_rows,), or one int for all rows."""
        return self.lengths_at(position[self.axis])

    def lengths_at(self, position: Ints) -> int | Ints:
        """Length in the touched cells of `axis` at these positions."""
        return self.length if isinstance(self.length, int) else self.length[position]


class Runs(NamedTuple):
    """Bytes that are contiguous at both ends: int64, shape (n_rows,)."""

    in_offset: Ints
    out_offset: Ints
    nbytes: Ints


class Column(NamedTuple):
    """Offsets that depend on the position along `axis`, which has one common length.

    Axis -1 stands for the outputs; see `Boxes.into`.
    """

    axis: int
    landings: Landings | FarLandings


@dataclass(frozen=True, slots=True)
class Boxes:
    """All boxes of an orthogonal selection over inner chunks of one shape.

    Attributes
    ----------
    run
        Bytes of the output that are contiguous at both ends.
    loops
        The loops around the run, from the inside out.
    columns
        Offsets that are added for each row.
    in_base, out_base
        Offsets that all rows share.
    """

    run: Loop
    loops: tuple[Loop, ...]
    columns: tuple[Column, ...]
    in_base: int
    out_base: int

    @property
    def nest(self) -> tuple[Loop, ...]:
        """The run and the loops around it."""
        return (self.run, *self.loops)

    def into(self, out_offset: Ints) -> Boxes:
        """The same boxes for several outputs; a last position says which one.

        `out_offset`: int64, shape (n_outputs,), bytes from the first output to each.
        """
        outputs = Column(-1, Landings(np.zeros_like(out_offset), out_offset))
        return replace(self, columns=(*self.columns, outputs))

    @property
    def largest_nbytes(self) -> int:
        """Upper bound of the output bytes of any box."""
        return prod(loop.longest for loop in self.nest)

    def nbytes(self, position: Ints) -> int | Ints:
        """Bytes of each row's box, int64 of shape (n_rows,), or one int for all rows.

        `position` is int64, of shape (ndim, n_rows), as in `ShardBlock`.
        """
        return prod(loop.lengths(position) for loop in self.nest)

    def runs(self, position: Ints) -> Runs | None:
        """Place of each row's box, if it is just the run; None if there are loops."""
        if self.loops:
            return None
        n_rows = position.shape[1]
        in_offset = np.full(n_rows, self.in_base, np.int64)
        out_offset = np.full(n_rows, self.out_base, np.int64)
        places = [(column.axis, column.landings) for column in self.columns]
        if self.run.starts is not None:
            places.append((self.run.axis, self.run.starts))
        for axis, landings in places:
            here = landings.at(position[axis])
            in_offset += here.in_offset
            out_offset += here.out_offset
        nbytes = np.broadcast_to(self.run.lengths(position), n_rows)
        return Runs(in_offset, out_offset, nbytes)


class _Axis(NamedTuple):
    """Contribution of one axis of the array to the boxes."""

    loop: Loop | None
    column: Column | None
    in_base: int = 0
    out_base: int = 0


def lay_boxes(
    projections: Sequence[Projected],
    in_strides: Sequence[int],
    out_strides: Sequence[int],
    transfer: Transfer,
) -> Boxes:
    """Boxes of an orthogonal selection, from one projection for each axis of the array.

    The strides are bytes between neighbours in the inner chunk and in the output.
    """
    axes = [
        _lay_axis(d, *given)
        for d, given in enumerate(
            zip(projections, in_strides, out_strides, strict=True)
        )
    ]
    # Neighbours in the output go innermost: coalesced writes gain the most.
    order = sorted(range(len(axes)), key=lambda d: (abs(out_strides[d]), -d))
    loops = [loop for d in order if (loop := axes[d].loop) is not None]
    run, n_used = _grow_run(loops, transfer)
    return Boxes(
        run,
        tuple(_merged(loops[n_used:])),
        tuple(axis.column for axis in axes if axis.column is not None),
        sum(axis.in_base for axis in axes),
        sum(axis.out_base for axis in axes),
    )


def _lay_axis(
    axis: int, projection: Projected, in_stride: int, out_stride: int
) -> _Axis:
    if isinstance(projection, LongSlice):
        length, lengths = projection.common_length, FarLengths(projection)
        starts = FarLandings(projection, in_stride, out_stride)
    else:
        lengths = projection.length
        is_common = bool(np.all(lengths == lengths[:1]))
        length = (int(lengths[0]) if len(lengths) else 1) if is_common else None
        if projection.members is not None:
            bounds, in_index, out_index = projection.members
            members = Landings(in_index * in_stride, out_index * out_stride)
            return _lay_members(axis, lengths, bounds, members)
        starts = Landings(
            projection.in_start * in_stride, projection.out_start * out_stride
        )
    strides = projection.step * in_stride, projection.out_step * out_stride
    if length is None:
        return _Axis(Loop(lengths, *strides, axis, starts), None)
    return _placed(axis, Loop(length, *strides) if length > 1 else None, starts)


def _lay_members(axis: int, lengths: Ints, bounds: Ints, members: Landings) -> _Axis:
    """An axis of listed elements; those of touched cell i are ``bounds[i:i + 2]``."""
    if np.all(lengths == 1):
        return _placed(axis, None, members)
    if len(lengths) == 1:
        return _Axis(Loop(int(lengths[0]), 0, 0, members=members), None)
    starts = Landings(bounds[:-1], np.zeros(len(lengths), np.int64))
    return _Axis(Loop(lengths, 0, 0, axis, starts, members), None)


def _placed(axis: int, loop: Loop | None, starts: Landings | FarLandings) -> _Axis:
    """An axis with the same length in all cells, so that its offsets are a column."""
    if isinstance(starts, Landings) and len(starts.in_offset) == 1:
        return _Axis(loop, None, int(starts.in_offset[0]), int(starts.out_offset[0]))
    return _Axis(loop, Column(axis, starts))


def _grow_run(loops: Sequence[Loop], transfer: Transfer) -> tuple[Loop, int]:
    """The run of contiguous bytes, and the number of loops that it absorbs."""
    in_nbytes, out_nbytes = transfer.in_nbytes, transfer.out_nbytes
    for n_used, loop in enumerate(loops):
        is_next = loop.in_stride == in_nbytes and loop.out_stride == out_nbytes
        if loop.members is not None or not is_next:
            return Loop(out_nbytes, 0, 0), n_used
        if not isinstance(loop.length, int):
            return loop._replace(length=loop.length * out_nbytes), n_used + 1
        in_nbytes, out_nbytes = in_nbytes * loop.length, out_nbytes * loop.length
    return Loop(out_nbytes, 0, 0), len(loops)


def _merged(loops: Sequence[Loop]) -> list[Loop]:
    merged: list[Loop] = []
    for loop in loops:
        inner = merged[-1] if merged else None
        if inner is not None and _lies_around(loop, inner):
            merged[-1] = loop._replace(
                length=loop.length * inner.longest,
                in_stride=inner.in_stride,
                out_stride=inner.out_stride,
            )
        else:
            merged.append(loop)
    return merged


def _lies_around(outer: Loop, inner: Loop) -> bool:
    """Whether `outer` continues where `inner` ends, at both ends."""
    return (
        isinstance(inner.length, int)
        and inner.members is None
        and outer.members is None
        and outer.in_stride == inner.in_stride * inner.longest
        and outer.out_stride == inner.out_stride * inner.longest
    )
