"""An array ready to be read: its layout, its store, its decoders, its known indexes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import UnsupportedError
from gpushard.layout import INDEX_ELEMENTS, ArrayLayout
from gpushard.memory.chunk_cache import ChunkCache
from gpushard.memory.chunk_room import ChunkRoom
from gpushard.memory.chunk_share import SHARE
from gpushard.memory.freed import decode_in_turn
from gpushard.memory.known import IndexCache
from gpushard.options import KIB, Options, ReadOptions
from gpushard.pipeline import HostPipeline, NoRoomError
from gpushard.stored import FACTS, StoredArray
from gpushard.stores.base import ByteRequest, Fetched, Store
from gpushard.stores.checks import checked
from gpushard.stores.held import HeldObjects
from gpushard.stores.local.store import LocalStore, holds_plain_files

# Threads decode this part of the limit side by side of text, whose size nothing tells
# beforehand. Inner chunks that need more than a thread's share are decoded in turn.
_TEXT_SHARE = 4
# Offsets into inner chunks and into shards are added; the sum must fit an int64.
_MOST_CHUNK_NBYTES = 2**62
# Workers of a read over a network mostly wait, so they may outnumber the CPUs.
_REMOTE_WORKERS = 8
# Where nobody asked for a cache, inner chunks of at least this decoded size are kept:
# smaller ones are decoded in about the time that a cache takes. Fast codecs have more.
_LEAST_KEPT_NBYTES, _LEAST_KEPT_FAST_NBYTES = 32 * KIB, 256 * KIB


@dataclass(frozen=True)
class Source(StoredArray):
    """A stored array ready to be read: its store, and what readers keep and may hold.

    Attributes
    ----------
    store, options
        The store that holds the array, and how it is read.
    index_pipelines
        Decoder of the shard index at each sharding level.
    indexes
        Cache of the shard indexes.
    chunks
        Cache of decoded inner chunks between reads; None if no cache is kept.
    """

    store: Store
    options: ReadOptions
    index_pipelines: tuple[HostPipeline, ...]
    indexes: IndexCache = field(repr=False)
    chunks: ChunkCache | None = field(default=None, repr=False, compare=False)

    @classmethod
    def prepare(cls, layout: ArrayLayout, store: Store, options: Options) -> Source:
        """Source of the array with `layout` in `store`.

        Raises
        ------
        UnsupportedError, MetadataError
            A codec of the array cannot be decoded, its configuration is wrong, or it
            does not fit the data type; or inner chunks have more bytes than can be
            counted.
        """
        _refuse_uncountable(layout)
        options = options.resolved()
        pipeline = HostPipeline.compile(
            layout.chain,
            layout.elements,
            chunk_shape=_stored_chunk_shape(layout),
            largest_nbytes=options.max_chunk_nbytes,
        )
        index_pipelines = tuple(
            HostPipeline.compile(level.index_chain, INDEX_ELEMENTS)
            for level in layout.levels
        )
        source = cls(
            layout,
            pipeline,
            store,
            options,
            index_pipelines,
            IndexCache(options.index_cache_nbytes),
        )
        wide = options.widened_to(source.room.bound_for(source.most_useful_workers))
        return replace(source, options=wide, chunks=source.new_chunk_cache())

    def new_chunk_cache(self) -> ChunkCache | None:
        """Cache for decoded inner chunks; None if it is switched off or would not help.

        Plain elements are read from files as fast. If the store cannot tell cheaply
        whether an object was replaced, its bytes have to be read anyway. Keys of the
        cache are places in the index of a shard, so a shard must have exactly one; or
        places in the grid of an array without shards.
        """
        layout, options = self.layout, self.options
        nbytes, is_shared = options.chunk_cache_nbytes, options.shares_chunk_cache
        fast = layout.chain.decodes_fast
        least = _LEAST_KEPT_FAST_NBYTES if fast else _LEAST_KEPT_NBYTES
        if (
            not nbytes
            or (is_shared and not least <= self.chunk_nbytes <= nbytes)
            or len(layout.levels) > 1
            or layout.object_codecs
            or self.chunk_shape is None
            or self.pipeline.is_raw
            or layout.dtype.kind in "OT"
            or not isinstance(self.store, LocalStore)
            or not (layout.levels or holds_plain_files(self.store))
        ):
            return None
        share = SHARE if is_shared else None
        return ChunkCache(nbytes, self.chunk_nbytes, share)

    def limited(self, memory_limit: int | None) -> Source:
        """The same array with the memory limit that a caller of a read sets, if any.

        The last such source is kept with its findings, because a caller who sets a
        limit sets the same one for many reads.
        """
        if memory_limit is None:
            return self
        # A limit that is no int is refused by the options, even if it equals the last.
        is_whole = type(memory_limit) is int
        limited = self._limited.get(memory_limit) if is_whole else None
        if limited is None:
            options = self.options.but(memory_limit=memory_limit)
            chunks = self.chunks if options.chunk_cache_nbytes else None
            limited = replace(self, options=options, chunks=chunks)
            self._limited.clear()
            self._limited[memory_limit] = limited
        return limited

    @cached_property
    def _limited(self) -> dict[int, Source]:
        """The last source that `limited` made, under its memory limit."""
        return {}

    def with_memory_limit(self, memory_limit: int, held_nbytes: int = 0) -> Source:
        """The same array with another memory limit.

        `held_nbytes` is memory that the caller holds meanwhile.
        """
        return self.with_options(self.options.beside(held_nbytes, memory_limit))

    def beside(self, nbytes: int) -> Source:
        """The same array with a memory limit lower by `nbytes`, rounded up."""
        limit = self.options.memory_limit
        # Rounded, so that later reads reuse a source made before, with its caches. The
        # limit of batches on a device is far above what the host may hold.
        step = max(1, min(limit, self.options.bound_nbytes) // 16)
        nbytes = -(-nbytes // step) * step
        if nbytes not in self._narrower:
            left = max(limit // 4, limit - nbytes, 1)
            self._narrower[nbytes] = self.with_memory_limit(left, nbytes)
        return self._narrower[nbytes]

    @cached_property
    def _narrower(self) -> dict[int, Source]:
        """The same array under some lower memory limits."""
        return {}

    def with_batches(self, nbytes: int, *, is_left_open: bool = False) -> Source:
        """The same array with batches of another size, which a device holds.

        `is_left_open` says whether no memory limit is set for the read of them.
        """
        options = replace(self.options, memory_limit=nbytes, is_left_open=is_left_open)
        return self.with_options(options)

    def with_options(self, options: ReadOptions) -> Source:
        """The same array with other options, and with what was found out about it."""
        other = replace(self, options=options)
        known = self.__dict__.items()
        other.__dict__.update((k, v) for k, v in known if k in FACTS)
        return other

    def read(self, requests: Sequence[ByteRequest]) -> list[Fetched | None]:
        """Answers of the store, as `checked` lets them pass."""
        asked = self.room.note_fetched(requests)
        return checked(self.store, asked, self.store.read(asked))

    def decode(
        self,
        encoded: NDArray[np.uint8],
        shape: tuple[int, ...],
        wanted: tuple[int, int] | None = None,
    ) -> NDArray[Any]:
        """Inner chunk of `shape`, in the array's axes, from its encoded bytes.

        The result may be a view of `encoded`, with any strides and byte order. `wanted`
        is the range of decoded bytes to decode; it needs `pipeline.decodes_ranges`.

        Raises
        ------
        CorruptShardError
            The bytes are not a valid encoding of an inner chunk of `shape`.
        """
        inverse = self.inverse_order
        stored = shape
        if inverse is not None:
            stored = tuple(shape[axis] for axis in self.layout.outer_order)
        if self.room.is_crowded:
            self.room.note_taken(len(encoded) + self.work_nbytes)
        room = self.room.watched_nbytes
        if room is None:
            chunk = self.pipeline.decode(encoded, stored, wanted)
        else:
            chunk = self._decode_within(room - len(encoded), encoded, stored, wanted)
        return chunk if inverse is None else chunk.transpose(inverse)

    def _decode_within(
        self,
        room: int,
        encoded: NDArray[np.uint8],
        shape: tuple[int, ...],
        wanted: tuple[int, int] | None,
    ) -> NDArray[Any]:
        """As `decode`, but inner chunks that need extra memory decode one at a time.

        Raises
        ------
        LimitError
            Decoding needs more memory than the limit leaves.
        """
        try:
            if self.room.is_text:
                return self._decode_text(room, encoded, shape)
            decode = partial(self.pipeline.decode, encoded, shape, wanted, room)
            extra = self.pipeline.extra_nbytes(encoded, shape)
            if not (extra and self.room.is_crowded_by(extra)):
                return decode()
            return decode_in_turn(decode)
        except NoRoomError as error:
            needed = len(encoded) + error.nbytes
            raise self.room.beyond("an inner chunk", needed) from None

    def _decode_text(
        self, room: int, encoded: NDArray[np.uint8], shape: tuple[int, ...]
    ) -> NDArray[Any]:
        """Inner chunk of text; one above the share of a thread is decoded in turn."""
        decode = partial(self.pipeline.decode, encoded, shape, None)
        share = self.options.bound_nbytes // (_TEXT_SHARE * self.most_workers)
        share -= len(encoded)
        if share > 0:
            with suppress(NoRoomError):
                return decode(min(share, room))
        return decode_in_turn(partial(decode, room))

    @cached_property
    def room(self) -> ChunkRoom:
        """The share of the memory limit for inner chunks, and whether they fit."""
        is_wrapped = bool(self.layout.object_codecs)
        largest = tuple(axis.longest for axis in self.layout.axes)
        return ChunkRoom(
            self.layout.path,
            self.options,
            chunk_nbytes=self.chunk_nbytes,
            whole_nbytes=self.whole_nbytes,
            work_nbytes=self.work_nbytes,
            is_raw=self.raw_strides is not None,
            is_wrapped=is_wrapped,
            added_nbytes=self.added_nbytes(largest) if is_wrapped else 0,
            is_text=self.layout.dtype.kind in "OT",
            keeps_fetched=self.store.costs.answers_in_own_memory,
            keeps_in_threads=self.store.costs.answers_in_threads,
        )

    @property
    def most_useful_workers(self) -> int:
        """Tasks that are worth running in parallel, if they fit the memory limit."""
        far = _REMOTE_WORKERS if self.store.costs.prefers_whole_objects else 0
        return max(self.options.threads, far)

    @property
    def most_workers(self) -> int:
        """Tasks that may run in parallel."""
        return min(self.most_useful_workers, self.room.most_workers)

    @cached_property
    def few(self) -> int:
        """Largest number of inner chunks that make a small read; 0: no read is small.

        Over a network, as many as requests run side by side: threads would do nothing
        but wait. Nothing tells what text takes that is fetched side by side.
        """
        few, costs = self.options.small_read_chunks, self.store.costs
        if not (few and costs.prefers_whole_objects):
            return few
        return 0 if self.layout.dtype.kind in "OT" else costs.concurrency

    @cached_property
    def has_large_indexes(self) -> bool:
        """Whether a few shard indexes at once would not fit the memory limit."""
        return 4 * self.few * sum(self.index_nbytes) > self.options.memory_limit

    @cached_property
    def findings(self) -> dict[str, Any]:
        """What readers found out about the array under these options, by name.

        A source that is made of this one has its own: with another layout, store or
        limit, other readers may read it.
        """
        return {}

    @property
    def is_held(self) -> bool:
        """Whether the array is read from objects that are in memory already."""
        return isinstance(self.store, HeldObjects)


def _stored_chunk_shape(layout: ArrayLayout) -> tuple[int, ...]:
    """Shape of an inner chunk as its chain encodes it; an axis without cells gets 1."""
    lengths = [
        int(axis.length_of(0)) if axis.n_cells else max(axis.cell, 1)
        for axis in layout.inner_axes
    ]
    return tuple(lengths[axis] for axis in layout.outer_order)


def _refuse_uncountable(layout: ArrayLayout) -> None:
    """Refuse inner chunks in which the offset of a byte may not fit an int64."""
    nbytes = layout.dtype.itemsize * prod(axis.longest for axis in layout.inner_axes)
    if nbytes > _MOST_CHUNK_NBYTES:
        raise UnsupportedError(
            "an inner chunk has more bytes than can be counted",
            array_path=layout.path,
            json_path="chunk_grid",
            expected=f"at most {_MOST_CHUNK_NBYTES}",
            got=nbytes,
        )
