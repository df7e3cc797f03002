"""Compressors' own functions, for the codecs that most arrays have.

What zarr's objects do around a codec, and a new context for each call, take longer than
4 KiB take to be encoded.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from gpushard.codecs.crc32c import with_checksum
from gpushard.layout import CodecSpec

Bytes = NDArray[np.uint8]
Compress = Callable[[Bytes], Bytes]

# blosc.h: the numbers of its filters.
_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
# A compiled module, of which there are no types.
_compress_blosc: Any = import_module("numcodecs.blosc").compress


class _ZstdContexts(threading.local):
    """Compressors with the same settings: two threads must not share a context."""

    def __init__(self, level: int, *, has_checksum: bool) -> None:
        self.one = zstandard.ZstdCompressor(level, write_checksum=has_checksum)

    def compress(self, data: Any) -> Bytes:
        return np.frombuffer(self.one.compress(data), np.uint8)


def compressor(spec: CodecSpec, configuration: Mapping[str, Any]) -> Compress | None:
    """Encoder of `spec` that needs no object of zarr's; None if there is none here.

    `configuration` has the codec's settings, also those that `spec` leaves open. The
    encoder may be called from several threads at once.
    """
    match spec.name:
        case "zstd" | "numcodecs.zstd":
            level = min(configuration["level"], zstandard.MAX_COMPRESSION_LEVEL)
            has_checksum = bool(configuration.get("checksum", False))
            return _ZstdContexts(level, has_checksum=has_checksum).compress
        case "blosc":
            return _blosc(configuration)
        case "gzip" | "numcodecs.gzip":
            return partial(_gzip, configuration["level"])
        case "crc32c":
            return _with_checksum
        case _:
            return None


def _blosc(configuration: Mapping[str, Any]) -> Compress:
    cname = configuration["cname"].encode()
    shuffle = _SHUFFLES[configuration["shuffle"]]
    level, blocksize, typesize = map(
        configuration.__getitem__, ("clevel", "blocksize", "typesize")
    )

    def compress(data: Bytes) -> Bytes:
        encoded = _compress_blosc(data, cname, level, shuffle, blocksize, typesize)
        return np.frombuffer(encoded, np.uint8)

    return compress


def _gzip(level: int, data: Bytes) -> Bytes:
    return np.frombuffer(gzip.compress(data, level, mtime=0), np.uint8)


def _with_checksum(data: Bytes) -> Bytes:
    return np.frombuffer(with_checksum(data.tobytes()), np.uint8)
