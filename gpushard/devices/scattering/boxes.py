"""The wanted elements of inner chunks as nested loops, few and over long runs.

What one inner chunk gives is a box: along each axis of the array some elements of its
cell. Axes that lie against one another in the inner chunk and in the output alike are
merged, axes of one element vanish into an offset, and what is side by side at both
ends becomes the run.

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
        """Those of touched cells, by their positions."""
        return Landings(self.in_offset[position], self.out_offset[position])


@dataclass(frozen=True, slots=True)
class FarLandings:
    """`Landings` of the cells of a long slice, computed for those asked for."""

    projection: LongSlice
    in_stride: int
    out_stride: int

    def at(self, position: Ints) -> Landings:
        """Those of touched cells, by their positions."""
        in_start, _, out_start = self.projection.takings(position)
        return Landings(in_start * self.in_stride, out_start * self.out_stride)


@dataclass(frozen=True, slots=True)
class FarLengths:
    """Elements taken of the cells of a long slice, times `factor`."""

    projection: LongSlice
    factor: int = 1

    def __mul__(self, factor: int) -> FarLengths:
        return FarLengths(self.projection, self.factor * factor)

    def __getitem__(self, position: Ints) -> Ints:
        return self.projection.takings(position).length * self.factor

    @property
    def longest(self) -> int:
        """None of them is larger."""
        return self.projection.most_taken * self.factor


class Loop(NamedTuple):
    """One axis of the boxes, or several that have become one.

    Attributes
    ----------
    length
        Elements of it in every row; or int64, shape (n_cells_touched,), where that
        depends on the touched cell of `axis`, whose columns may be computed.
    in_stride, out_stride
        Bytes between neighbours at both ends; unused if there are members.
    axis, starts
        Where the length depends on the row: the array's axis by whose position it is
        looked up, and the offsets of each touched cell. A loop with members has for
        `in_offset` the first member of the cell.
    members
        Offsets of elements that follow no stride.
    """

    length: int | Ints | FarLengths
    in_stride: int
    out_stride: int
    axis: int = -1
    starts: Landings | FarLandings | None = None
    members: Landings | None = None

    @property
    def longest(self) -> int:
        """Its length where it is longest; 1 if there are no rows."""
        if isinstance(self.length, FarLengths):
            return self.length.longest
        return int(np.max(self.length, initial=1))

    def lengths(self, position: Ints) -> int | Ints:
        """Its length in each row, int64 of shape (n_rows,), or in all if the same."""
        return self.lengths_at(position[self.axis])

    def lengths_at(self, position: Ints) -> int | Ints:
        """Its length in touched cells of `axis`, by their positions."""
        return self.length if isinstance(self.length, int) else self.length[position]

    @property
    def can_be_inner(self) -> bool:
        """Whether a loop around it may become one with it."""
        return isinstance(self.length, int) and self.members is None


class Runs(NamedTuple):
    """Bytes that lie side by side at both ends: int64, shape (n_rows,)."""

    in_offset: Ints
    out_offset: Ints
    nbytes: Ints


class Column(NamedTuple):
    """Offsets that depend on the position along `axis`, where no length does.

    Axis -1 are the outputs; see `Boxes.into`.
    """

    axis: int
    landings: Landings | FarLandings


@dataclass(frozen=True, slots=True)
class Boxes:
    """All boxes of an orthogonal selection over inner chunks of one shape.

    Attributes
    ----------
    run
        Bytes of the output that lie side by side at both ends.
    loops
        From the inside out.
    columns
        What is added to the offsets of a row.
    in_base, out_base
        Offsets that all rows have in common.
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
        """The same in several outputs, by a last position of each row: which one.

        `out_offset`: int64, shape (n_outputs,), bytes from the first output to each.
        """
        outputs = Column(-1, Landings(np.zeros_like(out_offset), out_offset))
        return replace(self, columns=(*self.columns, outputs))

    @property
    def largest_nbytes(self) -> int:
        """Bytes of the output that no box exceeds."""
        return prod(loop.longest for loop in self.nest)

    def nbytes(self, position: Ints) -> int | Ints:
        """Bytes of each row's box, int64 of shape (n_rows,), or of all if the same.

        Parameters
        ----------
        position
            int64, shape (ndim, n_rows), as in `ShardBlock`.
        """
        return prod(loop.lengths(position) for loop in self.nest)

    def runs(self, position: Ints) -> Runs | None:
        """Where the box of each row lies, if it is its run; None if there are loops.

        Parameters
        ----------
        position
            As of `nbytes`.
        """
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
    """One axis of the array: what it adds to a box."""

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
    """Boxes of a selection.

    Parameters
    ----------
    projections
        One an axis of the array.
    in_strides, out_strides
        Bytes between neighbours in the inner chunk and in the output, one an axis.
    transfer
        What happens to the elements.
    """
    axes = [
        _lay_axis(d, *given)
        for d, given in enumerate(
            zip(projections, in_strides, out_strides, strict=True)
        )
    ]
    # Neighbours in the output innermost: there a warp's accesses are worth most.
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
        return _lay_long(axis, projection, in_stride, out_stride)
    lengths = projection.length
    is_constant = len(lengths) == 0 or bool(np.all(lengths == lengths[0]))
    length = int(lengths[0]) if is_constant and len(lengths) else 1
    members = None
    if projection.members is not None:
        bounds, in_index, out_index = projection.members
        members = Landings(in_index * in_stride, out_index * out_stride)
        if is_constant and length == 1:
            return _placed(axis, None, members)
        zeros = np.zeros(len(lengths), np.int64)
        starts = Landings(bounds[:-1], zeros)
        if len(lengths) == 1:
            return _Axis(Loop(length, 0, 0, members=members), None)
        return _Axis(Loop(lengths, 0, 0, axis, starts, members), None)
    starts = Landings(
        projection.in_start * in_stride, projection.out_start * out_stride
    )
    strides = projection.step * in_stride, projection.out_step * out_stride
    if not is_constant:
        return _Axis(Loop(lengths, *strides, axis, starts), None)
    return _placed(axis, Loop(length, *strides) if length > 1 else None, starts)


def _lay_long(
    axis: int, projection: LongSlice, in_stride: int, out_stride: int
) -> _Axis:
    starts = FarLandings(projection, in_stride, out_stride)
    strides = projection.step * in_stride, projection.out_step * out_stride
    length = projection.common_length
    if length is None:
        return _Axis(Loop(FarLengths(projection), *strides, axis, starts), None)
    loop = Loop(length, *strides) if length > 1 else None
    return _Axis(loop, Column(axis, starts))


def _placed(axis: int, loop: Loop | None, starts: Landings) -> _Axis:
    """Axis whose length is the same in all its cells: its offsets stand apart."""
    if len(starts.in_offset) == 1:
        return _Axis(loop, None, int(starts.in_offset[0]), int(starts.out_offset[0]))
    return _Axis(loop, Column(axis, starts))


def _grow_run(loops: Sequence[Loop], transfer: Transfer) -> tuple[Loop, int]:
    """Bytes side by side at both ends, and how many of the loops they take in."""
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
    """Whether `outer` goes on where `inner` ends, at both ends."""
    return (
        inner.can_be_inner
        and outer.members is None
        and outer.in_stride == inner.in_stride * inner.longest
        and outer.out_stride == inner.out_stride * inner.longest
    )
