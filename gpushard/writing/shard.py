"""A shard in memory: its stored inner chunks, its changes, and its index."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from operator import mul
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import CorruptShardError
from gpushard.layout import GridAxis, ShardLevel
from gpushard.planning.index import CORRUPT, MISSING, PRESENT, ShardIndex, parse_index
from gpushard.source import Source
from gpushard.stores.local.file_bytes import Bytes, FileBytes
from gpushard.writing.regions import Cell

Shape = tuple[int, ...]

EMPTY = np.uint64(2**64 - 1)
"""Offset and size of a missing inner chunk in an index."""

# Elements are compared in words, the widest that divides their size, a few first: if an
# inner chunk holds others, they are mostly not far.
_WORDS = tuple(map(np.dtype, ("u8", "u4", "u2", "u1")))
_FIRST = 1 << 10


@dataclass(frozen=True)
class Region:
    """A shard at one sharding level, as a place in the array.

    Attributes
    ----------
    source
        The array.
    coordinate
        Coordinate of the stored object.
    level
        Number of the sharding codec that cuts the region; for an inner chunk, their
        count.
    shape
        Elements along each axis of the array.
    extents
        How many of these elements lie within the array.
    """

    source: Source
    coordinate: Cell
    level: int
    shape: Shape
    extents: Shape

    @classmethod
    def of_object(cls, source: Source, coordinate: Cell) -> Region:
        """Region of a stored object."""
        shape = source.layout.object_shape(coordinate)
        extents = tuple(
            min(n, axis.extent - int(axis.start_of(i)))
            for n, axis, i in zip(shape, source.layout.axes, coordinate, strict=True)
        )
        return cls(source, coordinate, 0, shape, extents)

    @property
    def is_inner_chunk(self) -> bool:
        """Whether no sharding codec cuts the region."""
        return self.level == len(self.source.layout.levels)

    @property
    def sharding(self) -> ShardLevel:
        """The sharding codec that cuts the region."""
        return self.source.layout.levels[self.level]

    @cached_property
    def grid(self) -> tuple[GridAxis, ...]:
        """Grid of its inner chunks, along the axes of the array."""
        cells = self.sharding.chunk_shape
        return tuple(map(GridAxis, self.shape, cells))

    @cached_property
    def index_shape(self) -> Shape:
        """Inner chunks along each stored axis."""
        return self.source.chunks_per_shard(self.coordinate, self.level)

    @property
    def n_entries(self) -> int:
        """Entries of its index."""
        return prod(self.index_shape)

    @property
    def index_nbytes(self) -> int:
        """Encoded size of its index."""
        return self.sharding.index_nbytes(self.n_entries)

    @property
    def has_index_at_start(self) -> bool:
        """Whether the index lies before the inner chunks."""
        return self.sharding.index_location == "start"

    def entry(self, cell: Cell) -> int:
        """Entry of the index for the inner chunk at `cell` of the grid."""
        return sum(map(mul, cell, self.entry_strides))

    @cached_property
    def entry_strides(self) -> Shape:
        """Entries from an inner chunk to the next along each axis of the array."""
        strides, stride = [0] * len(self.shape), 1
        order = zip(self.index_shape, self.sharding.axis_order, strict=True)
        for n, axis in reversed([*order]):
            strides[axis] = stride
            stride *= n
        return tuple(strides)

    def inner(self, cell: Cell) -> Region:
        """Region of the inner chunk at `cell` of the grid."""
        shape = self.sharding.chunk_shape
        extents = tuple(
            min(n, extent - n * i)
            for n, extent, i in zip(shape, self.extents, cell, strict=True)
        )
        return Region(self.source, self.coordinate, self.level + 1, shape, extents)

    def index_range(self, shard_nbytes: int) -> tuple[int, int]:
        """Byte range of the index in a shard of that size."""
        nbytes = self.index_nbytes
        if nbytes > shard_nbytes:
            raise CorruptShardError(
                "the shard is shorter than its index",
                expected=f"at least {nbytes} bytes",
                got=shard_nbytes,
                hint="the shard is damaged: write all of it again",
            )
        if self.has_index_at_start:
            return 0, nbytes
        return shard_nbytes - nbytes, shard_nbytes


@dataclass(frozen=True, slots=True)
class StoredShard:
    """A shard's bytes, in memory or in a file, and its validated index."""

    data: Bytes | FileBytes
    index: ShardIndex

    @classmethod
    def parse(cls, region: Region, data: Bytes | FileBytes) -> StoredShard:
        """Shard whose bytes are `data`."""
        start, stop = region.index_range(len(data))
        pipeline = region.source.index_pipelines[region.level]
        decoded = pipeline.decode(data[start:stop], (*region.index_shape, 2))
        entries = np.ascontiguousarray(decoded, np.uint64).reshape(-1, 2)
        return cls(data, parse_index(entries, nbytes=len(data)))

    def span(self, entry: int) -> slice | None:
        """Byte range of an inner chunk; None if it is missing."""
        index = self.index
        if index.state[entry] == MISSING:
            return None
        if index.state[entry] == CORRUPT:
            index.refuse_corrupt(entry)
        start = int(index.offset[entry])
        return slice(start, start + int(index.nbytes[entry]))

    def nested(self, span: slice) -> Bytes | FileBytes:
        """Bytes of a nested shard, those of a file unread."""
        data = self.data
        return data.within(span) if isinstance(data, FileBytes) else data[span]

    def present(self) -> list[int]:
        """Entries of the stored inner chunks, by ascending offset."""
        entries = np.flatnonzero(self.index.state == PRESENT)
        return entries[np.argsort(self.index.offset[entries], kind="stable")].tolist()

    def entries(self) -> NDArray[np.uint64]:
        """Copy of the index: uint64, shape (n_entries, 2), offset and nbytes."""
        columns = (self.index.offset, self.index.nbytes)
        return np.stack([column.view(np.uint64) for column in columns], axis=1)


