"""Projections of a selection -> few nested loops over long runs of elements.

Each inner chunk contributes a box: some elements of its cell along each axis of the
array. Axes that are contiguous to one another in the inner chunk and in the output are
merged. An axis of one element becomes an offset. Elements that are contiguous at both
ends become the run.

    axis lengths       offsets, loops and run
    (1, 16, 8, 8)      axis 0: a part of each row's offsets
                       axis 1: a loop with a stride at both ends
                       axes 2, 3: the run, 64 elements

Pure: NumPy only, no device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from gpushard.devices.scattering.transfer import Transfer
from gpushard.planning.axes import LongSlice, Projected
from gpushard.selecting.selection import Ints, Projection


class Landings(NamedTuple):
    """Byte offsets into the inner chunk and into the output: int64, shape (n,)."""

    in_offset: Ints
    out_offset: Ints


class _Axis(NamedTuple):
    """An axis of the array, and the bytes between neighbours along it at both ends."""

    number: int
    projection: Projected
    in_stride: int
    out_stride: int


class Loop(NamedTuple):
    """One axis of the boxes, or several axes that were merged.

    Attributes
    ----------
    longest
        Largest length in any row.
    in_stride, out_stride
        Bytes between neighbours in the inner chunk and in the output; unused if there
        are members.
    axis
        If the length or the members depend on the row: the axis whose touched cell
        says so.
    factor
        Its length in a row, for each element that is taken of that cell.
    members
        Offsets of elements that have no common stride.
    """

    longest: int
    in_stride: int
    out_stride: int
    axis: _Axis | None = None
    factor: int = 1
    members: Landings | None = None

    def lengths(self, position: Ints) -> int | Ints:
        """Length in each row, int64 of shape (n_rows,), or one int for all rows."""
        if self.axis is None:
            return self.longest
        number, projection, *_ = self.axis
        return projection.takings(position[number]).length * self.factor

    def first_members(self, position: Ints) -> int | Ints:
        """Index of each row's first member, as `lengths`; 0 without members."""
        members = None if self.axis is None else self.axis.projection.members
        if self.axis is None or members is None:
            return 0
        return members.bounds[position[self.axis.number]]


class Runs(NamedTuple):
    """Bytes that are contiguous at both ends: int64, shape (n_rows,)."""

    in_offset: Ints
    out_offset: Ints
    nbytes: Ints


@dataclass(frozen=True, slots=True)
class Boxes:
    """All boxes of an orthogonal selection over inner chunks of one shape.

    Attributes
    ----------
    run
        Bytes of the output that are contiguous at both ends.
    loops
        The loops around the run, from the inside out.
    output_offset
        int64, shape (n_outputs,). Bytes from the first output to each, if there are
        several; a last position says which one.
    """

    run: Loop
    loops: tuple[Loop, ...]
    output_offset: Ints | None
    _axes: tuple[_Axis, ...]

    @property
    def nest(self) -> tuple[Loop, ...]:
        """The run and the loops around it."""
        return (self.run, *self.loops)

    @property
    def largest_nbytes(self) -> int:
        """Upper bound of the output bytes of any box."""
        return prod(loop.longest for loop in self.nest)

    def nbytes(self, position: Ints) -> int | Ints:
        """Bytes of each row's box, int64 of shape (n_rows,), or one int for all rows.

        `position` is int64, of shape (ndim, n_rows), as in `ShardBlock`.
        """
        return prod(loop.lengths(position) for loop in self.nest)

    def landings(self, position: Ints) -> Landings:
        """Where each row's box begins at both ends, shape (n_rows,)."""
        in_offset, out_offset = np.zeros((2, position.shape[1]), np.int64)
        for number, projection, in_stride, out_stride in self._axes:
            in_start, _, out_start = projection.takings(position[number])
            in_offset += in_start * in_stride
            out_offset += out_start * out_stride
        if self.output_offset is not None:
            out_offset += self.output_offset[position[-1]]
        return Landings(in_offset, out_offset)

    def runs(self, position: Ints) -> Runs | None:
        """Place of each row's box, if it is just the run; None if there are loops."""
        if self.loops:
            return None
        nbytes = np.broadcast_to(self.run.lengths(position), position.shape[1])
        return Runs(*self.landings(position), nbytes)


