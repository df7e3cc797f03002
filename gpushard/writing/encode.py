"""Values for a region of the array -> encoded inner chunks and shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.codecs.chain_encoder import encode_bytes
from gpushard.formats.codec_specs import SHARDING
from gpushard.options import MIB
from gpushard.reading.whole import shard_inside
from gpushard.selecting.selection import Ints
from gpushard.source import Source
from gpushard.stores.local.file_bytes import Bytes, FileBytes, Pieces, join_pieces
from gpushard.stores.local.spool import Pending, Spool, pieces_by_now
from gpushard.writing.changes import Cell, Change, batches, changed_cells
from gpushard.writing.encoders import Crew, encoders_of
from gpushard.writing.grown import Wholes, whole_or_cut
from gpushard.writing.on_device import DeviceValues
from gpushard.writing.order import payload_order, payload_rank
from gpushard.writing.payloads import Assembly, Payloads
from gpushard.writing.regions import Box
from gpushard.writing.shard import (
    Region,
    StoredShard,
    are_fill,
    blank_entries,
    is_own,
)
from gpushard.writing.whole_cells import WholeCells

# Inner chunks encoded as one batch, for each thread, and bytes of small ones: more if
# they are a part of the memory limit. A batch takes Python a tenth of a millisecond.
_BATCH_PER_THREAD = 4
_BATCH_NBYTES, _LARGE_BATCH_NBYTES, _BATCH_SHARE = MIB, 4 * MIB, 64

# Nested shards that are sorted before they are written; others come in C order.
_MOST_SORTED = 1 << 12

# A changed inner chunk is held in its old, its new and its encoded form.
_COPIES = 3
# zarr encodes a shard with codecs around it that lies in another one: it joins the
# encoded inner chunks, and to change a part of it, decodes the stored one in two steps.
# zarr 3.1 takes as much for a whole one, zarr 3.4 three copies.
_COPIES_BY_ZARR = 5
# Encoded inner chunks of a large shard that goes to a file take this part of the limit.
SPOOLED_SHARE = 8


class Encoder:
    """Encoder of one array's inner chunks, shards and indexes."""

    def __init__(self, source: Source) -> None:
        layout = source.layout
        self.source = source
        self.options = source.options.write
        self._chunks, *self._indexes = encoders_of(source)
        self._crew = Crew(source.options.threads)
        self._holds_shards = layout.chain.array_bytes.name == SHARDING

    def object_pieces(
        self,
        region: Region,
        stored: Bytes | FileBytes | None,
        change: Change | None,
        spool: Spool | None = None,
    ) -> Pieces | None:
        """Stored object after a change (or rewritten); None if it becomes empty.

        `stored` has the object's bytes; None if there is no object, or none of it is
        needed. Unchanged parts of a file are not read, so the file has to stay open,
        as has the `spool`, which takes what is encoded and does not fit memory.
        """
        around = self.source.layout.object_codecs
        if stored is not None and around:
            stored = shard_inside(self.source, region.coordinate, stored[:])
        with self._crew.at_a_shard():
            pieces = self._pieces(region, stored, change, None if around else spool)
        if pieces is None or not around:
            return pieces
        joined = join_pieces(pieces)
        del pieces, stored  # zarr copies what the codecs around it encode
        return [encode_bytes(around, joined)]

    def whole_objects(
        self, whole: WholeCells, cells: Ints, values: NDArray[Any]
    ) -> list[Bytes | None]:
        """Objects of one inner chunk each, of which every element is written.

        `cells` has their coordinates. None for those that hold only the fill value.
        """
        self._refuse_shards()
        layout = self.source.layout
        found: list[Bytes | None] = [None] * cells.shape[1]
        with self._crew.at_a_shard():
            chunks = [whole.chunks(cells, values, layout)]
            done = self._encoded(np.arange(len(found)), chunks)
        for number, data in done.items():
            found[number] = data
        return found

    def empty_object(self, region: Region) -> Pieces:
        """Stored object in which every inner chunk is missing or all fill value."""
        layout = self.source.layout
        if region.is_inner_chunk:
            chunk = np.full(region.shape, layout.fill_value, layout.dtype)
            payload = self._chunks.encode_one(chunk.transpose(layout.outer_order))
            return [] if payload is None else [payload]
        index = self.index_bytes(region, blank_entries(region.n_entries))
        return [encode_bytes(layout.object_codecs, index)]

    def changed_payloads(
        self,
        region: Region,
        stored: StoredShard | None,
        change: Change,
        spool: Spool | None = None,
    ) -> Iterator[Payloads]:
        """The changed inner chunks, some at a time; large nested shards in their parts.

        A `spool` holds the bytes of these parts. Other bytes are left to the caller.
        """
        values = change.values
        if region.level + 1 < len(self.source.layout.levels):
            yield from self._nested_payloads(region, stored, change, spool)
            return
        self._refuse_shards()
        n_batch, parts = self._n_at_once(), iter([change])
        if isinstance(values, DeviceValues):
            n_batch = max(n_batch, values.most_rows)
        else:
            parts = whole_or_cut(region, stored, change)
        for part in parts:
            if isinstance(part, Wholes):
                yield from self._whole_payloads(region, part, n_batch)
                continue
            for batch in batches(changed_cells(region, part), n_batch):
                yield from self._part_payloads(stored, batch)

    def _nested_payloads(
        self,
        region: Region,
        stored: StoredShard | None,
        change: Change,
        spool: Spool | None,
    ) -> Iterator[Payloads]:
        """The changed nested shards of a shard, small ones each in one buffer."""
        nbytes = self.source.layout.dtype.itemsize * prod(region.sharding.chunk_shape)
        is_small = nbytes <= _BATCH_NBYTES and not self.source.room.is_text
        cells = changed_cells(region, change)
        if spool is not None and not is_small:
            cells = self._as_stored(region, change, cells)
        for entry, inner, inside in cells:
            before = self._nested_before(stored, entry, inner, inside)
            parts = self._shard(inner, before, inside, None if is_small else spool)
            if parts is None:
                yield Payloads.of({entry: None})
            elif is_small and sum(map(len, parts)) <= 2 * _BATCH_NBYTES:
                yield Payloads.of({entry: join_pieces(pieces_by_now(parts))})
            else:
                self._refuse_held(parts)
                yield Payloads.of_nested(entry, parts)

    def _refuse_held(self, parts: list[Pending]) -> None:
        """Refuse a nested shard that is too large to be held, where it has to be."""
        nbytes = sum(map(len, parts))
        most = self.source.options.max_chunk_nbytes
        if self.options.strategy != "rewrite" and nbytes > most:
            what = "a nested shard that is written to in place"
            raise self.source.room.too_large(what, nbytes)

    def _as_stored(
        self, region: Region, change: Change, cells: Iterator[Cell]
    ) -> Iterable[Cell]:
        """Cells in the order in which they are stored, if they are few and boxes."""
        part = change.part
        if not isinstance(part, Box) or part.ranges is None:
            return cells
        if region.n_entries > _MOST_SORTED:
            return cells
        rank = payload_rank(region.index_shape, self.options.order)
        return sorted(cells, key=lambda cell: rank[cell[0]])

    def _whole_payloads(
        self, region: Region, wholes: Wholes, n_batch: int
    ) -> Iterator[Payloads]:
        """Inner chunks of which every element is known, in the order of the shard."""
        layout = self.source.layout
        whole, values = wholes.cells, wholes.values
        cells = wholes.coordinates()
        entries = np.array(region.entry_strides, np.int64) @ cells
        order = np.argsort(
            payload_rank(region.index_shape, self.options.order)[entries]
        )
        for first in range(0, len(order), n_batch):
            some = order[first : first + n_batch]
            chunks = [whole.chunks(cells[:, some], values, layout)]
            yield self._encoded(entries[some], chunks)

    def _part_payloads(
        self, stored: StoredShard | None, batch: list[Cell]
    ) -> Iterator[Payloads]:
        """Inner chunks of which some elements are written, or all one by one."""
        changed = [
            (inner, self._needed(stored, entry, inner, inside), inside)
            for entry, inner, inside in batch
        ]
        return self._changed([entry for entry, _, _ in batch], changed)

    def index_bytes(self, region: Region, entries: NDArray[np.uint64]) -> Bytes:
        """Encoded index of a region, from its entries: uint64, (n_entries, 2)."""
        shaped = entries.reshape(*region.index_shape, 2)
        return self._indexes[region.level].encode_index(shaped)

    def laid_out(self, region: Region, assembly: Assembly) -> Pieces | None:
        """Shard that consists of these inner chunks; None if there are none."""
        parts = self._laid_out(region, assembly, None)
        return None if parts is None else pieces_by_now(parts)

    def _laid_out(
        self, region: Region, assembly: Assembly, spool: Spool | None
    ) -> list[Pending] | None:
        """The same in parts; a `spool` holds the index of a nested shard."""
        start = region.index_nbytes if region.has_index_at_start else 0
        order = payload_order(region.index_shape, self.options.order)
        found = assembly.laid_out(order, start)
        if found is None:
            return None
        entries, parts = found
        encoded = self.index_bytes(region, entries)
        is_held = spool is not None and region.level
        index: Pending = spool.hold(encoded) if is_held else encoded
        return [index, *parts] if region.has_index_at_start else [*parts, index]

    def _pieces(
        self,
        region: Region,
        stored: Bytes | FileBytes | None,
        change: Change | None,
        spool: Spool | None = None,
    ) -> Pieces | None:
        """The region's bytes after a change, without codecs around a whole object."""
        if change is not None and change.part.covers(region.extents):
            stored = None
        if region.is_inner_chunk and change is not None:  # a shard may have no change
            self._refuse_shards()
            held = [(region, None if stored is None else stored[:], change)]
            changed = self._changed([0], held)
            return [p for done in changed for p in done.encoded.items()] or None
        parts = self._shard(region, stored, change, spool)
        return None if parts is None else pieces_by_now(parts)

    def _shard(
        self,
        region: Region,
        stored: Bytes | FileBytes | None,
        change: Change | None,
        spool: Spool | None,
    ) -> list[Pending] | None:
        """Parts of a shard after a change; None if it becomes empty."""
        shard = None if stored is None else StoredShard.parse(region, stored)
        changed: Iterator[Payloads] = iter(())
        if change is not None:
            changed = self.changed_payloads(region, shard, change, spool)
        assembly = Assembly(region.n_entries, changed, spool)
        if shard is not None:
            assembly.keep(shard)
        return self._laid_out(region, assembly, spool)

    def _n_at_once(self) -> int:
        """Inner chunks that the memory limit allows to be changed together."""
        options = self.source.options
        nbytes = max(1, self.source.whole_nbytes)
        left = options.memory_limit - options.memory_limit // SPOOLED_SHARE
        n_copies = _COPIES_BY_ZARR if self._holds_shards else _COPIES
        n = left // (n_copies * nbytes)
        most = min(_LARGE_BATCH_NBYTES, options.memory_limit // _BATCH_SHARE)
        n_small = max(_BATCH_NBYTES, most) // nbytes
        usual = max(_BATCH_PER_THREAD * options.threads, n_small)
        return max(1, min(usual, n))

    def _refuse_shards(self) -> None:
        """Refuse inner chunks that are shards for zarr, unless its copies of one fit.

        Raises
        ------
        LimitError
            They do not fit the memory limit.
        """
        room, nbytes = self.source.room, _COPIES_BY_ZARR * self.source.whole_nbytes
        if self._holds_shards and nbytes > room.alone_nbytes:
            raise room.beyond("a nested shard with codecs around it", nbytes)

    def _needed(
        self, stored: StoredShard | None, entry: int, inner: Region, change: Change
    ) -> Bytes | None:
        """Stored bytes of an inner chunk; None if it is missing or overwritten."""
        if stored is None or change.part.covers(inner.extents):
            return None
        span = stored.span(entry)
        if span is None:
            return None
        self.source.room.refuse_large(in_part=False)
        nbytes = span.stop - span.start
        self.source.pipeline.refuse_oversized(nbytes, self._stored_shape(inner))
        return stored.data[span]

    def _nested_before(
        self, stored: StoredShard | None, entry: int, nested: Region, change: Change
    ) -> Bytes | FileBytes | None:
        """The same of a nested shard; those of a file are not read yet."""
        if stored is None or change.part.covers(nested.extents):
            return None
        span = stored.span(entry)
        return None if span is None else stored.nested(span)

    def _stored_shape(self, region: Region) -> tuple[int, ...]:
        return tuple(region.shape[axis] for axis in self.source.layout.outer_order)

    def _before(
        self, region: Region, stored: Bytes | None, change: Change
    ) -> NDArray[Any] | None:
        """An inner chunk before a change, or its fill value; None if nothing remains.

        `stored` is None, too, if all of it is overwritten.
        """
        if stored is not None:
            return self.source.pipeline.decode(stored, self._stored_shape(region))
        is_whole = region.extents == region.shape
        if is_whole and change.part.covers(region.extents):
            return None
        return self.source.layout.fill_value

    def _after(self, batch: list[tuple[Region, Bytes | None, Change]]) -> NDArray[Any]:
        """Inner chunks after a change, in stored axes, along the first axis.

        Empties the list, so that stored bytes are held only until they are decoded.
        """
        layout, n = self.source.layout, len(batch)
        axes = sorted(range(layout.ndim), key=layout.outer_order.__getitem__)
        chunks = np.empty((n, *self._stored_shape(batch[0][0])), layout.dtype)
        batch.reverse()
        for i in range(n):
            region, stored, change = batch.pop()
            before = self._before(region, stored, change)
            if n == 1 and stored is not None and is_own(before, stored, chunks.dtype):
                chunks = before[np.newaxis]  # large ones come alone: not held twice
            elif before is not None:
                chunks[i, ...] = before
            change.put_into(chunks[i, ...].transpose(axes))
        return chunks

    def _changed(
        self, entries: list[int], batch: list[tuple[Region, Bytes | None, Change]]
    ) -> Iterator[Payloads]:
        """Inner chunks after a change, encoded on the device if possible."""
        values = batch[0][2].values
        on_device: dict[int, Bytes | None] = {}
        if isinstance(values, DeviceValues):
            on_device = values.encoded([(inner, c.part) for inner, _, c in batch])
            yield Payloads.of({entries[i]: data for i, data in on_device.items()})
        rest = [i for i in range(len(batch)) if i not in on_device]
        if not rest:
            return
        batch[:] = [batch[i] for i in rest]
        yield self._encoded(np.array(entries, np.int64)[rest], [self._after(batch)])

    def _encoded(self, entries: Ints, given: list[NDArray[Any]]) -> Payloads:
        """Inner chunks in stored axes, along the first axis; none of fill values.

        Takes them from the list, so that no name keeps them while they are encoded.
        """
        chunks = given.pop()
        kept = np.arange(len(chunks))
        if not self.options.write_empty_chunks:
            is_empty = are_fill(chunks, self.source.layout.fill_value)
            if is_empty.all():
                return Payloads.of(dict.fromkeys(entries.tolist()))
            if is_empty.any():
                kept = np.flatnonzero(~is_empty)
                # A view would keep the memory of those that are not stored.
                chunks = chunks[kept]
        self.source.room.note_taken(_COPIES * chunks.nbytes)
        given.append(chunks)
        del chunks
        stored, encoded = self._chunks.encode(given.pop(), self._crew.n_each)
        if len(stored) == len(entries):
            return Payloads(entries, encoded, entries[:0])
        stored = kept[stored]
        return Payloads(entries[stored], encoded, np.delete(entries, stored))
