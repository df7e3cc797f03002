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

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.layout import ArrayLayout, GridAxis
from gpushard.selecting.listing import ListedBlock, Listing, joined
from gpushard.selecting.numbering import Numbers, chunk_digits, numbers_of, shard_digits
from gpushard.selecting.selection import (
    Ints,
    Listed,
    Points,
    Selection,
    SliceAxis,
    cells_of_slice,
)

# Counts held at a time: 512 KiB.
_COUNTS_LOG2 = 16


class Group(NamedTuple):
    """Elements whose cells are in no other group: shards, or cells of finer groups.

    `cutter` and `span` tell which elements of the selection these are.
    """

    listed: Listed
    cutter: _Cutter
    span: _Span

    @property
    def n_elements(self) -> int:
        """Number of elements of all portions."""
        return self.span.n_elements

    @property
    def is_split(self) -> bool:
        """Whether there are several portions, which share a cell, or a row of cells."""
        return self.cutter.is_split(self.span)

    @property
    def cell(self) -> tuple[int, ...]:
        """The shared cell along each listed axis, if the group is split."""
        return self.cutter.cell(self.span)

    def portions(self) -> Iterator[Selection]:
        """Portions, one at a time."""
        return map(self.listed.taking, self.cutter.blocks(self.span))

    def finer(self) -> Iterator[Group]:
        """Groups of finer cells within a split group; none within the finest cells."""
        for span in self.cutter.finer(self.span):
            yield self._replace(span=span)


def groups_of(
    listed: Listed,
    layout: ArrayLayout,
    most: int,
    grids: Sequence[Sequence[GridAxis]] | None = None,
) -> Iterator[Group]:
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
    cutter = _Cutter(listed.listing, keys, most)
    for span in cutter.spans(_Span.whole(listed.listing)):
        yield Group(listed, cutter, span)


def objects_of(selection: Selection, layout: ArrayLayout) -> Iterator[tuple[int, ...]]:
    """Coordinates of the stored objects that a selection touches."""
    if isinstance(selection, Points):
        along = zip(selection.coordinates, layout.axes, strict=True)
        cells = np.stack([outer.cell_at(c) for c, outer in along])
        return map(tuple, np.unique(cells, axis=1).T.tolist())
    touched: list[list[int]] = []
    for taken, outer in zip(selection.axes, layout.axes, strict=True):
        if isinstance(taken, SliceAxis):
            has_any = taken.length > 0
            cell = cells_of_slice(taken, outer) if has_any else np.empty(0, np.int64)
        else:
            cell = np.unique(outer.cell_at(taken.element))
        touched.append(cell.tolist())
    return product(*touched)


class _Span(NamedTuple):
    """The elements of a range of keys.

    Attributes
    ----------
    fixed
        Values of their first keys.
    low, high
        Range of their next key, half-open; that of all elements if there is no next
        key.
    numbers
        int64: the blocks of the listing that may have such elements.
    """

    fixed: tuple[int, ...]
    low: int
    high: int
    n_elements: int
    numbers: Ints

    @classmethod
    def whole(cls, listing: Listing) -> _Span:
        """All elements."""
        return cls((), 0, 0, listing.n_elements, np.arange(listing.n_blocks))

    @property
    def is_one_key(self) -> bool:
        """Whether all elements have the same next key."""
        return self.high - self.low == 1


