"""Very many listed elements -> portions whose columns fit in memory.

A portion has the elements of some shards. If one shard has too many elements, a portion
has those of some of its inner chunks; if one inner chunk has too many, some of these.
So an inner chunk is fetched and decoded for one portion only, in whichever order the
elements are listed, unless it alone has too many elements.

The elements are counted by shard, a block at a time, and the portions are gathered one
after the other. If the listing is in the order of the shards, each block is looked at
about twice; otherwise once for each portion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.layout import ArrayLayout, GridAxis
from gpushard.selecting.listing import ListedBlock, join_blocks
from gpushard.selecting.numbering import (
    Numbers,
    chunk_digits,
    distinct,
    numbers_of,
    shard_digits,
)
from gpushard.selecting.projection import cells_of_slice
from gpushard.selecting.selection import Ints, Listed, Selection, SliceAxis

# Counts held at a time: 512 KiB.
_COUNTS_LOG2 = 16


class CellGroup(NamedTuple):
    """Elements whose cells are in no other group: a range of shards, or finer cells.

    Attributes
    ----------
    keys
        Numbers of the cells, from coarse to fine, that elements are sorted by.
    most
        Number of elements that a portion may have.
    fixed
        Values of the first keys, which all elements share.
    low, high
        Range of their next key, half-open.
    n_elements
        Number of elements of all portions.
    numbers
        int64: the blocks of the listing that may have such elements.
    """

    listed: Listed
    keys: Sequence[Numbers]
    most: int
    fixed: tuple[int, ...]
    low: int
    high: int
    n_elements: int
    numbers: Ints

    @property
    def is_split(self) -> bool:
        """Whether there are several portions, whose elements share the next key."""
        return self.n_elements > self.most

    @property
    def cell(self) -> tuple[int, ...]:
        """The shared cell along each listed axis, if the group is split."""
        return self.keys[len(self.fixed)].cell_of(self.low)

    def portions(self) -> Iterator[Selection]:
        """Portions, one at a time."""
        return map(self.listed.taking, self.blocks())

    def by_key(self) -> Iterator[CellGroup]:
        """Groups by the first key that is not fixed, ascending.

        If one has more elements than a portion, they have the same key.
        """
        high = self.keys[len(self.fixed)].n_numbers
        return self._replace(low=0, high=high).cut()

    def finer(self) -> Iterator[CellGroup]:
        """Groups of finer cells within a split group; none within the finest cells."""
        inside = self._replace(fixed=(*self.fixed, self.low))
        return inside.by_key() if len(inside.fixed) < len(self.keys) else iter(())

    def blocks(self) -> Iterator[ListedBlock]:
        """The elements, at most `most` at a time."""
        if not self.is_split:
            yield self._joined(self._matching(), self.n_elements)
        elif len(self.fixed) + 1 == len(self.keys):
            yield from self._in_order()
        else:
            for finer in self.finer():
                yield from finer.blocks()

    def cut(self) -> Iterator[CellGroup]:
        """Groups by ranges of the next key, as large as a portion, or of one key."""
        shift = max(0, (self.high - self.low - 1).bit_length() - _COUNTS_LOG2)
        counts, lowest, highest = self._counted(shift)
        ends = np.cumsum(counts)
        first, done = 0, 0
        while done < self.n_elements:
            last = int(np.searchsorted(ends, done + self.most, side="right"))
            last = max(last, first + 1)
            n_elements = int(ends[last - 1]) - done
            low = self.low + (first << shift)
            high = min(self.low + (last << shift), self.high)
            numbers = self.numbers[(lowest < high) & (highest >= low)]
            group = self._replace(
                low=low, high=high, n_elements=n_elements, numbers=numbers
            )
            if group.is_split and high - low > 1:
                yield from group.cut()
            elif n_elements:
                yield group
            first, done = last, done + n_elements

    def _counted(self, shift: int) -> tuple[Ints, Ints, Ints]:
        """Counts of elements per `2**shift` keys; lowest and highest key per block."""
        counts = np.zeros(((self.high - self.low - 1) >> shift) + 1, np.int64)
        lowest = np.full(len(self.numbers), np.iinfo(np.int64).max)
        highest = np.full(len(self.numbers), -1, np.int64)
        for i, number in enumerate(self.numbers.tolist()):
            block = self.listed.listing.block(number)
            key = self._next_key(block)
            key = key[self._rows(block, key)]
            if len(key):
                lowest[i], highest[i] = key.min(), key.max()
                counts += np.bincount((key - self.low) >> shift, minlength=len(counts))
        return counts, lowest, highest

    def _next_key(self, block: ListedBlock) -> Ints:
        return self.keys[len(self.fixed)].of(block.coordinates)

    def _rows(self, block: ListedBlock, key: Ints) -> NDArray[np.bool_]:
        """Which elements of a block, with their next key, belong to the group."""
        rows = (key >= self.low) & (key < self.high)
        for known, value in zip(self.keys, self.fixed, strict=False):
            rows &= known.of(block.coordinates) == value
        return rows

    def _matching(self) -> Iterator[ListedBlock]:
        for number in self.numbers.tolist():
            block = self.listed.listing.block(number)
            rows = self._rows(block, self._next_key(block))
            yield block if rows.all() else block.at(rows)

    def _in_order(self) -> Iterator[ListedBlock]:
        """The elements, all of whose keys are the same."""
        held: list[ListedBlock] = []
        n_held = 0
        for block in self._matching():
            done, n = 0, len(block.out_index)
            while done < n:
                end = min(n, done + self.most - n_held)
                held.append(block.at(slice(done, end)))
                n_held += end - done
                done = end
                if n_held == self.most:
                    yield self._joined(held, n_held)
                    held, n_held = [], 0
        if n_held:
            yield self._joined(held, n_held)

    def _joined(self, blocks: Iterable[ListedBlock], n_elements: int) -> ListedBlock:
        return join_blocks(blocks, self.listed.listing.n_axes, n_elements)


def groups_of(
    listed: Listed,
    layout: ArrayLayout,
    most: int,
    grids: Sequence[Sequence[GridAxis]] | None = None,
) -> Iterator[CellGroup]:
    """All elements of a selection, in portions of at most `most` elements.

    Shards are cut along `grids`, from coarse to fine; None means the grid of the
    innermost inner chunks.
    """
    if grids is None:
        grids = [layout.inner_axes] if layout.levels else []
    axes = range(layout.ndim) if listed.around is None else [listed.axis]
    outer = [layout.axes[d] for d in axes]
    digits = [shard_digits(outer)]
    for grid in grids:
        inner = [grid[d] for d in axes]
        digits.append(chunk_digits(inner, outer))
        outer = inner
    keys = [key for some in digits for key in numbers_of(some)]
    listing = listed.listing
    numbers = np.arange(listing.n_blocks)
    yield from CellGroup(
        listed, keys, most, (), 0, 0, listing.n_elements, numbers
    ).by_key()


def objects_of(group: CellGroup, layout: ArrayLayout) -> Iterator[tuple[int, ...]]:
    """Coordinates of the stored objects that a split group touches."""
    listed = group.listed
    if listed.around is None:
        yield from _cells_of(group, layout.axes)
        return
    touched: list[Sequence[int]] = []
    for d, (taken, outer) in enumerate(
        zip(listed.around.axes, layout.axes, strict=True)
    ):
        if d == listed.axis:
            touched.append(group.cell)
        elif isinstance(taken, SliceAxis):
            touched.append(cells_of_slice(taken, outer).tolist())
        else:
            touched.append(distinct(outer.cell_at(taken.element)).tolist())
    yield from product(*touched)


def _cells_of(group: CellGroup, axes: Sequence[GridAxis]) -> Iterator[tuple[int, ...]]:
    """Cells of points: one, if a single number tells all its coordinates."""
    if len(group.cell) == len(axes):
        return iter([group.cell])
    blocks = group.blocks()
    return iter({cell for block in blocks for cell in _cells_in(block, axes)})


def _cells_in(block: ListedBlock, axes: Sequence[GridAxis]) -> set[tuple[int, ...]]:
    along = zip(block.coordinates, axes, strict=True)
    return set(zip(*[outer.cell_at(c).tolist() for c, outer in along], strict=True))
