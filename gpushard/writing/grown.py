"""Changes that cut many inner chunks of a shard -> changes of whole ones.

To read, decode and change a cut inner chunk alone takes Python a tenth of a
millisecond. Where a change touches many close together, they are read at once instead,
as any box of an array is read, and encoded together with those that the change covers.
Others in between are read in vain, and stay the stored bytes that they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import GpushardError
from gpushard.layout import GridAxis
from gpushard.options import KIB, MIB
from gpushard.reading.results import read_new
from gpushard.selecting.numbering import distinct
from gpushard.selecting.selection import (
    AxisSelection,
    IndexAxis,
    Ints,
    Orthogonal,
    SliceAxis,
)
from gpushard.stores.local.file_bytes import FileBytes
from gpushard.stores.local.handles import file_version
from gpushard.stores.local.store import LocalStore
from gpushard.writing.changes import Change
from gpushard.writing.masked import Masked
from gpushard.writing.regions import Box, InPortions, Part, Scattered
from gpushard.writing.shard import Region, StoredShard
from gpushard.writing.whole_cells import Span, WholeCells

# To decode fewer inner chunks takes less time than to begin a read.
_LEAST_CELLS = 8
# Bytes of others that are decoded in the time in which one is changed alone.
_READ_NBYTES = 32 * KIB
# Elements that are read at once: no more than this, nor than a part of the memory limit
# for each thread that writes.
_MOST_NBYTES, _LIMIT_SHARE = 16 * MIB, 8
# Of so many touched inner chunks one may be covered as a whole, and is read in vain.
_MOST_READ = 2


class Wholes(NamedTuple):
    """Whole inner chunks of a region, and the values from which they are taken.

    If `some` has coordinates, int64, shape (ndim, n), only those change.
    """

    cells: WholeCells
    values: NDArray[Any]
    some: Ints | None = None

    def coordinates(self) -> Ints:
        """Coordinates of the inner chunks that change: int64, shape (ndim, n)."""
        return self.cells.coordinates() if self.some is None else self.some


class _Touched(NamedTuple):
    """Cells with written elements.

    Attributes
    ----------
    spans
        The box of cells in which they lie.
    n_cells
        Number of them.
    along
        Which of the box they are along each axis, if they are a cross product.
    listed
        Their coordinates otherwise, int64, shape (ndim, n_cells).
    """

    spans: Sequence[Span]
    n_cells: int
    along: Sequence[Ints] = ()
    listed: Ints | None = None

    def some(self) -> Ints | None:
        """Their coordinates, int64, shape (ndim, n_cells); None if they are a box."""
        if self.n_cells == _n_cells(self.spans):
            return None
        if self.listed is not None:
            return self.listed
        crossed = np.meshgrid(*self.along, indexing="ij", copy=False)
        return np.stack([axis.reshape(-1) for axis in crossed])


class Border(NamedTuple):
    """Where cells are cut in two groups: before this cell along this axis."""

    axis: int
    cell: int


def whole_or_cut(
    region: Region, stored: StoredShard | None, change: Change
) -> Iterator[Wholes | Change]:
    """A change to a shard, in parts of whole inner chunks and of others.

    No two of them share an inner chunk. The change has values on the host; `stored` has
    the shard before it.
    """
    part, values = change.part, change.values
    assert isinstance(values, np.ndarray)  # noqa: S101 - which is for type checkers
    whole = WholeCells.of(part, region.grid, region.extents)
    data = _readable(region, stored)
    rest: Sequence[Part] = [part]
    if whole is not None and (data is None or not _is_mostly_cut(region, part, whole)):
        yield Wholes(whole, values)
        rest = whole.rest
    for cut in rest:
        if data is None:
            yield Change(cut, values)
        else:
            yield from _grown(region, data, cut, values)


def _is_mostly_cut(region: Region, part: Part, whole: WholeCells) -> bool:
    """Whether to read all of a box takes less time than what lies around the whole."""
    if not whole.rest:
        return False
    touched = _touched(part, region.grid)
    return touched is not None and touched.n_cells >= _MOST_READ * whole.n_cells


def _readable(region: Region, stored: StoredShard | None) -> FileBytes | None:
    """The shard's file, if reads of the array are reads of it, and cheap."""
    source = region.source
    is_plain = len(source.layout.levels) == 1 and not source.room.is_text
    if stored is None or not is_plain or not isinstance(source.store, LocalStore):
        return None
    return stored.data if isinstance(stored.data, FileBytes) else None


def _grown(
    region: Region, data: FileBytes, part: Part, values: NDArray[Any]
) -> Iterator[Wholes | Change]:
    """A part that cuts inner chunks: grown ones, and what is not worth a read."""
    touched = _touched(part, region.grid)
    if (
        touched is None
        or isinstance(part, InPortions)
        or touched.n_cells < _LEAST_CELLS
        or not _is_dense(region, touched)
    ):
        yield Change(part, values)
        return
    spans = touched.spans
    border = _border(region, spans)
    if border is None:
        grown = _read_and_changed(region, data, part, touched, values)
        yield grown or Change(part, values)
    elif isinstance(part, Box | Masked) and spans[border.axis][0] < border.cell:
        for side in _sides(part, border, region.grid):
            yield from _grown(region, data, side, values)
    else:
        yield Change(part, values)