class _Cutter:
    """Cuts a listing by its elements' keys into spans of at most `most` elements."""

    def __init__(self, listing: Listing, keys: Sequence[Numbers], most: int) -> None:
        self._listing = listing
        self._keys = keys
        self._most = most

    def spans(self, of: _Span) -> Iterator[_Span]:
        """Spans of the next key, ascending, with the fixed keys of `of`.

        A span of more than `most` elements has a single key.
        """
        level = len(of.fixed)
        yield from self._cut(of._replace(low=0, high=self._keys[level].n_numbers))

    def finer(self, span: _Span) -> Iterator[_Span]:
        """Spans of the next key within a span of one key; none if that is the last."""
        inside = span._replace(fixed=(*span.fixed, span.low))
        if len(inside.fixed) < len(self._keys):
            yield from self.spans(inside)

    def is_split(self, span: _Span) -> bool:
        """Whether a span has more elements than a portion may have."""
        return span.n_elements > self._most

    def cell(self, span: _Span) -> tuple[int, ...]:
        """The cell along each listed axis that all elements of a span lie in."""
        return self._keys[len(span.fixed)].cell_of(span.low)

    def blocks(self, span: _Span) -> Iterator[ListedBlock]:
        """The elements of a span, at most `most` at a time."""
        if not self.is_split(span):
            n_axes = self._listing.n_axes
            yield joined(self._matching(span), n_axes, span.n_elements)
        elif len(span.fixed) + 1 == len(self._keys):
            yield from self._in_order(span)
        else:
            for finer in self.finer(span):
                yield from self.blocks(finer)

    def _cut(self, of: _Span) -> Iterator[_Span]:
        shift = max(0, (of.high - of.low - 1).bit_length() - _COUNTS_LOG2)
        counts, lowest, highest = self._counted(of, shift)
        ends = np.cumsum(counts)
        first, done = 0, 0
        while done < of.n_elements:
            last = int(np.searchsorted(ends, done + self._most, side="right"))
            last = max(last, first + 1)
            n_elements = int(ends[last - 1]) - done
            low = of.low + (first << shift)
            high = min(of.low + (last << shift), of.high)
            numbers = of.numbers[(lowest < high) & (highest >= low)]
            span = _Span(of.fixed, low, high, n_elements, numbers)
            if n_elements > self._most and not span.is_one_key:
                yield from self._cut(span)
            elif n_elements:
                yield span
            first, done = last, done + n_elements

    def _counted(self, of: _Span, shift: int) -> tuple[Ints, Ints, Ints]:
        """Counts of elements per `2**shift` keys; lowest and highest key per block."""
        counts = np.zeros(((of.high - of.low - 1) >> shift) + 1, np.int64)
        lowest = np.full(len(of.numbers), np.iinfo(np.int64).max)
        highest = np.full(len(of.numbers), -1, np.int64)
        for i, number in enumerate(of.numbers.tolist()):
            block = self._listing.block(number)
            key = self._next_key(block, of)[self._rows(block, of)]
            if len(key):
                lowest[i], highest[i] = key.min(), key.max()
                counts += np.bincount((key - of.low) >> shift, minlength=len(counts))
        return counts, lowest, highest

    def _next_key(self, block: ListedBlock, span: _Span) -> Ints:
        return self._keys[len(span.fixed)].of(block.coordinates)

    def _rows(self, block: ListedBlock, span: _Span) -> NDArray[np.bool_]:
        """Which elements of a block belong to a span."""
        key = self._next_key(block, span)
        rows = (key >= span.low) & (key < span.high)
        for known, value in zip(self._keys, span.fixed, strict=False):
            rows &= known.of(block.coordinates) == value
        return rows

    def _matching(self, span: _Span) -> Iterator[ListedBlock]:
        for number in span.numbers.tolist():
            block = self._listing.block(number)
            rows = self._rows(block, span)
            yield block if rows.all() else block.at(rows)

    def _in_order(self, span: _Span) -> Iterator[ListedBlock]:
        """The elements of a span whose keys are all the same."""
        held: list[ListedBlock] = []
        n_held = 0
        for block in self._matching(span):
            done, n = 0, len(block.out_index)
            while done < n:
                end = min(n, done + self._most - n_held)
                held.append(block.at(slice(done, end)))
                n_held += end - done
                done = end
                if n_held == self._most:
                    yield joined(held, self._listing.n_axes, n_held)
                    held, n_held = [], 0
        if n_held:
            yield joined(held, self._listing.n_axes, n_held)
