"""Points of an array -> a list per inner chunk, in the form that the loops take."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.fused.addresses import address_of
from gpushard.fused.columns import (
    FIRST_LENGTH,
    GAP_NBYTES,
    KEEP,
    LIST_AXIS,
    LIST_FIRST,
    LIST_INNER,
    LIST_OUTER,
    LIST_WORDS,
    LISTED,
    N_LISTED,
    OFFSET,
    PART,
    TARGET,
)
from gpushard.planning.points import PointPart
from gpushard.planning.spans import between, extremes_of
from gpushard.selecting.selection import Ints

# Bytes between plain elements from which on each is read by itself, on average, if that
# makes no more than so many boxes.
_APART_NBYTES, _MOST_BOXES = 2 * GAP_NBYTES, 1 << 16


class PointLanding(NamedTuple):
    """Points, and the output that they are written to.

    Attributes
    ----------
    part
        The points, sorted by inner chunk.
    address
        Address of the output's first element.
    extents
        Shape of the output, whose elements can be numbered from 0 at one distance.
    strides
        For each axis of the array the bytes between such neighbours in the output.
    outer
        int64, shape (n_points,), contiguous. Where each point lands, by that number.
    is_plain
        Whether points are plain elements in a file, which need not be decoded.
    """

    part: PointPart
    address: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    outer: Ints
    is_plain: bool = False

    @classmethod
    def of(
        cls, part: PointPart, out: NDArray[Any], *, is_plain: bool = False
    ) -> PointLanding:
        """Landing of points in a host array, if `is_flat` holds for it."""
        strides = out.reshape(-1).strides * len(part.in_index)
        outer = np.ascontiguousarray(part.out_index)
        return cls(part, address_of(out), out.shape, strides, outer, is_plain)

    @property
    def steps(self) -> tuple[int, ...]:
        """Step between wanted elements of an inner chunk, along each axis."""
        return (1,) * len(self.strides)


def is_flat(out: NDArray[Any]) -> bool:
    """Whether the elements of an array, in C order, lie at one distance."""
    return out.flags.c_contiguous or out.ndim == 1


def cut_points(
    landing: PointLanding, chunk_strides: tuple[int, ...], position: Ints
) -> tuple[Ints, Ints]:
    """Boxes of inner chunks at `position`: see `boxes.cut`. Each has a list of points.

    Plain elements that lie far apart are boxes instead.

    The list numbers the elements of an inner chunk in the order of its bytes, which is
    the order along the axis whose neighbours are adjacent, with no end.
    """
    part, n, n_axes = landing.part, position.shape[1], len(chunk_strides)
    along = chunk_strides.index(min(chunk_strides))
    run, starts, nth = between(part.bounds, position[0])
    n_words, n_columns = LIST_WORDS * n, (FIRST_LENGTH + n_axes) * n
    # One piece of memory: as long as somebody has the boxes, their lists are there.
    memory = np.empty(n_columns + n_words + run.stop - run.start, np.int64)
    boxes = memory[:n_columns].reshape(n, -1)
    words = memory[n_columns : n_columns + n_words].reshape(n, -1)
    inner = memory[n_columns + n_words :]
    inner[:] = 0
    for index, stride in zip(part.in_index, chunk_strides, strict=True):
        inner += index[run] * (stride // chunk_strides[along])
    first, last = extremes_of(inner, starts, nth)
    begin, itemsize = part.bounds[position[0]], inner.itemsize
    count = part.bounds[position[0] + 1] - begin
    n_between = int((last - first + 1).sum() - count.sum())
    if landing.is_plain and are_apart(
        int(count.sum()), n_between * chunk_strides[along]
    ):
        place = inner * chunk_strides[along]
        return _boxes_of_points(landing, place, begin, count, run.start)
    words[:, N_LISTED] = count
    words[:, LIST_AXIS], words[:, LIST_FIRST] = along, first
    words[:, LIST_INNER] = address_of(inner) + (begin - run.start) * itemsize
    words[:, LIST_OUTER] = address_of(landing.outer) + begin * itemsize
    boxes[:, OFFSET], boxes[:, TARGET] = first * chunk_strides[along], landing.address
    boxes[:, LISTED] = address_of(words) + np.arange(n) * words.strides[0]
    boxes[:, PART], boxes[:, KEEP], boxes[:, FIRST_LENGTH:] = 0, 0, 1
    boxes[:, FIRST_LENGTH + along] = last - first + 1
    return boxes, np.arange(n)


def are_apart(n_boxes: int, n_between_nbytes: int) -> bool:
    """Whether plain elements are better read in `n_boxes` than with all between."""
    return n_between_nbytes > _APART_NBYTES * n_boxes and n_boxes <= _MOST_BOXES


def _boxes_of_points(
    landing: PointLanding, place: Ints, begin: Ints, count: Ints, start: int
) -> tuple[Ints, Ints]:
    """A box for each point, in the order of the file.

    Parameters
    ----------
    place
        Place in its inner chunk, in bytes, of each point from number `start` on.
    begin, count
        First point of each inner chunk, and how many it has.
    """
    row = np.repeat(np.arange(len(count)), count)
    point = np.arange(len(row)) + np.repeat(begin - (np.cumsum(count) - count), count)
    point = point[np.lexsort((place[point - start], row))]
    boxes = np.zeros((len(row), FIRST_LENGTH + len(landing.strides)), np.int64)
    boxes[:, OFFSET] = place[point - start]
    boxes[:, TARGET] = landing.address + landing.outer[point] * landing.strides[0]
    boxes[:, FIRST_LENGTH:] = 1
    return boxes, row
