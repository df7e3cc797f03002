"""Public C interfaces that wheels ship, and what each thread needs to call them."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.fused.columns import BLOSC, LZ4, RAW, WORK_AXES, ZSTD
from gpushard.options import MIB

# `blosc2_dparams` is passed by value, so only the binary interface that it was read of
# will do. The file's name is the library's SONAME.
_BLOSC2 = "libblosc2.so.9"
# Larger rooms are given back after each use.
_KEPT_NBYTES = 4 * MIB
_CACHE_LINE = 64


class Library(NamedTuple):
    """A decompressor: address of its function, and what makes a context for it.

    A context is given as its address and what keeps it alive.
    """

    function: int
    make_context: Callable[[], tuple[int, Any]]


class _BloscParameters(ctypes.Structure):
    """`blosc2_dparams` of blosc2.h."""

    _fields_ = (
        ("nthreads", ctypes.c_int16),
        ("schunk", ctypes.c_void_p),
        ("postfilter", ctypes.c_void_p),
        ("postparams", ctypes.c_void_p),
        ("typesize", ctypes.c_int32),
    )


@cache
def find_library(kind: int) -> Library | None:
    """Decompressor of a kind of chain; None where it is not installed."""
    if kind == RAW:
        return Library(0, lambda: (0, None))
    return _zstd() if kind == ZSTD else _blosc()


def _zstd() -> Library | None:
    try:
        from zstandard import backend_cffi
    except ImportError:  # zstandard is installed without cffi
        return None
    backend: Any = backend_cffi
    ffi, lib = backend.ffi, backend.lib

    def make_context() -> tuple[int, Any]:
        context = ffi.gc(lib.ZSTD_createDCtx(), lib.ZSTD_freeDCtx)
        return int(ffi.cast("uintptr_t", context)), context

    function = ffi.addressof(lib, "ZSTD_decompressDCtx")
    return Library(int(ffi.cast("uintptr_t", function)), make_context)


def _blosc() -> Library | None:
    spec = find_spec("blosc2")
    if spec is None or spec.origin is None:
        return None
    try:
        lib = ctypes.CDLL(str(Path(spec.origin).parent / "lib" / _BLOSC2))
    except OSError:  # another major version, or another platform's
        return None
    lib.blosc2_init.restype = None
    lib.blosc2_create_dctx.restype = ctypes.c_void_p
    lib.blosc2_create_dctx.argtypes = [_BloscParameters]
    lib.blosc2_free_ctx.restype = None
    lib.blosc2_free_ctx.argtypes = [ctypes.c_void_p]
    lib.blosc2_init()

    def make_context() -> tuple[int, Any]:
        context = lib.blosc2_create_dctx(_BloscParameters(1, None, None, None, 8))
        owner = _Owner()
        weakref.finalize(owner, lib.blosc2_free_ctx, context).atexit = False
        return context or 0, owner

    function = ctypes.cast(lib.blosc2_decompress_ctx, ctypes.c_void_p).value
    return Library(function or 0, make_context)


class _Owner:
    """Lives as long as a context is in use."""

    __slots__ = ("__weakref__",)


class Room(threading.local):
    """What a thread keeps between batches: contexts, and room in its caches."""

    def __init__(self) -> None:
        self._contexts: dict[int, tuple[int, Any]] = {}
        self._kept = np.empty(0, np.uint8)
        self.work = np.empty((4, WORK_AXES), np.int64)

    def context(self, kind: int) -> int:
        """Address of this thread's context for a kind of chain; 0 if there is none."""
        # An LZ4 block goes through blosc.
        kind = BLOSC if kind == LZ4 else kind
        made = self._contexts.get(kind)
        if made is None:
            library = find_library(kind)
            made = (0, None) if library is None else library.make_context()
            self._contexts[kind] = made
        return made[0]

    def buffer(self, nbytes: int) -> NDArray[np.uint8]:
        """Room of at least `nbytes` bytes on a cache line: uint8, shape (n,), host."""
        if len(self._kept) >= nbytes:
            return self._kept
        room = np.empty(nbytes + _CACHE_LINE, np.uint8)
        room = room[-address_of(room) % _CACHE_LINE :]
        if nbytes <= _KEPT_NBYTES:
            self._kept = room
        return room


def address_of(array: NDArray[Any]) -> int:
    """Where the first element of an array lies in memory."""
    return int(array.__array_interface__["data"][0])
