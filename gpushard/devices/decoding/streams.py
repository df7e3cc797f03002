"""Streams in device memory -> decoded rows, with the outcome of decoding.

The vendor's library decodes. Kernels then verify the checksums behind the streams, and
note on each row whether one of its streams failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpushard.devices.base import Grid
from gpushard.devices.decoding.row_tables import Columns, RowTables
from gpushard.devices.kernels import threads_of
from gpushard.devices.lane import Lane
from gpushard.devices.nvcomp import StreamTables
from gpushard.devices.nvcomp_abi import Algorithm
from gpushard.devices.structs import TRAILERS, UNFILTER
from gpushard.options import KIB

TAKES_UNSIZED = 1
"""The vendor's decoder accepts zstd frames that do not state their content size."""

# Most bytes that a realigned stream takes in addition to its row. An empty row is
# replaced by the dummy stream, with the bytes behind it, at a multiple of 4.
_REALIGNED_NBYTES = 16
# Kernels loop over the rest. This number of blocks fills any device several times over.
_MAX_BLOCKS = 1 << 16
# Blocks that share a row: each one takes 16 KiB at a time.
_PIECE_NBYTES, _MAX_PIECES = 16 * KIB, 64

VERIFIERS = {
    Algorithm.ZSTD: "gs_verify_zstd",
    Algorithm.DEFLATE: "gs_verify_zlib",
    Algorithm.GZIP: "gs_verify_gzip",
}
"""Kernels that verify the decoded streams of formats with a checksum."""


@dataclass(frozen=True, slots=True)
class RowStreams:
    """Enqueues work on the streams of a batch's rows, on the batch's lane."""

    lane: Lane
    tables: RowTables

    def launch(self, kernel: str, grid: Grid, *parameters: object) -> None:
        """Launch over a grid of blocks, limited to as many as are of use."""
        grid = min(grid[0], _MAX_BLOCKS), grid[1]
        self.lane.device.launch(kernel, grid, parameters, self.lane.stream)

    def launch_over(self, kernel: str, n_threads: int, *parameters: object) -> None:
        """Launch over `n_threads` threads, in blocks of the kernel's declared size."""
        n_blocks = -(-n_threads // threads_of(kernel))
        self.launch(kernel, (n_blocks, 1), *parameters)

    def decode(
        self,
        algorithm: Algorithm,
        streams: Sequence[int],
        n_streams: int,
        largest: int,
    ) -> None:
        """Enqueue decoding one stream for each row, and noting the outcome on the rows.

        `streams` has the addresses of four tables: source, size, destination and
        capacity of each stream.
        """
        decoder, total = self.lane.device.decoder, n_streams * largest
        temp_nbytes = decoder.temp_nbytes(algorithm, n_streams, largest, total)
        tables, temp = self.with_outcomes(streams, n_streams, temp_nbytes)
        decoder.decompress_async(algorithm, tables, temp, temp_nbytes, self.lane.stream)
        self.fold(VERIFIERS.get(algorithm), tables, 0, range(n_streams))

    def with_outcomes(
        self, streams: Sequence[int], n_streams: int, temp_nbytes: int
    ) -> tuple[StreamTables, int]:
        """Tables with room for the decoder's outcomes, and its scratch."""
        columns = Columns(self.lane.temp.address(temp_nbytes + 12 * n_streams + 32))
        actual, statuses = columns.take(8 * n_streams), columns.take(4 * n_streams)
        src, nbytes, dst, capacity = streams
        tables = StreamTables(n_streams, src, nbytes, dst, capacity, actual, statuses)
        return tables, columns.take(temp_nbytes)

    def fold(
        self,
        verifier: str | None,
        tables: StreamTables,
        row_of_stream: int,
        verified: range,
    ) -> None:
        """Note on the rows which streams failed and which checksums differ.

        `row_of_stream` is the address of a table, or 0 if stream k belongs to row k.
        """
        status, n_streams = self.tables.status, tables.count
        if verifier:
            record = _pack_trailers(tables, row_of_stream, status, verified)
            self.launch(verifier, (n_streams, 1), record)
            return
        addresses = tables.statuses, tables.actual_nbytes, tables.capacity
        columns = map(u8, (*addresses, row_of_stream, status))
        self.launch_over("gs_fold", n_streams, *columns, u4(n_streams))

    def realign(self, src: int, nbytes: int, n_streams: int) -> None:
        """Copy streams to multiples of 4 bytes, which nvCOMP's Deflate needs."""
        arena = self.realigned_room(n_streams)
        places = u8(src), u8(nbytes), u8(self.tables.n_realigned), u8(arena)
        self.launch("gs_realign", (n_streams, 1), *places, u4(n_streams))

    def realigned_room(self, n_streams: int) -> int:
        """Address of room for `n_streams` streams and their trailers.

        Call it once in a batch, because the bytes in use are counted from zero.
        """
        nbytes = self.lane.encoded_nbytes + _REALIGNED_NBYTES * n_streams
        return self.lane.realigned.address(nbytes)

    def unfilter(
        self,
        kernel: str,
        src: int,
        dst: int,
        filters: Sequence[int],
        decoded_nbytes: int,
    ) -> None:
        """Undo shuffles; `filters` has kind, item size and block size of each row."""
        record = np.zeros((), UNFILTER)
        record["src"], record["dst"] = src, dst
        record["status"] = self.tables.status
        record["filter"], record["typesize"], record["block_nbytes"] = filters
        record["decoded_nbytes"] = decoded_nbytes
        record["n_rows"] = self.tables.n_rows
        grid = self.tables.n_rows, pieces(decoded_nbytes)
        self.launch(kernel, grid, record[()])


def _pack_trailers(
    tables: StreamTables, row_of_stream: int, status: int, verified: range
) -> Any:
    """Parameter of the kernel: the decoder's tables, and the row of each stream.

    `row_of_stream` is the address of a table, uint32, or 0 if stream k belongs to row
    k. `verified` are the streams that have a checksum, if the tables hold streams of
    several compressors.
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


def pieces(nbytes: int) -> int:
    """Number of blocks that should share a row of `nbytes` bytes."""
    return min(max(1, nbytes // _PIECE_NBYTES), _MAX_PIECES)


def u8(value: int) -> np.uint64:
    """An address or a size as kernels take it: uint64."""
    return np.uint64(value)


def u4(value: int) -> np.uint32:
    """A count as kernels take it: uint32."""
    return np.uint32(value)
