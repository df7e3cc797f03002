"""Public C interfaces of decompressors, and a context of each per thread.

libzstd comes with zstandard's cffi module, or with the system, as libz does nearly
everywhere, and libdeflate if another program brought it.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from gpushard.codecs import libdeflate, libzstd
from gpushard.fused.addresses import function_address
from gpushard.fused.columns import (
    BLOSC,
    BLOSC_ZLIB,
    GZIP,
    INFLATE,
    LIBDEFLATE,
    LZ4,
    RAW,
    ZLIB,
    ZSTD,
)

_OWN_LZ4 = "LZ4 of their own"
# Only this version of the binary interface is known here: the name is the SONAME.
_LIBZ = "libz.so.1"
# zlib.h: the largest window, and 16 more for a gzip wrapper instead of zlib's.
_WBITS = {ZLIB: 15, GZIP: 31}
# Size of zlib.h's `z_stream` if pointers and long have 64 bits.
_Z_STREAM_NBYTES = 112


class Library(NamedTuple):
    """A decompressor.

    Attributes
    ----------
    name
        Name of the library in a report.
    kind
        `RAW`, `ZSTD`, `BLOSC`, `BLOSC_ZLIB`, `LZ4`, `INFLATE` or `LIBDEFLATE`.
    decode, reset, decode_part
        Addresses of functions: one decompresses, one readies a context for another
        stream, one decodes as much of a stream as it is given; 0 if there is none.
    make_context
        Makes a context; returns its address and an object that keeps it alive.
    """

    name: str
    kind: int
    decode: int = 0
    reset: int = 0
    decode_part: int = 0
    make_context: Callable[[], tuple[int, Any]] = lambda: (0, None)


class HalfImportedError(Exception):
    """The handler of a signal asks, in the middle of what its thread imports."""


@cache
def find_library(kind: int, *, is_large: bool = False) -> Library | None:
    """Decompressor for a kind of chain; None if it is not installed.

    `is_large` is whether inner chunks have `libzstd.LARGE_NBYTES` or more. Raises
    `HalfImportedError`, which is not kept, unlike None.
    """
    if kind in (RAW, LZ4):
        return Library("a copy" if kind == RAW else _OWN_LZ4, kind)
    zstd = None
    if kind in (ZSTD, BLOSC):
        zstd = (is_large and _system_zstd()) or _wheel_zstd()
    if kind == BLOSC:  # in frames, which may have either
        name = f"{_OWN_LZ4}, {zstd.name}" if zstd else _OWN_LZ4
        return (zstd or Library("", kind))._replace(name=name, kind=kind)
    if kind == ZSTD:
        return zstd
    if kind == BLOSC_ZLIB:
        found = _libdeflate(kind)
        name = f"{_OWN_LZ4}, {found.name}" if found else ""
        return found and found._replace(name=name, kind=kind)
    return _libdeflate(kind) or _libz(kind)


def _system_zstd() -> Library | None:
    lib = libzstd.find()
    if lib is None:
        return None

    def make_context() -> tuple[int, Any]:
        return _owned(libzstd.new_context(lib), lib.ZSTD_freeDCtx)

    name = f"{libzstd.label(lib)} of the system"
    reset, part = map(function_address, libzstd.of_parts(lib) or (None, None))
    return Library(
        name, ZSTD, function_address(lib.ZSTD_decompressDCtx), reset, part, make_context
    )


def _wheel_zstd() -> Library | None:
    try:
        from zstandard import backend_cffi
    except ImportError:  # zstandard was built without its cffi backend
        return None
    backend: Any = backend_cffi
    try:
        ffi, lib = backend.ffi, backend.lib
    except AttributeError:  # other threads wait until a module has all its names
        raise HalfImportedError from None

    def make_context() -> tuple[int, Any]:
        context = ffi.gc(lib.ZSTD_createDCtx(), lib.ZSTD_freeDCtx)
        return int(ffi.cast("uintptr_t", context)), context

    function = ffi.addressof(lib, "ZSTD_decompressDCtx")
    return Library(
        "libzstd", ZSTD, int(ffi.cast("uintptr_t", function)), make_context=make_context
    )


def _libdeflate(kind: int) -> Library | None:
    lib = libdeflate.find()
    if lib is None:
        return None

    def make_context() -> tuple[int, Any]:
        context = lib.libdeflate_alloc_decompressor()
        return _owned(context, lib.libdeflate_free_decompressor)

    wrapper = "gzip" if kind == GZIP else "zlib"
    function = getattr(lib, f"libdeflate_{wrapper}_decompress_ex")
    return Library(
        "libdeflate", LIBDEFLATE, function_address(function), make_context=make_context
    )


def _libz(kind: int) -> Library | None:
    try:
        lib = ctypes.CDLL(_LIBZ)
    except OSError:
        return None
    if ctypes.sizeof(ctypes.c_long) != 8:
        return None
    lib.zlibVersion.restype = ctypes.c_char_p
    lib.inflateInit2_.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
    ]
    lib.inflateEnd.argtypes = [ctypes.c_void_p]

    def make_context() -> tuple[int, Any]:
        stream = ctypes.create_string_buffer(_Z_STREAM_NBYTES)
        address = ctypes.addressof(stream)
        arguments = (_WBITS[kind], lib.zlibVersion(), _Z_STREAM_NBYTES)
        if lib.inflateInit2_(address, *arguments) != 0:
            return 0, None
        return _owned(address, lib.inflateEnd, stream)

    reset, inflate = function_address(lib.inflateReset), function_address(lib.inflate)
    return Library("libz", INFLATE, inflate, reset, make_context=make_context)


class _Owner:
    """Keeps the memory of a context alive, and exists as long as the context."""

    __slots__ = ("__weakref__", "memory")

    def __init__(self, memory: Any) -> None:
        self.memory = memory


def _owned(
    context: int | None, free: Callable[[int], Any], memory: Any = None
) -> tuple[int, Any]:
    """Address of a context, and an object that frees the context when it goes."""
    owner = _Owner(memory)
    if context:
        weakref.finalize(owner, free, context).atexit = False
    return context or 0, owner
