"""libzstd of the system, which takes nine tenths of the time for larger frames.

The one in zstandard's wheel is built without libzstd's assembly. This one decodes what
has `LARGE_NBYTES` or more, here and in the compiled loops: two releases agree on what
every writer makes, but not on what damage leaves of a frame without a checksum, so who
decodes a frame must not depend on the way that a read takes. What it refuses, zstandard
decodes, or says what is wrong with it.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.codecs.base import HostBytes
from gpushard.options import KIB

# Below, both take the same time.
LARGE_NBYTES = 32 * KIB
# The binary interface that was read of; the name is the file's SONAME.
_SONAME = "libzstd.so.1"
# The oldest release that was measured and fuzzed: 1.5.4.
_OLDEST = 10504


@cache
def find() -> Any | None:
    """The library, as ctypes has it; None where it is not installed, or too old."""
    try:
        lib = ctypes.CDLL(_SONAME)
        if lib.ZSTD_versionNumber() < _OLDEST:
            return None
        address, nbytes = ctypes.c_void_p, ctypes.c_size_t
        lib.ZSTD_decompressDCtx.argtypes = (address, address, nbytes, address, nbytes)
        lib.ZSTD_decompressDCtx.restype = nbytes
        lib.ZSTD_findFrameCompressedSize.argtypes = (address, nbytes)
        lib.ZSTD_findFrameCompressedSize.restype = nbytes
        lib.ZSTD_createDCtx.restype = address
        lib.ZSTD_freeDCtx.restype = nbytes
        lib.ZSTD_freeDCtx.argtypes = (address,)
    except (OSError, AttributeError):
        return None
    return lib


def label() -> str:
    """What to call the library in a report; empty where there is none."""
    lib = find()
    if lib is None:
        return ""
    number = lib.ZSTD_versionNumber()
    return f"libzstd {number // 10000}.{number // 100 % 100}.{number % 100}"


class Context:
    """What decodes, for one thread at a time; it is freed with this object.

    Attributes
    ----------
    address
        Where it lies; 0 if there was no memory for it.
    """

    def __init__(self, lib: Any) -> None:
        self.address: int = lib.ZSTD_createDCtx() or 0
        if self.address:
            weakref.finalize(self, lib.ZSTD_freeDCtx, self.address).atexit = False


class _Contexts(threading.local):
    """One context a thread."""

    one: Context | None = None


_contexts = _Contexts()


def frame_nbytes(encoded: HostBytes) -> int | None:
    """Encoded size of the first frame; None if it is cut off, or without libzstd."""
    lib = find()
    if lib is None:
        return None
    nbytes: int = lib.ZSTD_findFrameCompressedSize(_address(encoded), len(encoded))
    return nbytes if nbytes <= len(encoded) else None


def decode_frame(encoded: HostBytes, nbytes: int) -> NDArray[np.uint8] | None:
    """Decoded bytes of one frame, and nothing else: uint8, shape (nbytes,), host.

    Parameters
    ----------
    encoded
        A zstd frame, not a skippable one, whose blocks can hold as much.
    nbytes
        Its decoded size.

    Returns
    -------
    None if there are several frames, or a damaged one, or libzstd is not there.
    """
    lib = find()
    if lib is None:
        return None
    context = _contexts.one
    if context is None:
        context = _contexts.one = Context(lib)
    if not context.address:
        return None
    # In one call libzstd would decode any number of frames.
    if frame_nbytes(encoded) != len(encoded):
        return None
    target = np.empty(nbytes, np.uint8)
    done = lib.ZSTD_decompressDCtx(
        context.address, _address(target), nbytes, _address(encoded), len(encoded)
    )
    return target if done == nbytes else None


def _address(memory: HostBytes) -> int:
    try:  # a quarter of what it takes NumPy to tell
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))
    except TypeError:  # read-only
        return np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
