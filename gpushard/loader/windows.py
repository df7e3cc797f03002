"""Samples -> their places in the arrays.

A sample is a row of axis 0, or a patch (`window`) of the array that starts at an
*origin*. The origins form a grid, in C order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import OptionError
from gpushard.selecting.patches import Patches
from gpushard.selecting.selection import (
    IndexAxis,
    Ints,
    Orthogonal,
    SliceAxis,
)

# Bits of an int64 without its sign.
_INT64_BITS = 63
_FEW = 64

Padding = Literal["drop", "shift", "fill"]


@dataclass(frozen=True, slots=True)
class Cut:
    """Part of one array that a sample takes.

    Attributes
    ----------
    shape
        Shape of the array.
    window
        Number of elements taken along the first axes, from the origin on. All elements
        of the other axes are taken.
    lead
        Number added to the origin along axis 0.
    drop
        Whether a sample is one row, without that axis.
    """

    shape: tuple[int, ...]
    window: tuple[int, ...] = (1,)
    lead: int = 0
    drop: bool = True

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of a sample."""
        first = () if self.drop else self.window
        return (*first, *self.shape[len(self.window) :])

    @property
    def takes_rows(self) -> bool:
        """Whether a sample consists of whole rows of axis 0."""
        return len(self.window) == 1

    def rows(self, origins: Ints) -> Ints:
        """Rows of axis 0 of each sample: int64, shape (n_samples, window[0]).

        Rows outside the array are the ones to fill.
        """
        return origins[:, :1] + (self.lead + np.arange(self.window[0]))

    def patches(self, origins: Ints) -> SamplePatches:
        """Parts of the samples inside the array, with one sample after the other."""
        n, before = len(origins), np.arange(len(origins)) * self.window[0]
        columns: list[tuple[Ints, Ints, Ints]] = []
        is_whole, is_there = True, np.ones(n, np.bool_)
        for d, length in enumerate(self.window):
            start = origins[:, d] + (self.lead if d == 0 else 0)
            place = before if d == 0 else np.zeros(1, np.int64)
            begin = np.maximum(start, 0)
            lengths = np.minimum(start + length, self.shape[d]) - begin
            if np.all(lengths == length):
                columns.append((start, np.array([length]), place))
                continue
            is_whole = False
            is_there &= lengths > 0
            columns.append((begin, lengths, place + (begin - start)))
        rest = self.shape[len(self.window) :]
        none = np.zeros(1, np.int64)
        columns += [(none, np.array([extent]), none) for extent in rest]
        is_there &= 0 not in rest
        first, length, out_first = zip(*columns, strict=True)
        window = (n * self.window[0], *self.window[1:])
        inside = Patches(n, first, length, out_first, (*window, *rest))
        if not is_there.all():
            inside = inside.at(np.flatnonzero(is_there))
        return SamplePatches(inside, is_whole=is_whole)


class SamplePatches(NamedTuple):
    """Samples as patches of their array.

    Attributes
    ----------
    patches
        The parts inside the array.
    is_whole
        Whether these parts are all elements of the samples.
    """

    patches: Patches
    is_whole: bool


def rows_of_all(rows: Ints, shape: tuple[int, ...]) -> Orthogonal:
    """Selection of rows of axis 0 of an array of `shape`, in any order."""
    rest = (SliceAxis(0, 1, extent) for extent in shape[1:])
    return Orthogonal((_along_rows(rows), *rest), (len(rows), *shape[1:]))


def _along_rows(rows: Ints) -> SliceAxis | IndexAxis:
    n = len(rows)
    # The first few rows show whether rows are shuffled.
    if np.all(rows[1:_FEW] >= rows[: _FEW - 1][: max(n - 1, 0)]):
        steps = np.diff(rows)
        if n and np.all(steps == 1):
            return SliceAxis(int(rows[0]), 1, n)
        if np.all(steps >= 0):
            return IndexAxis(rows, np.arange(n, dtype=np.int64))
    # Sorted as a read would sort them: neighbours then form few runs.
    return IndexAxis(*in_order(rows))


def in_order(rows: Ints) -> tuple[Ints, Ints]:
    """Rows, at least one, in ascending order, and the index that each had."""
    shift = len(rows).bit_length()
    if int(rows.max()) >> (_INT64_BITS - shift):
        place = np.argsort(rows)
        return rows[place], place
    # One number per row: NumPy sorts numbers twice as fast as it finds an order.
    numbers = rows << shift
    numbers |= np.arange(len(rows))
    numbers.sort()
    return numbers >> shift, numbers & ((1 << shift) - 1)


@dataclass(frozen=True, slots=True)
class Origins:
    """Grid of the places where samples begin.

    Attributes
    ----------
    start, stride, counts
        First origin, distance between origins and their number, along each axis.
    last
        Largest origin along each axis; an origin beyond it is moved back to it.
    """

    start: tuple[int, ...]
    stride: tuple[int, ...]
    counts: tuple[int, ...]
    last: tuple[int, ...]

    @property
    def n(self) -> int:
        """Number of samples."""
        return prod(self.counts)

    def facts(self) -> dict[str, Any]:
        """Everything that decides where samples begin, as JSON."""
        return {
            "stride": list(self.stride),
            "windows": list(self.counts),
            "first": list(self.start),
            "last": list(self.last),
        }

    def of(self, samples: Ints) -> Ints:
        """Origins of samples: int64, shape (n_samples, n_axes)."""
        at: NDArray[np.int64] = samples[:, None]
        if len(self.counts) > 1:
            at = np.stack(np.unravel_index(samples, self.counts), axis=1)
        if self.start == (0,) and self.stride == (1,) and self.last[0] >= self.n - 1:
            return at  # samples are rows, and the numbers of the rows are the origins
        origins = np.array(self.start) + at * np.array(self.stride)
        return np.minimum(origins, np.array(self.last))


def lay_origins(
    cuts: Sequence[Cut], stride: tuple[int, ...], padding: Padding
) -> Origins:
    """Origins at which all arrays have a sample.

    Raises
    ------
    OptionError
        The arrays have different lengths, or a window fits nowhere.
    """
    n_axes = max(len(cut.window) for cut in cuts)
    laid = [_along(cuts, d, stride[d], padding) for d in range(n_axes)]
    start, counts, last = zip(*laid, strict=True)
    return Origins(tuple(start), stride, tuple(counts), tuple(last))


def _along(
    cuts: Sequence[Cut], d: int, stride: int, padding: Padding
) -> tuple[int, int, int]:
    """First origin along axis `d`, the number of origins, and the largest origin."""
    mine = [cut for cut in cuts if len(cut.window) > d]
    extents = {cut.shape[d] for cut in mine}
    if len(extents) > 1:
        raise OptionError(
            f"the arrays of a loader must have the same length along axis {d}",
            got=", ".join(str(cut.shape[d]) for cut in mine),
            hint="pass arrays with one entry for each sample",
        )
    extent = extents.pop()
    if padding == "fill":
        return 0, -(-extent // stride), extent
    leads = [cut.lead if d == 0 else 0 for cut in mine]
    reach = [lead + cut.window[d] for cut, lead in zip(mine, leads, strict=True)]
    first = max(0, -min(leads))
    last = min(extent - r for r in reach)
    if last < first:
        if extent == 0:
            return 0, 0, 0
        raise OptionError(
            f"the window does not fit along axis {d}",
            expected=f"at most {extent} elements, leads included",
            got=max(reach) - min(0, *leads),
        )
    span = last - first
    count = span // stride + 1 if padding == "drop" else -(-span // stride) + 1
    return first, count, last
