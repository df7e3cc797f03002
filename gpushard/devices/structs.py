"""Structs that the kernels take as parameters, and constants that stand in them."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.declared import declared_struct
from gpushard.selecting.selection import Ints

GATE = declared_struct("gs_gate_zstd", "GateTables")
BLOSC_ROWS = declared_struct("gs_blosc_count", "BloscRows")
BLOSC_STREAMS = declared_struct("gs_blosc_count", "BloscStreams")
UNFILTER = declared_struct("gs_unfilter", "UnfilterTables")
TRAILERS = declared_struct("gs_verify_zstd", "Trailers")
FILTER = declared_struct("gs_delta", "FilterTables")
FAST_DIVISOR = declared_struct("gs_blosc_count", "FastDivisor")

BYTE_SHUFFLED = 1
"""`FILTER_BYTE_SHUFFLE` of ``kernels/shuffle_format.cuh``."""


class StreamClass(IntEnum):
    """Classes of the streams in Blosc frames, as in ``blosc_format.cuh``."""

    RAW = 0
    LZ4 = 1
    SNAPPY = 2
    ZLIB = 3
    ZSTD = 4


def fast_divisor(divisor: int | Ints) -> NDArray[Any]:
    """Constants with which kernels divide by `divisor`: `FAST_DIVISOR`, same shape.

    `divisor` is at least 1 and below 2**31.
    """
    by = np.asarray(divisor, np.uint64)
    log2 = np.frexp((by - np.uint64(1)).astype(np.float64))[1].astype(np.uint64)
    one, low = np.uint64(1), np.uint64(32)
    found = np.empty(by.shape, FAST_DIVISOR)
    found["divisor"] = by
    found["magic"] = (((one << log2) - by) << low) // by + one
    found["shift_first"] = np.minimum(log2, one)
    found["shift_last"] = np.maximum(log2, one) - one
    return found
