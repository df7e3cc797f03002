"""Blosc frames in device memory -> decoded rows, each of many streams.

The tables of the streams can be sized only after the frames were counted. So this is
the only step that waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.decoding.row_tables import (
    STREAM_TABLES_NBYTES,
    TOTALS_NBYTES,
    Columns,
)
from gpushard.devices.decoding.streams import (
    TAKES_UNSIZED,
    VERIFIERS,
    RowStreams,
    pieces,
    u4,
    u8,
)
from gpushard.devices.nvcomp import Nvcomp, StreamTables
from gpushard.devices.nvcomp_abi import Algorithm
from gpushard.devices.structs import (
    BLOSC_ROWS,
    BLOSC_STREAMS,
    FAST_DIVISOR,
    StreamClass,
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


class BloscRows(NamedTuple):
    """Frames of the rows of a batch, and where they are decoded to.

    Attributes
    ----------
    src, src_nbytes
        Tables of the addresses and of the sizes of the frames.
    staging, dst
        Tables of addresses: for rows that are still shuffled, and for decoded rows.
    fuses
        Whether the scatter may undo byte shuffles.
    """

    src: int
    src_nbytes: int
    staging: int
    dst: int
    decoded_nbytes: int
    fuses: bool


class BloscDecoded(NamedTuple):
    """Table of row addresses, and table of rows that the scatter unshuffles, or 0."""

    src: int
    planes: int


def decode_blosc(streams: RowStreams, frames: BloscRows) -> BloscDecoded:
    """Enqueue decoding the frames of all rows; waits until they are counted."""
    tables, lane = streams.tables, streams.lane
    n_rows = tables.n_rows
    columns = Columns(tables.scratch + STREAM_TABLES_NBYTES * n_rows)
    planes = columns.take(FAST_DIVISOR.itemsize * n_rows)
    stage, following = columns.take(8 * n_rows), columns.take(8 * n_rows)
    filters = [columns.take(4 * n_rows) for _ in range(3)]
    first = columns.take(4 * len(StreamClass) * n_rows)
    rows = np.zeros((), BLOSC_ROWS)
    rows["src"], rows["src_nbytes"] = frames.src, frames.src_nbytes
    rows["status"] = tables.status
    rows["filter"], rows["typesize"], rows["block_nbytes"] = filters
    rows["first"], rows["totals"] = first, tables.totals
    host = lane.totals_host.view(TOTALS_NBYTES)
    rows["totals_host"] = host.ctypes.data
    rows["staging"], rows["decoded"] = frames.staging, frames.dst
    rows["stage"], rows["next"] = stage, following
    if frames.fuses:
        rows["planes"], rows["fused_typesize"] = planes, tables.fused_nbytes
    rows["decoded_nbytes"], rows["n_rows"] = frames.decoded_nbytes, n_rows
    rows["accept_unsized"] = TAKES_UNSIZED
    streams.launch_over("gs_blosc_count", _WARP * n_rows, rows[()])
    lane.wait_here()
    found = host.view(np.uint64).astype(np.int64)
    _decode_streams(streams, rows, stage, list(found[:-2].reshape(3, -1)))
    if found[-2:].any():
        kernel = "gs_unfilter" if found[-1] else "gs_unshuffle"
        ends = frames.staging, frames.dst
        streams.unfilter(kernel, *ends, filters, frames.decoded_nbytes)
    return BloscDecoded(following, planes if frames.fuses else 0)


def _decode_streams(
    streams: RowStreams,
    rows: NDArray[Any],
    stage: int,
    totals: Sequence[NDArray[np.int64]],
) -> None:
    n_streams, _, largest = (column.tolist() for column in totals)
    n_all, n_raw = sum(n_streams), n_streams[StreamClass.RAW]
    if not n_all:
        return
    scratch = _scratch(streams, totals)
    columns = Columns(streams.lane.streams.address(36 * n_all + 16 * 8))
    tables = [columns.take(8 * n_all) for _ in range(4)]
    row_of_stream = columns.take(4 * n_all)
    record = np.zeros((), BLOSC_STREAMS)
    record["dst"], record["begin"] = stage, np.cumsum(n_streams) - n_streams
    names = ("stream_src", "stream_nbytes", "stream_dst", "stream_capacity")
    for name, table in zip(names, tables, strict=True):
        record[name] = table
    record["stream_row"] = row_of_stream
    n_threads = _WARP * streams.tables.n_rows
    streams.launch_over("gs_blosc_fill", n_threads, rows[()], record[()])
    _copy_streams(streams, record, n_streams, largest[StreamClass.RAW])
    if n_all > n_raw:  # raw streams come first
        compressed = [table + 8 * n_raw for table in tables]
        _decode_classes(
            streams, compressed, n_streams, scratch, row_of_stream + 4 * n_raw
        )


def _copy_streams(
    streams: RowStreams,
    record: NDArray[Any],
    n_streams: Sequence[int],
    largest_raw: int,
) -> None:
    """Copy raw streams to their rows, and realign Deflate streams as `realign`."""
    n_raw, n_zlib = n_streams[StreamClass.RAW], n_streams[StreamClass.ZLIB]
    if not n_raw + n_zlib:
        return
    arena = streams.realigned_room(n_zlib) if n_zlib else 0
    room = u8(streams.tables.n_realigned), u8(arena)
    grid = n_raw + n_zlib, pieces(largest_raw)
    streams.launch("gs_blosc_copy", grid, record[()], u4(n_raw), u4(n_zlib), *room)


def _decode_classes(
    streams: RowStreams,
    tables_of: Sequence[int],
    n_streams: Sequence[int],
    scratch: dict[StreamClass, int],
    row_of_stream: int,
) -> None:
    """Run the vendor's decoder for each compressor, and fold all at once."""
    lane, n_all = streams.lane, sum(n_streams[k] for k in scratch)
    tables, temp = streams.with_outcomes(tables_of, n_all, max(scratch.values()))
    first, zlib = 0, range(0)
    for kind, nbytes in scratch.items():
        mine = range(first, first + n_streams[kind])
        zlib = mine if kind is StreamClass.ZLIB else zlib
        first = mine.stop
        lane.device.decoder.decompress_async(
            _ALGORITHM_OF_CLASS[kind],
            _part(tables, mine),
            temp,
            nbytes,
            lane.stream,
        )
    # The host decodes zstd frames with a checksum in Blosc: Blosc writes none.
    verifier = VERIFIERS[Algorithm.DEFLATE] if zlib else None
    streams.fold(verifier, tables, row_of_stream, zlib)