def _is_dense(region: Region, touched: _Touched) -> bool:
    """Whether to read other cells takes less time than to change each touched alone."""
    n_others = _n_cells(touched.spans) - touched.n_cells
    return n_others * _cell_nbytes(region) <= touched.n_cells * _READ_NBYTES


def _read_and_changed(
    region: Region,
    data: FileBytes,
    part: Box | Scattered | Masked,
    touched: _Touched,
    values: NDArray[Any],
) -> Wholes | None:
    """The whole inner chunks, with what is stored of them; None if it is not known."""
    ranges = [
        (first * axis.cell, end * axis.cell)
        for (first, end), axis in zip(touched.spans, region.grid, strict=True)
    ]
    before = _read(region, data, ranges)
    if before is None:
        return None
    part.moved([start for start, _ in ranges]).assign(before, values)
    box = Box(tuple(SliceAxis(start, 1, stop - start) for start, stop in ranges))
    whole = WholeCells.of(box, region.grid, region.extents)
    return None if whole is None else Wholes(whole, before, touched.some())


def _read(
    region: Region, data: FileBytes, ranges: Sequence[tuple[int, int]]
) -> NDArray[Any] | None:
    """Elements of a box of the region; None if they are not those of the open file."""
    source = region.source
    store, key = source.store, source.key(region.coordinate)
    axes, shape = list[AxisSelection](), list[int]()
    for (start, stop), axis, at in zip(
        ranges, source.layout.axes, region.coordinate, strict=True
    ):
        axes.append(SliceAxis(int(axis.start_of(at)) + start, 1, stop - start))
        shape.append(stop - start)
    try:
        found = read_new(source, Orthogonal(tuple(axes), tuple(shape)))
        version = store.current_version(key)[1]
    except GpushardError:
        return None  # who decodes one inner chunk after the other says what is wrong
    finally:
        if isinstance(store, LocalStore):  # a replaced file takes room until then
            store.let_go(key)
    # Other libraries do not know of the lock, and may have replaced the file.
    return found if version == file_version(os.fstat(data.fd)) else None


def _touched(part: Part, grid: Sequence[GridAxis]) -> _Touched | None:
    """The cells with written elements; None for very many listed elements."""
    if isinstance(part, InPortions):
        return None
    if isinstance(part, Box):
        along = [
            _touched_along(axis, of) for axis, of in zip(part.axes, grid, strict=True)
        ]
        spans = [(int(some[0]), int(some[-1]) + 1) for some in along]
        return _Touched(spans, prod(map(len, along)), along)
    if isinstance(part, Masked):
        begin = [[at // of.cell] for at, of in zip(part.origin, grid, strict=True)]
        cells = np.stack(np.nonzero(part.touched(grid))) + np.array(begin)
    else:
        cells = np.stack(
            [of.cell_at(c) for c, of in zip(part.coordinates, grid, strict=True)]
        )
    first, end = cells.min(axis=1), cells.max(axis=1) + 1
    spans = [*zip(first.tolist(), end.tolist(), strict=True)]
    shape = end - first
    number: Any = np.ravel_multi_index(tuple(cells - first[:, np.newaxis]), shape)
    number = distinct(number)
    listed = np.stack(np.unravel_index(number, shape)) + first[:, np.newaxis]
    return _Touched(spans, len(number), listed=listed)


def _touched_along(part: AxisSelection, axis: GridAxis) -> Ints:
    """The cells along an axis with written elements, ascending."""
    if isinstance(part, IndexAxis):
        return distinct(part.element // axis.cell)
    if part.step <= axis.cell:
        return np.arange(part.start // axis.cell, part.last // axis.cell + 1)
    return np.arange(part.start, part.last + 1, part.step) // axis.cell


def _border(region: Region, spans: Sequence[Span]) -> Border | None:
    """Where to cut touched cells that are not read at once; None if they are.

    A cell that reaches beyond the array is changed alone: the array may be larger than
    it was when it was opened, and a read does not tell what is stored there by now.
    """
    pairs = zip(spans, region.grid, region.extents, strict=True)
    for d, ((_, end), axis, extent) in enumerate(pairs):
        if end * axis.cell > extent:
            return Border(d, end - 1)
    if _nbytes(region, spans) <= _most_nbytes(region):
        return None
    d = max(range(len(spans)), key=lambda d: spans[d][1] - spans[d][0])
    return Border(d, sum(spans[d]) // 2)


def _sides(
    part: Box | Masked, border: Border, grid: Sequence[GridAxis]
) -> Iterator[Box | Masked]:
    """The elements of a part before a border between cells, and those behind it."""
    along = grid[border.axis]
    at = border.cell * along.cell
    for begin, end in ((0, at), (at, along.extent)):
        yield part.within(border.axis, begin, end)


def _n_cells(spans: Sequence[Span]) -> int:
    return prod(end - first for first, end in spans)


def _nbytes(region: Region, spans: Sequence[Span]) -> int:
    """Decoded size of the cells."""
    return _n_cells(spans) * _cell_nbytes(region)


def _cell_nbytes(region: Region) -> int:
    """Decoded size of a cell."""
    return prod(a.cell for a in region.grid) * region.source.layout.dtype.itemsize


def _most_nbytes(region: Region) -> int:
    options = region.source.options
    return min(_MOST_NBYTES, options.memory_limit // (_LIMIT_SHARE * options.threads))
