"""Selections in their normal form, which every index expression becomes.

A selection says which elements of the array are wanted and where each lands in the
output. An *orthogonal* selection is one `AxisSelection` per dimension; the wanted
elements are their cross product. A *point* selection is a list of coordinates.

In this form no slice is negative, reaches beyond the array, or is counted from its end.
`SliceAxis` has the one rule that lays a slice over a grid: how many of its elements lie
before a border. docs/selection.md derives the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.selecting.listing import ListedBlock, Listing, all_of
from gpushard.selecting.numbering import Ints

_ALL = slice(None)


class SliceAxis(NamedTuple):
    """`length` elements from `start` every `step`, landing side by side.

    `step` is positive; a negative step of the index expression becomes an `out_step` of
    -1, which otherwise is 1. `drop` marks an integer index, whose axis the result does
    not have.
    """

    start: int
    step: int
    length: int
    out_start: int = 0
    out_step: int = 1
    drop: bool = False

    @property
    def last(self) -> int:
        """Last element, if there is any."""
        return self.start + (self.length - 1) * self.step

    @property
    def landing(self) -> slice:
        """Where the elements land along the axis of the output, as NumPy's slice."""
        if self.out_step > 0:
            return slice(self.out_start, self.out_start + self.length)
        stop = self.out_start - self.length
        return slice(self.out_start, None if stop < 0 else stop, -1)

    def n_before(self, border: Any) -> Any:
        """Number of elements before `border`: an int or an int64 array, like `border`.

        This is the least k for which ``start + k * step`` is not before the border, so
        it is negative or above `length` where the slice would have to go on.
        """
        return -((self.start - border) // self.step)

    def within(self, begin: int, end: int) -> SliceAxis | None:
        """The part in elements ``begin:end``, counted from `begin`; None if empty."""
        start, step, length, out_start, out_step, drop = self
        first = 0 if start >= begin else self.n_before(begin)
        stop = length if start + (length - 1) * step < end else self.n_before(end)
        n_inside = stop - first
        if n_inside <= 0:
            return None
        inside = start + first * step - begin, step, n_inside
        return SliceAxis(*inside, out_start + first * out_step, out_step, drop)


class IndexAxis(NamedTuple):
    """Elements `element` landing at `out_index`: int64, shape (length,)."""

    element: Ints
    out_index: Ints
    drop = False  # an index array keeps its axis in the result

    @property
    def length(self) -> int:
        """Number of elements taken."""
        return len(self.element)


AxisSelection = SliceAxis | IndexAxis


class Orthogonal(NamedTuple):
    """Cross product of one `AxisSelection` per dimension.

    Attributes
    ----------
    shape
        Shape of the result as NumPy gives it: without the dropped axes, with the new
        axes.
    new_axes
        Positions of new axes in `shape`.
    """

    axes: tuple[AxisSelection, ...]
    shape: tuple[int, ...]
    new_axes: tuple[int, ...] = ()
    scalar: bool = False

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of elements taken along every axis, dropped axes included."""
        return tuple(axis.length for axis in self.axes)

    def on_grid(self, out: NDArray[np.generic]) -> NDArray[np.generic]:
        """View of `out`, which has `shape`, with exactly one axis per dimension."""
        if not self.new_axes and out.ndim == len(self.axes):
            return out
        # The ellipsis keeps a 0-d result an array that can be written through.
        kept = out
        if self.new_axes:
            at = [0 if i in self.new_axes else _ALL for i in range(out.ndim)]
            kept = out[(*at, ...)]
        return kept[(*[None if axis.drop else _ALL for axis in self.axes], ...)]


@dataclass(frozen=True, slots=True)
class Points:
    """A list of elements.

    Attributes
    ----------
    coordinates
        int64, one array per dimension, each of shape (n_points,).
    out_index
        int64, shape (n_points,). Where each element lands in the flattened result.
    """

    coordinates: tuple[Ints, ...]
    out_index: Ints
    shape: tuple[int, ...]
    scalar: bool = False

    @property
    def n_points(self) -> int:
        """Number of elements taken."""
        return len(self.out_index)


Selection = Orthogonal | Points


class Listed(NamedTuple):
    """A selection that lists very many elements, which are read a block at a time.

    Attributes
    ----------
    around
        If the elements are listed along one axis, what is taken along all axes, with a
        stand-in for this axis. None for points.
    """

    listing: Listing
    shape: tuple[int, ...]
    around: Orthogonal | None = None
    axis: int = 0
    scalar = False  # many elements are not one

    def taking(self, block: ListedBlock) -> Selection:
        """Selection of one block, which lands as it does in the whole selection."""
        if self.around is None:
            return Points(block.coordinates, block.out_index, self.shape)
        axes = list(self.around.axes)
        axes[self.axis] = IndexAxis(block.coordinates[0], block.out_index)
        return self.around._replace(axes=tuple(axes))


ParsedSelection = Selection | Listed
"""The kinds of selection that an index expression can become."""


def with_columns(wanted: ParsedSelection) -> Selection:
    """Selection with columns over all its elements."""
    if not isinstance(wanted, Listed):
        return wanted
    return wanted.taking(all_of(wanted.listing))


def crossed(along: Sequence[AxisSelection | Listing]) -> Orthogonal | Listed:
    """Cross product of what is taken along each axis; one axis may stay listed.

    If several axes are long, the result has so many elements that columns over all axes
    but the longest need little memory beside it.
    """
    axes: list[AxisSelection] = []
    lengths: list[int] = []
    longest: tuple[int, Listing] | None = None
    for d, taken in enumerate(along):
        if isinstance(taken, SliceAxis | IndexAxis):
            axes.append(taken)
        else:
            if longest is None or taken.n_elements > longest[1].n_elements:
                longest = d, taken
            axes.append(SliceAxis(0, 1, taken.n_elements))
        if not axes[d].drop:
            lengths.append(axes[d].length)
    shape = tuple(lengths)
    for d, taken in enumerate(along):
        if not isinstance(taken, SliceAxis | IndexAxis) and longest != (d, taken):
            block = all_of(taken)
            axes[d] = IndexAxis(block.coordinates[0], block.out_index)
    whole = Orthogonal(tuple(axes), shape, scalar=not shape)
    return whole if longest is None else Listed(longest[1], shape, whole, longest[0])


@lru_cache(maxsize=128)
def whole_axes(shape: tuple[int, ...]) -> tuple[SliceAxis, ...]:
    """All of each axis; cached, since most keys leave out most axes."""
    return tuple(SliceAxis(0, 1, extent) for extent in shape)


def whole(shape: tuple[int, ...]) -> Orthogonal:
    """Selection of every element of an array of `shape`."""
    return Orthogonal(whole_axes(shape), shape)


def fills(selection: Selection, out: NDArray[Any]) -> bool:
    """Whether a selection writes to all of `out`, and is not the part of another."""
    if isinstance(selection, Points):
        return out.size == selection.n_points
    return out.size == prod(selection.grid_shape)


def n_elements(selection: ParsedSelection) -> int:
    """Number of elements in the result of `selection`."""
    return prod(selection.shape)
