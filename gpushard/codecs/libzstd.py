"""The system's libzstd, which takes nine tenths of zstandard's time for larger frames.

The libzstd in zstandard's wheel is built without assembly. The system's libzstd decodes
frames of `LARGE_NBYTES` or more, here and in the compiled loops. Two releases decode
valid frames alike, but may decode a damaged frame without a checksum differently. So
the choice of the library must not depend on the way that a read takes. If the system's
libzstd refuses a frame, zstandard decodes it or says what is wrong with it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.codecs.base import HostBytes
from gpushard.codecs.contexts import ThreadContexts, address_of
from gpushard.options import KIB

# Below this size, both take the same time.
LARGE_NBYTES = 32 * KIB
# This code is written for this binary interface; the name is the file's SONAME.
_SONAME = "libzstd.so.1"
# The oldest release that was measured and fuzzed: 1.5.4.
_OLDEST = 10504
# RFC 8878, 3.1.1.2.4: the most bytes that a block decodes to.
BLOCK_NBYTES = 128 * KIB
# zstd.h, ZSTD_d_stableOutBuffer: a stream is decoded directly into the output, without
# a second buffer. Releases without this parameter refuse it; then all frames are
# decoded whole.
_STABLE_OUT = 1001
_BUFFER = ctypes.c_size_t * 3


@cache
def find() -> Any | None:
    """The library as a ctypes object; None if it is not installed, or too old."""
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
    """Functions that begin a stream, and that decode as much of it as they are given.

    None if this release cannot decode a stream directly into the output.
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


def label(lib: Any) -> str:
    """Name of the library in a report."""
    number = lib.ZSTD_versionNumber()
    return f"libzstd {number // 10000}.{number // 100 % 100}.{number % 100}"


_contexts = ThreadContexts(new_context, "ZSTD_freeDCtx")


def frame_nbytes(encoded: HostBytes) -> int | None:
    """Encoded size of the first frame; None if it is truncated, or without libzstd."""
    lib = find()
    if lib is None:
        return None
    nbytes: int = lib.ZSTD_findFrameCompressedSize(address_of(encoded), len(encoded))
    return nbytes if nbytes <= len(encoded) else None


def decode_frame(encoded: HostBytes, nbytes: int) -> NDArray[np.uint8] | None:
    """Decoded bytes of one frame, and nothing else: uint8, shape (nbytes,), host.

    `encoded` begins with a frame, not a skippable one, whose blocks can decode to
    `nbytes`. None if there are several frames, or a damaged one, or no libzstd.
    """
    lib = find()
    if lib is None:
        return None
    context = _contexts.own(lib)
    if not context.address:
        return None
    # In one call libzstd would decode any number of frames.
    if frame_nbytes(encoded) != len(encoded):
        return None
    target = np.empty(nbytes, np.uint8)
    done = lib.ZSTD_decompressDCtx(
        context.address, address_of(target), nbytes, address_of(encoded), len(encoded)
    )
    return target if done == nbytes else None


def decode_first(
    encoded: HostBytes, nbytes: int, enough: int, ends: Sequence[int]
) -> NDArray[np.uint8] | None:
    """Decoded bytes of a frame, valid up to `enough`: uint8, shape (nbytes,), host.

    `encoded` is exactly one frame, which states its size and has no checksum, and whose
    blocks end at `ends`. None of its last `BLOCK_NBYTES` may be needed. Bytes behind
    the block that holds byte `enough` have no meaning. None if a needed block is
    damaged, or libzstd cannot decode parts.
    """
    lib = find()
    parts = None if lib is None else of_parts(lib)
    if parts is None:
        return None
    begin, decode = parts
    context = _contexts.own(lib)
    if not context.address or begin(context.address) < 0:
        return None
    target = np.empty(nbytes, np.uint8)
    # As zstd.h has `ZSTD_outBuffer` and `ZSTD_inBuffer`: address, size, position.
    out = _BUFFER(address_of(target), nbytes, 0)
    given = _BUFFER(address_of(encoded), 0, 0)
    # Each block decodes to at most `BLOCK_NBYTES`, so at least so many blocks are
    # needed.
    n = -(-enough // BLOCK_NBYTES)
    while out[2] < enough:
        if n >= len(ends):  # the last block shows whether the frame is complete
            return None
        given[1] = ends[n - 1]
        if decode(context.address, out, given) < 0:
            return None
        n += 1
    return target
