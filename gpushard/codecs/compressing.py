"""Compressors' own functions, for the codecs that most arrays have.

What zarr's objects do around a codec, and a new context for each call, take longer than
4 KiB take to be encoded.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, cast

import numpy as np
import zstandard
from numpy.typing import NDArray

from gpushard.codecs import libdeflate
from gpushard.codecs.crc32c import with_checksum
from gpushard.layout import CodecSpec
from gpushard.options import KIB
from gpushard.workers import run_side_by_side

Bytes = NDArray[np.uint8]
Compress = Callable[[Sequence[Bytes], int], list[Bytes]]
"""Encodes each of some bytes, with at most so many threads."""

# Less than this, for each thread, is encoded before another thread has begun.
LARGE_NBYTES = 64 * KIB
# blosc.h: the numbers of its filters.
_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
# zstd.h: ZSTD_minCLevel, to which libzstd raises lower levels.
_LOWEST_ZSTD_LEVEL = -(1 << 17)
# A compiled module, of which there are no types.
_compress_blosc: Any = import_module("numcodecs.blosc").compress


def compressor(spec: CodecSpec, configuration: Mapping[str, Any]) -> Compress | None:
    """Encoder of `spec` that needs no object of zarr's; None if there is none here.

    `configuration` has all settings (`zarr_objects.all_settings`). The encoder may be
    called from several threads at once.
    """
    match spec.name:
        # A level may be of any type, and numcodecs takes some that are no integers.
        case "zstd" | "numcodecs.zstd" if isinstance(configuration["level"], int):
            level = min(configuration["level"], zstandard.MAX_COMPRESSION_LEVEL)
            level = max(level, _LOWEST_ZSTD_LEVEL)
            has_checksum = bool(configuration["checksum"])
            return _ZstdContexts(level, has_checksum=has_checksum).compress
        case "blosc":
            return partial(_each, _blosc(configuration))
        case "gzip" | "numcodecs.gzip":
            return partial(_each, _gzip(configuration["level"]))
        case "crc32c":
            return partial(_each, _with_checksum)
        case _:
            return None


def threads_for(batch: Sequence[NDArray[Any]], n_threads: int) -> int:
    """Threads that encode arrays of one size, one after the other."""
    return n_threads if batch[0].nbytes >= LARGE_NBYTES else 1


class _ZstdContexts(threading.local):
    """Compressors with the same settings: two threads must not share a context."""

    def __init__(self, level: int, *, has_checksum: bool) -> None:
        self._one = zstandard.ZstdCompressor(level, write_checksum=has_checksum)
        # Threads of C, which do not wait for each other to get from one to the next.
        self._many = getattr(self._one, "multi_compress_to_buffer", None)

    def compress(self, batch: Sequence[Bytes], n_threads: int) -> list[Bytes]:
        """Frames, each with its size."""
        found: Iterable[Any]
        if self._many is None or len(batch) == 1:
            found = map(self._one.compress, cast("Sequence[Any]", batch))
        else:
            n_worth = sum(map(len, batch)) // LARGE_NBYTES
            found = self._many([*batch], threads=min(n_threads, n_worth))
        # What it gives keeps memory for the largest encoding that there could be.
        return [np.frombuffer(frame, np.uint8).copy() for frame in found]


def _each(
    encode: Callable[[Bytes], Bytes], batch: Sequence[Bytes], n_threads: int
) -> list[Bytes]:
    return run_side_by_side(encode, batch, threads_for(batch, n_threads))


def _blosc(configuration: Mapping[str, Any]) -> Callable[[Bytes], Bytes]:
    cname = configuration["cname"].encode()
    shuffle = _SHUFFLES[configuration["shuffle"]]
    level, blocksize, typesize = map(
        configuration.__getitem__, ("clevel", "blocksize", "typesize")
    )

    def compress(data: Bytes) -> Bytes:
        encoded = _compress_blosc(data, cname, level, shuffle, blocksize, typesize)
        return np.frombuffer(encoded, np.uint8)

    return compress


def _gzip(level: Any) -> Callable[[Bytes], Bytes]:
    def compress(data: Bytes) -> Bytes:
        return np.frombuffer(gzip.compress(data, level, mtime=0), np.uint8)

    return libdeflate.gzip_compressor(level) or compress


def _with_checksum(data: Bytes) -> Bytes:
    return np.frombuffer(with_checksum(data), np.uint8)
