"""Decoded inner chunks -> their place in the output, on the host.

A `Target` is one part of a plan with the array that receives it. The strides and the
data type of the decoded inner chunk express transposes and byte order, and the
assignment performs a cast. So each element is written once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import SelectionError
from gpushard.options import MIB
from gpushard.planning.axes import Projected
from gpushard.planning.grid import GridPart
from gpushard.planning.patches import PatchPart
from gpushard.planning.plan import Part
from gpushard.planning.points import PointPart
from gpushard.planning.touched import open_mesh
from gpushard.selecting.patches import entries_of
from gpushard.selecting.selection import Ints, SliceAxis

Index = tuple[Any, ...]

# NumPy may copy this many listed elements, and bytes of them, before it writes them.
# The size of a string is known only from its bytes, so strings have their own limit.
_FEW_ELEMENTS, _FEW_STRINGS = 1 << 17, 64
_FEW_NBYTES = MIB


class GridTarget:
    """Output of an orthogonal selection, `out`: any strides, host.

    As an attribute, `out` is a view of it with one dimension per axis of the array,
    each in ascending order.
    """

    def __init__(self, part: GridPart, out: NDArray[Any]) -> None:
        self.part = part
        grid = part.selection.on_grid(out)
        flips = tuple(
            slice(None, None, -1)
            if isinstance(axis, SliceAxis) and axis.out_step < 0
            else slice(None)
            for axis in part.selection.axes
        )
        # Turning reversed axes around once here makes everything else ascending.
        self.out: NDArray[Any] = grid[(*flips, ...)]
        n_lists = sum(p.members is not None for p in part.projections)
        self._lists, self._gathers = n_lists > 0, n_lists > 1

    def indexes(self, position: Ints) -> Iterator[tuple[Index, Index]]:
        """Index into the output and into the inner chunk, one pair per column."""
        if not self.part.projections:
            return iter([((...,), (...,))] * position.shape[1])
        pairs = [
            _axis_indexes(projection, at, extent)
            for projection, at, extent in zip(
                self.part.projections, position, self.out.shape, strict=False
            )
        ]
        outs = zip(*(out for out, _ in pairs), strict=True)
        ins = zip(*(inner for _, inner in pairs), strict=True)
        if self._gathers:
            return zip(map(open_mesh, outs), map(open_mesh, ins), strict=True)
        return zip(outs, ins, strict=True)

    def place(self, index: tuple[Index, Index], chunk: NDArray[Any]) -> None:
        """Write the wanted elements of a decoded inner chunk."""
        out_index, in_index = index
        if not self._lists:
            self.out[out_index] = chunk[in_index]
            return
        for here, there in _pieces(out_index, in_index, _most_copied(chunk.dtype)):
            self.out[here] = chunk[there]

    def fill(self, index: tuple[Index, Index], value: NDArray[Any]) -> None:
        """Write the fill value where a missing inner chunk would land."""
        self.out[index[0]] = value


def _most_copied(dtype: np.dtype[Any]) -> int:
    """Most listed elements that NumPy may copy at a time."""
    if dtype.kind == "T":
        return _FEW_STRINGS
    return max(1, min(_FEW_ELEMENTS, _FEW_NBYTES // dtype.itemsize))


def _pieces(
    out_index: Index, in_index: Index, most: int, cut: tuple[int, ...] = ()
) -> Iterator[tuple[Index, Index]]:
    """Parts of an index, small enough for NumPy to make a copy of the elements.

    A part has at most `most` elements, or one element along the axes `cut`. An index
    of slices stays whole, because NumPy copies nothing for it.
    """
    lengths = [_length(i) for i in in_index]
    lists = [i.size if isinstance(i, np.ndarray) else 0 for i in in_index]
    for k in cut:
        lists[k] = 0
    if not any(lists) or prod(lengths) <= most:
        yield out_index, in_index
        return
    n = max(lists)
    axis = lists.index(n)
    others = prod(lengths) // n
    step = max(1, most // others)
    n_dims = in_index[axis].ndim
    sides = [1] * n_dims
    sides[axis if n_dims > 1 else 0] = -1
    for first in range(0, n, step):
        some = slice(first, first + step)
        flat = [i[axis].reshape(-1)[some] for i in (out_index, in_index)]
        if n_dims == 1 and step == 1:  # with slices elsewhere, NumPy then copies none
            here, there = (slice(int(f[0]), int(f[0]) + 1) for f in flat)
        else:
            here, there = (f.reshape(sides) for f in flat)
        part = (
            (*out_index[:axis], here, *out_index[axis + 1 :]),
            (*in_index[:axis], there, *in_index[axis + 1 :]),
        )
        if others > most:
            yield from _pieces(*part, most, (*cut, axis))
        else:
            yield part


def _length(index: Any) -> int:
    """Number of elements that an index along an axis spans."""
    if isinstance(index, np.ndarray):
        return index.size
    return 1 if isinstance(index, int) else max(0, index.stop - index.start)


def _axis_indexes(
    projection: Projected, at: Ints, extent: int
) -> tuple[Iterator[Any], Iterator[Any]]:
    """Selectors along one axis of output and inner chunk, one per column."""
    members = projection.members
    if members is not None:
        first, last = members.bounds[at].tolist(), members.bounds[at + 1].tolist()
        runs = [slice(a, b) for a, b in zip(first, last, strict=True)]
        return (
            iter([members.out_index[run] for run in runs]),
            iter([members.in_index[run] for run in runs]),
        )
    in_start, length, out_start = projection.takings(at)
    if projection.out_step < 0:
        out_start = extent - 1 - out_start
    in_stop = in_start + (length - 1) * projection.step + 1
    outs = map(slice, out_start.tolist(), (out_start + length).tolist())
    steps = [projection.step] * len(at)
    return outs, map(slice, in_start.tolist(), in_stop.tolist(), steps)


class PointTarget:
    """Output of a point selection, sorted by inner chunk; any strides, host."""

    def __init__(self, part: PointPart, out: NDArray[Any]) -> None:
        self.part = part
        # A flat view of an array exists only if it is contiguous.
        self._shape = None if out.flags.c_contiguous else out.shape
        self._out: NDArray[Any] = out.reshape(-1) if self._shape is None else out

    def indexes(self, position: Ints) -> Iterator[tuple[Index, Index]]:
        """Index into the output and into the inner chunk, one pair per column."""
        bounds, part = self.part.bounds, self.part
        first, last = bounds[position[0]].tolist(), bounds[position[0] + 1].tolist()
        for a, b in zip(first, last, strict=True):
            out_index: Index = (part.out_index[a:b],)
            if self._shape is not None:
                out_index = np.unravel_index(part.out_index[a:b], self._shape)
            yield out_index, tuple(part.in_index[:, a:b])

    def place(self, index: tuple[Index, Index], chunk: NDArray[Any]) -> None:
        """Write the wanted elements of a decoded inner chunk."""
        step = _most_copied(chunk.dtype)
        for first in range(0, max(1, len(index[0][0])), step):
            some = slice(first, first + step)
            here, there = (tuple(c[some] for c in i) for i in index)
            self._out[here] = chunk[there]

    def fill(self, index: tuple[Index, Index], value: NDArray[Any]) -> None:
        """Write the fill value where a missing inner chunk would land."""
        self._out[index[0]] = value


class PatchTarget:
    """Output of patches, cut into boxes by inner chunk; any strides, host."""

    def __init__(self, part: PatchPart, out: NDArray[Any]) -> None:
        self.part = part
        self.out = out

    def indexes(self, position: Ints) -> Iterator[tuple[Index, Index]]:
        """Index into the output and the inner chunk for each box, a pair per column."""
        part = self.part
        ordinal = position[0]
        first, last = part.bounds[ordinal].tolist(), part.bounds[ordinal + 1].tolist()
        for a, b in zip(first, last, strict=True):
            boxes = np.arange(a, b)
            yield (
                tuple(_box_slices(part.out_first, part.length, boxes)),
                tuple(_box_slices(part.in_first, part.length, boxes)),
            )

    def place(self, index: tuple[Index, Index], chunk: NDArray[Any]) -> None:
        """Write the wanted elements of a decoded inner chunk."""
        for here, there in zip(*index, strict=True):
            self.out[here] = chunk[there]

    def fill(self, index: tuple[Index, Index], value: NDArray[Any]) -> None:
        """Write the fill value where a missing inner chunk would land."""
        for here in index[0]:
            self.out[here] = value


def _box_slices(
    first: Sequence[Ints], length: Sequence[Ints], boxes: Ints
) -> Iterator[Index]:
    """Slices along all axes, for one box after the other."""
    axes: list[Iterator[slice]] = []
    for start, n in zip(first, length, strict=True):
        begin = np.broadcast_to(entries_of(start, boxes), len(boxes))
        axes.append(map(slice, begin.tolist(), (begin + entries_of(n, boxes)).tolist()))
    return zip(*axes, strict=True)


Target = GridTarget | PointTarget | PatchTarget


def make_target(part: Part, out: NDArray[Any]) -> Target:
    """Target that writes `part` into `out`."""
    if isinstance(part, GridPart):
        return GridTarget(part, out)
    if isinstance(part, PatchPart):
        return PatchTarget(part, out)
    return PointTarget(part, out)


def holds_kind_of(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Whether a cast from `source` to `target` leaves numbers of the same kind."""
    # NumPy casts any kind to ml_dtypes' types as same-kind, even complex numbers.
    drops_imaginary = source.kind == "c" and target.kind != "c"
    # NumPy treats a cast from numbers to text as same-kind, however short the text.
    is_text = target.kind in "SUT" and source.kind != target.kind
    return (
        not drops_imaginary
        and not is_text
        and np.can_cast(source, target, casting="same_kind")
    )


def check_cast(source: np.dtype[Any], target: np.dtype[Any]) -> None:
    """Refuse a cast that would turn numbers into another kind.

    Raises `SelectionError` if it is not same-kind, for example from float to int.
    """
    if not holds_kind_of(source, target):
        raise SelectionError(
            "values cannot be cast to the output's data type on the way",
            expected=f"a data type that holds {source} values",
            got=str(target),
            hint="read without dtype= and convert with your own rounding",
        )
