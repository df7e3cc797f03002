"""Very many elements, kept as zarr lists them, chunk by chunk.

Columns over all of them would take many times the memory. So they are read a block at a
time, like the lists of users in `gpushard.selecting.listing`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.selecting.listing import (
    BLOCK_ELEMENTS,
    ListedBlock,
    Marks,
    elements_changed,
)
from gpushard.selecting.selection import Ints

Elements = range | Ints | NDArray[np.bool_]
"""Elements along one axis, from the start of a chunk or of the output; or a mask."""


class Taken(NamedTuple):
    """What is taken of one chunk.

    Attributes
    ----------
    starts
        Where the chunk begins along each axis that is listed.
    along
        Elements that are taken along each of these axes, counted from there.
    out
        Where the elements land.
    """

    starts: tuple[int, ...]
    along: tuple[Elements, ...]
    out: range | Ints


class _Cut(NamedTuple):
    """Some of the elements that are taken of a chunk.

    `places` are those of the listed elements, or the entries of a mask; `numbers` are
    their numbers among all that are taken of the chunk.
    """

    taken: Taken
    places: slice
    numbers: slice


class ChunkLists:
    """Elements that are taken of some chunks; see `gpushard.selecting.listing.Listing`.

    There is at least one chunk.
    """

    n_marks = 0  # zarr lists chunk by chunk, so elements need no sorting
    sum_of_places: int | None = None

    def __init__(self, taken: Sequence[Taken]) -> None:
        self._taken = taken
        self.n_axes = len(taken[0].starts)
        self._blocks = list(_blocks(taken))
        self.n_blocks = len(self._blocks)
        self.n_elements = sum(len(one.out) for one in taken)

    def block(self, number: int) -> ListedBlock:
        """Elements of a block; see `Listing`."""
        cuts = self._blocks[number]
        coordinates = tuple(
            np.concatenate(
                [
                    places_as_array(c.taken.along[d], c.places) + c.taken.starts[d]
                    for c in cuts
                ]
            )
            for d in range(self.n_axes)
        )
        out_index = np.concatenate(
            [places_as_array(c.taken.out, c.numbers) for c in cuts]
        )
        if any(len(along) != len(out_index) for along in coordinates):
            raise elements_changed()
        return ListedBlock(coordinates, out_index)

    def marks(self, number: int, rows: Ints) -> Marks:
        """Marks of elements of a block, which has none; see `Listing`."""
        raise NotImplementedError

    def at(self, numbers: Ints, marks: Marks) -> ListedBlock:
        """Elements with these marks, of which there are none; see `Listing`."""
        raise NotImplementedError

    def overlaps(self, array: NDArray[Any]) -> bool:
        """Whether writing to `array` may change the elements; see `Listing`."""
        return any(
            isinstance(elements, np.ndarray) and np.may_share_memory(elements, array)
            for one in self._taken
            for elements in one.along
        )


def count_of(elements: Elements) -> int:
    """Number of elements."""
    if isinstance(elements, np.ndarray) and elements.dtype == bool:
        return int(np.count_nonzero(elements))
    return len(elements)


def places_as_array(elements: Elements, places: slice = slice(None)) -> Ints:
    """The elements at some places: int64, shape (n,)."""
    some = elements[places]
    if isinstance(some, range):
        return np.arange(some.start, some.stop, some.step, dtype=np.int64)
    if some.dtype == bool:
        return np.flatnonzero(some) + (places.start or 0)
    return some.astype(np.int64, copy=False)


def _blocks(taken: Sequence[Taken]) -> Iterator[list[_Cut]]:
    """For each block, the elements in it: a part of a chunk's, or those of several."""
    block: list[_Cut] = []
    n_places = 0
    for one in taken:
        n_before = 0
        length = len(one.along[0])
        for first in range(0, length, BLOCK_ELEMENTS):
            last = min(first + BLOCK_ELEMENTS, length)
            places = slice(first, last)
            n = last - first
            for elements in one.along:
                if isinstance(elements, np.ndarray) and elements.dtype == bool:
                    n = int(np.count_nonzero(elements[places]))
            if n_places + last - first > BLOCK_ELEMENTS:
                yield block
                block, n_places = [], 0
            block.append(_Cut(one, places, slice(n_before, n_before + n)))
            n_places += last - first
            n_before += n
    if block:
        yield block
