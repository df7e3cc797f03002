"""Payload in a store -> a ring of pinned slots, from which a device copies it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.device_reading.payload.answers import (
    ALIGNMENT,
    Answered,
    Answers,
    FetchedChunks,
    HostPayload,
    nbytes_of,
    side_by_side,
)
from gpushard.devices.base import Device, Event, Stream
from gpushard.devices.budget import Budget
from gpushard.devices.lane import Lane
from gpushard.devices.scattering.targets import Copies
from gpushard.devices.slabs import PinnedSlab
from gpushard.devices.spares import Spares
from gpushard.errors import DeviceMemoryError
from gpushard.fetching.fetch import fetch_wanted
from gpushard.fetching.job import Job
from gpushard.stores.base import ByteRequest


class _Copy(NamedTuple):
    """A copy out of a slot, and how often its lane had been waited for before it.

    `event` is None if the host waits for the lane within each batch.
    """

    lane: Lane
    event: Event | None
    n_waits: int


class Slot:
    """Pinned memory of a ring."""

    def __init__(self, device: Device, most_nbytes: int) -> None:
        self._device = device
        self._slab = PinnedSlab(device, most_nbytes)
        self._copied: dict[Stream, _Copy] = {}

    def note_copy(self, lane: Lane) -> None:
        """Note that a copy out of this slot has been queued on a lane.

        Each later wait for the lane also waits for the copy.
        """
        event = None if lane.counts_streams else self._device.record(lane.stream)
        self._copied[lane.stream] = _Copy(lane, event, lane.n_waits)

    def reclaim(self) -> None:
        """Wait until the device has copied the content of the slot.

        Raises `DeviceError` if work on the device failed.
        """
        for stream, copied in list(self._copied.items()):
            self._wait_for(copied)
            # Not before: an interrupt may have ended the wait.
            del self._copied[stream]

    def _wait_for(self, copied: _Copy) -> None:
        if copied.lane.n_waits > copied.n_waits:
            return
        if copied.event is None:  # the batch ended before its streams were counted
            self._device.wait_for(copied.lane.stream)
        else:
            self._device.wait(copied.event)

    def memory(self, nbytes: int) -> NDArray[np.uint8]:
        """First `nbytes` bytes of the slot: uint8, host, pinned."""
        return self._slab.view(nbytes)


@dataclass(frozen=True, slots=True)
class PinnedPayload(HostPayload):
    """A pinned slot, kept until the fetch ends; `memory` has the fetched bytes."""

    slot: Slot

    def bring(self, lane: Lane, encoded: FetchedChunks) -> NDArray[np.uint64]:
        """Addresses in the lane's encoded slab; the bytes are copied there at once."""
        first = int(encoded.offset.min())
        first -= first % ALIGNMENT
        last = int((encoded.offset + encoded.nbytes).max())
        address = lane.upload(self.memory[first:last])
        self.slot.note_copy(lane)
        return (encoded.offset + (address - first)).astype(np.uint64)

    def copy_to_outputs(self, lane: Lane, copies: Copies) -> None:
        """Enqueue copies of plain elements to their outputs, as the lane's batch."""
        columns = (column.tolist() for column in copies)
        for at, address, nbytes in zip(*columns, strict=True):
            if nbytes:
                lane.device.upload(address, self.memory[at : at + nbytes], lane.stream)
        lane.note_infallible()
        self.slot.note_copy(lane)


class RingFetch:
    """Reads into the pinned slots of a ring, without a copy if the store can.

    A fetch that finds no free slot waits for one, and for nothing else. `why` says why
    no faster way is used.
    """

    def __init__(self, device: Device, budget: Budget, why: str) -> None:
        self.label = f"ring of {budget.n_slots} pinned slots ({why})"
        self.batch_nbytes = budget.encoded_nbytes
        self._free = Spares(
            Slot(device, budget.encoded_nbytes) for _ in range(budget.n_slots)
        )

    @contextmanager
    def fetch(
        self, job: Job, requests: Sequence[ByteRequest], n_rows: int
    ) -> Iterator[Answers]:
        """Answers in a slot, which is held until the context ends.

        Raises what the store and `fetch_wanted` raise.
        """
        del n_rows
        places, nbytes = side_by_side(requests, ALIGNMENT)
        with self._slot() as slot:
            payload = _slot_payload(slot, nbytes)
            memory = payload.memory
            rooms = [
                memory[at : at + nbytes_of(request)]
                for request, at in zip(requests, places, strict=True)
            ]
            asked = [
                request.answered_into(room)
                for request, room in zip(requests, rooms, strict=True)
            ]
            with job.tally.stage("fetch"):
                answers = fetch_wanted(job.source, asked)
                for room, answer in zip(rooms, answers, strict=True):
                    if answer is not None and not _is_at(answer, room):
                        room[:] = answer
            yield [
                None if answer is None else Answered(payload, at)
                for answer, at in zip(answers, places, strict=True)
            ]

    def give_back(self) -> None:
        """Do nothing: its slots are memory of the host."""

    @contextmanager
    def _slot(self) -> Iterator[Slot]:
        """The slot that was handed back first, once its content has been copied.

        Raises as `Slot.reclaim`.
        """
        with self._free.one() as slot:
            slot.reclaim()
            yield slot


def _slot_payload(slot: Slot, nbytes: int) -> HostPayload:
    """Memory of a slot, or pageable memory if no more can be pinned."""
    try:
        return PinnedPayload(slot.memory(nbytes), slot)
    except DeviceMemoryError:
        return HostPayload(np.empty(nbytes, np.uint8))


def _is_at(data: NDArray[np.uint8], memory: NDArray[np.uint8]) -> bool:
    if data is memory:
        return True
    return data.__array_interface__["data"][0] == memory.__array_interface__["data"][0]
