"""Converts one array: reads tiles, encodes their shards and writes these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.array import Array
from gpushard.converting.mark import ConversionMark, unravelled
from gpushard.converting.progress import Advance
from gpushard.converting.stored import stored_shards
from gpushard.converting.tiles import Box as Elements
from gpushard.converting.tiles import Cell, TileBudget, box_of, slabs, tiles
from gpushard.errors import CorruptShardError, GpushardError
from gpushard.memory.turns import turns
from gpushard.selecting.selection import SliceAxis
from gpushard.source import Source
from gpushard.stores.local.file_bytes import Pieces
from gpushard.stores.writers import writer_of
from gpushard.threads.workers import run_tasks
from gpushard.writing.changes import Change
from gpushard.writing.encode import Encoder
from gpushard.writing.payloads import Assembly, Payloads
from gpushard.writing.regions import Box
from gpushard.writing.shard import Region

# Bytes that are compared at a time, so that comparing takes little memory.
_COMPARED_NBYTES = 1 << 22


@dataclass(frozen=True)
class Copy:
    """Copies the shards of `source` to `target`, whose documents exist already."""

    source: Source
    target: Source
    mark: ConversionMark
    budget: TileBudget

    @property
    def grid(self) -> Cell:
        """Number of shards along each axis."""
        return self.target.layout.grid

    def key_of(self, number: int) -> str:
        """Key of the shard with that number."""
        return self.target.key(unravelled(number, self.grid))

    def run(self, advance: Advance) -> int:
        """Write the shards that are not finished; returns the number of objects."""
        written: list[str] = []
        encoder = Encoder(self._with_threads())
        if not self.target.options.write.write_empty_chunks:
            self._note_empty()
        run_tasks(self._tasks(encoder, written, advance), self.budget.n_tiles)
        return len(written)

    def _note_empty(self) -> None:
        """Note shards as finished of which nothing is stored: they get no object."""
        stored = stored_shards(self.target.layout, self.source)
        if stored is not None:
            self.mark.done |= ~stored.reshape(-1)

    def _tasks(
        self, encoder: Encoder, written: list[str], advance: Advance
    ) -> Iterator[Callable[[], None]]:
        done = self.mark.done.reshape(self.grid)
        for shards in tiles(self.target.layout, self.budget.counts):
            # A task costs more than such a look, and most shards may be finished.
            if done[tuple(slice(cells.start, cells.stop) for cells in shards)].all():
                advance(self._nbytes(shards))
            else:
                yield partial(self._write_tile, encoder, shards, written, advance)

    def verify(self, advance: Advance) -> None:
        """Read both arrays and compare them, bit for bit."""
        run_tasks(self._comparisons(advance), self.budget.n_tiles)

    def _comparisons(self, advance: Advance) -> Iterator[Callable[[], None]]:
        layout = self.target.layout
        stored, written = (stored_shards(layout, s) for s in (self.source, self.target))
        for cell in layout.coordinates():
            is_fill = stored is not None and not stored[cell]
            if is_fill and written is not None and not written[cell]:
                advance(self._nbytes(_alone(cell)))
            else:
                yield partial(self._compare, cell, advance, is_fill=is_fill)

    def _with_threads(self) -> Source:
        source = self.target
        options = source.options.but(threads=self.budget.encoder_threads)
        return Source.prepare(source.layout, source.store, options)

    def _write_tile(
        self,
        encoder: Encoder,
        shards: tuple[range, ...],
        written: list[str],
        advance: Advance,
    ) -> None:
        cells = {cell: self._number(cell) for cell in product(*shards)}
        box = box_of(self.target.layout, shards)
        left = {cell: i for cell, i in cells.items() if not self.mark.done[i]}
        values = None
        if len(cells) > 1 and left:
            values = self._read(self.source, box)
        for cell, number in left.items():
            if self._write_shard(encoder, cell, box, values):
                written.append(self.target.key(cell))
            self.mark.add([number])
        advance(self._nbytes(shards))

    def _write_shard(
        self, encoder: Encoder, cell: Cell, box: Elements, values: NDArray[Any] | None
    ) -> bool:
        """Write a shard of a tile; returns whether it has more than fill values."""
        parts: Iterable[tuple[Elements, NDArray[Any]]]
        if values is None:
            parts = self._slabs(cell)
        else:
            parts = [(self._box(cell), self._within(cell, box, values))]
        pieces = self._encoded(encoder, cell, parts)
        if pieces is None:
            return False
        key = self.target.key(cell)
        try:
            writer_of(self.target.store).put(key, pieces)
        except GpushardError as error:
            error.add_context(shard_key=key)
            raise
        return True

    def _slabs(self, cell: Cell) -> Iterator[tuple[Elements, NDArray[Any]]]:
        """Elements of a shard, in slabs as large as memory allows."""
        for slab in slabs(self._box(cell), self.budget.slab):
            yield slab, self._read(self.source, slab)

    def _encoded(
        self,
        encoder: Encoder,
        cell: Cell,
        parts: Iterable[tuple[Elements, NDArray[Any]]],
    ) -> Pieces | None:
        """The shard's encoded bytes; None if all its elements are fill value."""
        region = Region.of_object(self.target, cell)
        start = [part.start for part in self._box(cell)]
        changed: list[Payloads] = []
        for box, values in parts:
            inside = Box(
                tuple(
                    SliceAxis(axis.start - first, 1, axis.stop - axis.start)
                    for axis, first in zip(box, start, strict=True)
                )
            )
            change = Change(inside, values)
            changed += encoder.changed_payloads(region, None, change)
            del values, change  # the next slab is read without this one
        return encoder.laid_out(region, Assembly(region.n_entries, changed))

    def _compare(self, cell: Cell, advance: Advance, *, is_fill: bool) -> None:
        """Compare a shard with the source, or with the fill value."""
        fill_value = self.source.layout.fill_value
        for box in slabs(self._box(cell), self.budget.slab):
            got = self._read(self.target, box)
            if is_fill:
                want = np.broadcast_to(fill_value.astype(got.dtype), got.shape)
            else:
                want = self._read(self.source, box)
            if not same_bits(want, got):
                raise CorruptShardError(
                    "the converted array reads back other elements than its source",
                    array_path=self.target.layout.path,
                    shard_key=self.target.key(cell),
                    hint="see that nobody writes to either of them, and convert anew",
                )
        advance(self._nbytes(_alone(cell)))

    def _read(self, source: Source, box: Elements) -> NDArray[Any]:
        """Elements of a box, in C order."""
        limit = self.budget.read_nbytes
        # Tiles and other reads in progress hold memory during this read.
        held_nbytes = max(0, source.options.memory_limit - limit)
        narrow = Array(source.with_memory_limit(limit, held_nbytes))
        is_large = source.work_nbytes > limit
        with turns.copying if is_large else nullcontext():
            values = narrow.read(box)
        # Each array of text has a type of its own, to which `asarray` would copy it.
        is_array = isinstance(values, np.ndarray)
        return values if is_array else np.asarray(values, source.layout.dtype)

    def _box(self, cell: Cell) -> Elements:
        return box_of(self.target.layout, _alone(cell))

    def _within(self, cell: Cell, box: Elements, values: NDArray[Any]) -> NDArray[Any]:
        """The part of a tile that belongs to one shard."""
        pairs = zip(self._box(cell), box, strict=True)
        inside = tuple(
            slice(one.start - all_.start, one.stop - all_.start) for one, all_ in pairs
        )
        return values[(*inside, ...)]

    def _nbytes(self, shards: tuple[range, ...]) -> int:
        """Size of the elements of a tile."""
        layout = self.target.layout
        return _size(box_of(layout, shards)) * layout.dtype.itemsize

    def _number(self, cell: Cell) -> int:
        return int(np.ravel_multi_index(cell, self.grid)) if cell else 0


def same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two arrays of one shape and data type are equal, bit for bit."""
    if one.dtype.kind in "OT":
        return bool(np.array_equal(one, other))
    pair = [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in (one, other)]
    return all(
        np.array_equal(
            pair[0][i : i + _COMPARED_NBYTES], pair[1][i : i + _COMPARED_NBYTES]
        )
        for i in range(0, pair[0].size, _COMPARED_NBYTES)
    )


def _alone(cell: Cell) -> tuple[range, ...]:
    """The tile of one shard."""
    return tuple(range(i, i + 1) for i in cell)


def _size(box: Elements) -> int:
    return prod(part.stop - part.start for part in box)