def blank_entries(n_entries: int) -> NDArray[np.uint64]:
    """Index in which every inner chunk is missing: uint64, shape (n_entries, 2)."""
    return np.full((n_entries, 2), EMPTY, np.uint64)


def is_fill(chunk: NDArray[Any], fill_value: NDArray[Any]) -> bool:
    """Whether an inner chunk holds only the fill value, bit for bit."""
    return bool(are_fill(chunk[np.newaxis], fill_value)[0])


def are_fill(chunks: NDArray[Any], fill_value: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each inner chunk holds only the fill value, bit for bit.

    The inner chunks lie along the first axis; the result has shape (n_chunks,).
    """
    if not chunks.nbytes:
        return np.ones(len(chunks), bool)
    rows = chunks.reshape(len(chunks), -1)
    if chunks.dtype.kind in "OT":
        return np.array([bool(np.all(row == fill_value)) for row in rows], bool)
    # A scalar of text lacks the zeros behind its last character.
    stored = np.array(fill_value, chunks.dtype).tobytes()
    word = next(word for word in _WORDS if not len(stored) % word.itemsize)
    fill = np.frombuffer(stored, word)
    # As a rule the first element tells.
    firsts = np.ascontiguousarray(rows[:, 0]).view(word).reshape(len(rows), -1)
    may_be = (firsts == fill).all(axis=1)
    for i in may_be.nonzero()[0].tolist():
        may_be[i] = _is_filled(np.ascontiguousarray(rows[i]).view(word), fill)
    return may_be


def _is_filled(words: NDArray[Any], fill: NDArray[Any]) -> bool:
    """Whether words are those of the fill value, again and again."""
    each = [words[k :: len(fill)] for k in range(len(fill))]
    at, end = 0, _FIRST
    while at < len(each[0]):
        for some, word in zip(each, fill, strict=True):
            if not (some[at:end] == word).all():
                return False
        at, end = end, 8 * end
    return True


def is_own(
    chunk: NDArray[Any] | None, stored: Bytes, dtype: np.dtype[Any]
) -> TypeGuard[NDArray[Any]]:
    """Whether a decoded inner chunk can be changed, and nobody else has its memory."""
    return (
        chunk is not None
        and chunk.flags.writeable
        and chunk.flags.c_contiguous
        and chunk.dtype == dtype
        and not np.may_share_memory(chunk, stored)
    )
