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

from gpushard.devices.base import Grid, StreamDecoder
from gpushard.devices.chain import Step, StepKind
from gpushard.devices.filters import FilterRows, ItemFilter
from gpushard.devices.kernels import threads_of
from gpushard.devices.lane import Lane
from gpushard.devices.nvcomp import StreamTables
from gpushard.devices.nvcomp_abi import Algorithm
from gpushard.devices.row_tables import (
    DUMMIES,
    DUMMY_CAPACITY,
    STREAM_TABLES_NBYTES,
    TOTALS_NBYTES,
    Columns,
    RowTables,
)
from gpushard.devices.structs import (
    BLOSC_ROWS,
    BLOSC_STREAMS,
    FAST_DIVISOR,
    GATE,
    UNFILTER,
    StreamClass,
)
from gpushard.devices.trailers import pack_trailers, verifier_of
from gpushard.errors import DeviceMemoryError
from gpushard.options import KIB

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
# A realigned stream takes this more than a row has, at the most: in place of a row of
# no bytes lies the dummy, with what follows it, at a multiple of 4.
_REALIGNED_NBYTES = 16
# Four addresses or sizes and the row; what came out, and the decoder's status.
_TABLES_NBYTES_PER_STREAM = 36 + 12
# Kernels loop over what is left; this many blocks fill any device several times over.
_MAX_BLOCKS = 1 << 16
_WARP = 32
# Blocks that share a row: each takes 16 KiB at a time.
_PIECE_NBYTES, _MAX_PIECES = 16 * KIB, 64


