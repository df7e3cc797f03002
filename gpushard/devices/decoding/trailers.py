"""Kernels that verify the checksums stored behind streams, and their parameter.

The checksums are of decoded bytes. The kernels also note failed streams on the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpushard.devices.nvcomp import StreamTables
from gpushard.devices.nvcomp_abi import Algorithm
from gpushard.devices.structs import TRAILERS

_VERIFIERS = {
    Algorithm.ZSTD: "gs_verify_zstd",
    Algorithm.DEFLATE: "gs_verify_zlib",
    Algorithm.GZIP: "gs_verify_gzip",
}


def verifier_of(algorithm: Algorithm) -> str | None:
    """Kernel that verifies decoded streams; None if the format has no checksum."""
    return _VERIFIERS.get(algorithm)


def pack_trailers(
    tables: StreamTables, row_of_stream: int, status: int, verified: range
) -> Any:
    """Parameter of the kernel: the decoder's tables, and the row of each stream.

    Parameters
    ----------
    row_of_stream
        Address of a table, uint32, or 0 if stream k belongs to row k.
    status
        Address of the statuses of the rows.
    verified
        Streams that have a checksum, if the tables hold streams of several compressors.
    """
    record = np.zeros((), TRAILERS)
    record["stream_src"], record["stream_nbytes"] = tables.src, tables.src_nbytes
    record["stream_dst"], record["stream_capacity"] = tables.dst, tables.capacity
    record["stream_row"], record["status"] = row_of_stream, status
    record["decoder_status"] = tables.statuses
    record["actual_nbytes"] = tables.actual_nbytes
    record["n_streams"] = tables.count
    record["first"], record["stop"] = verified.start, verified.stop
    return record[()]
