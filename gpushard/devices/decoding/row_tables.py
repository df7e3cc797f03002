"""Offsets and addresses of a batch's tables on their page, and of scratch for steps.

Pure: no device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpushard.devices.nvcomp_abi import Algorithm
from gpushard.devices.slabs import TablePage
from gpushard.devices.structs import StreamClass

# Streams that decode to one byte. A decoder gets one in place of a refused stream.
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
"""Room for the output of any of these streams."""

TOTALS_NBYTES = (3 * len(StreamClass) + 2) * 8
"""Streams of each class, counted in three ways; then rows with each kind of shuffle."""

_COUNTING_NBYTES = TOTALS_NBYTES + 8
"""The same, and the number of warps that have counted."""


@dataclass(frozen=True, slots=True)
class RowTables:
    """Device addresses of the tables of a batch on its page.

    Attributes
    ----------
    src, src_nbytes
        uint64, one per row: address and size of the encoded bytes.
    sizes
        uint64, one per row, for each step: size of every row after the step.
    filters
        For each `StepKind.SHUFFLE`, by its index: filter, item size and block size of
        each row, uint32.
    arenas
        uint64, one per row, for each of the two arenas: where a row is decoded to.
    landings
        uint64, one per row: where the last step decodes the row to, in an arena or in
        the output.
    planes
        Bytes in the shuffled blocks of each row, if the scatter undoes the last
        `StepKind.SHUFFLE`; else 0.
    fused_nbytes
        As `DeviceChain.fused_nbytes`.
    dummies, dummy_dst
        The streams of `DUMMIES`, one after the other, and room for their output.
    totals, n_realigned, status
        Zero at first. `totals` counts the streams in Blosc frames (`TOTALS_NBYTES`),
        then the warps that have counted, uint64. `n_realigned` counts used bytes of the
        room for realigned streams, uint64. `status` has one uint32 for each row.
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
    """Offset of the scratch that the steps of a batch write."""
    return page.reserve(_SCRATCH_NBYTES_PER_ROW * n_rows + 16 * _N_SCRATCH_COLUMNS)


_N_SCRATCH_COLUMNS = 16
# Stream tables (4 * 8), then Blosc's (3 * 4 + 4 * 5 + 2 * 8 + 16). The scatter reads
# some of the latter.
STREAM_TABLES_NBYTES = 32
_SCRATCH_NBYTES_PER_ROW = STREAM_TABLES_NBYTES + 64


class Columns:
    """Columns cut one after the other from a piece of memory, aligned to 16 bytes."""

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

    Their zeros are uploaded with the page, which saves a call that clears them.
    """
    totals = page.add(np.zeros(_COUNTING_NBYTES + 8, np.uint8))
    return totals, totals + _COUNTING_NBYTES, page.add(np.zeros(n_rows, np.uint32))


def reserve_dummy_room(page: TablePage) -> int:
    """Offset of the room for the output of dummy streams."""
    return page.reserve(DUMMY_CAPACITY)
