"""Very many listed elements -> portions whose columns fit in memory.

A portion has the elements of some shards. If one shard has too many elements, a portion
has those of some of its inner chunks; if one inner chunk has too many, some of these.
So an inner chunk is fetched and decoded for one portion only, in whichever order the
elements are listed, unless it alone has too many elements.

The elements are counted by shard, a block at a time, and the portions are gathered one
after the other. If the listing is in the order of the shards, each block is looked at
about twice. Otherwise it would be once for each portion; so the elements of as many
portions as there is room for are sorted out together (`sorting_out`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.layout import ArrayLayout, GridAxis
from gpushard.selecting.listing import ListedBlock, elements_changed, join_blocks
from gpushard.selecting.numbering import (
    Numbers,
    chunk_digits,
    distinct,
    numbers_of,
    shard_digits,
)
from gpushard.selecting.projection import cells_of_slice
from gpushard.selecting.selection import Ints, Listed, Selection, SliceAxis
from gpushard.selecting.sorting_out import (
    MOST_GROUPS,
    NO_ROOM,
    Room,
    SortedOut,
    sort_out,
)

# Counts held at a time: 512 KiB.
_COUNTS_LOG2 = 16
# Sorting out and making elements of marks take as long as so many looks at all blocks,
# besides the one that is needed anyhow.
_FEW_MORE_LOOKS = 3
# Part of the room of a portion for the marks of elements that are sorted out.
_MARKS_SHARE = 4
_MARK_NBYTES, _BOUND_NBYTES = 2, 4
# Where the marks of each block begin, for each group, may take one part of theirs.
_BOUNDS_SHARE = 8


class Looks(NamedTuple):
    """What a first look at the elements of a group found.

    Attributes
    ----------
    shift
        The elements were counted for ``2**shift`` keys each.
    ends
        int64, shape (n_counts + 1,). Sums of the counts, from 0 on.
    lowest, highest
        int64, shape (n_blocks,). Lowest and highest key of each block; of a block
        without such elements, the highest is below the lowest.
    """

    shift: int
    ends: Ints
    lowest: Ints
    highest: Ints

    def n_of(self, borders: Ints) -> int:
        """Number of looks at blocks for groups that have these keys as borders."""
        first = borders.searchsorted(self.lowest, side="right")
        last = borders.searchsorted(self.highest, side="right")
        return int(np.maximum(last - first + 1, 0).sum())


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
    room
        Memory for marks that the portions have not given up yet.
    marks_nbytes
        Room for marks, which the portions have given up.
    """

    listed: Listed
    keys: Sequence[Numbers]
    most: int
    fixed: tuple[int, ...]
    low: int
    high: int
    n_elements: int
    numbers: Ints
    room: Room = NO_ROOM
    marks_nbytes: int = 0

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
        inside = self._alone()._replace(fixed=(*self.fixed, self.low))
        return inside.by_key() if len(inside.fixed) < len(self.keys) else iter(())

    def blocks(self) -> Iterator[ListedBlock]:
        """The elements, at most `most` at a time."""
        if not self.is_split:
            yield self._joined(self._matching(), self.n_elements)
        elif len(self.fixed) + 1 == len(self.keys):
            yield from self._in_order()
        else:
            # A loop of its own would keep one finer group while the next is made.
            yield from chain.from_iterable(map(CellGroup.blocks, self.finer()))

    def cut(self) -> Iterator[CellGroup]:
        """Groups by ranges of the next key, as large as a portion, or of one key."""
        shift = max(0, (self.high - self.low - 1).bit_length() - _COUNTS_LOG2)
        counts, lowest, highest = self._counted(shift)
        looks = Looks(shift, np.append(0, np.cumsum(counts)), lowest, highest)
        if looks.ends[-1] != self.n_elements:
            raise elements_changed()
        cuts = self._cuts(looks)
        if self._is_worth_sorting(looks, np.array(cuts)):
            yield from self.with_marks().sorted_out(looks)
            return
        for first, last in pairwise(cuts):
            yield from self._part(looks, first, last).settled()

    def settled(self) -> Iterator[CellGroup]:
        """The group; or groups that it is cut into, if it is split between keys."""
        if self.is_split and self.high - self.low > 1:
            yield from self.cut()
        elif self.n_elements:
            yield self

    def _is_worth_sorting(self, looks: Looks, cuts: Ints) -> bool:
        """Whether groups with these cuts would look at the blocks all too often."""
        if not (self.room.element_nbytes or self.marks_nbytes):
            return False
        n_more = looks.n_of(self.low + (cuts << looks.shift)) - len(self.numbers)
        if (np.diff(looks.ends[cuts]) > self.most).any():
            n_more *= self.room.n_passes
        return n_more > _FEW_MORE_LOOKS * len(self.numbers)

    def _cuts(self, looks: Looks) -> list[int]:
        """Where groups begin among the counts, and the last one ends."""
        cuts, done = [0], 0
        while done < self.n_elements:
            last = int(looks.ends.searchsorted(done + self.most, side="right")) - 1
            cuts.append(max(last, cuts[-1] + 1))
            done = int(looks.ends[cuts[-1]])
        return cuts

    def _part(self, looks: Looks, first: int, last: int) -> CellGroup:
        """The elements of the counts ``first:last``."""
        low = self.low + (first << looks.shift)
        high = min(self.low + (last << looks.shift), self.high)
        return self._replace(
            low=low,
            high=high,
            n_elements=int(looks.ends[last] - looks.ends[first]),
            numbers=self.numbers[(looks.lowest < high) & (looks.highest >= low)],
        )

    def with_marks(self) -> CellGroup:
        """The same with room for marks, and smaller portions."""
        if self.marks_nbytes:
            return self
        return self._replace(
            most=self.most - self.most // _MARKS_SHARE,
            room=self.room._replace(element_nbytes=0),
            marks_nbytes=self.most * self.room.element_nbytes // _MARKS_SHARE,
        )

    def _alone(self) -> CellGroup:
        """The same, whose marks are to take no memory but its own."""
        return self._replace(room=self.room._replace(n_kept=0))

    def sorted_out(self, looks: Looks) -> Iterator[CellGroup]:
        """As `cut`; each block is looked at for many groups together."""
        cuts: Ints = np.array(self._cuts(looks))
        ends: Ints = looks.ends[cuts]
        is_split = np.diff(ends) > self.most
        # Groups that are split are sorted out once more, by finer cells. That takes few
        # elements at a time, so there may be more looks at these. Marks are needed
        # until others are made only by groups that are split.
        nbytes = self.marks_nbytes
        if is_split.any():
            nbytes -= nbytes // 4
        else:
            nbytes *= 1 + self.room.n_kept
        most = nbytes // (_MARK_NBYTES * self.listed.listing.n_marks)
        bounds_nbytes = _BOUND_NBYTES * len(self.numbers)
        most_groups = min(nbytes // _BOUNDS_SHARE // bounds_nbytes, MOST_GROUPS)
        first = 0
        while first < len(is_split):
            last = int(ends.searchsorted(int(ends[first]) + most, side="right")) - 1
            last = min(last, first + most_groups)
            if is_split[first:last].any() or last > first + 1:
                left = self._alone()._replace(
                    marks_nbytes=max(0, self.marks_nbytes - nbytes)
                )
                yield from left.together(looks, cuts[first : last + 1])
            else:  # one portion, or more elements than there is room for
                last = first + 1
                part = self._part(looks, int(cuts[first]), int(cuts[last]))
                yield from part.settled()
            first = last

    def together(self, looks: Looks, cuts: Ints) -> Iterator[CellGroup]:
        """Groups between some cuts, each with a listing of its own elements."""
        whole = self._part(looks, int(cuts[0]), int(cuts[-1]))
        nth = np.repeat(np.arange(len(cuts) - 1), np.diff(cuts)).astype(np.uint16)

        def groups_in(block: ListedBlock) -> tuple[Ints, NDArray[np.uint16]]:
            key = whole.next_key(block)
            rows = np.flatnonzero(whole.rows(block, key))
            return rows, nth[(key[rows] - whole.low) >> looks.shift]

        counts = np.diff(looks.ends[cuts])
        found = sort_out(self.listed.listing, whole.numbers, counts, groups_in)
        for (first, last), listing in zip(pairwise(cuts.tolist()), found, strict=True):
            part = self._part(looks, first, last)._replace(
                listed=self.listed._replace(listing=listing),
                numbers=np.arange(listing.n_blocks),
            )
            yield from part.settled()

    def _counted(self, shift: int) -> tuple[Ints, Ints, Ints]:
        """Counts of elements per `2**shift` keys; lowest and highest key per block."""
        counts = np.zeros(((self.high - self.low - 1) >> shift) + 1, np.int64)
        lowest = np.full(len(self.numbers), np.iinfo(np.int64).max)
        highest = np.full(len(self.numbers), -1, np.int64)
        for i, number in enumerate(self.numbers.tolist()):
            block = self.listed.listing.block(number)
            key = self.next_key(block)
            key = key[self.rows(block, key)]
            if len(key):
                lowest[i], highest[i] = key.min(), key.max()
                counts += np.bincount((key - self.low) >> shift, minlength=len(counts))
        return counts, lowest, highest

    def next_key(self, block: ListedBlock) -> Ints:
        """First key that is not fixed, of each element of a block."""
        return self.keys[len(self.fixed)].of(block.coordinates)

    def rows(self, block: ListedBlock, key: Ints) -> NDArray[np.bool_]:
        """Which elements of a block, with their next key, belong to the group."""
        rows = (key >= self.low) & (key < self.high)
        if self._has_all:
            return rows
        for known, value in zip(self.keys, self.fixed, strict=False):
            rows &= known.of(block.coordinates) == value
        return rows

    @property
    def _has_all(self) -> bool:
        """Whether the listing was sorted out and has no other elements."""
        listing = self.listed.listing
        return isinstance(listing, SortedOut) and listing.n_elements == self.n_elements

    def _matching(self) -> Iterator[ListedBlock]:
        for number in self.numbers.tolist():
            block = self.listed.listing.block(number)
            if self._has_all:
                yield block
                continue
            rows = self.rows(block, self.next_key(block))
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
    room: Room = NO_ROOM,
) -> Iterator[CellGroup]:
    """All elements of a selection, in portions of at most `most` elements.

    Shards are cut along `grids`, from coarse to fine; None means the grid of the
    innermost inner chunks. Where `room` has memory for marks, elements may be
    sorted out for several portions. Then no group may be kept while the next is made,
    but those that `room` counts.
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
        listed,
        keys,
        most,
        (),
        0,
        0,
        listing.n_elements,
        numbers,
        room if listing.n_marks else NO_ROOM,
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
