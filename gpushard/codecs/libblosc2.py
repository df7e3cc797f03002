"""libblosc2, if the package blosc2 is installed: it keeps zstd's context.

c-blosc, which numcodecs uses, makes a new context for every block: 20 us of the 28 us
that a frame of 4 KiB takes.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.codecs.base import HostBytes
from gpushard.codecs.contexts import ThreadContexts, address_of

# This code is written for this binary interface; the name is the file's SONAME.
# `blosc2_dparams` is passed by value.
_SONAME = "libblosc2.so.9"


class _Parameters(ctypes.Structure):
    """`blosc2_dparams` of blosc2.h."""

    _fields_ = (
        ("nthreads", ctypes.c_int16),
        ("schunk", ctypes.c_void_p),
        ("postfilter", ctypes.c_void_p),
        ("postparams", ctypes.c_void_p),
        ("typesize", ctypes.c_int32),
    )


@cache
def find() -> Any | None:
    """The library as a ctypes object; None if it is not installed."""
    spec = find_spec("blosc2")
    if spec is None or spec.origin is None:
        return None
    try:
        lib = ctypes.CDLL(str(Path(spec.origin).parent / "lib" / _SONAME))
    except OSError:  # another major version, or another platform's
        return None
    address, int32 = ctypes.c_void_p, ctypes.c_int32
    lib.blosc2_init.restype = None
    lib.blosc2_create_dctx.restype = address
    lib.blosc2_create_dctx.argtypes = (_Parameters,)
    lib.blosc2_free_ctx.restype = None
    lib.blosc2_free_ctx.argtypes = (address,)
    lib.blosc2_decompress_ctx.argtypes = (address, address, int32, address, int32)
    lib.blosc2_init()
    return lib


def new_context(lib: Any) -> int:
    """Address of a context for one thread at a time; 0 for lack of memory."""
    return lib.blosc2_create_dctx(_Parameters(1, None, None, None, 8)) or 0


_contexts = ThreadContexts(new_context, "blosc2_free_ctx")


def decode_frame(encoded: HostBytes, nbytes: int) -> NDArray[np.uint8] | None:
    """Decoded bytes of a frame: uint8, shape (nbytes,), host.

    The streams of `encoded` must lie inside it (`blosc_frame.check_streams`). None if
    it is damaged, or libblosc2 is not there.
    """
    lib = find()
    if lib is None:
        return None
    context = _contexts.own(lib)
    if not context.address:
        return None
    target = np.empty(nbytes, np.uint8)
    done = lib.blosc2_decompress_ctx(
        context.address, address_of(encoded), len(encoded), address_of(target), nbytes
    )
    return target if done == nbytes else None
