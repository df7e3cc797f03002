"""Which arrays the compiled loops can read, and what the loops must know of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gpushard.codecs.base import BytesCodec
from gpushard.codecs.small_floats import is_small_float
from gpushard.formats.data_types import dtype_of_numbers
from gpushard.fused.columns import (
    BLOSC,
    BLOSC_ZLIB,
    BOOL,
    CASTS,
    COPY,
    FIRST_CAST,
    GZIP,
    LZ4,
    RAW,
    ZLIB,
    ZSTD,
)
from gpushard.fused.opening import ObjectFiles, object_files
from gpushard.fused.system_calls import pread_address
from gpushard.fused.words import PlanParameters
from gpushard.options import KIB
from gpushard.source import Source
from gpushard.stores.local.store import LocalStore, holds_plain_files

_KINDS = {
    "zstd": ZSTD,
    "numcodecs.zstd": ZSTD,
    "blosc": BLOSC,
    "numcodecs.blosc": BLOSC,
    "numcodecs.lz4": LZ4,
    "gzip": GZIP,
    "numcodecs.gzip": GZIP,
    "numcodecs.zlib": ZLIB,
}
_CRC32C = "crc32c"


class Pace(NamedTuple):
    """Time to read and decode: microseconds per inner chunk, and per KiB in addition.

    Rough figures of one machine
    (`docs/decisions/2026-11-22-threads-of-short-reads.md`).
    """

    chunk_us: float
    kib_us: float

    def work_us(self, nbytes: int) -> float:
        """Microseconds for an inner chunk of `nbytes`."""
        return self.chunk_us + self.kib_us * nbytes / KIB


_PACES = {
    RAW: Pace(1, 0.06),
    LZ4: Pace(1.7, 0.3),
    BLOSC: Pace(7, 0.5),
    BLOSC_ZLIB: Pace(8, 1.4),
    ZSTD: Pace(5, 0.9),
    GZIP: Pace(8, 1.4),
    ZLIB: Pace(8, 1.4),
}
_FINDING = "fused chain"
_CAST_OF = {pair: FIRST_CAST + n for n, pair in enumerate(CASTS)}
# Blosc counts bytes in 32 bits, with headers.
_LARGEST_NBYTES = (1 << 31) - 4096
# The loops count in 64 bits, with signs. The limit of some codecs is larger.
_MOST_IN_A_WORD = 1 << 62


@dataclass(frozen=True, slots=True)
class FusedChain:
    """A codec chain that the compiled loops undo, and the files that they read it from.

    Attributes
    ----------
    kind
        `RAW`, `ZSTD`, `BLOSC`, `BLOSC_ZLIB`, `LZ4`, `GZIP` or `ZLIB`.
    has_crc
        Whether a checksum follows the payload.
    chunk_nbytes
        Decoded size of an inner chunk.
    strides
        Bytes between neighbours in a decoded inner chunk, along each axis of the array.
    stored_dtype, dtype
        Data type as which decoded elements are stored, and that of the array.
    change
        `COPY`, `BOOL`, the number of bytes to reverse, or a cast.
    pace
        Time that its inner chunks take.
    shard_store
        Store of the array, if the loops can read its shards as files; else None.
    plannable_store
        The same, if they can also plan such reads; else None.
    shuffle_itemsize
        Bytes of an element if a byte shuffle (`numcodecs.shuffle`) precedes the
        compressor, or 0.
    object_files
        Files of an unsharded array, if the loops can open them; else None.
    """

    kind: int
    has_crc: bool
    chunk_nbytes: int
    strides: tuple[int, ...]
    stored_dtype: np.dtype[Any]
    dtype: np.dtype[Any]
    change: int
    pace: Pace
    shard_store: LocalStore | None = None
    plannable_store: LocalStore | None = None
    shuffle_itemsize: int = 0
    object_files: ObjectFiles | None = None

    def into(self, dtype: np.dtype[Any]) -> FusedChain | None:
        """The chain for outputs of `dtype`; None if the loops do not write these."""
        if dtype == self.dtype:
            return self
        change = None
        swapped = self.dtype.newbyteorder()
        if dtype == swapped and dtype.type is swapped.type:
            change = _change(self.stored_dtype, dtype)
        elif self.change in (COPY, BOOL) and dtype.isnative:
            change = self._cast_into(dtype)
        if change is None:
            return None
        return replace(self, change=change)

    def _cast_into(self, dtype: np.dtype[Any]) -> int | None:
        """Change to elements of `dtype`, another type of the machine's byte order."""
        stored, into = _code(self.dtype), _code(dtype)
        if dtype.kind in "iu" and self.dtype.kind in "iub":
            if not np.can_cast(self.dtype, dtype, "same_kind"):
                return None
            if self.dtype.itemsize == dtype.itemsize:  # the same bits
                return self.change
            into = f"i{dtype.itemsize}"
            if self.dtype.itemsize > dtype.itemsize:
                stored = f"i{self.dtype.itemsize}"
        return _CAST_OF.get((stored, into))

    @property
    def has_short_ways(self) -> bool:
        """Whether some small reads are for the loops (see `fused.short.ways`)."""
        return self.plannable_store is not None or self.object_files is not None

    @property
    def decodes_directly(self) -> bool:
        """Whether whole inner chunks take no memory but that which they are decoded to.

        Blocks of a Blosc frame, and bytes that were shuffled, are put together from a
        copy.
        """
        return not (self.has_frames or self.shuffle_itemsize)

    @property
    def has_frames(self) -> bool:
        """Whether inner chunks are Blosc frames."""
        return self.kind in (BLOSC, BLOSC_ZLIB)

    @property
    def out_itemsize(self) -> int:
        """Bytes of an element in the output."""
        if self.change < FIRST_CAST:
            return self.dtype.itemsize
        return dtype_of_numbers(CASTS[self.change - FIRST_CAST][1]).itemsize

    @property
    def chunk_us(self) -> float:
        """Microseconds to read and decode a whole inner chunk."""
        return self.pace.work_us(self.chunk_nbytes)


