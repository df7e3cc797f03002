"""Fetched inner chunks -> outputs in device memory, in batches on a few lanes.

The host decodes the inner chunks that the device refuses.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np

from gpushard.device_reading.batch import (
    BatchInput,
    decode_on_host,
    enqueue_decode,
    fill,
)
from gpushard.device_reading.deciding import Decider
from gpushard.device_reading.payload.answers import FetchedChunks
from gpushard.device_reading.payload.device_slots import Fetch, Handover
from gpushard.device_reading.payload.ring import RingFetch
from gpushard.device_reading.relayed import choose_fetch
from gpushard.devices.base import Device, Event, Stream, wait_out
from gpushard.devices.budget import Budget
from gpushard.devices.decoding.chain import DeviceChain, StepKind
from gpushard.devices.lane import Lane
from gpushard.devices.scattering.targets import Targets, place_targets
from gpushard.devices.spares import Spares
from gpushard.devices.waiting import poll_by
from gpushard.errors import DeviceMemoryError
from gpushard.fetching.job import Answer, Job, KeptPlacer
from gpushard.fetching.ranged import RangedBlock
from gpushard.fused.choice import loaded_loops
from gpushard.fused.system_calls import usleep_address
from gpushard.memory.chunk_room import usual_stored
from gpushard.options import MIB
from gpushard.planning.blocks import ShardBlock
from gpushard.selecting.selection import Ints
from gpushard.source import Source

_log = logging.getLogger("gpushard.devices")

# Streams that keep a large GPU busy, unless they are small: a batch of 16 MiB takes the
# host longer than the GPU (docs/decisions/2026-11-27-first-run-on-a-gpu.md).
_ENOUGH_ROWS, _ENOUGH_NBYTES = 4096, 64 * MIB
MAX_ROWS = 16384
# Batches of each lane, if the host decodes: it waits only for the first to be fetched.
# Less is decoded in less time than Python needs for a batch.
_TURNS, _LEAST_NBYTES = 2, 16 * MIB


class DeviceSink:
    """Decodes inner chunks on a device and writes them into its memory.

    Parameters
    ----------
    source
        The array. Its store decides how payload is fetched; its options bound memory.
    decodes
        Whether the device decodes. If not, the host decodes and the device scatters.
    entries
        Events that must be done before anything writes to the targets.
    """

    place_kept: KeptPlacer | None = None

    def __init__(
        self,
        device: Device,
        chain: DeviceChain,
        targets: Targets,
        *,
        source: Source,
        decodes: bool,
        entries: Sequence[Event] = (),
    ) -> None:
        self.device = device
        self.chain = chain
        self.decodes = decodes
        budget = Budget.of(
            chain,
            source.options,
            decodes=decodes,
            stored_nbytes=chain.encoded_nbytes or usual_stored(chain.decoded_nbytes),
        )
        self.pinned_nbytes = budget.pinned_nbytes
        self._patience_s = source.options.device_patience_s
        self.max_rows = min(most_rows(chain.decoded_nbytes), budget.n_rows)
        self._idle: Spares[Lane] = Spares()
        self._decider = Decider(device, chain, budget.n_lanes)
        self._streams: list[Stream] = []
        self._lanes: list[Lane] = []
        try:
            fetch = self._choose_fetch(source, budget)
            self.fetch, self.fetch_label = fetch.fetch, fetch.label
            self._give_back = fetch.give_back
            _wait_in_loops()
            self.batch_nbytes = fetch.batch_nbytes
            self._make_lanes(budget)
            self._upload_tables(targets, entries)
        except BaseException:
            self.abandon()
            raise

    def batch_cut(self, job: Job, n_rows: int, nbytes: int) -> int:
        """Bytes of a batch of `n_rows` inner chunks with `nbytes` bytes together.

        What the host decodes comes in more batches, so that one is fetched and one
        copied while others are decoded, with inner chunks for all threads in hand.
        """
        most_nbytes = self.batch_nbytes
        n_full = max(1, -(-nbytes // most_nbytes))
        full = -(-n_rows // n_full), -(-nbytes // n_full)
        if self.decodes and not self._decider.expects_host(job, *full):
            return most_nbytes
        n_lanes = len(self._lanes)
        n_busy = -(-job.source.options.threads // max(1, n_lanes - 1))
        n_least = max(n_busy, _LEAST_NBYTES // max(self.chain.decoded_nbytes, 1))
        n_each = min(max(-(-n_rows // (_TURNS * n_lanes)), n_least), self.max_rows)
        return max(1, min(most_nbytes, -(-nbytes * n_each // n_rows)))

    def _choose_fetch(self, source: Source, budget: Budget) -> Fetch:
        device, decider = self.device, self._decider
        if not self.decodes:
            return RingFetch(device, budget, "the host decodes")
        lane = partial(settled, self._idle)
        handover = Handover(device, budget, lane, decider.expects_device, self._streams)
        return choose_fetch(handover, source, self.chain)

    def _make_lanes(self, budget: Budget) -> None:
        counts = any(step.kind is StepKind.BLOSC for step in self.chain.steps)
        for _ in range(budget.n_lanes):
            self._streams.append(self.device.create_stream())
            self._lanes.append(Lane(self.device, self._streams[-1], budget, counts))

    def _upload_tables(self, targets: Targets, entries: Sequence[Event]) -> None:
        """Queue the upload, for which all lanes wait, as they do for `entries`."""
        device, first = self.device, self._lanes[0].stream
        for stream in self._streams:
            device.limit_waits(stream, self._patience_s, entries)
        self._targets = place_targets(device, targets, first)
        self._is_placed = device.record(first)
        for lane in self._lanes:
            for event in (self._is_placed, *entries):
                device.await_event(lane.stream, event)
            self._idle.put(lane)

    def fill(self, job: Job, block: ShardBlock, rows: Ints) -> None:
        """Write the fill value where the missing inner chunks `rows` would land."""
        del job
        ordered = rows[self._order(block, rows)]
        for some in self._batches(len(rows)):
            with settled(self._idle) as lane:
                self._fill(lane, block, ordered[some])

    def place(self, job: Job, ranged: RangedBlock, fetched: Sequence[Answer]) -> None:
        """Decode the inner chunks in these requests and write them to the targets.

        Raises `CorruptShardError` if an inner chunk of this or an earlier batch is
        damaged, and `DeviceError` if the device failed.
        """
        encoded = FetchedChunks.of(ranged, fetched)
        decodes = self.decodes and self._decider.decide(job, encoded)
        for neighbours in self._batches(len(encoded)):
            some = encoded[neighbours]
            some = some[self._order(ranged.block, some.column)]
            with settled(self._idle) as lane:
                right, wrong = self._by_size(some)
                self._put(lane, job, ranged.block, right, decodes=decodes)
                # The host's decoder names the damage, or these rows are filled.
                self._put(lane, job, ranged.block, wrong, decodes=False)

    def _by_size(self, encoded: FetchedChunks) -> tuple[FetchedChunks, FetchedChunks]:
        """Inner chunks with the stored size that the chain needs, and the others."""
        wanted = self.chain.encoded_nbytes
        if wanted is None:
            return encoded, encoded[:0]
        is_wrong = encoded.stored_nbytes != wanted
        if not is_wrong.any():
            return encoded, encoded[:0]
        return encoded[~is_wrong], encoded[is_wrong]

    def job_reader(self, job: Job) -> None:
        """Do nothing: this sink has no shorter way."""

    def request_reader(self, job: Job, ranged: RangedBlock) -> None:
        """Do nothing: this sink is given what is fetched."""

    def finish(self) -> None:
        """Wait until everything is written; raises as `place`."""
        for lane in self._lanes:
            lane.settle_all()
        # Without a batch nothing has waited for the upload of the tables yet.
        self.device.wait(self._is_placed)
        self._give_streams_back()

    def abandon(self) -> None:
        """Wait until no work is under way, and ignore its outcome.

        Called after an error. Memory must not be freed while work may write to it.
        """
        try:
            wait_out(self.device, self._streams)
        finally:
            for lane in self._lanes:
                lane.pending = None  # it refers to the lane, whose memory is to go
            self._give_streams_back()

    def __del__(self) -> None:
        # An interrupt may come before anybody knows that there is a sink to abandon, or
        # before it has anything.
        if vars(self).get("_streams") and not sys.is_finalizing():
            self.abandon()

    def under_way(self) -> Iterator[ShardBlock]:
        """Inner chunks whose decoding the device is not known to have survived."""
        for lane in self._lanes:
            if lane.decoding is not None:
                block, columns = lane.decoding
                yield block.only(columns)

    def _give_streams_back(self) -> None:
        """Give the streams of the lanes to later reads; no work may be under way."""
        while self._streams:
            self.device.release_stream(self._streams.pop())

    def _fill(self, lane: Lane, block: ShardBlock, rows: Ints) -> None:
        """Enqueue writing the fill value, in smaller batches if memory runs out."""
        first, size = 0, len(rows)
        while first < len(rows):
            some = rows[first : first + size]
            lane.settle_all()
            try:
                fill(lane, self._targets, block, some)
            except DeviceMemoryError:
                self._make_room(lane)
                if len(some) == 1:
                    raise
                size = len(some) // 2
            else:
                first += len(some)

    def _put(
        self,
        lane: Lane,
        job: Job,
        block: ShardBlock,
        encoded: FetchedChunks,
        *,
        decodes: bool,
    ) -> None:
        """Enqueue inner chunks, in smaller batches if memory runs out.

        If the device cannot decode even a single one, the host decodes the rest. Raises
        `DeviceMemoryError` if the device cannot scatter even one.
        """
        first, size = 0, len(encoded)
        while first < len(encoded):
            some = encoded[first : first + size]
            lane.settle_all()
            try:
                fetched = BatchInput(job, block, some)
                if decodes:
                    lane.decoding = (block, some.column) if self.chain.steps else None
                    enqueue_decode(
                        lane, self.chain, self._targets, fetched, self._put_refused
                    )
                else:
                    decode_on_host(lane, self.chain, self._targets, fetched)
            except DeviceMemoryError as error:
                _log.debug("%d inner chunks are too many: %s", len(some), error)
                job.tally.add(n_memory_failures=1)
                self._make_room(lane)
                if len(some) > 1:
                    size = len(some) // 2
                    if decodes:  # later batches are made no larger
                        self.max_rows = min(self.max_rows, size)
                elif decodes:
                    decodes, size = False, len(encoded)
                else:
                    raise
            else:
                first += len(some)
                place = "device" if decodes else "host"
                job.tally.add(**{f"n_decoded_on_{place}": len(some)})

    def _put_refused(self, lane: Lane, refused: BatchInput) -> None:
        """Enqueue inner chunks that the device refused, decoded by the host."""
        n_refused = len(refused.encoded)
        _log.debug("the host decodes %d refused inner chunks", n_refused)
        refused.job.tally.add(n_refused_inner_chunks=n_refused)
        self._put(lane, *refused, decodes=False)

    def _make_room(self, lane: Lane) -> None:
        """Give back the memory of a lane that ran out of it, and what is idle."""
        lane.release()
        self._idle.use_one(_release)
        self._give_back()

    def _batches(self, n: int) -> Iterator[slice]:
        """Slices of `n` inner chunks that fit a batch."""
        first = 0
        while first < n:
            n_rows = self.max_rows  # it shrinks when memory runs out
            yield slice(first, first + n_rows)
            first += n_rows

    def _order(self, block: ShardBlock, columns: Ints) -> slice | Ints:
        """Order that sorts columns of a block by the target that they land in."""
        if len(self._targets.laid) == 1:
            return slice(None)  # of no copy
        target = self._targets.grouping.of_part[block.part[columns]]
        return np.argsort(target, kind="stable")


@contextmanager
def settled(idle: Spares[Lane]) -> Iterator[Lane]:
    """An idle lane, whose last batch is settled."""
    lane = None
    try:
        with idle.one() as lane, lane.used():
            lane.settle_all()
            yield lane
    finally:
        if lane is not None:
            lane.wake_waiting()  # that it is idle


def _wait_in_loops() -> None:
    """Have waits ask in the compiled loops, which leave the interpreter to others."""
    loops = loaded_loops()
    if loops is not None and usleep_address():
        poll_by(loops.poll)


def _release(lane: Lane) -> None:
    """Give back the memory of a lane once its last batch is settled."""
    lane.settle_all()
    lane.release()


def most_rows(decoded_nbytes: int) -> int:
    """Most inner chunks of a batch, if each has `decoded_nbytes` bytes."""
    enough = _ENOUGH_NBYTES // max(decoded_nbytes, 1)
    return min(max(enough, _ENOUGH_ROWS), MAX_ROWS)
