"""Parameters of the gate, Blosc and unfilter kernels, as their sources declare them."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

GATE = np.dtype(
    [
        ("src", "u8"),
        ("src_nbytes", "u8"),
        ("dst", "u8"),
        ("status", "u8"),
        ("stream_src", "u8"),
        ("stream_nbytes", "u8"),
        ("stream_dst", "u8"),
        ("stream_capacity", "u8"),
        ("decoded_nbytes", "u8"),
        ("dummy_src", "u8"),
        ("dummy_nbytes", "u8"),
        ("dummy_dst", "u8"),
        ("dummy_capacity", "u8"),
        ("n_rows", "u4"),
        ("accept_unsized", "u4"),
    ]
)
"""`GateTables` of ``kernels/gate.cu``."""

BLOSC_ROWS = np.dtype(
    [
        ("src", "u8"),
        ("src_nbytes", "u8"),
        ("status", "u8"),
        ("filter", "u8"),
        ("typesize", "u8"),
        ("block_nbytes", "u8"),
        ("first", "u8"),
        ("totals", "u8"),
        ("totals_host", "u8"),
        ("staging", "u8"),
        ("decoded", "u8"),
        ("stage", "u8"),
        ("next", "u8"),
        ("planes", "u8"),
        ("decoded_nbytes", "u8"),
        ("n_rows", "u4"),
        ("accept_unsized", "u4"),
        ("fused_typesize", "u4"),
        ("reserved", "u4"),
    ]
)
"""`BloscRows` of ``kernels/blosc.cu``."""

BLOSC_STREAMS = np.dtype(
    [
        ("dst", "u8"),
        ("stream_src", "u8"),
        ("stream_nbytes", "u8"),
        ("stream_dst", "u8"),
        ("stream_capacity", "u8"),
        ("stream_row", "u8"),
        ("begin", "u4", (5,)),
        ("reserved", "u4"),
    ]
)
"""`BloscStreams` of ``kernels/blosc.cu``; `begin` of each `StreamClass`."""

UNFILTER = np.dtype(
    [
        ("src", "u8"),
        ("dst", "u8"),
        ("status", "u8"),
        ("filter", "u8"),
        ("typesize", "u8"),
        ("block_nbytes", "u8"),
        ("decoded_nbytes", "u8"),
        ("n_rows", "u4"),
        ("reserved", "u4"),
    ]
)
"""`UnfilterTables` of ``kernels/unfilter.cu``."""

TRAILERS = np.dtype(
    [
        ("stream_src", "u8"),
        ("stream_nbytes", "u8"),
        ("stream_dst", "u8"),
        ("stream_capacity", "u8"),
        ("stream_row", "u8"),
        ("status", "u8"),
        ("decoder_status", "u8"),
        ("actual_nbytes", "u8"),
        ("n_streams", "u4"),
        ("first", "u4"),
        ("stop", "u4"),
        ("reserved", "u4"),
    ]
)
"""`Trailers` of ``kernels/trailers.cu``."""

FILTER = np.dtype(
    [
        ("src", "u8"),
        ("src_nbytes", "u8"),
        ("dst", "u8"),
        ("status", "u8"),
        ("n_items", "u8"),
        ("scale", "f8"),
        ("offset", "f8"),
        ("n_rows", "u4"),
        ("from", "u4"),
        ("to", "u4"),
        ("reserved", "u4"),
    ]
)
"""`FilterTables` of ``kernels/filters.cu``."""

BYTE_SHUFFLED = 1
"""`FILTER_BYTE_SHUFFLE` of ``kernels/shuffle_format.cuh``."""


class StreamClass(IntEnum):
    """What the streams of Blosc frames are sorted into, as in ``blosc_format.cuh``."""

    RAW = 0
    LZ4 = 1
    SNAPPY = 2
    ZLIB = 3
    ZSTD = 4
