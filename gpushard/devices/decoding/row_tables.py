"""Tables of the rows of a batch on its page, and scratch for the steps.

Pure: no device.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.decoding.chain import DeviceChain, StepKind
from gpushard.devices.nvcomp_abi import Algorithm
from gpushard.devices.slabs import TablePage
from gpushard.devices.structs import (
    BYTE_SHUFFLED,
    FAST_DIVISOR,
    StreamClass,
    fast_divisor,
)
from gpushard.selecting.selection import Ints

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

_DUMMY_PITCH = 32
_DUMMY_TABLE = np.frombuffer(
    b"".join(stream.ljust(_DUMMY_PITCH, b"\0") for stream in DUMMIES.values()), np.uint8
)

TOTALS_NBYTES = (3 * len(StreamClass) + 2) * 8
"""Streams of each class, counted in three ways; then rows with each kind of shuffle."""

_COUNTING_NBYTES = TOTALS_NBYTES + 8
"""The same, and the number of warps that have counted."""

# `Streams` (4 * 8), or columns of Blosc (16 + 2 * 8 + 3 * 4 + 5 * 4): a chain has one
# compressor. The scatter reads some of the latter.
SCRATCH_NBYTES = 64
"""Scratch for the steps, for each row."""

# Fields of `RowTables` that are no offsets.
_NUMBERS = {"n_rows", "n_steps", "fused_nbytes", "canary_seed"}

LANDING = 2
"""Number of the places that the last step decodes rows to, behind the two arenas."""


class Streams(NamedTuple):
    """Tables of streams, uint64 each, under the names that kernels have for them."""

    stream_src: int
    stream_nbytes: int
    stream_dst: int
    stream_capacity: int


class Shuffles(NamedTuple):
    """Tables of shuffled rows, uint32 each, under the names that kernels have."""

    filter: int
    typesize: int
    block_nbytes: int


class EncodedRows(NamedTuple):
    """The encoded bytes of the rows of a batch.

    Attributes
    ----------
    src
        uint64, shape (n_rows,), host. Device address of each row's bytes.
    nbytes
        int64, shape (n_rows,), host. Their number.
    """

    src: NDArray[np.uint64]
    nbytes: Ints


class RowTables(NamedTuple):
    """Where the tables of a batch lie: offsets on its page, then device addresses.

    Attributes
    ----------
    n_rows, n_steps
        Number of rows, and of the chain's steps.
    fused_nbytes
        See `DeviceChain`.
    canary_seed
        What the bytes around the rows are made of; 0 if the chain does not need them.
    src, src_nbytes
        uint64, one per row: address and size of the encoded bytes.
    sizes
        uint64, one per row for each step but the last: bytes after the step.
    filters
        uint32, three per row for each step: see `Shuffles`. Only if a step is a
        `StepKind.SHUFFLE`.
    arena_0, arena_1, landing
        uint64, one per row: its address in the two arenas, and where the last step
        decodes it to. Equal tables are one.
    planes
        `FAST_DIVISOR`, one per row: bytes in its shuffled blocks. Only if the scatter
        undoes the last step, a `StepKind.SHUFFLE`.
    dummies, dummy_dst
        The streams of `DUMMIES`, and room for their output.
    totals, n_realigned, status
        Zero at first. `totals` counts the streams in Blosc frames (`TOTALS_NBYTES`),
        then the warps that have counted, uint64. `n_realigned` counts used bytes of the
        room for realigned streams, uint64. `status` has one uint32 for each row.
    scratch
        `SCRATCH_NBYTES` for each row.
    """

    n_rows: int
    n_steps: int
    fused_nbytes: int
    canary_seed: int
    src: int
    src_nbytes: int
    sizes: int
    filters: int
    arena_0: int
    arena_1: int
    landing: int
    planes: int
    dummies: int
    totals: int
    n_realigned: int
    status: int
    scratch: int
    dummy_dst: int

    @classmethod
    def lay(
        cls,
        page: TablePage,
        chain: DeviceChain,
        encoded: EncodedRows,
        places: Sequence[Ints],
    ) -> RowTables:
        """Offsets of the tables on `page`, which nothing is added to afterwards.

        Parameters
        ----------
        places
            int64, shape (n_rows,), three times: address of each row in the two arenas,
            and where the last step decodes it to, in an arena or in the output. The
            same column may be given more than once.
        """
        n_rows, steps = len(encoded.src), chain.steps
        sizes = np.array([step.decoded_nbytes for step in steps[:-1]], np.uint64)
        totals = page.add(np.zeros(_COUNTING_NBYTES + 8, np.uint8))
        distinct = {id(column): column for column in places}
        added = {key: page.add(column) for key, column in distinct.items()}
        arena_0, arena_1, landing = (added[id(column)] for column in places)
        return cls(
            n_rows=n_rows,
            n_steps=len(steps),
            fused_nbytes=chain.fused_nbytes,
            canary_seed=_canary_seed() if chain.guards_rows else 0,
            src=page.add(encoded.src),
            src_nbytes=page.add(encoded.nbytes),
            sizes=page.add(np.repeat(sizes, n_rows)),
            filters=page.add(np.repeat(_filters(chain), n_rows)),
            arena_0=arena_0,
            arena_1=arena_1,
            landing=landing,
            planes=page.add(_planes(chain, n_rows)),
            dummies=page.add(_DUMMY_TABLE),
            totals=totals,
            n_realigned=totals + _COUNTING_NBYTES,
            # Uploaded zeros save a call that clears the statuses.
            status=page.add(np.zeros(n_rows, np.uint32)),
            scratch=page.reserve(SCRATCH_NBYTES * n_rows),
            dummy_dst=page.reserve(DUMMY_CAPACITY),
        )

    def at(self, address: int) -> RowTables:
        """The same tables with addresses, on a page that lies at `address`."""
        offsets = self._asdict().items()
        moved = {name: address + at for name, at in offsets if name not in _NUMBERS}
        return self._replace(**moved)

    def sizes_after(self, step: int) -> int:
        """Table of the size of every row after a step that is not the last: uint64."""
        return self.sizes + 8 * self.n_rows * step

    def filters_of(self, step: int) -> Shuffles:
        """Tables of a `StepKind.SHUFFLE`."""
        first = self.filters + 12 * self.n_rows * step
        return Shuffles(*columns(first, self.n_rows, 4, 4, 4))

    def place(self, k: int) -> int:
        """Table of the addresses of rows in arena `k`, or for `LANDING`; uint64."""
        return (self.arena_0, self.arena_1, self.landing)[k]

    def dummy(self, algorithm: Algorithm) -> int:
        """Address of the stream of `DUMMIES` for an algorithm."""
        return self.dummies + _DUMMY_PITCH * list(DUMMIES).index(algorithm)


def _canary_seed() -> int:
    """A random number other than 0, which stored bytes cannot know."""
    return int.from_bytes(os.urandom(8)) | 1


def _filters(chain: DeviceChain) -> NDArray[np.uint32]:
    """Filter, item size and block size of each step, if one of them is a shuffle."""
    if all(step.kind is not StepKind.SHUFFLE for step in chain.steps):
        return np.empty(0, np.uint32)
    numbers = np.zeros((len(chain.steps), 3), np.uint32)
    for row, step in zip(numbers, chain.steps, strict=True):
        if step.kind is StepKind.SHUFFLE:
            row[:] = BYTE_SHUFFLED, step.itemsize, step.decoded_nbytes
    return numbers


def _planes(chain: DeviceChain, n_rows: int) -> NDArray[Any]:
    """Blocks that the last step leaves shuffled; no rows if it leaves none."""
    if not chain.fused_nbytes or chain.steps[-1].kind is not StepKind.SHUFFLE:
        return np.empty(0, FAST_DIVISOR)
    return np.repeat(fast_divisor(chain.decoded_nbytes), n_rows)


def columns(address: int, n: int, *widths: int) -> list[int]:
    """Addresses of columns of `n` items, side by side from `address` on.

    `widths` are the sizes of their items, the widest first, so that all are aligned.
    """
    return [address + n * sum(widths[:k]) for k in range(len(widths))]
