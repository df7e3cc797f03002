"""Long lists of points -> the box around them, to pick from.

Columns say for each point where it lies and where it lands, in the order of the inner
chunks. If points are dense, they take longer to make than it takes to read all elements
around, and to have NumPy pick the points in the order of the list.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from gpushard.placing.outputs import new_output
from gpushard.reading.crossed import takes_others
from gpushard.reading.rounds import Reader
from gpushard.selecting.index_arrays import KEPT_ELEMENTS
from gpushard.selecting.listing import Listing, elements_changed
from gpushard.selecting.numbering import Ints
from gpushard.selecting.selection import Listed, Orthogonal, SliceAxis
from gpushard.source import Source

# Elements that are read and picked from in the time in which a point is listed: fewer,
# where unwanted bytes come over a network.
_MANY_PER_POINT, _FEW_PER_POINT = 8, 2
# The part of the memory limit that a box may take.
_BOX_SHARE = 4

_Range = tuple[int, int]


def read_surrounded(
    source: Source, listed: Listed, out: NDArray[Any], read: Reader
) -> bool:
    """Whether a list of points could be read into `out` from the box around them.

    Each inner chunk of the box is read once, also those without points. If anything
    cannot be read, it may be such a one, so the read is given up.

    Raises
    ------
    SelectionError
        The list was changed while it was read.
    """
    listing = listed.listing
    # Along a single axis, elements of any list are points.
    if listed.around is not None and source.layout.ndim > 1:
        return False
    if not (is_flat(out) and takes_others(source, out.dtype)):
        return False
    most = _most_elements(source, listing.n_elements, out.dtype)
    box = _box_around(listing, most)
    if box is None:
        return False
    shape = tuple(end - begin for begin, end in box)
    axes = tuple(SliceAxis(begin, 1, end - begin) for begin, end in box)
    values = new_output(shape, out.dtype)
    try:
        read(source.beside(values.nbytes), [Orthogonal(axes, shape)], [values])
    except ObjectChangedError:
        raise
    except (CorruptShardError, LimitError, StoreError):
        return False
    target, elements = out.reshape(-1), values.reshape(-1)
    for nth, place in _places(listing, box):
        target[place] = elements.take(nth)
    return True


def is_surrounded(source: Source, n_points: int) -> bool:
    """Whether so many points are picked from a box, wherever in the array they lie."""
    layout = source.layout
    if n_points <= KEPT_ELEMENTS or not takes_others(source, layout.dtype):
        return False
    return prod(layout.shape) <= _most_elements(source, n_points, layout.dtype)


def _most_elements(source: Source, n_points: int, dtype: np.dtype[Any]) -> int:
    """Most elements of a box that fits, and takes less time than listing the points."""
    is_far = source.store.costs.prefers_whole_objects
    most = n_points * (_FEW_PER_POINT if is_far else _MANY_PER_POINT)
    fitting = source.options.memory_limit // _BOX_SHARE // max(dtype.itemsize, 1)
    return min(most, fitting)


def _box_around(listing: Listing, most: int) -> list[_Range] | None:
    """Range along each axis around all points; None for more than `most` elements."""
    low: list[int] = []
    high: list[int] = []
    for number in range(listing.n_blocks):
        coordinates, _ = listing.block(number)
        if not len(coordinates[0]):
            continue
        firsts = [int(along.min()) for along in coordinates]
        lasts = [int(along.max()) for along in coordinates]
        low = [*map(min, low or firsts, firsts)]
        high = [*map(max, high or lasts, lasts)]
        if prod(b - a + 1 for a, b in zip(low, high, strict=True)) > most:
            return None
    return [(a, b + 1) for a, b in zip(low, high, strict=True)] or None


def _places(listing: Listing, box: list[_Range]) -> Iterator[tuple[Ints, Ints]]:
    """For some points at a time, which elements of the box they are, in C order.

    And where each lands in the flattened output.
    """
    for number in range(listing.n_blocks):
        coordinates, place = listing.block(number)
        if not len(place):
            continue
        nth = np.zeros(len(place), np.int64)
        for along, (begin, end) in zip(coordinates, box, strict=True):
            if along.min() < begin or along.max() >= end:
                raise elements_changed()
            nth *= end - begin
            nth += along
            nth -= begin
        yield nth, place
