"""Streams in device memory -> decoded rows, with the outcome of decoding.

The vendor's library decodes. Kernels then verify the checksums behind the streams, and
note on each row whether one of its streams failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpushard.devices.base import Grid
from gpushard.devices.decoding.row_tables import RowTables, Shuffles, Streams, columns
from gpushard.devices.kernels import threads_of
from gpushard.devices.lane import Lane
from gpushard.devices.nvcomp import StreamTables
from gpushard.devices.nvcomp_abi import Algorithm
from gpushard.devices.structs import CANARIES, TRAILERS, UNFILTER, record
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

# Kernels that verify the decoded streams of formats with a checksum.
_VERIFIERS = {
    Algorithm.ZSTD: "gs_verify_zstd",
    Algorithm.DEFLATE: "gs_verify_zlib",
    Algorithm.GZIP: "gs_verify_gzip",
}


class Coded(NamedTuple):
    """Streams of one format, which the vendor decodes in one call with its scratch."""

    algorithm: Algorithm
    n_streams: int
    temp_nbytes: int


class DecodedRows(NamedTuple):
    """Rows that streams are decoded to.

    `dst` is the table of their addresses, and `nbytes` the size of each.
    `row_of_stream` is a table, uint32; 0 if stream k belongs to row k.
    """

    dst: int
    nbytes: int
    row_of_stream: int = 0


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
        coded: Sequence[Coded],
        streams: Streams,
        verified: Algorithm,
        rows: DecodedRows,
    ) -> None:
        """Enqueue decoding streams, and noting on their rows which ones failed.

        Parameters
        ----------
        streams
            Their tables. Streams of one format are neighbours, in the order of `coded`.
        verified
            Format of the streams whose checksums are verified, if it has any.
        rows
            The rows that they are decoded to.
        """
        lane, n_streams = self.lane, sum(some.n_streams for some in coded)
        temp_nbytes = -(-max(some.temp_nbytes for some in coded) // 16) * 16
        temp = lane.temp.address(temp_nbytes + 12 * n_streams)
        actual, statuses = columns(temp + temp_nbytes, n_streams, 8, 4)
        first, checked = 0, range(0)
        for algorithm, n, nbytes in coded:
            src, src_nbytes, dst, capacity = (table + 8 * first for table in streams)
            outcomes = actual + 8 * first, statuses + 4 * first
            tables = StreamTables(n, src, src_nbytes, dst, capacity, *outcomes)
            decoder = lane.device.decoder
            decoder.decompress_async(algorithm, tables, temp, nbytes, lane.stream)
            if algorithm is verified:
                checked = range(first, first + n)
            first += n
        status, canaries = self.tables.status, self._canaries(rows)
        if not checked or verified not in _VERIFIERS:
            capacity, row_of_stream = streams.stream_capacity, rows.row_of_stream
            addresses = statuses, actual, capacity, row_of_stream, status
            numbers = u4(n_streams), canaries
            self.launch_over("gs_fold", n_streams, *map(u8, addresses), *numbers)
            return
        trailers = record(
            TRAILERS,
            **streams._asdict(),
            stream_row=rows.row_of_stream,
            status=status,
            decoder_status=statuses,
            actual_nbytes=actual,
            n_streams=n_streams,
            first=checked.start,
            stop=checked.stop,
            canaries=canaries,
        )
        self.launch(_VERIFIERS[verified], (n_streams, 1), trailers)

    def _canaries(self, rows: DecodedRows) -> Any:
        """What is checked around the rows, as kernels take it."""
        return record(
            CANARIES,
            rows=rows.dst,
            nbytes=rows.nbytes,
            seed=self.tables.canary_seed,
            n_rows=self.tables.n_rows,
        )

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
        filters: Shuffles,
        decoded_nbytes: int,
    ) -> None:
        """Undo the shuffles of rows."""
        parameter = record(
            UNFILTER,
            **filters._asdict(),
            src=src,
            dst=dst,
            status=self.tables.status,
            decoded_nbytes=decoded_nbytes,
            n_rows=self.tables.n_rows,
        )
        self.launch(kernel, (self.tables.n_rows, pieces(decoded_nbytes)), parameter)


def pieces(nbytes: int) -> int:
    """Number of blocks that should share a row of `nbytes` bytes."""
    return min(max(1, nbytes // _PIECE_NBYTES), _MAX_PIECES)


def u8(value: int) -> np.uint64:
    """An address or a size as kernels take it: uint64."""
    return np.uint64(value)


def u4(value: int) -> np.uint32:
    """A count as kernels take it: uint32."""
    return np.uint32(value)
