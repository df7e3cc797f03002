"""nvCOMP's CRC-32C, to measure beside gpushard's own kernel; no read uses it.

``nvcomp/crc32.h`` of 6.0 declares the structures and functions.
"""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

from gpushard.devices.nvcomp import StreamTables
from gpushard.devices.nvcomp_abi import status_name

_ADDRESS, _SIZE = ctypes.c_void_p, ctypes.c_size_t


class Spec(ctypes.Structure):
    """``nvcompCRC32Spec_t``, 32 bytes."""

    _fields_: ClassVar[Any] = (
        ("poly", ctypes.c_uint32),
        ("init", ctypes.c_uint32),
        ("ref_in", ctypes.c_bool),
        ("ref_out", ctypes.c_bool),
        ("xorout", ctypes.c_uint32),
        ("reserved", ctypes.c_uint8 * 16),
    )


class KernelConf(ctypes.Structure):
    """``nvcompCRC32KernelConf_t``, 32 bytes."""

    _fields_: ClassVar[Any] = (
        ("kernel_kind", ctypes.c_int32),
        ("bytes_per_read", ctypes.c_int32),
        ("blocks_per_msg", ctypes.c_int32),
        ("reserved", ctypes.c_uint8 * 20),
    )


class Options(ctypes.Structure):
    """``nvcompBatchedCRC32Opts_t``, 128 bytes."""

    _fields_: ClassVar[Any] = (
        ("spec", Spec),
        ("kernel_conf", KernelConf),
        ("reserved", ctypes.c_uint8 * 64),
    )


# RFC 3720 section 12.1 gives the polynomial. Input and output are reflected. The
# initial value and the final XOR are all ones.
_CRC32C = Spec(0x1EDC6F41, 0xFFFFFFFF, True, True, 0xFFFFFFFF)
_ONLY_SEGMENT = 0


class VendorCrc:
    """The two functions of one loaded nvCOMP, whose shared object is at `path`.

    Raises
    ------
    RuntimeError
        By both: nvCOMP refuses, or finds no device.
    """

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        self._choose: Any = library.nvcompBatchedCRC32GetHeuristicConf
        self._choose.argtypes = (_ADDRESS, _SIZE, _ADDRESS, _SIZE, _ADDRESS)
        self._enqueue: Any = library.nvcompBatchedCRC32Async
        self._enqueue.argtypes = (
            *(_ADDRESS, _ADDRESS, _SIZE, _ADDRESS),
            *(Options, ctypes.c_int32, _ADDRESS, _ADDRESS),
        )

    def chosen_conf(self, count: int, longest: int, stream: int) -> KernelConf:
        """The kernel that nvCOMP chooses for `count` messages."""
        conf = KernelConf()
        _check(self._choose(None, count, ctypes.byref(conf), longest, stream))
        return conf

    def enqueue(
        self, tables: StreamTables, checksums: int, conf: KernelConf, stream: int
    ) -> None:
        """Enqueue the checksums of the sources of `tables`.

        `checksums` is the device address of the results: uint32, one for each source.
        Of the tables, only `src`, `src_nbytes`, `count` and `statuses` are used.
        """
        _check(
            self._enqueue(
                tables.src,
                tables.src_nbytes,
                tables.count,
                checksums,
                Options(_CRC32C, conf),
                _ONLY_SEGMENT,
                tables.statuses,
                stream,
            )
        )


def _check(status: int) -> None:
    if status:
        raise RuntimeError(status_name(status))
