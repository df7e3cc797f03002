"""Long lists of elements -> boxes around them, to pick from.

Columns say for each element where it lies and where it lands, in the order of the inner
chunks. If elements are dense, they take longer to make than it takes to read all
elements around, and to have NumPy pick the elements in the order of the list.

All points are picked from one box, and so are elements along one axis. If these ascend,
there may be several boxes, one behind the other, none of which share a shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import (
    CorruptShardError,
    LimitError,
    ObjectChangedError,
    StoreError,
)
from gpushard.fused.points import is_flat
from gpushard.layout import GridAxis
from gpushard.placing.outputs import new_output
from gpushard.reading.crossed import takes_others
from gpushard.reading.masked import Range, cuts_of
from gpushard.reading.rounds import Reader
from gpushard.selecting.index_arrays import KEPT_ELEMENTS
from gpushard.selecting.listing import elements_changed
from gpushard.selecting.numbering import Ints, as_slice
from gpushard.selecting.selection import AxisSelection, Listed, Orthogonal, SliceAxis
from gpushard.source import Source

# Elements that are read and picked from in the time in which one is listed: fewer,
# where unwanted bytes come over a network.
_MANY_PER_ELEMENT, _FEW_PER_ELEMENT = 8, 2
# Elements along one axis of several are rows of the others. Longer ones gain nothing,
# as they are copied twice.
_MOST_ROW_NBYTES = 16
# Elements between two others that take longer to read than to begin another box.
_LONG_GAP = 1 << 16
# The part of the memory limit that a box may take.
_BOX_SHARE = 4

_Box = Sequence[Range]
"""Range along each listed axis."""


def read_surrounded(
    source: Source, listed: Listed, out: NDArray[Any], read: Reader
) -> bool:
    """Whether a list could be read into `out` from boxes around its elements.

    Each shard is read in one box, and also inner chunks without listed elements. If
    anything cannot be read, it may be such a one, so the read is given up.

    Raises
    ------
    SelectionError
        The list was changed while it was read.
    """
    if not takes_others(source, out.dtype):
        return False
    if listed.around is None:
        if not is_flat(out):
            return False
    elif source.layout.ndim > 1:
        itemsize = max(source.layout.dtype.itemsize, out.dtype.itemsize)
        if _n_per_row(listed) * itemsize > _MOST_ROW_NBYTES:
            return False
    boxes = _boxes_around(source, listed, out.dtype)
    if not boxes:
        return False
    try:
        _pick(listed, boxes, _read_boxes(source, listed, boxes, out.dtype, read), out)
    except ObjectChangedError:
        raise
    except (CorruptShardError, LimitError, StoreError):
        return False
    return True


def is_surrounded(source: Source, n_points: int) -> bool:
    """Whether so many points are picked from a box, wherever in the array they lie."""
    layout = source.layout
    if n_points <= KEPT_ELEMENTS or not takes_others(source, layout.dtype):
        return False
    most = min(_most_around(source, n_points), _most_fitting(source, layout.dtype, 1))
    return prod(layout.shape) <= most


def _n_per_row(listed: Listed) -> int:
    """Number of elements that are taken along the other axes for each listed one."""
    if listed.around is None:
        return 1
    lengths = listed.around.grid_shape
    return prod(n for d, n in enumerate(lengths) if d != listed.axis)


def _most_around(source: Source, n_elements: int) -> int:
    """Most elements that are read and picked from in less time than listing takes."""
    is_far = source.store.costs.prefers_whole_objects
    return n_elements * (_FEW_PER_ELEMENT if is_far else _MANY_PER_ELEMENT)


def _most_fitting(source: Source, dtype: np.dtype[Any], n_per_row: int) -> int:
    """Most rows that a box may have."""
    row_nbytes = max(dtype.itemsize * n_per_row, 1)
    return source.options.memory_limit // _BOX_SHARE // row_nbytes


def _boxes_around(
    source: Source, listed: Listed, dtype: np.dtype[Any]
) -> list[_Box] | None:
    """Boxes with all elements, in their order; None if listing takes less time."""
    listing, n_per_row = listed.listing, _n_per_row(listed)
    if not n_per_row:
        return None
    most = _most_around(source, listing.n_elements)
    fitting = _most_fitting(source, dtype, n_per_row)
    low: list[int] = []
    high: list[int] = []
    begins: list[Ints] = []
    ends: list[Ints] = []
    ascends = listing.n_axes == 1
    is_one = True
    for number in range(listing.n_blocks):
        coordinates, _ = listing.block(number)
        if not len(coordinates[0]):
            continue
        firsts = [int(along.min()) for along in coordinates]
        lasts = [int(along.max()) for along in coordinates]
        if ascends:
            (along,) = coordinates
            steps = np.diff(along)
            ascends = steps.min(initial=0) >= 0 and firsts[0] >= max(high, default=0)
            gaps = np.flatnonzero(steps > _LONG_GAP)
            begins.append(along[np.append(0, gaps + 1)])
            ends.append(along[np.append(gaps, -1)] + 1)
        low = [*map(min, low or firsts, firsts)]
        high = [*map(max, high or lasts, lasts)]
        n_around = prod(b - a + 1 for a, b in zip(low, high, strict=True))
        is_one = n_around <= min(most, fitting)
        if not (is_one or ascends):
            return None
    if is_one:
        return [[(a, b + 1) for a, b in zip(low, high, strict=True)]] if low else None
    outer = source.layout.axes[listed.axis]
    ranges = _ranges(outer, np.concatenate(begins), np.concatenate(ends), fitting)
    lengths = [end - begin for begin, end in ranges]
    is_much = max(lengths) > fitting or sum(lengths) > most
    return None if is_much else [[one] for one in ranges]


def _ranges(outer: GridAxis, begins: Ints, ends: Ints, most: int) -> list[Range]:
    """Ranges around others that ascend. No shard has elements of two.

    Each has at most `most` elements, or is in a single shard.
    """
    first, last = outer.cell_at(begins), outer.cell_at(ends - 1)
    is_apart = np.append(True, first[1:] > last[:-1])
    found: list[Range] = []
    for a, b in pairwise([*np.flatnonzero(is_apart).tolist(), len(first)]):
        shards = int(outer.start_of(first[a])), int(outer.start_of(last[b - 1] + 1))
        for begin, end in cuts_of(outer, shards, most):
            found.append((max(begin, int(begins[a])), min(end, int(ends[b - 1]))))
    return found


def _read_boxes(
    source: Source,
    listed: Listed,
    boxes: Sequence[_Box],
    dtype: np.dtype[Any],
    read: Reader,
) -> Iterator[tuple[_Box, NDArray[Any]]]:
    """Each box, with the elements in it; flat, if these are points.

    What was read is overwritten when the next box is.
    """
    selections = [_selection_of(listed, box) for box in boxes]
    memory = new_output((max(prod(one.shape) for one in selections),), dtype)
    beside = source.beside(memory.nbytes)
    for box, selection in zip(boxes, selections, strict=True):
        flat = memory[: prod(selection.shape)]
        values = flat.reshape(selection.shape)
        read(beside, [selection], [values])
        yield box, flat if listed.around is None else values


def _selection_of(listed: Listed, box: _Box) -> Orthogonal:
    """Selection of a box, with no axis dropped."""
    axes: list[AxisSelection] = [SliceAxis(a, 1, b - a) for a, b in box]
    if listed.around is not None:
        (along,) = axes
        axes = [
            axis._replace(drop=False) if isinstance(axis, SliceAxis) else axis
            for axis in listed.around.axes
        ]
        axes[listed.axis] = along
    return Orthogonal(tuple(axes), tuple(axis.length for axis in axes))


def _pick(
    listed: Listed,
    boxes: Sequence[_Box],
    found: Iterator[tuple[_Box, NDArray[Any]]],
    out: NDArray[Any],
) -> None:
    """Copy the listed elements from the boxes, one after the other, to their places."""
    if listed.around is None:
        axis, target = 0, out.reshape(-1)
    else:
        axis, target = listed.axis, listed.around.on_grid(out)
    along = (slice(None),) * axis
    box, values = _next_of(found)
    for number in range(listed.listing.n_blocks):
        coordinates, place = listed.listing.block(number)
        first, n = coordinates[0], len(place)
        done = 0
        while done < n:
            end = n
            if len(boxes) > 1:
                while first[done] >= box[0][1]:
                    box, values = _next_of(found)
                end = done + int(first[done:].searchsorted(box[0][1]))
            nth = _nth_of([c[done:end] for c in coordinates], box)
            landing = as_slice(place[done:end])
            target[(*along, landing)] = values.take(nth, axis=axis)
            done = end


def _nth_of(coordinates: Sequence[Ints], box: _Box) -> Ints:
    """Which elements of a box some are, in C order over the listed axes."""
    nth = np.zeros(len(coordinates[0]), np.int64)
    for along, (begin, end) in zip(coordinates, box, strict=True):
        if along.min() < begin or along.max() >= end:
            raise elements_changed()
        nth *= end - begin
        nth += along
        nth -= begin
    return nth


def _next_of(found: Iterator[tuple[_Box, NDArray[Any]]]) -> tuple[_Box, NDArray[Any]]:
    """The next box; all elements lay in boxes when the list was looked at first."""
    for one in found:
        return one
    raise elements_changed()
