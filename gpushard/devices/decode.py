"""Encoded inner chunks in device memory -> decoded ones: the steps of one batch.

Nothing here waits for the device but Blosc, whose frames must be counted before the
tables of their streams can have a size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.base import Grid
from gpushard.devices.chain import Step, StepKind
from gpushard.devices.kernels import threads_of
from gpushard.devices.lane import Lane
from gpushard.devices.nvcomp import StreamTables
from gpushard.devices.nvcomp_abi import Algorithm
from gpushard.devices.slabs import TablePage
from gpushard.devices.structs import (
    BLOSC_ROWS,
    BLOSC_STREAMS,
    GATE,
    UNFILTER,
    VERDICT_NBYTES,
    StreamClass,
)
from gpushard.options import KIB

# Streams that decode to one byte: what a decoder is given instead of a refused one.
# zstd: RFC 8878 3.1.1, one raw block; LZ4 block: one literal; deflate: RFC 1951 3.2.4,
# one stored block; gzip: RFC 1952 2.3 around it.
_STORED = bytes.fromhex("010100feff00")
_DUMMIES = {
    Algorithm.ZSTD: bytes.fromhex("28b52ffd200109000000"),
    Algorithm.LZ4: bytes.fromhex("1000"),
    Algorithm.DEFLATE: _STORED,
    Algorithm.GZIP: bytes.fromhex("1f8b08000000000000ff")
    + _STORED
    + bytes.fromhex("8def02d201000000"),
}
_DUMMY_CAPACITY = 256

_GATES = {
    StepKind.ZSTD: ("gs_gate_zstd", Algorithm.ZSTD),
    StepKind.LZ4: ("gs_gate_lz4", Algorithm.LZ4),
    StepKind.GZIP: ("gs_gate_gzip", Algorithm.GZIP),
    StepKind.ZLIB: ("gs_gate_zlib", Algorithm.DEFLATE),
}
_ALGORITHM_OF_CLASS = {
    StreamClass.LZ4: Algorithm.LZ4,
    StreamClass.SNAPPY: Algorithm.SNAPPY,
    StreamClass.ZLIB: Algorithm.DEFLATE,
    StreamClass.ZSTD: Algorithm.ZSTD,
}
_TOTALS_NBYTES = 3 * len(StreamClass) * 8
# Kernels loop over what is left; this many blocks fill any device several times over.
_MAX_BLOCKS = 1 << 16
_WARP = 32
# Blocks that share a row: each takes 16 KiB at a time.
_PIECE_NBYTES, _MAX_PIECES = 16 * KIB, 64


@dataclass(frozen=True, slots=True)
class RowTables:
    """Where the tables of a batch lie on its page.

    Attributes
    ----------
    src, src_nbytes
        uint64, one a row: the encoded bytes.
    sizes
        uint64, one a row, per step: what every row has after it.
    filters
        For each `StepKind.SHUFFLE`, by its number: filter, item size and block size of
        each row, uint32.
    arenas
        uint64, one a row, for each of the two arenas: where a row is decoded to.
    dummies, dummy_dst
        The streams in `_DUMMIES` one after the other, and room for what they decode to.
    verdict, status
        What became of the batch: 64 bytes, then uint32, one a row.
    """

    n_rows: int
    src: int
    src_nbytes: int
    sizes: tuple[int, ...]
    filters: dict[int, tuple[int, int, int]]
    arenas: tuple[int, int]
    dummies: dict[Algorithm, int]
    dummy_dst: int
    verdict: int
    status: int
    scratch: int


def reserve_scratch(page: TablePage, n_rows: int) -> int:
    """Offset of what the steps of a batch write beside the status."""
    return page.reserve(_SCRATCH_NBYTES_PER_ROW * n_rows + 16 * _N_SCRATCH_COLUMNS)


_N_SCRATCH_COLUMNS = 16
# Stream tables and results (4 * 8 + 8 + 4), then Blosc's (3 * 4 + 2 * 4 * 5).
_SCRATCH_NBYTES_PER_ROW = 44 + 52


class _Columns:
    """Columns cut from a piece of memory, one after the other, 16-byte aligned."""

    def __init__(self, address: int) -> None:
        self._next = address

    def take(self, nbytes: int) -> int:
        address = self._next
        self._next += -(-nbytes // 16) * 16
        return address


@dataclass(slots=True)
class Decoder:
    """Enqueues the steps of one batch on its lane.

    `src` and `src_nbytes` are tables of what the next step is given; `arena` is the
    arena that they point into, if any.
    """

    lane: Lane
    tables: RowTables
    accept_unsized: bool
    src: int
    src_nbytes: int
    arena: int = -1

    def run(self, step: Step, index: int) -> None:
        """Enqueue one step, the `index`-th of the chain."""
        if step.kind is StepKind.CRC32C:
            self._launch(
                "gs_crc32c_verify",
                (self.tables.n_rows, 1),
                _u8(self.src),
                _u8(self.src_nbytes),
                _u8(self.tables.status),
                _u4(self.tables.n_rows),
            )
            return
        if step.kind is StepKind.BLOSC:
            self._blosc(step)
        elif step.kind is StepKind.SHUFFLE:
            dst = self._next_arena()
            self._unfilter("gs_unshuffle", dst, self.tables.filters[index], step)
            self.src = dst
        else:
            self._decompress(step)
        self.src_nbytes = self.tables.sizes[index]

    def judge(self) -> None:
        """Enqueue the verdict: how many rows are refused, and which is the first."""
        status, verdict = _u8(self.tables.status), _u8(self.tables.verdict)
        self._launch("gs_verdict", (1, 1), status, _u4(self.tables.n_rows), verdict)

    def _launch(self, kernel: str, grid: Grid, *parameters: object) -> None:
        grid = min(grid[0], _MAX_BLOCKS), grid[1]
        self.lane.device.launch(kernel, grid, parameters, self.lane.stream)

    def _launch_over(self, kernel: str, n_threads: int, *parameters: object) -> None:
        """Launch over so many threads, in blocks of the size the kernel declares."""
        n_blocks = -(-n_threads // threads_of(kernel))
        self._launch(kernel, (n_blocks, 1), *parameters)

    def _next_arena(self) -> int:
        """Table of where rows are decoded to; they come from the other arena."""
        self.arena = 1 if self.arena == 0 else 0
        return self.tables.arenas[self.arena]

    def _decompress(self, step: Step) -> None:
        """One stream a row: gate, decoder, fold."""
        gate, algorithm = _GATES[step.kind]
        tables, n_rows = self.tables, self.tables.n_rows
        columns = _Columns(tables.scratch)
        streams = [columns.take(8 * n_rows) for _ in range(4)]
        dst = self._next_arena()
        record = np.zeros((), GATE)
        record["src"], record["src_nbytes"] = self.src, self.src_nbytes
        record["dst"], record["status"] = dst, tables.status
        record["stream_src"], record["stream_nbytes"] = streams[0], streams[1]
        record["stream_dst"], record["stream_capacity"] = streams[2], streams[3]
        record["decoded_nbytes"] = step.decoded_nbytes
        record["dummy_src"] = tables.dummies[algorithm]
        record["dummy_nbytes"] = len(_DUMMIES[algorithm])
        record["dummy_dst"] = tables.dummy_dst
        record["dummy_capacity"] = _DUMMY_CAPACITY
        record["n_rows"], record["accept_unsized"] = n_rows, self.accept_unsized
        self._launch_over(gate, n_rows, record[()])
        if algorithm is Algorithm.DEFLATE:
            nbytes = self.lane.encoded_nbytes + 4 * n_rows
            self._realign(streams[0], streams[1], n_rows, nbytes)
        largest = max(step.decoded_nbytes, _DUMMY_CAPACITY)
        self._decode_streams(algorithm, streams, n_rows, largest, n_rows * largest, 0)
        self.src = dst

    def _realign(self, src: int, nbytes: int, n_streams: int, total: int) -> None:
        """Copy streams to multiples of 4 bytes, which nvCOMP's Deflate needs."""
        room = self.lane.realigned.address(8 * (n_streams + 1) + 16 + total)
        arena = room + -(-8 * (n_streams + 1) // 16) * 16
        n = _u4(n_streams)
        self._launch("gs_align_offsets", (1, 1), _u8(nbytes), _u8(room), n)
        places = _u8(src), _u8(nbytes), _u8(room), _u8(arena)
        self._launch("gs_realign", (n_streams, 1), *places, n)

    def _decode_streams(
        self,
        algorithm: Algorithm,
        streams: list[int],
        n_streams: int,
        largest: int,
        total: int,
        row_of_stream: int,
    ) -> None:
        """Let the vendor decode, and note on the rows what it says.

        `streams`: addresses of source, size, destination and capacity of each stream.
        `row_of_stream` is the address of a table, or 0 where stream k is row k.
        """
        lane = self.lane
        decoder = lane.device.decoder
        temp_nbytes = decoder.temp_nbytes(algorithm, n_streams, largest, total)
        room = lane.temp.address(temp_nbytes + 12 * n_streams + 32)
        columns = _Columns(room)
        actual = columns.take(8 * n_streams)
        decoder_status = columns.take(4 * n_streams)
        temp = columns.take(temp_nbytes)
        src, nbytes, dst, capacity = streams
        tables = StreamTables(
            n_streams, src, nbytes, dst, capacity, actual, decoder_status
        )
        decoder.decompress_async(algorithm, tables, temp, temp_nbytes, lane.stream)
        self._launch_over(
            "gs_fold",
            n_streams,
            _u8(decoder_status),
            _u8(actual),
            _u8(capacity),
            _u8(row_of_stream),
            _u8(self.tables.status),
            _u4(n_streams),
        )

    def _unfilter(
        self, kernel: str, dst: int, filters: Sequence[int], step: Step
    ) -> None:
        record = np.zeros((), UNFILTER)
        record["src"], record["dst"] = self.src, dst
        record["status"] = self.tables.status
        record["filter"], record["typesize"], record["block_nbytes"] = filters
        record["decoded_nbytes"] = step.decoded_nbytes
        record["n_rows"] = self.tables.n_rows
        grid = self.tables.n_rows, _pieces(step.decoded_nbytes)
        self._launch(kernel, grid, record[()])

    def _blosc(self, step: Step) -> None:
        """Many streams a row: count, tables, decoders, fold, unfilter."""
        tables, n_rows, lane = self.tables, self.tables.n_rows, self.lane
        columns = _Columns(tables.scratch)
        filters = [columns.take(4 * n_rows) for _ in range(3)]
        count = columns.take(4 * len(StreamClass) * n_rows)
        first = columns.take(4 * len(StreamClass) * n_rows)
        totals = tables.verdict - _TOTALS_NBYTES - 8
        rows = np.zeros((), BLOSC_ROWS)
        rows["src"], rows["src_nbytes"] = self.src, self.src_nbytes
        rows["status"] = tables.status
        rows["filter"], rows["typesize"], rows["block_nbytes"] = filters
        rows["count"], rows["totals"] = count, totals
        rows["decoded_nbytes"], rows["n_rows"] = step.decoded_nbytes, n_rows
        rows["accept_unsized"] = self.accept_unsized
        self._launch_over("gs_blosc_count", _WARP * n_rows, rows[()])
        n_counts = _u4(len(StreamClass) * n_rows)
        self._launch("gs_scan", (1, 1), _u8(count), _u8(first), n_counts)
        host = lane.totals_host.view(_TOTALS_NBYTES)
        lane.device.download(host, totals, lane.stream)
        lane.device.wait(lane.device.record(lane.stream))
        totals_of = host.view(np.uint64).reshape(3, -1).astype(np.int64)
        staging = self._next_arena()
        self._blosc_streams(rows, first, staging, list(totals_of))
        self.src = staging
        dst = self._next_arena()
        self._unfilter("gs_unshuffle", dst, filters, step)
        self._unfilter("gs_bitunshuffle", dst, filters, step)
        self.src = dst

    def _blosc_streams(
        self,
        rows: NDArray[Any],
        first: int,
        staging: int,
        totals: Sequence[NDArray[np.int64]],
    ) -> None:
        n_streams, decoded, largest = totals
        n_all = int(n_streams.sum())
        if not n_all:
            return
        columns = _Columns(self.lane.streams.address(36 * n_all + 16 * 8))
        tables = [columns.take(8 * n_all) for _ in range(4)]
        row_of_stream = columns.take(4 * n_all)
        record = np.zeros((), BLOSC_STREAMS)
        record["first"], record["dst"] = first, staging
        names = ("stream_src", "stream_nbytes", "stream_dst", "stream_capacity")
        for name, table in zip(names, tables, strict=True):
            record[name] = table
        record["stream_row"] = row_of_stream
        n_threads = _WARP * self.tables.n_rows
        self._launch_over("gs_blosc_fill", n_threads, rows[()], record[()])
        begin = 0
        for kind in StreamClass:
            n = int(n_streams[kind])
            mine = [table + 8 * begin for table in tables]
            if n and kind is StreamClass.RAW:
                src, nbytes, dst, _ = map(_u8, mine)
                grid = n, _pieces(int(largest[kind]))
                self._launch("gs_copy_streams", grid, src, nbytes, dst, _u4(n))
            elif n:
                algorithm = _ALGORITHM_OF_CLASS[kind]
                if algorithm is Algorithm.DEFLATE:
                    room = self.lane.encoded_nbytes + 4 * n
                    self._realign(mine[0], mine[1], n, room)
                self._decode_streams(
                    algorithm,
                    mine,
                    n,
                    int(largest[kind]),
                    int(decoded[kind]),
                    row_of_stream + 4 * begin,
                )
            begin += n


def add_dummies(page: TablePage) -> dict[Algorithm, int]:
    """Offsets of the dummy streams on a page."""
    return {
        algorithm: page.add(np.frombuffer(stream, np.uint8))
        for algorithm, stream in _DUMMIES.items()
    }


def reserve_results(page: TablePage, n_rows: int) -> tuple[int, int]:
    """Offset and size of what is cleared before a batch: totals, verdict, statuses."""
    nbytes = _TOTALS_NBYTES + 8 + VERDICT_NBYTES + 4 * n_rows
    return page.reserve(nbytes), nbytes


def results_at(address: int) -> tuple[int, int]:
    """Addresses of the verdict and of the statuses in the results at `address`."""
    verdict = address + _TOTALS_NBYTES + 8
    return verdict, verdict + VERDICT_NBYTES


def reserve_dummy_room(page: TablePage) -> int:
    """Offset of the room that dummy streams are decoded to."""
    return page.reserve(_DUMMY_CAPACITY)


def _pieces(nbytes: int) -> int:
    """Blocks worth sharing a row of `nbytes` bytes."""
    return min(max(1, nbytes // _PIECE_NBYTES), _MAX_PIECES)


def _u8(value: int) -> np.uint64:
    return np.uint64(value)


def _u4(value: int) -> np.uint32:
    return np.uint32(value)
