"""Payload in a store -> slots of device memory, or of the ring instead."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gpushard.device_reading.payload.answers import (
    Answered,
    Answers,
    FetchedChunks,
    read_back,
    side_by_side,
)
from gpushard.devices.base import Device, Event, Stream, wait_out
from gpushard.devices.budget import Budget
from gpushard.devices.lane import PADDING_NBYTES, Lane
from gpushard.devices.slabs import Slab
from gpushard.devices.spares import Spares, refuse_stopped
from gpushard.errors import DeviceMemoryError, UnsupportedError
from gpushard.fetching.job import Job
from gpushard.selecting.selection import Ints
from gpushard.stores.base import ByteRequest

# A batch takes milliseconds. A thread that waits for one looks again after this time.
_LOOK_S = 0.02
# GPUDirect Storage reads pages of a file into pages of memory (cuFile).
PAGE_NBYTES = 4096
_ROOM_NBYTES = PAGE_NBYTES + 2 * PADDING_NBYTES


class Fetch(Protocol):
    """Brings payload to where a batch takes it from."""

    @property
    def label(self) -> str:
        """How, for reports."""
        ...

    @property
    def batch_nbytes(self) -> int:
        """Bytes that are best fetched at once."""
        ...

    def fetch(
        self, job: Job, requests: Sequence[ByteRequest], n_rows: int
    ) -> AbstractContextManager[Answers]:
        """Answers that last as the context does; see `Sink.fetch`."""
        ...

    def give_back(self) -> None:
        """Give back device memory that no batch needs, and take none from now on."""
        ...


class DeviceSlot:
    """Device memory for the bytes of a fetch, as long as a batch needs them.

    `settled` gives an idle lane once its last batch is settled, whichever lane has been
    idle for longest.
    """

    def __init__(
        self,
        device: Device,
        most_nbytes: int,
        settled: Callable[[], AbstractContextManager[Lane]],
    ) -> None:
        self.device = device
        self._slab = Slab(device, most_nbytes + _ROOM_NBYTES)
        self._settled = settled
        self._used: list[tuple[Lane, int]] = []

    def note_use(self, lane: Lane) -> None:
        """Note that the next batch of a lane, which is settled now, needs the bytes."""
        self._used.append((lane, lane.n_settled))

    def reclaim(self) -> None:
        """Wait until no batch needs the bytes.

        Raises what settling a batch raises, and as `refuse_stopped`.
        """
        while self._used:
            lane, n_settled = self._used[-1]
            if lane.n_settled > n_settled:
                self._used.pop()
                continue
            refuse_stopped()  # the interrupt that ends the read may have lost the lane
            news: SimpleQueue[None] = SimpleQueue()
            lane.waiting.append(news)
            # It may be another one, but each idle lane has its turn.
            with self._settled():
                pass
            if lane.is_used and lane.n_settled == n_settled:
                # Whoever has the lane tells once that batch is settled, or the lane is
                # idle. Only if an interrupt came in between, nobody tells.
                with suppress(Empty):
                    news.get(timeout=_LOOK_S)

    def release(self) -> None:
        """Give the memory back, unless a batch may need the bytes."""
        if all(lane.n_settled > n_settled for lane, n_settled in self._used):
            self._slab.release()

    def address(self, nbytes: int) -> int:
        """Page-aligned address of room for `nbytes` bytes; it was reclaimed before."""
        address = self._slab.address_anew(nbytes + _ROOM_NBYTES)
        return -(-(address + PADDING_NBYTES) // PAGE_NBYTES) * PAGE_NBYTES


@dataclass(frozen=True, slots=True)
class DevicePayload:
    """Memory of a slot, from `address` on; the bytes are there once `copied` is done.

    If `copied` is None, they are there already.
    """

    slot: DeviceSlot
    address: int
    copied: Event | None

    def bring(self, lane: Lane, encoded: FetchedChunks) -> NDArray[np.uint64]:
        """Addresses at which the bytes are already."""
        self.slot.note_use(lane)
        if self.copied is not None:
            self.slot.device.await_event(lane.stream, self.copied)
        return (encoded.offset + self.address).astype(np.uint64)

    def first_on_host(self, encoded: FetchedChunks) -> NDArray[np.uint8] | None:
        """None: they would have to be copied back."""
        del encoded

    def on_host(
        self, lane: Lane, encoded: FetchedChunks
    ) -> tuple[NDArray[np.uint8], Ints]:
        """Memory that they are read back to."""
        return read_back(lane, self.bring(lane, encoded), encoded.nbytes)


Reading = Callable[[Sequence[int]], Event | None]
"""Reads each range of some requests to an address on a device, and returns an event
after which the bytes are there; None if they are. Raises as any fetch, and
`UnsupportedError` if the ring shall read instead.
"""

ForDevice = Callable[[Job, int, int], bool]
"""Whether a device is known to decode so many inner chunks and bytes of a job."""


class Handover(NamedTuple):
    """What a fetch must know of the sink that takes the bytes.

    It does not refer to the sink itself. Otherwise the two would form a cycle, and the
    sink's memory would stay until a garbage collection.

    Attributes
    ----------
    settled
        As for `DeviceSlot`.
    is_for_device
        See `ForDevice`.
    streams
        Streams of the sink, for which it waits before memory goes. A fetch adds its
        own.
    """

    device: Device
    budget: Budget
    settled: Callable[[], AbstractContextManager[Lane]]
    is_for_device: ForDevice
    streams: list[Stream]


class DeviceFetch(ABC):
    """Reads ranges into device memory; uses the ring for what cannot be read so.

    A batch may be fetched while as many others are decoded as there are lanes.

    Parameters
    ----------
    ring
        Also fetches what the host is going to decode.
    label
        How it reads, for reports.
    """

    alignment: ClassVar[int]
    """An address modulo this is the same as the offset in the file."""

    def __init__(self, handover: Handover, ring: Fetch, label: str) -> None:
        self.label = label
        device, budget, settled, self._is_for_device, streams = handover
        self.batch_nbytes = budget.encoded_nbytes
        self._ring = ring
        self._wait_out = partial(wait_out, device, streams)
        self._n_slots, self._is_short = budget.n_slots, False
        self._free = Spares(
            DeviceSlot(device, budget.encoded_nbytes, settled)
            for _ in range(budget.n_slots)
        )

    @abstractmethod
    def begin(self, job: Job, requests: Sequence[ByteRequest]) -> Reading | None:
        """What reads the ranges, whose objects are open then; None if nothing can."""

    @contextmanager
    def fetch(
        self, job: Job, requests: Sequence[ByteRequest], n_rows: int
    ) -> Iterator[Answers]:
        """Answers in a slot, which is held until the context ends.

        Raises as any fetch.
        """
        places, nbytes = side_by_side(requests, self.alignment)
        reading = None
        if not self._is_short and self._is_for_device(job, n_rows, nbytes):
            reading = self.begin(job, requests)
        if reading is not None:
            with self._slot() as slot:
                with job.tally.stage("fetch"):
                    payload = self._read_into(slot, reading, places, nbytes)
                if payload is not None:
                    yield [Answered(payload, at) for at in places]
                    return
        with self._ring.fetch(job, requests, n_rows) as answers:
            yield answers

    def give_back(self) -> None:
        """Leave all to the ring, as lanes need the memory more; see `Fetch`."""
        self._is_short = True
        for _ in range(self._n_slots):
            self._free.use_one(DeviceSlot.release)

    @contextmanager
    def _slot(self) -> Iterator[DeviceSlot]:
        """A slot whose bytes no batch needs; raises as `DeviceSlot.reclaim`."""
        with self._free.one() as slot:
            slot.reclaim()
            try:
                yield slot
            except BaseException:
                # No batch may know of copies that are under way, and whoever has the
                # slot next may give its memory back.
                self._wait_out()
                raise

    def _read_into(
        self, slot: DeviceSlot, reading: Reading, places: Sequence[int], nbytes: int
    ) -> DevicePayload | None:
        """Read ranges into a slot; None if the ring has to read them instead.

        That is so if memory runs out, or if the bytes cannot be read in this way.
        """
        try:
            start = slot.address(nbytes)
            return DevicePayload(slot, start, reading([start + at for at in places]))
        except UnsupportedError:
            self._wait_out()
        except DeviceMemoryError:
            self._wait_out()
            slot.release()
            self.give_back()
        return None
