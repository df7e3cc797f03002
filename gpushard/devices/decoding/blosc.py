"""Blosc frames in device memory -> decoded rows, each of many streams.

The tables of the streams can be sized only after the frames were counted. So this is
the only step that waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.decoding.row_tables import (
    TOTALS_NBYTES,
    Shuffles,
    Streams,
    columns,
)
from gpushard.devices.decoding.streams import (
    TAKES_UNSIZED,
    Coded,
    DecodedRows,
    RowStreams,
    pieces,
    u4,
    u8,
)
from gpushard.devices.nvcomp import Nvcomp
from gpushard.devices.nvcomp_abi import Algorithm
from gpushard.devices.structs import (
    BLOSC_ROWS,
    BLOSC_STREAMS,
    FAST_DIVISOR,
    StreamClass,
    record,
)
from gpushard.errors import DeviceMemoryError

_ALGORITHM_OF_CLASS = {
    StreamClass.LZ4: Algorithm.LZ4,
    StreamClass.SNAPPY: Algorithm.SNAPPY,
    StreamClass.ZLIB: Algorithm.DEFLATE,
    StreamClass.ZSTD: Algorithm.ZSTD,
}
# Source, size, destination, capacity and row; then the decoded size and the status.
_TABLES_NBYTES_PER_STREAM = 36 + 12
_WARP = 32


def decode_blosc(
    streams: RowStreams, frames: Mapping[str, int], decoded_nbytes: int, *, fuses: bool
) -> tuple[int, int]:
    """Enqueue decoding the frames of all rows; waits until they are counted.

    Parameters
    ----------
    frames
        Tables of `BLOSC_ROWS`: of the frames (`src`, `src_nbytes`) and of the addresses
        of rows that are still shuffled (`staging`) and of decoded ones (`decoded`).
    fuses
        Whether the scatter may undo byte shuffles.

    Returns
    -------
    src, planes
        Table of row addresses, and table of rows that the scatter unshuffles, or 0.
    """
    tables, lane = streams.tables, streams.lane
    n_rows = tables.n_rows
    widths = FAST_DIVISOR.itemsize, 8, 8, 4, 4, 4, 4 * len(StreamClass)
    planes, stage, following, *kinds, first = columns(tables.scratch, n_rows, *widths)
    filters = Shuffles(*kinds)
    host = lane.totals_host.view(TOTALS_NBYTES)
    rows = record(
        BLOSC_ROWS,
        **frames,
        **filters._asdict(),
        status=tables.status,
        first=first,
        totals=tables.totals,
        totals_host=host.ctypes.data,
        stage=stage,
        next=following,
        planes=planes if fuses else 0,
        fused_typesize=tables.fused_nbytes if fuses else 0,
        decoded_nbytes=decoded_nbytes,
        n_rows=n_rows,
        accept_unsized=TAKES_UNSIZED,
        canary_seed=tables.canary_seed,
    )
    streams.launch_over("gs_blosc_count", _WARP * n_rows, rows)
    lane.wait()
    found = host.view(np.uint64).astype(np.int64)
    _decode_streams(streams, rows, found[:-2].reshape(3, -1))
    if found[-2:].any():
        kernel = "gs_unfilter" if found[-1] else "gs_unshuffle"
        ends = frames["staging"], frames["decoded"]
        streams.unfilter(kernel, *ends, filters, decoded_nbytes)
    return following, planes if fuses else 0


def _decode_streams(streams: RowStreams, rows: Any, totals: NDArray[np.int64]) -> None:
    n_streams, _, largest = totals.tolist()
    n_all, n_raw = sum(n_streams), n_streams[StreamClass.RAW]
    if not n_all:
        return
    coded = _coded(streams, totals)
    *four, row_of_stream = columns(
        streams.lane.streams.address(36 * n_all), n_all, 8, 8, 8, 8, 4
    )
    all_streams = Streams(*four)
    parameter = record(
        BLOSC_STREAMS,
        **all_streams._asdict(),
        dst=rows["stage"],
        begin=np.cumsum(n_streams) - n_streams,
        stream_row=row_of_stream,
    )
    n_threads = _WARP * streams.tables.n_rows
    streams.launch_over("gs_blosc_fill", n_threads, rows, parameter)
    _copy_streams(streams, parameter, n_streams, largest[StreamClass.RAW])
    if coded:  # raw streams come first
        compressed = Streams(*(table + 8 * n_raw for table in four))
        # The host decodes zstd frames with a checksum in Blosc: Blosc writes none.
        verified = Algorithm.DEFLATE
        nbytes = int(rows["decoded_nbytes"])
        decoded = DecodedRows(int(rows["stage"]), nbytes, row_of_stream + 4 * n_raw)
        streams.decode(coded, compressed, verified, decoded)


def _copy_streams(
    streams: RowStreams, parameter: Any, n_streams: Sequence[int], largest_raw: int
) -> None:
    """Copy raw streams to their rows, and realign Deflate streams as `realign`."""
    n_raw, n_zlib = n_streams[StreamClass.RAW], n_streams[StreamClass.ZLIB]
    if not n_raw + n_zlib:
        return
    arena = streams.realigned_room(n_zlib) if n_zlib else 0
    room = u8(streams.tables.n_realigned), u8(arena)
    grid = n_raw + n_zlib, pieces(largest_raw)
    streams.launch("gs_blosc_copy", grid, parameter, u4(n_raw), u4(n_zlib), *room)


def _coded(streams: RowStreams, totals: NDArray[np.int64]) -> list[Coded]:
    """Streams of each compressor that has some, in their order.

    Raises `DeviceMemoryError` if scratch and tables exceed the budget, because
    there are more streams than usual. The caller then splits the batch.
    """
    n_streams, decoded, largest = totals.tolist()
    temp_nbytes = streams.lane.device.decoder.temp_nbytes
    coded = [
        Coded(a, n_streams[k], temp_nbytes(a, n_streams[k], largest[k], decoded[k]))
        for k, a in _ALGORITHM_OF_CLASS.items()
        if n_streams[k]
    ]
    needed = max((some.temp_nbytes for some in coded), default=0)
    needed += _TABLES_NBYTES_PER_STREAM * sum(n_streams)
    room = streams.lane.budget.streams_nbytes(streams.tables.n_rows)
    if needed > room:
        raise DeviceMemoryError(
            "the streams of a batch take more than memory_limit has room for",
            expected=f"at most {room} bytes",
            got=needed,
            hint="raise memory_limit",
        )
    return coded


def frames_land_anywhere(decoder: Nvcomp) -> bool:
    """Whether rows may start at any byte, as the streams of a frame do."""
    needed = {decoder.alignments(a).output for a in _ALGORITHM_OF_CLASS.values()}
    return needed == {1}
