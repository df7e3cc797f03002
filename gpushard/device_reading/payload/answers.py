"""Where the bytes of fetched inner chunks lie before they are put into a batch.

They lie in a pinned slot, from which a lane copies them (`ring`); in a slot of device
memory (`device_slots`); or in other host memory, such as inner chunks that a device
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.lane import Lane
from gpushard.fetching.ranged import RangedBlock
from gpushard.selecting.numbering import as_slice, columns_at
from gpushard.selecting.selection import Ints
from gpushard.stores.base import ByteRequest

# Kernels access at most 16 bytes at once, and a cache line has 128. Bytes keep their
# offset modulo 64, so that elements aligned in a file are also aligned on a device.
ALIGNMENT = 64

# One copy occupies the host for as long as half a megabyte occupies the bus.
_MAX_RUNS = 8


class Payload(Protocol):
    """Memory that holds fetched bytes, and how a lane gets at them."""

    def bring(self, lane: Lane, encoded: FetchedChunks) -> NDArray[np.uint64]:
        """Device address of each inner chunk's bytes, for work queued on `lane`."""
        ...

    def on_host(
        self, lane: Lane, encoded: FetchedChunks
    ) -> tuple[NDArray[np.uint8], Ints]:
        """Host memory, uint8, and the offset of each inner chunk's bytes there.

        Bytes on the device are copied on `lane`, and are valid until its next copy.
        """
        ...

    def first_on_host(self, encoded: FetchedChunks) -> NDArray[np.uint8] | None:
        """Bytes of the first inner chunk, uint8; None if they are not on the host."""
        ...


class Answered(NamedTuple):
    """Answer to one request: its bytes start at `offset` in the memory of a payload."""

    payload: Payload
    offset: int


Answers = Sequence[Answered | None]
"""Answers to requests; None where there is no such object any more."""


@dataclass(frozen=True, slots=True)
class FetchedChunks:
    """Columns over inner chunks that were fetched.

    Attributes
    ----------
    payload
        The memory that holds their bytes.
    column
        int64, shape (n,). Column of the block for each inner chunk.
    offset, nbytes
        int64, shape (n,). Offset of its bytes in the payload, and their number.
    low, stored_nbytes
        int64, shape (n,). Offset of these bytes in the inner chunk, and the size of the
        inner chunk. They are only a part if only a span of plain elements was wanted.
    """

    payload: Payload
    column: Ints
    offset: Ints
    nbytes: Ints
    low: Ints
    stored_nbytes: Ints

    @classmethod
    def of(
        cls, ranged: RangedBlock, answers: Sequence[tuple[int, Answered]]
    ) -> FetchedChunks:
        """Inner chunks in the answers, in the order of their bytes."""
        requests = np.array([r for r, _ in answers])
        bases = np.array([answered.offset for _, answered in answers])
        bases -= ranged.requests.start[requests]
        per_request = [ranged.rows_of(r) for r, _ in answers]
        rows = np.concatenate(per_request)
        base = np.repeat(bases, list(map(len, per_request)))
        which = as_slice(rows)
        first, last = columns_at(ranged.spans, which)
        start, stop = ranged.located.start[which], ranged.located.stop[which]
        return cls(
            answers[0][1].payload,
            rows,
            base + first,
            last - first,
            first - start,
            stop - start,
        )

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, which: slice | Ints) -> FetchedChunks:
        n = len(self.column)
        if isinstance(which, slice) and which.indices(n) == (0, n, 1):
            return self
        return FetchedChunks(
            self.payload,
            self.column[which],
            self.offset[which],
            self.nbytes[which],
            self.low[which],
            self.stored_nbytes[which],
        )


@dataclass(frozen=True, slots=True)
class HostPayload:
    """Host memory: of a fetch when no more can be pinned, or of bytes read back."""

    memory: NDArray[np.uint8]

    def bring(self, lane: Lane, encoded: FetchedChunks) -> NDArray[np.uint64]:
        """Addresses in the lane's encoded slab, by way of the lane's pinned memory."""
        host, places = lane.pinned_for(encoded.nbytes)
        columns = (encoded.offset, places, encoded.nbytes)
        for offset, place, nbytes in zip(*(c.tolist() for c in columns), strict=True):
            host[place : place + nbytes] = self.memory[offset : offset + nbytes]
        return (places + lane.upload(host)).astype(np.uint64)

    def on_host(
        self, lane: Lane, encoded: FetchedChunks
    ) -> tuple[NDArray[np.uint8], Ints]:
        """The memory."""
        del lane
        return self.memory, encoded.offset

    def first_on_host(self, encoded: FetchedChunks) -> NDArray[np.uint8]:
        """The part of the memory that the first inner chunk takes."""
        first = int(encoded.offset[0])
        return self.memory[first : first + int(encoded.nbytes[0])]


def brought_back(
    lane: Lane, encoded: FetchedChunks, src: NDArray[np.uint64]
) -> FetchedChunks:
    """The same inner chunks, their bytes copied from addresses `src` to the host.

    Waits for the lane. Meant for the few inner chunks that a device refuses.
    """
    memory, offset = read_back(lane, src, encoded.nbytes)
    return replace(encoded, payload=HostPayload(memory), offset=offset)


def read_back(
    lane: Lane, src: NDArray[np.uint64], nbytes: Ints
) -> tuple[NDArray[np.uint8], Ints]:
    """Host memory with byte ranges of device memory, and the offset of each there.

    The memory is valid until the lane's next read back. Makes up to eight copies, which
    include the smaller gaps between the ranges; there must be a range.
    """
    start = src.astype(np.int64)
    order = np.argsort(start, kind="stable")
    first = start[order]
    reached = np.maximum.accumulate(first + nbytes[order])
    gap = first[1:] - reached[:-1]
    cuts = np.sort(np.argsort(gap)[max(0, len(gap) - _MAX_RUNS + 1) :]) + 1
    cuts = cuts[gap[cuts - 1] > 0]
    run_start = first[np.concatenate([[0], cuts])]
    run_nbytes = reached[np.concatenate([cuts - 1, [-1]])] - run_start
    runs = list(zip(run_start.tolist(), run_nbytes.tolist(), strict=True))
    memory = lane.read_back(runs)
    of_run = np.searchsorted(run_start, start, side="right") - 1
    base = np.cumsum(run_nbytes) - run_nbytes - run_start
    return memory, start + base[of_run]


def nbytes_of(request: ByteRequest) -> int:
    """Number of bytes that a request with a `stop` asks for."""
    return (request.stop or 0) - request.start


def side_by_side(
    requests: Sequence[ByteRequest], alignment: int
) -> tuple[list[int], int]:
    """Offsets for the bytes of each request side by side, and their total size.

    An offset modulo `alignment` is the same as in the file.
    """
    start = np.array([request.start for request in requests], np.int64)
    nbytes = np.array([nbytes_of(request) for request in requests], np.int64)
    ahead = start % alignment
    room = -(-(ahead + nbytes) // alignment) * alignment
    ends = np.cumsum(room)
    return (ends - room + ahead).tolist(), int(ends[-1])
