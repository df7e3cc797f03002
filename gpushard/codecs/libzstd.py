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
from collections.abc import Sequence
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
# RFC 8878, 3.1.1.2.4: a block decodes to so much at most.
BLOCK_NBYTES = 128 * KIB
# zstd.h, ZSTD_d_stableOutBuffer: a stream is decoded to where it stays, and nothing of
# it is kept beside. A release that knows no such parameter refuses it; then all frames
# are decoded whole.
_STABLE_OUT = 1001
_BUFFER = ctypes.c_size_t * 3


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


@cache
def of_parts(lib: Any) -> tuple[Any, Any] | None:
    """What begins a stream, and what decodes it as far as it is given.

    None where this release does not do that to where it stays.
    """
    try:
        address, nbytes = ctypes.c_void_p, ctypes.c_size_t
        lib.ZSTD_DCtx_setParameter.argtypes = (address, ctypes.c_int, ctypes.c_int)
        lib.ZSTD_DCtx_setParameter.restype = nbytes
        lib.ZSTD_initDStream.argtypes = (address,)
        lib.ZSTD_initDStream.restype = ctypes.c_ssize_t  # errors are negative
        lib.ZSTD_decompressStream.argtypes = (address, address, address)
        lib.ZSTD_decompressStream.restype = ctypes.c_ssize_t
    except AttributeError:
        return None
    context = lib.ZSTD_createDCtx()
    is_known = context and lib.ZSTD_DCtx_setParameter(context, _STABLE_OUT, 1) == 0
    lib.ZSTD_freeDCtx(context)
    return (lib.ZSTD_initDStream, lib.ZSTD_decompressStream) if is_known else None


def new_context(lib: Any) -> int:
    """Address of a context, for whole frames and for parts of them; 0 if that fails."""
    context: int = lib.ZSTD_createDCtx() or 0
    if context and of_parts(lib) is not None:
        lib.ZSTD_DCtx_setParameter(context, _STABLE_OUT, 1)
    return context


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
        self.address = new_context(lib)
        if self.address:
            weakref.finalize(self, lib.ZSTD_freeDCtx, self.address).atexit = False


class _Contexts(threading.local):
    """One context a thread."""

    one: Context | None = None

    def of(self, lib: Any) -> Context:
        """The one of the thread that asks."""
        if self.one is None:
            self.one = Context(lib)
        return self.one


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
    context = _contexts.of(lib)
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


def decode_first(
    encoded: HostBytes, nbytes: int, enough: int, ends: Sequence[int]
) -> NDArray[np.uint8] | None:
    """The first decoded bytes of a frame: uint8, shape (nbytes,), host.

    Bytes behind the block with the last of those are of no meaning.

    Parameters
    ----------
    encoded
        One zstd frame, and nothing else, which tells its size and has no checksum.
    nbytes
        Its decoded size.
    enough
        How many bytes are needed: none of the last `BLOCK_NBYTES`.
    ends
        Where its blocks end.

    Returns
    -------
    None if a block is damaged that is needed, or libzstd does not decode parts.
    """
    lib = find()
    parts = None if lib is None else of_parts(lib)
    if parts is None:
        return None
    begin, decode = parts
    context = _contexts.of(lib)
    if not context.address or begin(context.address) < 0:
        return None
    target = np.empty(nbytes, np.uint8)
    # As zstd.h has `ZSTD_outBuffer` and `ZSTD_inBuffer`: address, size, position.
    out = _BUFFER(_address(target), nbytes, 0)
    given = _BUFFER(_address(encoded), 0, 0)
    # Each gives at most `BLOCK_NBYTES`: so many are needed in any case.
    n = -(-enough // BLOCK_NBYTES)
    while out[2] < enough:
        if n >= len(ends):  # the last one tells whether the frame is whole
            return None
        given[1] = ends[n - 1]
        if decode(context.address, out, given) < 0:
            return None
        n += 1
    return target


def _address(memory: HostBytes) -> int:
    try:  # a quarter of what it takes NumPy to tell
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))
    except TypeError:  # read-only
        return np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