def lay_boxes(
    projections: Sequence[Projected],
    in_strides: Sequence[int],
    out_strides: Sequence[int],
    transfer: Transfer,
    output_offset: Ints | None = None,
) -> Boxes:
    """Boxes of an orthogonal selection, from one projection for each axis of the array.

    The strides are bytes between neighbours in the inner chunk and in the output.
    """
    plain = map(_without_lone_members, projections)
    given = enumerate(zip(plain, in_strides, out_strides, strict=True))
    axes = tuple(_Axis(number, *axis) for number, axis in given)
    # Neighbours in the output go innermost: coalesced writes gain the most.
    order = sorted(axes, key=lambda axis: (abs(axis.out_stride), -axis.number))
    loops = [loop for axis in order if (loop := _loop_of(axis)) is not None]
    run, n_used = _grow_run(loops, transfer)
    return Boxes(run, tuple(_merged(loops[n_used:])), output_offset, axes)


def _without_lone_members(projection: Projected) -> Projected:
    """The same without members if each touched cell has one: it is a first element."""
    if isinstance(projection, LongSlice) or projection.members is None:
        return projection
    if np.any(projection.length != 1):
        return projection
    _, in_index, out_index = projection.members
    return Projection(projection.cell, in_index, projection.length, out_index)


def _loop_of(axis: _Axis) -> Loop | None:
    """Loop over the elements along an axis; None if there is one in every cell."""
    _, projection, in_stride, out_stride = axis
    longest, is_constant = _lengths(projection)
    if projection.members is not None:
        _, in_index, out_index = projection.members
        members = Landings(in_index * in_stride, out_index * out_stride)
        varying = axis if projection.n_cells > 1 else None
        return Loop(longest, 0, 0, varying, members=members)
    if is_constant and longest == 1:
        return None
    strides = projection.step * in_stride, projection.out_step * out_stride
    return Loop(longest, *strides, None if is_constant else axis)


def _lengths(projection: Projected) -> tuple[int, bool]:
    """Most elements that are taken of any cell, and whether all cells have as many."""
    if isinstance(projection, LongSlice):
        length = projection.common_length
        return (projection.most_taken, False) if length is None else (length, True)
    length = projection.length
    longest = int(length.max(initial=1))
    return longest, bool(np.all(length == longest))


def _grow_run(loops: Sequence[Loop], transfer: Transfer) -> tuple[Loop, int]:
    """The run of contiguous bytes, and the number of loops that it absorbs."""
    in_nbytes, out_nbytes = transfer.in_nbytes, transfer.out_nbytes
    for n_used, loop in enumerate(loops):
        is_next = loop.in_stride == in_nbytes and loop.out_stride == out_nbytes
        if loop.members is not None or not is_next:
            return Loop(out_nbytes, 0, 0), n_used
        if loop.axis is not None:
            return _longer(loop, out_nbytes, (0, 0)), n_used + 1
        in_nbytes, out_nbytes = in_nbytes * loop.longest, out_nbytes * loop.longest
    return Loop(out_nbytes, 0, 0), len(loops)


def _merged(loops: Sequence[Loop]) -> list[Loop]:
    merged: list[Loop] = []
    for loop in loops:
        inner = merged[-1] if merged else None
        if inner is not None and _lies_around(loop, inner):
            strides = inner.in_stride, inner.out_stride
            merged[-1] = _longer(loop, inner.longest, strides)
        else:
            merged.append(loop)
    return merged


def _longer(loop: Loop, factor: int, strides: tuple[int, int]) -> Loop:
    """A loop that goes on `factor` times as often, in other strides."""
    longest = loop.longest * factor
    return Loop(longest, *strides, loop.axis, loop.factor * factor)


def _lies_around(outer: Loop, inner: Loop) -> bool:
    """Whether `outer` continues where `inner` ends, at both ends."""
    return (
        inner.axis is None
        and inner.members is None
        and outer.members is None
        and outer.in_stride == inner.in_stride * inner.longest
        and outer.out_stride == inner.out_stride * inner.longest
    )