def _scratch(
    streams: RowStreams, totals: Sequence[NDArray[np.int64]]
) -> dict[StreamClass, int]:
    """Bytes of scratch for each compressor that has streams, in their order.

    Raises `DeviceMemoryError` if scratch and tables exceed the budget, because
    there are more streams than usual. The caller then splits the batch.
    """
    n_streams, decoded, largest = (column.tolist() for column in totals)
    decoder = streams.lane.device.decoder
    scratch = {
        k: decoder.temp_nbytes(algorithm, n_streams[k], largest[k], decoded[k])
        for k, algorithm in _ALGORITHM_OF_CLASS.items()
        if n_streams[k]
    }
    tables_nbytes = _TABLES_NBYTES_PER_STREAM * sum(n_streams)
    needed = max(scratch.values(), default=0) + tables_nbytes
    room = streams.lane.budget.streams_nbytes(streams.tables.n_rows)
    if needed > room:
        raise DeviceMemoryError(
            "the streams of a batch take more than memory_limit has room for",
            expected=f"at most {room} bytes",
            got=needed,
            hint="raise memory_limit",
        )
    return scratch


def _part(tables: StreamTables, streams: range) -> StreamTables:
    """Tables of a range of the streams."""
    first = streams.start
    wide = tables.src, tables.src_nbytes, tables.dst, tables.capacity
    src, nbytes, dst, capacity, actual = (
        table + 8 * first for table in (*wide, tables.actual_nbytes)
    )
    statuses = tables.statuses + 4 * first
    return StreamTables(len(streams), src, nbytes, dst, capacity, actual, statuses)


def frames_land_anywhere(decoder: Nvcomp) -> bool:
    """Whether rows may start at any byte, as the streams of a frame do."""
    needed = {decoder.alignments(a).output for a in _ALGORITHM_OF_CLASS.values()}
    return needed == {1}
