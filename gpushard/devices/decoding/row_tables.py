"""The tables of a batch on their page, and what the steps write beside them.

Pure: offsets and addresses; no device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpushard.devices.nvcomp_abi import Algorithm
from gpushard.devices.slabs import TablePage
from gpushard.devices.structs import StreamClass

# Streams that decode to one byte: what a decoder is given instead of a refused one.
# zstd: RFC 8878 3.1.1, one raw block; LZ4 block: one literal; deflate: RFC 1951 3.2.4,
# one stored block; gzip: RFC 1952 2.3 around it.
_STORED = bytes.fromhex("010100feff00")
DUMMIES = {
    Algorithm.ZSTD: bytes.fromhex("28b52ffd200109000000"),
    Algorithm.LZ4: bytes.fromhex("1000"),
    Algorithm.DEFLATE: _STORED,
    Algorithm.GZIP: bytes.fromhex("1f8b08000000000000ff")
    + _STORED
    + bytes.fromhex("8def02d201000000"),
}
DUMMY_CAPACITY = 256
"""Room for what any of them decodes to."""

TOTALS_NBYTES = (3 * len(StreamClass) + 2) * 8
"""Streams of each class, counted in three ways; then rows with either shuffle."""

_COUNTING_NBYTES = TOTALS_NBYTES + 8
"""The same, and how many have counted."""


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
    landings
        uint64, one a row: where the last step decodes it to, in an arena or the output.
    planes
        Bytes of the shuffled blocks of each row, for a last `StepKind.SHUFFLE` that is
        left to the scatter; else 0.
    fused_nbytes
        As `DeviceChain.fused_nbytes`.
    dummies, dummy_dst
        The streams in `DUMMIES` one after the other, and room for what they decode to.
    totals, n_realigned, status
        Zero at first. Streams that Blosc frames have, `TOTALS_NBYTES`, and how many
        warps have counted them, uint64; bytes of the room for realigned streams that
        are taken, uint64; and what became of each row, uint32.
    """

    n_rows: int
    src: int
    src_nbytes: int
    sizes: tuple[int, ...]
    filters: dict[int, tuple[int, int, int]]
    arenas: tuple[int, int]
    landings: int
    planes: int
    fused_nbytes: int
    dummies: dict[Algorithm, int]
    dummy_dst: int
    totals: int
    n_realigned: int
    status: int
    scratch: int


def reserve_scratch(page: TablePage, n_rows: int) -> int:
    """Offset of what the steps of a batch write beside the status."""
    return page.reserve(_SCRATCH_NBYTES_PER_ROW * n_rows + 16 * _N_SCRATCH_COLUMNS)


_N_SCRATCH_COLUMNS = 16
# Stream tables (4 * 8), then Blosc's (3 * 4 + 4 * 5 + 2 * 8 + 16), some of which the
# scatter reads.
STREAM_TABLES_NBYTES = 32
_SCRATCH_NBYTES_PER_ROW = STREAM_TABLES_NBYTES + 64


class Columns:
    """Columns cut from a piece of memory, one after the other, 16-byte aligned."""

    def __init__(self, address: int) -> None:
        self._next = address

    def take(self, nbytes: int) -> int:
        """Address of the next column."""
        address = self._next
        self._next += -(-nbytes // 16) * 16
        return address


def add_dummies(page: TablePage) -> dict[Algorithm, int]:
    """Offsets of the dummy streams on a page."""
    return {
        algorithm: page.add(np.frombuffer(stream, np.uint8))
        for algorithm, stream in DUMMIES.items()
    }


def add_results(page: TablePage, n_rows: int) -> tuple[int, int, int]:
    """Offsets of `RowTables.totals`, `n_realigned` and `status`.

    Their zeros are uploaded with the rest, which is a call less than to clear them.
    """
    totals = page.add(np.zeros(_COUNTING_NBYTES + 8, np.uint8))
    return totals, totals + _COUNTING_NBYTES, page.add(np.zeros(n_rows, np.uint32))


def reserve_dummy_room(page: TablePage) -> int:
    """Offset of the room that dummy streams are decoded to."""
    return page.reserve(DUMMY_CAPACITY)
