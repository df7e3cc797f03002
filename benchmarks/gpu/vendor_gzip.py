"""nvCOMP's other gzip decoder, to measure beside the usual one; no read uses it.

``nvcomp/gzip.h`` of 6.0 advises it, or else streams of 64 KiB. It needs sources at
multiples of 4, scratch, and a device to tell how much of it.
"""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

from gpushard.devices.nvcomp import StreamTables
from gpushard.devices.nvcomp_abi import AlignmentRequirements, status_name

_ADDRESS, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_CUDA_BACKEND, _LOOKAHEAD = 2, 1


class Options(ctypes.Structure):
    """``nvcompBatchedGzipDecompressOpts_t``, 64 bytes."""

    _fields_: ClassVar[Any] = (
        ("backend", ctypes.c_int32),
        ("algorithm", ctypes.c_int32),
        ("others", ctypes.c_uint8 * 56),
    )


class LookaheadGzip:
    """Functions of one loaded nvCOMP, whose shared object is at `path`.

    Raises
    ------
    RuntimeError
        By all: nvCOMP refuses, or finds no device.
    """

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        prefix = "nvcompBatchedGzipDecompress"
        self._align: Any = library[f"{prefix}GetRequiredAlignments"]
        self._align.argtypes = (Options, _ADDRESS)
        self._temp: Any = library[f"{prefix}GetTempSize"]
        self._temp.argtypes = (_SIZE, _SIZE, Options, _ADDRESS, _SIZE, _ADDRESS)
        self._decode: Any = library[f"{prefix}Async"]
        self._decode.argtypes = (
            *(_ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS, _SIZE),
            *(_ADDRESS, _SIZE, _ADDRESS, Options, _ADDRESS, _ADDRESS),
        )
        self._options = Options(_CUDA_BACKEND, _LOOKAHEAD)

    def source_alignment(self) -> int:
        """Number that addresses of streams must be multiples of."""
        found = AlignmentRequirements()
        _check(self._align(self._options, ctypes.byref(found)))
        return found.input

    def temp_nbytes(self, count: int, largest: int, total: int, stream: int) -> int:
        """Scratch for `count` streams of `total` decoded bytes."""
        found = ctypes.c_size_t()
        _check(
            self._temp(
                count, largest, self._options, ctypes.byref(found), total, stream
            )
        )
        return found.value

    def enqueue(
        self, tables: StreamTables, temp: int, temp_nbytes: int, stream: int
    ) -> None:
        """Enqueue decoding."""
        _check(
            self._decode(
                *(tables.src, tables.src_nbytes, tables.capacity, tables.actual_nbytes),
                *(tables.count, temp, temp_nbytes, tables.dst),
                *(self._options, tables.statuses, stream),
            )
        )


def _check(status: int) -> None:
    if status:
        raise RuntimeError(status_name(status))