@dataclass(slots=True)
class Decoder:
    """Enqueues the steps of one batch on its lane.

    `src` and `src_nbytes` are tables of what the next step is given; `arena` is the
    arena that they point into, if any. `planes` is a table of what the scatter has to
    unshuffle, if it has to.
    """

    lane: Lane
    tables: RowTables
    accept_unsized: bool
    src: int
    src_nbytes: int
    arena: int = -1
    planes: int = 0

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
        is_last = index == len(self.tables.sizes) - 1
        if step.kind is StepKind.BLOSC:
            self._blosc(step, is_last=is_last)
        elif step.items is not None:
            self._undo_filter(step.items)
        elif step.kind is not StepKind.SHUFFLE:
            self._decompress(step, self._next_arena(is_last=is_last))
        elif is_last and self.tables.planes:
            self.planes = self.tables.planes
        else:
            dst = self._next_arena(is_last=is_last)
            filters = self.tables.filters[index]
            self._unfilter("gs_unshuffle", self.src, dst, filters, step)
            self.src = dst
        self.src_nbytes = self.tables.sizes[index]

    def _undo_filter(self, items: ItemFilter) -> None:
        """Undo a filter of numcodecs."""
        dst, n_rows = self._next_arena(), self.tables.n_rows
        rows = FilterRows(self.src, self.src_nbytes, dst, self.tables.status, n_rows)
        if items.kernel == "gs_delta_float":  # a thread a row: sums have an order
            self._launch_over(items.kernel, n_rows, items.pack(rows))
        else:
            n_pieces = 1 if items.is_sum else _pieces(items.decoded_nbytes)
            self._launch(items.kernel, (n_rows, n_pieces), items.pack(rows))
        self.src = dst

    def _launch(self, kernel: str, grid: Grid, *parameters: object) -> None:
        grid = min(grid[0], _MAX_BLOCKS), grid[1]
        self.lane.device.launch(kernel, grid, parameters, self.lane.stream)

    def _launch_over(self, kernel: str, n_threads: int, *parameters: object) -> None:
        """Launch over so many threads, in blocks of the size the kernel declares."""
        n_blocks = -(-n_threads // threads_of(kernel))
        self._launch(kernel, (n_blocks, 1), *parameters)

    def _next_arena(self, *, is_last: bool = False) -> int:
        """Table of where rows are decoded to; they come from the other arena."""
        self.arena = 1 if self.arena == 0 else 0
        return self.tables.landings if is_last else self.tables.arenas[self.arena]

    def _decompress(self, step: Step, dst: int) -> None:
        """One stream a row: gate, decoder, fold."""
        gate, algorithm = _GATES[step.kind]
        tables, n_rows = self.tables, self.tables.n_rows
        columns = Columns(tables.scratch)
        streams = [columns.take(8 * n_rows) for _ in range(4)]
        record = np.zeros((), GATE)
        record["src"], record["src_nbytes"] = self.src, self.src_nbytes
        record["dst"], record["status"] = dst, tables.status
        record["stream_src"], record["stream_nbytes"] = streams[0], streams[1]
        record["stream_dst"], record["stream_capacity"] = streams[2], streams[3]
        record["decoded_nbytes"] = step.decoded_nbytes
        record["dummy_src"] = tables.dummies[algorithm]
        record["dummy_nbytes"] = len(DUMMIES[algorithm])
        record["dummy_dst"] = tables.dummy_dst
        record["dummy_capacity"] = DUMMY_CAPACITY
        record["n_rows"], record["accept_unsized"] = n_rows, self.accept_unsized
        self._launch_over(gate, n_rows, record[()])
        if algorithm is Algorithm.DEFLATE:
            self._realign(streams[0], streams[1], n_rows)
        largest = max(step.decoded_nbytes, DUMMY_CAPACITY)
        self._decode_streams(algorithm, streams, n_rows, largest)
        self.src = dst

    def _realign(self, src: int, nbytes: int, n_streams: int) -> None:
        """Copy streams to multiples of 4 bytes, which nvCOMP's Deflate needs."""
        arena = self._realigned_room(n_streams)
        places = _u8(src), _u8(nbytes), _u8(self.tables.n_realigned), _u8(arena)
        self._launch("gs_realign", (n_streams, 1), *places, _u4(n_streams))

    def _realigned_room(self, n_streams: int) -> int:
        """Address of room for so many streams, with their trailers.

        Once a batch: what is taken of it is counted from zero on.
        """
        nbytes = self.lane.encoded_nbytes + _REALIGNED_NBYTES * n_streams
        return self.lane.realigned.address(nbytes)

    def _decode_streams(
        self,
        algorithm: Algorithm,
        streams: Sequence[int],
        n_streams: int,
        largest: int,
    ) -> None:
        """Let the vendor decode, a stream a row, and note on the rows what it says.

        `streams`: addresses of source, size, destination and capacity of each stream.
        """
        decoder, total = self.lane.device.decoder, n_streams * largest
        temp_nbytes = decoder.temp_nbytes(algorithm, n_streams, largest, total)
        tables, temp = self._with_outcomes(streams, n_streams, temp_nbytes)
        decoder.decompress_async(algorithm, tables, temp, temp_nbytes, self.lane.stream)
        self._fold(verifier_of(algorithm), tables, 0, range(n_streams))

    def _with_outcomes(
        self, streams: Sequence[int], n_streams: int, temp_nbytes: int
    ) -> tuple[StreamTables, int]:
        """Tables with room for what the decoder says, and scratch for it."""
        columns = Columns(self.lane.temp.address(temp_nbytes + 12 * n_streams + 32))
        actual, statuses = columns.take(8 * n_streams), columns.take(4 * n_streams)
        src, nbytes, dst, capacity = streams
        tables = StreamTables(n_streams, src, nbytes, dst, capacity, actual, statuses)
        return tables, columns.take(temp_nbytes)

    def _fold(
        self,
        verifier: str | None,
        tables: StreamTables,
        row_of_stream: int,
        verified: range,
    ) -> None:
        """Note on the rows what the decoder says, and whether checksums differ.

        `row_of_stream` is the address of a table, or 0 where stream k is row k.
        """
        status, n_streams = self.tables.status, tables.count
        if verifier:
            record = pack_trailers(tables, row_of_stream, status, verified)
            self._launch(verifier, (n_streams, 1), record)
            return
        addresses = tables.statuses, tables.actual_nbytes, tables.capacity
        columns = map(_u8, (*addresses, row_of_stream, status))
        self._launch_over("gs_fold", n_streams, *columns, _u4(n_streams))

    def _unfilter(
        self, kernel: str, src: int, dst: int, filters: Sequence[int], step: Step
    ) -> None:
        record = np.zeros((), UNFILTER)
        record["src"], record["dst"] = src, dst
        record["status"] = self.tables.status
        record["filter"], record["typesize"], record["block_nbytes"] = filters
        record["decoded_nbytes"] = step.decoded_nbytes
        record["n_rows"] = self.tables.n_rows
        grid = self.tables.n_rows, _pieces(step.decoded_nbytes)
        self._launch(kernel, grid, record[()])

    def _blosc(self, step: Step, *, is_last: bool) -> None:
        """Many streams a row: count, tables, decoders, fold, unfilter."""
        tables, n_rows, lane = self.tables, self.tables.n_rows, self.lane
        staging, dst = self._next_arena(), self._next_arena(is_last=is_last)
        columns = Columns(tables.scratch + STREAM_TABLES_NBYTES * n_rows)
        planes = columns.take(FAST_DIVISOR.itemsize * n_rows)
        stage, following = columns.take(8 * n_rows), columns.take(8 * n_rows)
        filters = [columns.take(4 * n_rows) for _ in range(3)]
        first = columns.take(4 * len(StreamClass) * n_rows)
        rows = np.zeros((), BLOSC_ROWS)
        rows["src"], rows["src_nbytes"] = self.src, self.src_nbytes
        rows["status"] = tables.status
        rows["filter"], rows["typesize"], rows["block_nbytes"] = filters
        rows["first"], rows["totals"] = first, tables.totals
        host = lane.totals_host.view(TOTALS_NBYTES)
        rows["totals_host"] = host.ctypes.data
        rows["staging"], rows["decoded"] = staging, dst
        rows["stage"], rows["next"] = stage, following
        if is_last and tables.fused_nbytes:
            rows["planes"], rows["fused_typesize"] = planes, tables.fused_nbytes
            self.planes = planes
        rows["decoded_nbytes"], rows["n_rows"] = step.decoded_nbytes, n_rows
        rows["accept_unsized"] = self.accept_unsized
        self._launch_over("gs_blosc_count", _WARP * n_rows, rows[()])
        lane.wait_here()
        found = host.view(np.uint64).astype(np.int64)
        self._blosc_streams(rows, stage, list(found[:-2].reshape(3, -1)))
        if found[-2:].any():
            kernel = "gs_unfilter" if found[-1] else "gs_unshuffle"
            self._unfilter(kernel, staging, dst, filters, step)
        self.src = following

    def _blosc_streams(
        self,
        rows: NDArray[Any],
        stage: int,
        totals: Sequence[NDArray[np.int64]],
    ) -> None:
        n_streams, _, largest = (column.tolist() for column in totals)
        n_all, n_raw = sum(n_streams), n_streams[StreamClass.RAW]
        if not n_all:
            return
        scratch = self._scratch(totals)
        columns = Columns(self.lane.streams.address(36 * n_all + 16 * 8))
        tables = [columns.take(8 * n_all) for _ in range(4)]
        row_of_stream = columns.take(4 * n_all)
        record = np.zeros((), BLOSC_STREAMS)
        record["dst"], record["begin"] = stage, np.cumsum(n_streams) - n_streams
        names = ("stream_src", "stream_nbytes", "stream_dst", "stream_capacity")
        for name, table in zip(names, tables, strict=True):
            record[name] = table
        record["stream_row"] = row_of_stream
        n_threads = _WARP * self.tables.n_rows
        self._launch_over("gs_blosc_fill", n_threads, rows[()], record[()])
        self._copy_streams(record, n_streams, largest[StreamClass.RAW])
        if n_all > n_raw:  # raw ones come first
            compressed = [table + 8 * n_raw for table in tables]
            self._decode_classes(
                compressed, n_streams, scratch, row_of_stream + 4 * n_raw
            )

    def _copy_streams(
        self, record: NDArray[Any], n_streams: Sequence[int], largest_raw: int
    ) -> None:
        """Copy raw streams to their rows, and Deflate's as `_realign` does."""
        n_raw, n_zlib = n_streams[StreamClass.RAW], n_streams[StreamClass.ZLIB]
        if not n_raw + n_zlib:
            return
        arena = self._realigned_room(n_zlib) if n_zlib else 0
        room = _u8(self.tables.n_realigned), _u8(arena)
        grid = n_raw + n_zlib, _pieces(largest_raw)
        self._launch("gs_blosc_copy", grid, record[()], _u4(n_raw), _u4(n_zlib), *room)

    def _decode_classes(
        self,
        streams: Sequence[int],
        n_streams: Sequence[int],
        scratch: dict[StreamClass, int],
        row_of_stream: int,
    ) -> None:
        """Let the vendor decode those of each compressor, and fold all at once."""
        lane, n_all = self.lane, sum(n_streams[k] for k in scratch)
        tables, temp = self._with_outcomes(streams, n_all, max(scratch.values()))
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
        # zstd frames with a checksum are left to the host in Blosc: none was written.
        verifier = verifier_of(Algorithm.DEFLATE) if zlib else None
        self._fold(verifier, tables, row_of_stream, zlib)

    def _scratch(self, totals: Sequence[NDArray[np.int64]]) -> dict[StreamClass, int]:
        """Bytes of scratch for each compressor that has streams, in their order.

        Raises
        ------
        DeviceMemoryError
            That and their tables are beyond the budget: there are more streams than is
            usual. The batch is to be split.
        """
        n_streams, decoded, largest = (column.tolist() for column in totals)
        decoder = self.lane.device.decoder
        scratch = {
            k: decoder.temp_nbytes(algorithm, n_streams[k], largest[k], decoded[k])
            for k, algorithm in _ALGORITHM_OF_CLASS.items()
            if n_streams[k]
        }
        tables_nbytes = _TABLES_NBYTES_PER_STREAM * sum(n_streams)
        needed = max(scratch.values(), default=0) + tables_nbytes
        room = self.lane.budget.streams_nbytes(self.tables.n_rows)
        if needed > room:
            raise DeviceMemoryError(
                "the streams of a batch take more than memory_limit has room for",
                expected=f"at most {room} bytes",
                got=needed,
                hint="raise memory_limit",
            )
        return scratch


def _part(tables: StreamTables, streams: range) -> StreamTables:
    """Tables of some of the streams."""
    first = streams.start
    wide = tables.src, tables.src_nbytes, tables.dst, tables.capacity
    src, nbytes, dst, capacity, actual = (
        table + 8 * first for table in (*wide, tables.actual_nbytes)
    )
    statuses = tables.statuses + 4 * first
    return StreamTables(len(streams), src, nbytes, dst, capacity, actual, statuses)


def landing_alignment(decoder: StreamDecoder, step: Step) -> int:
    """What addresses in the output must be a multiple of for `step` to decode there.

    0 if it decodes nowhere but into an arena.
    """
    if step.kind is StepKind.BLOSC:
        # Streams of a frame begin at any byte of a row.
        needed = {decoder.alignments(a).output for a in _ALGORITHM_OF_CLASS.values()}
        return 1 if needed == {1} else 0
    if step.kind in _GATES:
        return decoder.alignments(_GATES[step.kind][1]).output
    return 0


def _pieces(nbytes: int) -> int:
    """Blocks worth sharing a row of `nbytes` bytes."""
    return min(max(1, nbytes // _PIECE_NBYTES), _MAX_PIECES)


def _u8(value: int) -> np.uint64:
    return np.uint64(value)


def _u4(value: int) -> np.uint32:
    return np.uint32(value)
