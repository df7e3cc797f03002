"""Encoded inner chunks in device memory -> decoded ones: the steps of one batch.

Only the Blosc step waits for the device, because its frames must be counted first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpushard.devices.decoding.blosc import (
    decode_blosc,
    frames_land_anywhere,
)
from gpushard.devices.decoding.chain import Step, StepKind
from gpushard.devices.decoding.filters import ItemFilter
from gpushard.devices.decoding.row_tables import (
    DUMMIES,
    DUMMY_CAPACITY,
    LANDING,
    RowTables,
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
from gpushard.devices.structs import FILTER, GATE, record

_GATES = {
    StepKind.ZSTD: ("gs_gate_zstd", Algorithm.ZSTD),
    StepKind.LZ4: ("gs_gate_lz4", Algorithm.LZ4),
    StepKind.GZIP: ("gs_gate_gzip", Algorithm.GZIP),
    StepKind.ZLIB: ("gs_gate_zlib", Algorithm.DEFLATE),
}


@dataclass(slots=True)
class BatchDecoder:
    """Enqueues the steps of one batch on its lane.

    `src` and `src_nbytes` are the tables that the next step reads. `arena` is the arena
    that `src` points into, if any. `planes` is the table of rows that the scatter has
    to unshuffle, or 0.
    """

    streams: RowStreams
    src: int
    src_nbytes: int
    arena: int = -1
    planes: int = 0

    @property
    def tables(self) -> RowTables:
        """The tables of the batch."""
        return self.streams.tables

    def run(self, step: Step, index: int) -> None:
        """Enqueue the step with number `index` in the chain."""
        if step.kind is StepKind.CRC32C:
            self.streams.launch(
                "gs_crc32c_verify",
                (self.tables.n_rows, 1),
                u8(self.src),
                u8(self.src_nbytes),
                u8(self.tables.status),
                u4(self.tables.n_rows),
            )
            return
        is_last = index == self.tables.n_steps - 1
        if step.kind is StepKind.BLOSC:
            self._blosc(step, is_last=is_last)
        elif step.items is not None:
            self._undo_filter(step.items)
        elif step.kind is not StepKind.SHUFFLE:
            self._decompress(step, self._next_arena(is_last=is_last))
        elif is_last and self.tables.fused_nbytes:
            self.planes = self.tables.planes
        else:
            dst = self._next_arena(is_last=is_last)
            filters = self.tables.filters_of(index)
            self.streams.unfilter(
                "gs_unshuffle", self.src, dst, filters, step.decoded_nbytes
            )
            self.src = dst
        self.src_nbytes = self.tables.sizes_after(index)

    def _undo_filter(self, items: ItemFilter) -> None:
        """Undo a filter of numcodecs."""
        dst, tables = self._next_arena(), self.tables
        at = {"src": self.src, "src_nbytes": self.src_nbytes, "dst": dst}
        parameter = filter_record(items, tables.n_rows, status=tables.status, **at)
        if items.kernel == "gs_delta_float":  # float sums depend on their order
            self.streams.launch_over(items.kernel, tables.n_rows, parameter)
        else:
            n_pieces = 1 if items.is_sum else pieces(items.decoded_nbytes)
            self.streams.launch(items.kernel, (tables.n_rows, n_pieces), parameter)
        self.src = dst

    def _next_arena(self, *, is_last: bool = False) -> int:
        """Table of the addresses that rows are decoded to, in the other arena."""
        self.arena = 1 if self.arena == 0 else 0
        return self.tables.place(LANDING if is_last else self.arena)

    def _decompress(self, step: Step, dst: int) -> None:
        """Enqueue gate, decoder and fold, with one stream for each row."""
        gate, algorithm = _GATES[step.kind]
        tables, n_rows = self.tables, self.tables.n_rows
        streams = Streams(*columns(tables.scratch, n_rows, 8, 8, 8, 8))
        parameter = record(
            GATE,
            src=self.src,
            src_nbytes=self.src_nbytes,
            dst=dst,
            status=tables.status,
            **streams._asdict(),
            decoded_nbytes=step.decoded_nbytes,
            dummy_src=tables.dummy(algorithm),
            dummy_nbytes=len(DUMMIES[algorithm]),
            dummy_dst=tables.dummy_dst,
            dummy_capacity=DUMMY_CAPACITY,
            n_rows=n_rows,
            accept_unsized=TAKES_UNSIZED,
            canary_seed=tables.canary_seed,
        )
        self.streams.launch_over(gate, n_rows, parameter)
        if algorithm is Algorithm.DEFLATE:
            self.streams.realign(*streams[:2], n_rows)
        largest = max(step.decoded_nbytes, DUMMY_CAPACITY)
        temp_nbytes = self.streams.lane.device.decoder.temp_nbytes(
            algorithm, n_rows, largest, n_rows * largest
        )
        coded = Coded(algorithm, n_rows, temp_nbytes)
        rows = DecodedRows(dst, step.decoded_nbytes)
        self.streams.decode([coded], streams, algorithm, rows)
        self.src = dst

    def _blosc(self, step: Step, *, is_last: bool) -> None:
        """Enqueue decoding Blosc frames, with many streams for each row."""
        staging, dst = self._next_arena(), self._next_arena(is_last=is_last)
        frames = {"src": self.src, "src_nbytes": self.src_nbytes}
        frames |= {"staging": staging, "decoded": dst}
        fuses = is_last and bool(self.tables.fused_nbytes)
        nbytes = step.decoded_nbytes
        self.src, planes = decode_blosc(self.streams, frames, nbytes, fuses=fuses)
        self.planes = planes or self.planes


def filter_record(items: ItemFilter, n_rows: int, **tables: int) -> Any:
    """Parameter of a filter's kernel; `tables` are addresses in device memory."""
    return record(
        FILTER,
        **tables,
        n_items=items.n_items,
        n_rows=n_rows,
        scale=items.scale,
        offset=items.offset,
        **{"from": items.from_type, "to": items.to_type},
    )


def landing_alignment(decoder: Nvcomp, step: Step) -> int:
    """Number that an output address must be a multiple of for `step` to write there.

    0 if the step can write into an arena only.
    """
    if step.kind is StepKind.BLOSC:
        return int(frames_land_anywhere(decoder))
    if step.kind in _GATES:
        return decoder.alignments(_GATES[step.kind][1]).output
    return 0
