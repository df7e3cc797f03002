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


def verifier_of(algorithm: Algorithm, *, is_in_blosc: bool) -> str | None:
    """Kernel that verifies streams once they are decoded; None if they say nothing.

    zstd frames in Blosc say nothing: those that do are left to the host by the gate.
    """
    if is_in_blosc and algorithm is Algorithm.ZSTD:
        return None
    return _VERIFIERS.get(algorithm)


def pack_trailers(tables: StreamTables, row_of_stream: int, status: int) -> Any:
    """Parameter of the kernel: the tables of the decoder, and the rows of streams.

    Parameters
    ----------
    row_of_stream
        Address of a table, uint32, or 0 where stream k is row k.
    status
        Address of the statuses of the rows.
    """
    record = np.zeros((), TRAILERS)
    record["stream_src"], record["stream_nbytes"] = tables.src, tables.src_nbytes
    record["stream_dst"], record["stream_capacity"] = tables.dst, tables.capacity
    record["stream_row"], record["status"] = row_of_stream, status
    record["decoder_status"] = tables.statuses
    record["actual_nbytes"] = tables.actual_nbytes
    record["n_streams"] = tables.count
    return record[()]
