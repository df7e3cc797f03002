"""A sink in device memory: batches on two lanes, and the host for what is refused."""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.blocks import ShardBlock
from gpushard.devices.base import Device, Event
from gpushard.devices.batch import (
    Payload,
    Rows,
    decode_and_scatter,
    scatter_decoded,
    scatter_fill,
)
from gpushard.devices.chain import DeviceChain
from gpushard.devices.lane import Lane
from gpushard.devices.target import DeviceTarget, PlacedTarget, place_targets
from gpushard.job import Answer, Job
from gpushard.place import completed, decode_row
from gpushard.ranged import RangedBlock
from gpushard.selection import Ints

_log = logging.getLogger("gpushard.devices")

# Two lanes: one copies while the other decodes (DESIGN 8.5).
N_LANES = 2
# Streams that keep a large GPU busy (DESIGN 8.2).
MAX_ROWS = 4096


class _Fetched(NamedTuple):
    """Inner chunk `column` of a block: bytes from its `low`-th of `nbytes` on."""

    column: int
    low: int
    nbytes: int
    data: NDArray[np.uint8]


class DeviceSink:
    """Decodes inner chunks on a device and writes them into its memory.

    Parameters
    ----------
    device
        The device.
    chain
        What it does to inner chunks.
    targets
        One a part of the plan, in device memory.
    decodes
        Whether the device decodes. If not, the host does, and the device scatters.
    max_nbytes
        Device memory that the batches under way may take.
    entry
        What has to be done before anything writes to the targets.
    """

    def __init__(
        self,
        device: Device,
        chain: DeviceChain,
        targets: Sequence[DeviceTarget],
        *,
        decodes: bool,
        max_nbytes: int,
        entry: Event | None = None,
    ) -> None:
        self.device = device
        self.chain = chain
        self.decodes = decodes
        # Encoded bytes, two arenas and scratch of three times the decoded bytes.
        per_row = 6 * max(chain.decoded_nbytes, 1)
        self.max_rows = max(1, min(MAX_ROWS, max_nbytes // (N_LANES * per_row)))
        self._lanes = [Lane(device) for _ in range(N_LANES)]
        self._idle: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        self._targets: list[PlacedTarget] = place_targets(
            device, targets, self._lanes[0].stream
        )
        placed = device.record(self._lanes[0].stream)
        for lane in self._lanes:
            device.await_event(lane.stream, placed)
            if entry is not None:
                device.await_event(lane.stream, entry)
            self._idle.put(lane)

    def fill(self, job: Job, block: ShardBlock, rows: Ints) -> None:
        """Let the fill value land where the missing inner chunks `rows` would."""
        del job
        for some in self._cut(block, rows):
            with self._lane() as lane:
                scatter_fill(lane, self._targets, Rows.of(block, some))

    def place(self, job: Job, ranged: RangedBlock, fetched: Sequence[Answer]) -> None:
        """Let the inner chunks that requests hold be decoded and land.

        Raises
        ------
        CorruptShardError
            An inner chunk of this or an earlier batch is damaged.
        DeviceError
            The device failed.
        """
        found = {f.column: f for r, a in fetched for f in _rows_in(ranged, r, a)}
        columns = np.fromiter(found, np.int64, len(found))
        for some in self._cut(ranged.block, columns):
            with self._lane() as lane:
                self._enqueue(
                    lane, job, ranged.block, [found[c] for c in some.tolist()]
                )

    def finish(self) -> None:
        """Wait until all has landed.

        Raises
        ------
        CorruptShardError
            An inner chunk is damaged.
        DeviceError
            The device failed.
        """
        for lane in self._lanes:
            while lane.pending is not None:
                lane.retire()

    @contextmanager
    def _lane(self) -> Iterator[Lane]:
        """A lane whose last batch is done with."""
        lane = self._idle.get()
        try:
            while lane.pending is not None:
                lane.retire()
            yield lane
        finally:
            self._idle.put(lane)

    def _cut(self, block: ShardBlock, columns: Ints) -> Iterator[Ints]:
        """Columns sorted by part, as many at a time as fit a batch."""
        ordered = columns[np.argsort(block.part[columns], kind="stable")]
        for first in range(0, len(ordered), self.max_rows):
            yield ordered[first : first + self.max_rows]

    def _enqueue(
        self, lane: Lane, job: Job, block: ShardBlock, fetched: Sequence[_Fetched]
    ) -> None:
        rows = Rows.of(block, np.array([f.column for f in fetched]))
        if not self.decodes:
            pieces = [self._decoded(job, block, f) for f in fetched]
            nothing_ahead = np.zeros(len(pieces), np.int64)
            scatter_decoded(lane, self._targets, rows, Payload(pieces, nothing_ahead))
            return
        payload = Payload(
            [f.data for f in fetched], np.array([f.low for f in fetched], np.int64)
        )
        if not self.chain.steps:
            for f in fetched:
                if f.nbytes != self.chain.decoded_nbytes:
                    self._decoded(job, block, f)  # which says what is wrong with it
            scatter_decoded(lane, self._targets, rows, payload)
            return

        def settle(refused: Ints) -> None:
            self._decode_on_host(lane, job, block, [fetched[i] for i in refused])

        decode_and_scatter(lane, self.chain, self._targets, rows, payload, settle)

    def _decode_on_host(
        self, lane: Lane, job: Job, block: ShardBlock, refused: Sequence[_Fetched]
    ) -> None:
        """Decode what the device refused: to the end, or to the error that it is."""
        _log.debug("the host decodes %d refused inner chunks", len(refused))
        job.tally.add(n_refused_inner_chunks=len(refused))
        pieces = [self._decoded(job, block, f) for f in refused]
        rows = Rows.of(block, np.array([f.column for f in refused]))
        payload = Payload(pieces, np.zeros(len(pieces), np.int64))
        scatter_decoded(lane, self._targets, rows, payload)

    def _decoded(
        self, job: Job, block: ShardBlock, fetched: _Fetched
    ) -> NDArray[np.uint8]:
        """Bytes of a decoded inner chunk, laid out as the device would have decoded it.

        Raises
        ------
        CorruptShardError
            It is damaged.
        """
        encoded = completed(fetched.data, fetched.low, fetched.nbytes)
        chunk = decode_row(job, block, fetched.column, encoded)
        return self.chain.stored_bytes(chunk)


def _rows_in(
    ranged: RangedBlock, r: int, answer: NDArray[np.uint8]
) -> Iterator[_Fetched]:
    """Inner chunks that request `r` holds, as views on what it was answered."""
    rows = ranged.rows_of(r)
    start = ranged.located.start[rows]
    spans = ranged.spans[:, rows]
    first, last = (spans - ranged.requests.start[r]).tolist()
    lows = (spans[0] - start).tolist()
    sizes = (ranged.located.stop[rows] - start).tolist()
    columns = zip(rows.tolist(), lows, sizes, first, last, strict=True)
    for column, low, nbytes, a, b in columns:
        yield _Fetched(column, low, nbytes, answer[a:b])
