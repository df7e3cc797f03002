"""Masks with many true elements -> boxes of the array, to pick from.

Columns say for each listed element where it lies and where it lands. Of a mask of
several axes they take longer to make than it takes to read all elements around, and to
have NumPy pick those where the mask is true.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

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
from gpushard.options import MIB
from gpushard.placing.outputs import new_output
from gpushard.reading.crossed import takes_others
from gpushard.reading.rounds import Reader, read_unchanged
from gpushard.selecting.listing import TrueElements, elements_changed
from gpushard.selecting.numbering import Ints
from gpushard.selecting.selection import Listed, Orthogonal, SliceAxis
from gpushard.source import Source

# Elements that are read and picked from in the time in which one is listed: fewer,
# where unwanted bytes come over a network.
_MANY_PER_TRUE, _FEW_PER_TRUE = 16, 2
# The part of the memory limit that a box may take. More than some MiB gain nothing.
_BOX_SHARE, _MOST_NBYTES = 4, 32 * MIB
# The part that the places of the rows of boxes may take: 16 bytes each, and as much
# again while they are counted.
_PLACES_SHARE, _PLACE_NBYTES = 8, 32
# Elements that are picked from at a time, so that what is picked stays in a CPU cache.
_PICKED = 1 << 18

_Mask = NDArray[np.bool_]
Range = tuple[int, int]


class _Boxes(NamedTuple):
    """How an array is cut into boxes.

    Attributes
    ----------
    axes
        The grid of which no cell is cut: that of shards, or that of inner chunks.
    shape
        Shape of the largest box.
    last_cut
        Last axis that is cut; boxes have all elements of those behind it.
    has_shards
        Whether no shard is cut.
    """

    axes: tuple[GridAxis, ...]
    shape: tuple[int, ...]
    last_cut: int
    has_shards: bool


def read_masked(
    source: Source, listed: Listed, out: NDArray[Any], read: Reader
) -> bool:
    """Whether the true elements of a mask could be read into `out` from boxes.

    Each inner chunk is read once, and each shard in one version. A box may have inner
    chunks without true elements. If anything cannot be read, it may be such a one, so
    the read is given up.

    Raises
    ------
    SelectionError
        The mask was changed while it was read.
    """
    listing = listed.listing
    if not isinstance(listing, TrueElements):
        return False
    if listing.mask.shape != source.layout.shape:  # it covers one of several axes
        return False
    if not (is_flat(out) and takes_others(source, out.dtype)):
        return False
    boxes = _boxes(source, out.dtype)
    if boxes is None or not _is_dense(source, listing, boxes):
        return False
    reading = _MaskedRead(source, listing.mask, out.reshape(-1), read, boxes)
    try:
        n_read = reading.run()
    except ObjectChangedError:
        raise
    except (CorruptShardError, LimitError, StoreError):
        return False
    if n_read != listing.n_elements:
        raise elements_changed()
    return True


def _boxes(source: Source, dtype: np.dtype[Any]) -> _Boxes | None:
    """Boxes of whole shards, or else of whole inner chunks; None if these are large."""
    layout = source.layout
    limit = source.options.memory_limit
    most = min(limit // _BOX_SHARE, _MOST_NBYTES) // max(dtype.itemsize, 1)
    for axes, has_shards in ((layout.axes, True), (layout.inner_axes, False)):
        shape = [min(axis.longest, axis.extent) for axis in axes]
        if not 0 < prod(shape) <= most:
            continue
        last_cut = 0
        for d in reversed(range(len(axes))):
            fitting = shape[d] * (most // prod(shape))
            if fitting < axes[d].extent:
                shape[d], last_cut = fitting, d
                break
            shape[d] = axes[d].extent
        # Two ranges side by side have more elements than one may have.
        n_cuts = 2 * axes[last_cut].extent // shape[last_cut] + 1
        rows = [shape[0], *(axis.extent for axis in axes[1:last_cut])]
        n_places = prod(rows[:last_cut]) * n_cuts
        if n_places * _PLACE_NBYTES * _PLACES_SHARE <= limit:
            return _Boxes(tuple(axes), tuple(shape), last_cut, has_shards)
    return None


def _is_dense(source: Source, listing: TrueElements, boxes: _Boxes) -> bool:
    """Whether reading all of the boxes with true elements takes less than listing."""
    is_far = source.store.costs.prefers_whole_objects
    most = listing.n_elements * (_FEW_PER_TRUE if is_far else _MANY_PER_TRUE)
    mask, n_around = listing.mask, 0
    if mask.size <= most:
        return True
    cuts = [
        cuts_of(axis, (0, axis.extent), longest)
        for axis, longest in zip(boxes.axes, boxes.shape, strict=True)
    ]
    for box in product(*map(list, cuts)):
        here = mask[tuple(slice(*one) for one in box)]
        if here.any():
            n_around += here.size
            if n_around > most:
                return False
    return True


def cuts_of(axis: GridAxis, within: Range, most: int) -> Iterator[Range]:
    """Ranges of at most `most` elements of an axis, or of one cell, that cut no cell.

    `within` begins and ends at borders of cells, or at the end of the axis.
    """
    at, end = within
    while at < end:
        stop = min(at + most, end)
        if stop < end:
            stop = int(axis.start_of(axis.cell_at(stop)))
            if stop <= at:
                stop = min(int(axis.start_of(axis.cell_at(at) + 1)), end)
        yield at, stop
        at = stop


class _MaskedRead:
    """A read of the true elements of a mask, in the order of the array's elements.

    Parameters
    ----------
    out
        Host, shape (n,).
    """

    def __init__(
        self,
        source: Source,
        mask: _Mask,
        out: NDArray[Any],
        read: Reader,
        boxes: _Boxes,
    ) -> None:
        self._layout = source.layout
        self._mask = mask
        self._out = out
        self._read = read
        self._boxes = boxes
        self._memory = new_output((prod(boxes.shape),), out.dtype)
        self._source = source
        self._beside = source.beside(self._memory.nbytes)

    def run(self) -> int:
        """Read everything; the number of elements that were found."""
        first, boxes = 0, self._boxes
        outer = self._layout.axes[0]
        for shelf in cuts_of(outer, (0, outer.extent), boxes.shape[0]):
            if boxes.has_shards:
                first = self._read_slab(shelf, first)
                continue

            def read_all(shelf: Range = shelf, first: int = first) -> int:
                for slab in cuts_of(boxes.axes[0], shelf, boxes.shape[0]):
                    first = self._read_slab(slab, first)
                return first

            first = read_unchanged(self._source, self._shards(shelf), read_all)
        return first

    def _shards(self, shelf: Range) -> list[tuple[int, ...]]:
        """Coordinates of the shards with true elements in a range of the first axis."""
        found: list[tuple[int, ...]] = []
        axes = self._layout.axes
        ranges = [shelf, *((0, axis.extent) for axis in axes[1:])]
        cells = [
            range(int(axis.cell_at(begin)), int(axis.cell_at(end - 1)) + 1)
            for axis, (begin, end) in zip(axes, ranges, strict=True)
        ]
        for coordinate in product(*cells):
            where = tuple(
                slice(int(axis.start_of(cell)), int(axis.start_of(cell + 1)))
                for axis, cell in zip(axes, coordinate, strict=True)
            )
            if self._mask[where].any():
                found.append(coordinate)
        return found

    def _read_slab(self, slab: Range, first: int) -> int:
        """Read the boxes in a range of the first axis, which land from `first` on.

        Returns the end of where they land.
        """
        boxes, mask = self._boxes, self._mask[slice(*slab)]
        cuts = [[slab]]
        for axis, longest in zip(boxes.axes[1:], boxes.shape[1:], strict=True):
            cuts.append(list(cuts_of(axis, (0, axis.extent), longest)))
        counts = _counts(mask, cuts[boxes.last_cut], boxes.last_cut)
        ends = first + np.cumsum(counts).reshape(counts.shape)
        if ends.max() > len(self._out):
            raise elements_changed()
        for box in product(*cuts):
            nth = cuts[boxes.last_cut].index(box[boxes.last_cut])
            rows = (
                *(slice(None) for _ in range(min(boxes.last_cut, 1))),
                *(slice(*one) for one in box[1 : boxes.last_cut]),
                nth,
            )
            n_true = counts[rows].reshape(-1)
            if n_true.any():
                begins = ends[rows].reshape(-1) - n_true
                self._read_box(box, begins, n_true)
        return int(ends.reshape(-1)[-1])

    def _read_box(self, box: Sequence[Range], begins: Ints, n_true: Ints) -> None:
        """Read a box, and pick its true elements.

        Parameters
        ----------
        begins, n_true
            For each of its rows, which are contiguous in the mask, where its elements
            land, and how many there are.
        """
        shape = tuple(end - begin for begin, end in box)
        values = self._memory[: prod(shape)].reshape(shape)
        axes = tuple(SliceAxis(begin, 1, end - begin) for begin, end in box)
        self._read(self._beside, [Orthogonal(axes, shape)], [values])
        wanted = self._mask[tuple(slice(*one) for one in box)]
        n_rows = len(begins)
        rows, wanted_rows = values.reshape(n_rows, -1), wanted.reshape(n_rows, -1)
        if n_rows == 1 or rows.shape[1] >= _PICKED:
            landing = zip(begins.tolist(), n_true.tolist(), strict=True)
            for row, wanted_row, place in zip(rows, wanted_rows, landing, strict=True):
                self._pick_run(row, wanted_row, *place)
            return
        step = _PICKED // rows.shape[1]
        for at in range(0, n_rows, step):
            some = slice(at, at + step)
            found = rows[some][wanted_rows[some]]
            n = n_true[some]
            if len(found) != n.sum():
                raise elements_changed()
            landing = np.repeat(begins[some] - (np.cumsum(n) - n), n)
            landing += np.arange(len(found))
            self._out[landing] = found

    def _pick_run(
        self, values: NDArray[Any], wanted: _Mask, begin: int, n_true: int
    ) -> None:
        """Pick the true elements of one row, which land side by side."""
        end = begin + n_true
        for at in range(0, len(values), _PICKED):
            found = values[at : at + _PICKED][wanted[at : at + _PICKED]]
            if begin + len(found) > end:
                raise elements_changed()
            self._out[begin : begin + len(found)] = found
            begin += len(found)
        if begin != end:
            raise elements_changed()


def _counts(mask: _Mask, cuts: Sequence[Range], axis: int) -> Ints:
    """True elements in each range of an axis, for each element of the axes before it.

    Shape: that of the mask up to the axis, and the number of ranges.
    """
    if axis == 0:
        return np.array([np.count_nonzero(mask)])
    found = np.empty((*mask.shape[:axis], len(cuts)), np.int64)
    before = (slice(None),) * (axis - 1)
    behind = tuple(range(axis - 1, mask.ndim - 1))
    # Summed as bytes, a few at a time: no copy of the mask is made.
    for row, part in enumerate(mask):
        for nth, cut in enumerate(cuts):
            piece = part[(*before, slice(*cut))]
            found[row, ..., nth] = np.count_nonzero(piece, axis=behind)
    return found
