"""A small selection -> the inner chunks that it touches, one Python object each.

Plain integers replace the columns of `grid` and `points`: for a few inner chunks,
making columns would take longer than reading the inner chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from operator import mul
from typing import Any, NamedTuple, cast

import numpy as np

from gpushard.layout import ArrayLayout, Coordinate, GridAxis
from gpushard.selecting.selection import IndexAxis, Points, Selection, SliceAxis

# Index arrays and lists of points up to this length are processed in Python.
_FEW_ELEMENTS = 64


_Along = tuple[int, slice | list[int], slice | list[int], int, Coordinate]
"""One touched cell of one axis: its coordinate, what of it is wanted, where that lands,
which stored object it is in, and its share of the place in the index of each level."""


class TouchedChunk(NamedTuple):
    """An inner chunk with wanted elements.

    Attributes
    ----------
    cell, shard
        Coordinates of the inner chunk and of its stored object in their grids.
    entries
        Its place in the index at each sharding level, from the outside in.
    inside, out
        Index into the inner chunk and into the output, which has the axes of
        `Orthogonal.on_grid`, or is flat for points.
    """

    cell: Coordinate
    shard: Coordinate
    entries: tuple[int, ...]
    inside: tuple[Any, ...]
    out: tuple[Any, ...]

    @property
    def extremes(self) -> tuple[tuple[int, int], ...]:
        """First and last wanted element along each axis, within the inner chunk."""
        return tuple([_extremes(index) for index in self.inside])

    def extent(self, strides: tuple[int, ...]) -> tuple[int, int]:
        """Range of bytes of plain elements that contains the wanted ones."""
        low, high = 0, strides[-1]
        for (first, last), stride in zip(self.extremes, strides, strict=False):
            low += first * stride
            high += last * stride
        return low, high


class TouchedGrid:
    """An array's grid of inner chunks, which finds those that a selection touches.

    All inner chunks have one shape. Everything that does not depend on the selection is
    computed once, when the grid is made.
    """

    def __init__(self, layout: ArrayLayout) -> None:
        self._layout = layout
        # If shards differ in shape, so do the places in their indexes.
        self._is_regular = all(axis.boundaries is None for axis in layout.axes)
        ones = [[1] * layout.ndim for _ in layout.levels]
        strides = self._strides_in((0,) * layout.ndim) if self._is_regular else ones
        self._axes = [
            _Axis(
                inner,
                outer,
                [level.chunk_shape[d] for level in layout.levels],
                [along[d] for along in strides],
            )
            for d, (inner, outer) in enumerate(
                zip(layout.inner_axes, layout.axes, strict=True)
            )
        ]

    def touched(self, selection: Selection, limit: int) -> list[TouchedChunk] | None:
        """Inner chunks that a selection touches; None if it is not small.

        A small selection touches at most `limit` of them.
        """
        if isinstance(selection, Points):
            return self._of_points(selection, limit)
        n_chunks = 1
        n_gathered = 0
        along: list[Sequence[_Along]] = []
        for axis, grid in zip(selection.axes, self._axes, strict=True):
            if isinstance(axis, IndexAxis):
                n_gathered += 1
                cells = grid.of_index(axis, limit)
            elif axis == grid.whole:  # most axes of most reads
                along.append(grid.only_cell)
                continue
            else:
                cells = grid.of_slice(axis, limit)
            if cells is None:
                return None
            along.append(cells)
            n_chunks *= len(cells) or 1
            if n_chunks > limit:
                return None
        touched = [self._crossed(cells) for cells in product(*along)]
        return [_meshed(chunk) for chunk in touched] if n_gathered > 1 else touched

    def _crossed(self, along: tuple[_Along, ...]) -> TouchedChunk:
        if not along:
            entries = (0,) * len(self._layout.levels)
            return TouchedChunk((), (), entries, (), (...,))
        cell, inside, out, shard, places = zip(*along, strict=True)
        entries = self._entries(shard, places)
        # The ellipsis keeps a 0-d output an array that can be written through.
        return TouchedChunk(cell, shard, entries, inside, (*out, ...))

    def _entries(
        self, shard: Coordinate, places: Sequence[tuple[int, ...]]
    ) -> tuple[int, ...]:
        """Place in the index of each level: the sum of each axis' share."""
        shares = zip(*places, strict=True)
        if self._is_regular:
            return tuple(map(sum, shares))
        pairs = zip(shares, self._strides_in(shard), strict=True)
        return tuple([sum(map(mul, *pair)) for pair in pairs])

    def _strides_in(self, shard: Coordinate) -> list[list[int]]:
        """Index entries between neighbours along each axis, for each level."""
        parent = self._layout.object_shape(shard)
        found: list[list[int]] = []
        for level in self._layout.levels:
            strides = [0] * len(parent)
            n_entries = 1
            for axis in reversed(level.axis_order):
                strides[axis] = n_entries
                n_entries *= parent[axis] // level.chunk_shape[axis]
            found.append(strides)
            parent = level.chunk_shape
        return found

    def _of_points(self, selection: Points, limit: int) -> list[TouchedChunk] | None:
        if selection.n_points > _FEW_ELEMENTS:
            return None
        lengths = [axis.length for axis in self._axes]
        members: dict[Coordinate, list[int]] = {}
        points = list(zip(*[c.tolist() for c in selection.coordinates], strict=True))
        if not selection.coordinates:
            points = [()] * selection.n_points
        for k, point in enumerate(points):
            cell = tuple([i // n for i, n in zip(point, lengths, strict=True)])
            members.setdefault(cell, []).append(k)
            if len(members) > limit:
                return None
        out_index = selection.out_index.tolist()
        return [
            self._with_points(
                cell, [points[k] for k in mine], [out_index[k] for k in mine]
            )
            for cell, mine in members.items()
        ]

    def _with_points(
        self, cell: Coordinate, points: Sequence[Coordinate], out: list[int]
    ) -> TouchedChunk:
        if not cell:
            return self._crossed(())._replace(out=(out,))
        where = [axis.place(c) for axis, c in zip(self._axes, cell, strict=True)]
        shard, places = zip(*where, strict=True)
        inside = [
            [i - c * axis.length for i in column]
            for column, c, axis in zip(
                zip(*points, strict=True), cell, self._axes, strict=True
            )
        ]
        entries = self._entries(shard, places)
        return TouchedChunk(cell, shard, entries, tuple(inside), (out,))


class _Axis:
    """One axis of the grid of inner chunks, with cells of `length` elements.

    Parameters
    ----------
    inner, outer
        Its inner chunks and its stored objects.
    lengths, strides
        For each sharding level: elements of an inner chunk, and index entries between
        neighbouring inner chunks.

    Attributes
    ----------
    whole, only_cell
        A slice over the whole axis, if it has one cell, and what that touches.
    """

    def __init__(
        self,
        inner: GridAxis,
        outer: GridAxis,
        lengths: Sequence[int],
        strides: Sequence[int],
    ) -> None:
        self._outer = outer
        self.length = inner.cell
        # In cells: a stored object, and the pieces into which each level cuts it.
        self._per_object = outer.cell // inner.cell
        self._units = [
            (length // inner.cell, stride)
            for length, stride in zip(lengths, strides, strict=True)
        ]
        self.whole: SliceAxis | None = None
        self.only_cell: Sequence[_Along] = ()
        if inner.n_cells == 1:
            self.only_cell = self.of_slice(SliceAxis(0, 1, inner.extent), 1) or ()
            self.whole = SliceAxis(0, 1, inner.extent)

    def of_slice(self, axis: SliceAxis, limit: int) -> Sequence[_Along] | None:
        """Cells that a slice touches; None if they are beyond `limit`."""
        start, step, n_elements, out_start, out_step, _ = axis
        if not n_elements:
            return ()
        length = self.length
        end = start + (n_elements - 1) * step
        first, last = start // length, end // length
        if first == last and out_step > 0:  # most reads, which need no `within`
            before = first * length
            inside = slice(start - before, end - before + 1, step)
            out = slice(out_start, out_start + n_elements)
            return ((first, inside, out, *self.place(first)),)
        if last - first >= limit:
            return None
        found: list[_Along] = []
        for cell in range(first, last + 1):
            part = axis.within(cell * length, (cell + 1) * length)
            if part is not None:
                inside = slice(part.start, part.last + 1, part.step)
                found.append((cell, inside, part.landing, *self.place(cell)))
        return found

    def of_index(self, axis: IndexAxis, limit: int) -> Sequence[_Along] | None:
        """Cells that an index array touches; None if array or cells are many."""
        if axis.length > _FEW_ELEMENTS:
            return None
        members: dict[int, tuple[list[int], list[int]]] = {}
        pairs = zip(axis.element.tolist(), axis.out_index.tolist(), strict=True)
        for element, out_index in pairs:
            cell, within = divmod(element, self.length)
            inside, out = members.setdefault(cell, ([], []))
            inside.append(within)
            out.append(out_index)
            if len(members) > limit:
                return None
        return [
            (cell, *_sliced(inside, out), *self.place(cell))
            for cell, (inside, out) in members.items()
        ]

    def place(self, cell: int) -> tuple[int, Coordinate]:
        """Stored object of a cell, and its share of the place in each index."""
        outer = self._outer
        if outer.boundaries is None:
            shard = cell // self._per_object
            rest = cell - shard * self._per_object
        else:
            shard = int(outer.cell_at(cell * self.length))
            rest = cell - int(outer.start_of(shard)) // self.length
        shares: list[int] = []
        for n_cells, stride in self._units:
            shares.append(rest // n_cells * stride)
            rest %= n_cells
        return shard, tuple(shares)


def _sliced(
    inside: list[int], out: list[int]
) -> tuple[slice | list[int], slice | list[int]]:
    """An index array of one element becomes a slice, which needs no gathering."""
    if len(inside) > 1:
        return inside, out
    return slice(inside[0], inside[0] + 1), slice(out[0], out[0] + 1)


def _extremes(index: slice[int, int, int] | list[int]) -> tuple[int, int]:
    if isinstance(index, slice):
        return index.start, index.stop - 1
    return int(np.min(index)), int(np.max(index))


def _meshed(chunk: TouchedChunk) -> TouchedChunk:
    if sum([isinstance(i, list) for i in chunk.inside]) < 2:
        return chunk
    inside, out = open_mesh(chunk.inside), open_mesh(chunk.out[:-1])
    return chunk._replace(inside=inside, out=out)


def open_mesh(index: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cross product of slices and lists of integers (NumPy would pair the lists)."""
    mesh: Any = np.ix_  # its stubs know no mixed arguments
    return mesh(*[_listed(i) for i in index])


def _listed(index: Any) -> Any:
    if not isinstance(index, slice):
        return index
    part = cast("slice[int, int | None, int | None]", index)
    return np.arange(part.start, -1 if part.stop is None else part.stop, part.step or 1)
