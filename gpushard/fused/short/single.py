"""The shortest way: a part of one inner chunk in a local file, read in one call.

This is for keys such as ``a[i]``, and selections alike, which otherwise take more time
in Python than to read and to decode. Python finds the inner chunk in an index that is
known already, or opens its file if the array has no shards, and the loops do the rest.
All others are declined, and so is everything unusual: an index that is not known, an
inner chunk that a shard does not have, or that is damaged, a file that has changed. The
general path then reads it or says what is wrong.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import prod
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.codecs.base import PART_SHARE
from gpushard.errors import ObjectChangedError
from gpushard.fetching.fetch import known_index
from gpushard.fused.addresses import address_of
from gpushard.fused.chain import FusedChain
from gpushard.fused.columns import FILLED, FIRST_LENGTH
from gpushard.fused.meshes import grid_of
from gpushard.fused.short.one_call import OneCall
from gpushard.layout import Coordinate
from gpushard.memory.chunk_cache import ChunkCache
from gpushard.memory.chunk_slots import Hold
from gpushard.memory.misses import SPENT_PART, SPENT_WHOLE
from gpushard.options import KIB
from gpushard.placing.keeping import file_version_of, find_current, first_key
from gpushard.planning.index import PRESENT
from gpushard.selecting.selection import Orthogonal, Selection, SliceAxis
from gpushard.source import Source
from gpushard.stores.local.store import LocalStore

# Libraries decode larger Blosc frames with several threads, unless a part is wanted.
_MOST_BLOSC_NBYTES = 256 * KIB


class _ChunkPart(NamedTuple):
    """What a key selects of one inner chunk.

    Attributes
    ----------
    shard, entry
        Coordinate of the shard, and place of the inner chunk in its index.
    offset, extent
        First wanted byte of the decoded inner chunk, and the number of bytes from there
        to the end of the last wanted element.
    lengths, strides
        For each axis the number of wanted elements, and the bytes between them.
    shape
        Shape of the result.
    """

    shard: Coordinate
    entry: int
    offset: int
    extent: int
    lengths: tuple[int, ...]
    strides: tuple[int, ...]
    shape: tuple[int, ...]


class _Stored(NamedTuple):
    """Where an inner chunk is stored.

    Attributes
    ----------
    key, version
        Key of its object, and the version of which it is read.
    start, nbytes
        Its first byte there, and its stored size.
    """

    key: str
    version: Hashable
    start: int
    nbytes: int


class SingleReader:
    """Reads keys that select a part of a single inner chunk.

    Parameters
    ----------
    source, store
        The array, which has one sharding level or none, and its store.
    chain
        Its encoding.
    call
        What reads a box.

    Attributes
    ----------
    call
        The parameter.
    """

    def __init__(
        self,
        source: Source,
        store: LocalStore,
        chain: FusedChain,
        call: OneCall,
    ) -> None:
        layout = source.layout
        ndim = layout.ndim
        self._store = store
        self._is_sharded = bool(layout.levels)
        self._dtype = layout.dtype
        self.call = call
        self._pack = Struct(f"={3 * ndim + FIRST_LENGTH}q").pack
        self._itemsize = layout.dtype.itemsize
        self._chunk_nbytes = chain.chunk_nbytes
        self._limit_nbytes = source.largest_chunk_nbytes
        self._is_plain = source.raw_strides is not None
        part_nbytes = chain.chunk_nbytes // PART_SHARE
        # For more, decoding in part costs as much as decoding all, or is not possible.
        is_divisible = source.range_strides is not None
        self._most_in_part = part_nbytes if is_divisible else 0
        is_large = chain.has_frames and chain.chunk_nbytes >= _MOST_BLOSC_NBYTES
        self._most_wanted = part_nbytes if is_large else chain.chunk_nbytes
        # Without shards, each inner chunk is found by its own place in the grid.
        self._axes = [
            (extent, cell, per_shard if layout.levels else 1, *strides)
            for extent, (cell, per_shard, *strides) in zip(
                layout.shape, grid_of(layout, chain.strides), strict=True
            )
        ]

    def read(
        self, source: Source, key: Any, out: NDArray[Any] | None = None
    ) -> NDArray[Any] | None:
        """Array of the elements that `key` selects; None if declined.

        Parameters
        ----------
        source
            The array, with the options of this read.
        key
            An index expression, not checked yet.
        out
            Array to write into, not checked yet; None makes one.

        Raises
        ------
        StoreError
            The store failed.
        """
        part = self._part_of(key if type(key) is tuple else (key,))
        if part is None:
            return None
        if out is None:
            out = np.empty(part.shape, self._dtype)
        elif not self._fits(out, part.shape):
            return None
        return out if self._read_part(source, part, out) else None

    def _fits(self, out: Any, shape: tuple[int, ...]) -> bool:
        """Whether an array that nobody has looked at can be written as it lies."""
        # A subclass may write in a way of its own.
        is_plain = type(out) is np.ndarray and out.flags.carray
        return is_plain and out.shape == shape and out.dtype == self._dtype

    def read_into(
        self, source: Source, selection: Selection, out: NDArray[Any]
    ) -> bool:
        """Whether a selection that takes a part of one inner chunk was read into `out`.

        Parameters
        ----------
        source
            The array, with the options of this read.
        selection
            What to read.
        out
            Host array of the selection's shape, or of that of a selection of which it
            is a part.

        Raises
        ------
        StoreError
            The store failed.
        """
        if out.dtype != self._dtype or not out.flags.c_contiguous:
            return False
        slices: list[slice] = []
        for axis in selection.axes if isinstance(selection, Orthogonal) else ():
            # Of a negative step, too, the first element lands elsewhere.
            if not isinstance(axis, SliceAxis) or axis.out_start:
                return False
            slices.append(slice(axis.start, axis.last + 1, axis.step))
        part = self._part_of(tuple(slices)) if slices else None
        if part is None or prod(part.lengths) != out.size:
            return False
        return self._read_part(source, part, out)

    def _read_part(self, source: Source, part: _ChunkPart, out: NDArray[Any]) -> bool:
        read = self._read_from_shard if self._is_sharded else self._read_from_file
        return read(source, part, out)

    def _read_from_shard(
        self, source: Source, part: _ChunkPart, out: NDArray[Any]
    ) -> bool:
        """Whether a part could be read of an inner chunk that a known index has."""
        key, entry = source.key(part.shard), part.entry
        known = known_index(source, part.shard, key)
        if known is None or known.index.state.item(entry) != PRESENT:
            return False
        start, nbytes = known.index.offset.item(entry), known.index.nbytes.item(entry)
        stored = _Stored(key, known.version, start, nbytes)
        first, cache = first_key(source, known), source.chunks
        if cache is None or first is None:
            return self._read(part, stored, address_of(out))
        hold = cache.find_one(first + entry)
        if hold is not None:
            return self._copy(part, hold, out)
        return self._read_to_keep(cache, first + entry, part, stored, out)

    def _read_from_file(
        self, source: Source, part: _ChunkPart, out: NDArray[Any]
    ) -> bool:
        """Whether a part could be read of an inner chunk that has a file of its own."""
        cache, chunk_key = source.chunks, source.number_of(part.shard)
        if cache is not None:
            hold = find_current(source, cache, chunk_key, part.shard)
            if hold is not None:
                return self._copy(part, hold, out)
        key = source.key(part.shard)
        handle = self._store.open_current(key)
        if handle is None:
            if self._store.checks_missing:
                return False
            out[...] = source.layout.fill_value
            return True
        version = handle.version_to_read()
        stored = _Stored(key, version, 0, handle.nbytes)
        packed = None if cache is None else file_version_of(version)
        if cache is None or packed is None:
            return self._read(part, stored, address_of(out))
        return self._read_to_keep(cache, chunk_key, part, stored, out, {0: packed})

    def _copy(self, part: _ChunkPart, hold: Hold, out: NDArray[Any]) -> bool:
        """Whether the wanted part of a kept inner chunk could be copied."""
        kept = hold.addresses.item(0), self._chunk_nbytes
        return self._place(part, kept, (0, 0, FILLED), address_of(out))

    def _read_to_keep(
        self,
        cache: ChunkCache,
        chunk_key: int,
        part: _ChunkPart,
        stored: _Stored,
        out: NDArray[Any],
        versions: Mapping[int, bytes] | None = None,
    ) -> bool:
        """As `_read`; the inner chunk is kept if it should be.

        `versions` has the version of its file, if `chunk_key` does not tell it.
        """
        weight = SPENT_PART if part.extent <= self._most_in_part else SPENT_WHOLE
        target = address_of(out)
        if not cache.should_keep(chunk_key, weight):
            return self._read(part, stored, target)
        hold = cache.claim([chunk_key])
        is_read = self._read(part, stored, target, hold.addresses.item(0))
        if is_read:
            cache.keep(hold, versions=versions)
        return is_read

    def _read(
        self, part: _ChunkPart, stored: _Stored, target: int, kept: int = 0
    ) -> bool:
        """Whether an inner chunk could be read from its file, with its wanted part.

        It is decoded whole to the address `kept`, unless that is 0.
        """
        key, version, start, nbytes = stored
        is_odd = self._is_plain and nbytes != self._chunk_nbytes
        if is_odd or nbytes > self._limit_nbytes:
            return False
        low, high = start, start + nbytes
        if self._is_plain:
            low += part.offset
            high = low + part.extent
        try:
            handle = self._store.open_file(key, version)
            where = low, high, handle.fd
            if not self._place(part, (start, nbytes), where, target, kept):
                return False
            self._store.confirm(handle)
        except ObjectChangedError:
            return False
        return True

    def _part_of(self, items: tuple[Any, ...]) -> _ChunkPart | None:
        """What integers and slices select, if that is a part of one inner chunk."""
        if len(items) > len(self._axes):
            return None
        shard: list[int] = []
        lengths: list[int] = []
        strides: list[int] = []
        shape: list[int] = []
        entry, offset, extent = 0, 0, self._itemsize
        items += (slice(None),) * (len(self._axes) - len(items))
        for item, axis in zip(items, self._axes, strict=True):
            n, cell, per_shard, index_stride, stride = axis
            if type(item) is int:
                start = last = item + n if item < 0 else item
                step = length = 1
            elif type(item) is slice:
                try:
                    start, stop, step = item.indices(n)
                except (TypeError, ValueError):
                    return None
                length = (stop - start + step - 1) // step
                last = start + (length - 1) * step
                shape.append(length)
            else:
                return None
            # A longer step takes one element, and need not fit a word.
            is_some = 0 < step <= cell and 0 <= start <= last < n
            if not is_some or last // cell != start // cell:
                return None
            at = start // cell
            number = at // per_shard
            shard.append(number)
            entry += (at - number * per_shard) * index_stride
            offset += (start - at * cell) * stride
            extent += (last - start) * stride
            lengths.append(length)
            strides.append(step * stride)
        if extent > self._most_wanted:
            return None
        wanted = tuple(lengths), tuple(strides), tuple(shape)
        return _ChunkPart(tuple(shard), entry, offset, extent, *wanted)

    def _place(
        self,
        part: _ChunkPart,
        encoded: tuple[int, int],
        where: tuple[int, int, int],
        target: int,
        kept: int = 0,
    ) -> bool:
        """Whether the loops could read and decode a part, to `target`.

        Parameters
        ----------
        encoded, where
            Columns of the box: `SOURCE` and `NBYTES`, and those from `LOW` to `FILE`.
        kept
            Its column `KEEP`.
        """
        outer: list[int] = []
        step = self._itemsize
        for length in reversed(part.lengths):
            outer.append(step)
            step *= length
        outer.reverse()
        own = self._pack(
            *part.strides,
            *outer,
            *encoded,
            *where,
            part.offset,
            target,
            0,  # PART
            0,  # ENTRY
            kept,
            0,  # LISTED
            *part.lengths,
        )
        return self.call.read_box(own)
