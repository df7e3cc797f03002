"""Payload in a store -> memory from which a device can take it, in one of two ways.

`RingFetch` reads into pinned slots, which are copied to the device later. `DirectFetch`
has kvikio read straight into device memory if that is possible, and uses the ring if
not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.base import Device
from gpushard.devices.budget import Budget
from gpushard.devices.lane import PAGE_NBYTES, Lane
from gpushard.devices.payload.direct import DirectRead, nbytes_of, open_direct
from gpushard.devices.payload.kvikio_file import (
    FileRange,
    KvikioFiles,
    find_kvikio,
    find_kvikio_remote,
)
from gpushard.devices.payload.landing import (
    ALIGNMENT,
    HostLanding,
    Landed,
    LaneLanding,
    SlotLanding,
)
from gpushard.devices.payload.ring import Ring, Slot
from gpushard.errors import DeviceMemoryError, StoreError, UnsupportedError
from gpushard.fetching.fetch import fetch_wanted
from gpushard.fetching.job import Job
from gpushard.source import Source
from gpushard.stores.base import ByteRequest
from gpushard.stores.local import LocalStore
from gpushard.stores.ranged import RangedStore

Answers = Sequence[Landed | None]


class RingFetch:
    """Reads into the pinned slots of a ring, without a copy if the store can.

    A fetch that finds no free slot waits for one, and for nothing else. `why` says why
    no faster way is used.
    """

    def __init__(self, ring: Ring, why: str) -> None:
        self._ring = ring
        self.label = f"ring of {ring.n_slots} pinned slots ({why})"

    @contextmanager
    def fetch(self, job: Job, requests: Sequence[ByteRequest]) -> Iterator[Answers]:
        """Answers in a slot, which is held until the context ends.

        Raises what the store and `fetch_wanted` raise.
        """
        places, nbytes = _laid_out(requests, ALIGNMENT)
        with self._ring.slot() as slot:
            landing = _landing(slot, nbytes)
            memory = landing.memory
            rooms = [
                memory[at : at + nbytes_of(request)]
                for request, at in zip(requests, places, strict=True)
            ]
            asked = [
                r._replace(into=room) for r, room in zip(requests, rooms, strict=True)
            ]
            with job.tally.stage("fetch"):
                answers = fetch_wanted(job.source, asked)
                for room, answer in zip(rooms, answers, strict=True):
                    if answer is not None and not _is_at(answer, room):
                        room[:] = answer
            yield [
                None if answer is None else Landed(landing, at)
                for answer, at in zip(answers, places, strict=True)
            ]


class DirectFetch:
    """Has kvikio read ranges into device memory; uses the ring for what it cannot read.

    `lane` returns a lane whose last batch is settled.
    """

    def __init__(
        self,
        files: KvikioFiles,
        ring: RingFetch,
        lane: Callable[[], AbstractContextManager[Lane]],
        label: str,
    ) -> None:
        self.label = label
        self._files = files
        self._ring = ring
        self._lane = lane

    @contextmanager
    def fetch(self, job: Job, requests: Sequence[ByteRequest]) -> Iterator[Answers]:
        """Answers in the memory of a lane, which is held until the context ends.

        Raises as any fetch.
        """
        direct = open_direct(self._files, job.source, requests)
        places, nbytes = _laid_out(requests, PAGE_NBYTES)
        if direct is not None:
            with self._lane() as lane:
                address = _landing_address(lane, nbytes)
                if address is not None:
                    landing = LaneLanding(lane, address)
                    self._read_into(job, requests, direct, places, landing)
                    yield [Landed(landing, at) for at in places]
                    return
        with self._ring.fetch(job, requests) as answers:
            yield answers

    def _read_into(
        self,
        job: Job,
        requests: Sequence[ByteRequest],
        direct: DirectRead,
        places: Sequence[int],
        landing: LaneLanding,
    ) -> None:
        """Read ranges of files to their places in a lane's memory."""
        ranges = [
            FileRange(
                file, first, last - first, landing.address + at - (r.start - first)
            )
            for file, (first, last), at, r in zip(
                direct.files, direct.spans, places, requests, strict=True
            )
        ]
        with job.tally.stage("fetch"):
            self._read(job.source, ranges, direct)
        job.tally.add(n_direct_requests=len(requests))

    def _read(
        self, source: Source, ranges: Sequence[FileRange], direct: DirectRead
    ) -> None:
        """Read the ranges, and check that no file was replaced meanwhile."""
        try:
            self._files.read(ranges)
        except StoreError as error:
            # If the file was replaced, that is the better explanation.
            direct.refuse_changed()
            error.add_context(store_url=source.store.url, array_path=source.layout.path)
            raise
        direct.refuse_changed()


def choose_fetch(
    device: Device,
    source: Source,
    budget: Budget,
    lane: Callable[[], AbstractContextManager[Lane]],
    *,
    decodes: bool,
) -> RingFetch | DirectFetch:
    """The way for payload to a device; its `label` tells the reason.

    `lane` returns a lane whose last batch is settled. `decodes` says whether the device
    decodes.
    """
    ring = Ring(device, budget.n_slots, budget.encoded_nbytes)
    if not decodes:
        return RingFetch(ring, "the host decodes")
    try:
        files, label = _direct_files(source)
    except UnsupportedError as error:
        return RingFetch(ring, error.what)
    return DirectFetch(files, RingFetch(ring, "small ranges"), lane, label)


def _direct_files(source: Source) -> tuple[KvikioFiles, str]:
    """Files of kvikio for an array's objects, and the name of this way for reports.

    Raises `UnsupportedError`, which says why, if kvikio cannot be used.
    """
    store, options = source.store, source.options
    if not source.layout.levels:
        raise UnsupportedError("chunks outside of shards")
    if isinstance(store, LocalStore):
        if not options.gds:
            raise UnsupportedError("the option gds is off")
        files = find_kvikio()
        return files, f"{files.label}, GPUDirect Storage"
    if isinstance(store, RangedStore):
        if not options.kvikio_remote:
            raise UnsupportedError("the option kvikio_remote is off")
        files = find_kvikio_remote()
        return files, f"{files.label}, remote files"
    raise UnsupportedError("a store of which kvikio knows nothing")


def _landing(slot: Slot, nbytes: int) -> SlotLanding | HostLanding:
    """Memory of a slot, or pageable memory if no more can be pinned."""
    try:
        return SlotLanding(slot, slot.memory(nbytes))
    except DeviceMemoryError:
        return HostLanding(np.empty(nbytes, np.uint8))


def _landing_address(lane: Lane, nbytes: int) -> int | None:
    """Address in a lane's memory to read files into; None if there is not enough."""
    try:
        return lane.landing_address(nbytes)
    except DeviceMemoryError:
        return None


def _laid_out(requests: Sequence[ByteRequest], alignment: int) -> tuple[list[int], int]:
    """Offsets for the bytes of each request side by side, and their total size.

    An offset modulo `alignment` is the same as in the file.
    """
    start = np.array([request.start for request in requests], np.int64)
    nbytes = np.array([nbytes_of(request) for request in requests], np.int64)
    ahead = start % alignment
    room = -(-(ahead + nbytes) // alignment) * alignment
    ends = np.cumsum(room)
    return (ends - room + ahead).tolist(), int(ends[-1])


def _is_at(data: NDArray[np.uint8], memory: NDArray[np.uint8]) -> bool:
    return data.__array_interface__["data"][0] == memory.__array_interface__["data"][0]
