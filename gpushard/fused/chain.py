"""Which arrays the compiled loops can read, and what the loops must know of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpushard.fused.columns import BLOSC, BOOL, COPY, GZIP, LZ4, RAW, ZLIB, ZSTD
from gpushard.options import KIB
from gpushard.source import Source

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
    ZSTD: Pace(5, 0.9),
    GZIP: Pace(8, 1.4),
    ZLIB: Pace(8, 1.4),
}
_FINDING = "fused chain"
# Blosc counts bytes in 32 bits, with headers.
_LARGEST_NBYTES = (1 << 31) - 4096


@dataclass(frozen=True, slots=True)
class FusedChain:
    """A codec chain that the compiled loops undo.

    Attributes
    ----------
    kind
        `RAW`, `ZSTD`, `BLOSC`, `LZ4`, `GZIP` or `ZLIB`.
    has_crc
        Whether a checksum follows the payload.
    chunk_nbytes
        Decoded size of an inner chunk.
    strides
        Bytes between neighbours in a decoded inner chunk, along each axis of the array.
    dtype
        Data type of the decoded elements.
    change
        `COPY`, `BOOL`, or the number of bytes to reverse.
    pace
        Time that its inner chunks take.
    """

    kind: int
    has_crc: bool
    chunk_nbytes: int
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    change: int
    pace: Pace


def fused_chain(source: Source) -> FusedChain | None:
    """Chain of an array in the loops' terms; None if they cannot read the array."""
    if _FINDING not in source.findings:
        source.findings[_FINDING] = _find_chain(source)
    return source.findings[_FINDING]


def _find_chain(source: Source) -> FusedChain | None:
    strides, chunk_nbytes = source.element_strides, source.chunk_nbytes
    if strides is None or not 0 < chunk_nbytes <= _LARGEST_NBYTES:
        return None
    names = [codec.name for codec in source.pipeline.bytes_codecs]
    has_crc = names[-1:] == [_CRC32C]
    if has_crc:
        names.pop()
    kind = RAW if not names else _KINDS.get(names[0])
    dtype = source.layout.dtype
    change = _change(source.pipeline.stored_dtype, dtype)
    if kind is None or len(names) > 1 or change is None or len(strides) == 1:
        return None
    pace = _PACES[LZ4 if source.layout.chain.decodes_fast else kind]
    return FusedChain(kind, has_crc, chunk_nbytes, strides[:-1], dtype, change, pace)


def _change(stored: np.dtype[Any], dtype: np.dtype[Any]) -> int | None:
    """Change from stored elements to those of `dtype`; None if no loop does it."""
    if dtype.fields is not None or dtype.hasobject:
        return None  # NumPy does not copy the bytes between fields
    if dtype == np.bool_:
        return BOOL
    if stored == dtype:
        return COPY
    reversed_nbytes = {"c": dtype.itemsize // 2, "U": 4}.get(dtype.kind, dtype.itemsize)
    return reversed_nbytes if reversed_nbytes in (2, 4, 8) else None
