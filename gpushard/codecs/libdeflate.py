"""Whole deflate streams through libdeflate, if the system has it.

libdeflate is up to three times as fast as zlib. It decodes only one stream whose
decoded size is known; zlib decodes all others, and says what is wrong with a damaged
one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.codecs.base import HostBytes
from gpushard.codecs.contexts import ThreadContexts

# This code is written for this binary interface; the name is the file's SONAME.
_SONAME = "libdeflate.so.0"
# RFC 1952, 2.3.1: the flag, in the fourth byte, of a checksum of the header itself, at
# which libdeflate does not look.
_FHCRC = 2
# Levels of zlib; libdeflate has these and higher ones.
_LEVELS = range(10)
# RFC 1951, 3.2.5: 258 bytes for a length and a distance of one bit each.
_MAX_EXPANSION = 1032


@cache
def find() -> Any | None:
    """The library as a ctypes object; None if it is not installed."""
    try:
        lib = ctypes.CDLL(_SONAME)
        for wrapper in ("gzip", "zlib"):
            function = getattr(lib, f"libdeflate_{wrapper}_decompress_ex")
            function.argtypes = (
                *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
                *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p),
            )
    except (OSError, AttributeError):
        return None
    lib.libdeflate_alloc_decompressor.restype = ctypes.c_void_p
    lib.libdeflate_free_decompressor.restype = None
    lib.libdeflate_free_decompressor.argtypes = [ctypes.c_void_p]
    return lib


def new_context(lib: Any) -> int:
    """Address of a decompressor, for one thread at a time; 0 for lack of memory."""
    return lib.libdeflate_alloc_decompressor() or 0


_contexts = ThreadContexts(new_context, "libdeflate_free_decompressor")


def decode_stream(
    encoded: HostBytes, nbytes: int, wrapper: str
) -> NDArray[np.uint8] | None:
    """Decoded bytes of one stream, its checksum compared: uint8, shape (nbytes,), host.

    `wrapper` is "gzip" or "zlib". None if `encoded` is not exactly one such stream, if
    the stream is damaged, or if libdeflate is not installed.
    """
    lib = find()
    source = np.frombuffer(encoded, np.uint8)
    if lib is None or (wrapper == "gzip" and _has_header_checksum(source)):
        return None
    # At this point nothing is known of the stream but how much it can decode to at
    # most.
    if nbytes > _MAX_EXPANSION * len(source):
        return None
    context = _contexts.own(lib)
    if not context.address:
        return None
    target = np.empty(nbytes, np.uint8)
    used = ctypes.c_size_t()
    # Without a pointer for the decoded size, libdeflate requires the exact size.
    status = getattr(lib, f"libdeflate_{wrapper}_decompress_ex")(
        context.address,
        source.ctypes.data,
        len(source),
        target.ctypes.data,
        nbytes,
        ctypes.byref(used),
        None,
    )
    return target if status == 0 and used.value == len(source) else None


def gzip_compressor(
    level: Any,
) -> Callable[[NDArray[np.uint8]], NDArray[np.uint8]] | None:
    """Encoder of gzip streams at a level of zlib's; None if libdeflate has none.

    The encoder may be called from several threads at once.
    """
    lib = find()
    if lib is None or not isinstance(level, int) or level not in _LEVELS:
        return None
    # libdeflate can be built to decode only.
    if not hasattr(lib, "libdeflate_gzip_compress"):
        return None
    compress = lib.libdeflate_gzip_compress
    compress.restype = ctypes.c_size_t
    compress.argtypes = (
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
        *(ctypes.c_void_p, ctypes.c_size_t),
    )
    bound = lib.libdeflate_gzip_compress_bound
    bound.restype, bound.argtypes = ctypes.c_size_t, (ctypes.c_void_p, ctypes.c_size_t)
    lib.libdeflate_alloc_compressor.restype = ctypes.c_void_p
    lib.libdeflate_free_compressor.restype = None
    lib.libdeflate_free_compressor.argtypes = [ctypes.c_void_p]
    contexts = ThreadContexts(
        lambda lib: lib.libdeflate_alloc_compressor(level) or 0,
        "libdeflate_free_compressor",
    )
    if not contexts.own(lib).address:  # older releases have no level 0
        return None

    def encode(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        context = contexts.own(lib)
        if not context.address:
            raise MemoryError("no memory for a compressor of libdeflate")
        target = np.empty(bound(context.address, len(data)), np.uint8)
        places = data.ctypes.data, len(data), target.ctypes.data, len(target)
        return target[: compress(context.address, *places)].copy()

    return encode


def _has_header_checksum(source: NDArray[np.uint8]) -> bool:
    return len(source) > 3 and bool(source[3] & _FHCRC)
