"""Compressors' own functions, for the codecs that most arrays have.

What zarr's objects do around a codec, and a new context for each call, take longer than
4 KiB take to be encoded.
"""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import numcodecs
import numpy as np
import zstandard

from gpushard.codecs import libdeflate
from gpushard.codecs.crc32c import with_checksum
from gpushard.codecs.encoded import LARGE_NBYTES, Bytes, EncodedArrays
from gpushard.layout import CodecSpec
from gpushard.pages import in_pages
from gpushard.threads.workers import run_side_by_side

Compress = Callable[[EncodedArrays, int], EncodedArrays]
"""Encodes each of some bytes, with at most so many threads."""
Encode = Callable[[Bytes], Any]
"""Encodes bytes; the result has a buffer of bytes."""

# blosc.h: the numbers of its filters.
_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
# What zstandard gives keeps memory for the largest encoding that there could be. From
# this part of the input on, a copy would take more than that.
_FULL_SHARE = 7 / 8
# zstd.h: ZSTD_minCLevel, to which libzstd raises lower levels.
_LOWEST_ZSTD_LEVEL = -(1 << 17)
# lz4.h: LZ4_MAX_INPUT_SIZE.
_LARGEST_LZ4_NBYTES = 0x7E000000
# Compiled modules, of which there are no types.
_compress_blosc: Any = import_module("numcodecs.blosc").compress
_compress_lz4: Any = import_module("numcodecs.lz4").compress
# Its types refuse arrays.
_Segments: Any = zstandard.BufferWithSegments


def compressor(spec: CodecSpec, configuration: Mapping[str, Any]) -> Compress | None:
    """Encoder of `spec` that needs no object of zarr's; None if there is none here.

    `configuration` has all settings (`zarr_objects.all_settings`). The encoder may be
    called from several threads at once.
    """
    # A level may be of any type, and numcodecs takes some that are no integers.
    if spec.name in {"zstd", "numcodecs.zstd"}:
        level = configuration["level"]
        if not isinstance(level, int):
            return None
        level = max(min(level, zstandard.MAX_COMPRESSION_LEVEL), _LOWEST_ZSTD_LEVEL)
        has_checksum = bool(configuration["checksum"])
        return _ZstdContexts(level, has_checksum=has_checksum).compress
    if spec.name == "numcodecs.shuffle":
        nbytes = configuration["elementsize"]
        return partial(_each, _shuffle(nbytes)) if isinstance(nbytes, int) else None
    encode = _one_by_one(spec, configuration)
    return None if encode is None else partial(_each, encode)


def _one_by_one(spec: CodecSpec, configuration: Mapping[str, Any]) -> Encode | None:
    match spec.name:
        case "blosc":
            return _blosc(configuration)
        case "gzip" | "numcodecs.gzip":
            return _gzip(configuration["level"])
        case "numcodecs.zlib":
            return partial(zlib.compress, level=configuration["level"])
        case "numcodecs.lz4" if isinstance(configuration["acceleration"], int):
            return _lz4(configuration["acceleration"])
        case "crc32c":
            return with_checksum
        case _:
            return None


def threads_for(nbytes: int, n_threads: int) -> int:
    """Threads that encode arrays of this size, one after the other."""
    # A smaller one is encoded before another thread has begun.
    return n_threads if nbytes >= LARGE_NBYTES else 1


class _ZstdContexts(threading.local):
    """Compressors with the same settings: two threads must not share a context."""

    def __init__(self, level: int, *, has_checksum: bool) -> None:
        self._one = zstandard.ZstdCompressor(level, write_checksum=has_checksum)
        # Threads of C, which do not wait for each other to get from one to the next.
        self._many: Any = getattr(self._one, "multi_compress_to_buffer", None)

    def compress(self, batch: EncodedArrays, n_threads: int) -> EncodedArrays:
        """Frames, each with its size."""
        if self._many is None or len(batch.nbytes) == 1:
            return EncodedArrays.of([self._compress_one(i) for i in batch.items()])
        n_worth = int(batch.nbytes.sum()) // LARGE_NBYTES
        segments, most = _segments(batch), min(n_threads, n_worth)
        try:
            found = self._many(segments, threads=most)
        except zstandard.ZstdError:
            # The system may give no threads. What else is wrong shows again.
            found = self._many(segments, threads=1)
        return EncodedArrays.joined([*found])

    def _compress_one(self, data: Bytes) -> Bytes:
        one: Any = self._one.compress
        found = np.frombuffer(one(data), np.uint8)
        return found if len(found) >= _FULL_SHARE * len(data) else found.copy()


def _segments(batch: EncodedArrays) -> Any:
    """The bytes as zstandard takes many of them."""
    if len(batch.buffers) > 1:
        return batch.items()
    segments = np.stack((batch.offset, batch.nbytes), axis=1)
    return _Segments(batch.buffers[0], segments.tobytes())


def _each(encode: Encode, batch: EncodedArrays, n_threads: int) -> EncodedArrays:
    items = batch.items()
    n_threads = threads_for(len(items[0]), n_threads)
    return EncodedArrays.of(run_side_by_side(encode, items, n_threads))


def _blosc(configuration: Mapping[str, Any]) -> Encode:
    cname = configuration["cname"].encode()
    shuffle = _SHUFFLES[configuration["shuffle"]]
    level, blocksize, typesize = map(
        configuration.__getitem__, ("clevel", "blocksize", "typesize")
    )
    return lambda data: _compress_blosc(
        data, cname, level, shuffle, blocksize, typesize
    )


def _lz4(acceleration: int) -> Encode:
    def encode(data: Bytes) -> Any:
        # The function itself takes 2**32 bytes and some for those some.
        if len(data) > _LARGEST_LZ4_NBYTES:
            raise ValueError(f"LZ4 encodes at most {_LARGEST_LZ4_NBYTES} bytes")
        return _compress_lz4(data, acceleration)

    return encode


def _shuffle(nbytes: int) -> Encode:
    encode: Any = numcodecs.Shuffle(nbytes).encode
    # zarr copies what this gives, and a C library keeps what is freed.
    return lambda data: encode(data, in_pages(len(data)))


def _gzip(level: Any) -> Encode:
    found = libdeflate.gzip_compressor(level)
    return found or (lambda data: gzip.compress(data, level, mtime=0))
