"""Checksums behind streams, of their decoded bytes, and the kernels that verify.

They fold what the decoder says of streams into their rows as well.
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
    """Kernel that verifies streams once they are decoded; None if they say nothing."""
    return _VERIFIERS.get(algorithm)


def pack_trailers(
    tables: StreamTables, row_of_stream: int, status: int, verified: range
) -> Any:
    """Parameter of the kernel: the tables of the decoder, and the rows of streams.

    Parameters
    ----------
    row_of_stream
        Address of a table, uint32, or 0 where stream k is row k.
    status
        Address of the statuses of the rows.
    verified
        Which streams have a checksum, where those of several compressors stand in the
        tables.
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