def fused_chain(source: Source) -> FusedChain | None:
    """Chain of an array in the loops' terms; None if they cannot read the array.

    They also leave it to others under a memory limit with room for little more than one
    inner chunk.
    """
    if _FINDING not in source.findings:
        source.findings[_FINDING] = _find_chain(source)
    return source.findings[_FINDING]


def plan_parameters(
    source: Source, chain: FusedChain, fill: int = 0, target: int = 0
) -> PlanParameters:
    """What the loops must know of an array, and of an output at `target`, to plan.

    `fill` is the address of an inner chunk of fill values in its stored form.
    """
    return PlanParameters(
        chunk_nbytes=chain.chunk_nbytes,
        itemsize=chain.dtype.itemsize,
        limit_nbytes=min(source.largest_chunk_nbytes, _MOST_IN_A_WORD),
        is_plain=int(source.raw_strides is not None),
        fill=fill,
        target=target,
        work=0,
    )


def _code(dtype: np.dtype[Any]) -> str:
    """The data type as `columns.CASTS` has it; the byte order is not told."""
    return dtype.name if is_small_float(dtype) else dtype.str[1:]


def casts_into(source: Source, dtype: np.dtype[Any]) -> bool:
    """Whether reads into `dtype` are for the loops, once they are loaded."""
    chain = fused_chain(source)
    return chain is not None and chain.into(dtype) is not None


def _find_chain(source: Source) -> FusedChain | None:
    if source.room.is_tight:
        return None
    strides, chunk_nbytes = source.element_strides, source.chunk_nbytes
    if strides is None or not 0 < chunk_nbytes <= _LARGEST_NBYTES:
        return None
    stream = _stream_of(source.pipeline.bytes_codecs, chunk_nbytes)
    dtype = source.layout.dtype
    change = _change(source.pipeline.stored_dtype, dtype)
    if stream is None or change is None or len(strides) == 1:
        return None
    # Most frames have the compressor that the metadata names.
    compressor = source.layout.chain.blosc_compressor
    if compressor == "snappy":
        return None
    if compressor == "zlib":
        stream = stream._replace(kind=BLOSC_ZLIB)
    pace = _PACES[LZ4 if source.layout.chain.decodes_fast else stream.kind]
    store = _store_of_files(source)
    return FusedChain(
        kind=stream.kind,
        has_crc=stream.has_crc,
        chunk_nbytes=chunk_nbytes,
        strides=strides[:-1],
        stored_dtype=source.pipeline.stored_dtype,
        dtype=dtype,
        change=change,
        pace=pace,
        shard_store=store,
        plannable_store=store if _is_plannable(source) else None,
        shuffle_itemsize=stream.shuffle_itemsize,
        object_files=object_files(source),
    )


class _Stream(NamedTuple):
    """How bytes are encoded, in the terms of `FusedChain`."""

    kind: int
    has_crc: bool
    shuffle_itemsize: int


def _stream_of(codecs: Sequence[BytesCodec], nbytes: int) -> _Stream | None:
    """Encoding of `nbytes` by these codecs; None if the loops do not know it."""
    names = [codec.name for codec in codecs]
    has_crc = names[-1:] == [_CRC32C]
    if has_crc:
        names.pop()
    itemsize = codecs[0].shuffled if len(names) > 1 else 0
    if itemsize:
        del names[0]
    kind = RAW if not names else _KINDS.get(names[0])
    if kind is None or len(names) > 1 or nbytes % max(itemsize, 1):
        return None
    return _Stream(kind, has_crc, itemsize if itemsize > 1 else 0)


def _store_of_files(source: Source) -> LocalStore | None:
    store = source.store
    if not holds_plain_files(store) or not source.layout.levels or not pread_address():
        return None
    return store


def _is_plannable(source: Source) -> bool:
    """Whether the loops can plan reads: of one sharding level, in a regular grid."""
    layout = source.layout
    return (
        len(layout.levels) == 1
        and not layout.object_codecs
        and all(axis.boundaries is None for axis in layout.axes)
        # Above the limit, other paths check how much of plain elements is wanted.
        and source.chunk_nbytes <= source.options.max_chunk_nbytes
    )


def _change(stored: np.dtype[Any], dtype: np.dtype[Any]) -> int | None:
    """Change from stored elements to those of `dtype`; None if no loop does it."""
    if dtype.hasobject:
        return None
    if dtype == np.bool_:
        return BOOL
    if stored == dtype:  # a struct, too: it has no bytes between its fields
        return COPY
    if dtype.fields is not None:
        return None
    reversed_nbytes = {"c": dtype.itemsize // 2, "U": 4}.get(dtype.kind, dtype.itemsize)
    return reversed_nbytes if reversed_nbytes in (2, 4, 8) else None
