"""Payload in a store -> device memory, read by kvikio, or else by the ring.

What kvikio reads is checked afterwards, because files may be replaced meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.base import Device
from gpushard.devices.budget import Budget
from gpushard.devices.lane import PAGE_NBYTES, Lane
from gpushard.devices.payload.kvikio_file import (
    FileRange,
    KvikioFiles,
    find_kvikio,
    find_kvikio_remote,
)
from gpushard.devices.payload.landing import (
    Answers,
    Encoded,
    Landed,
    laid_out,
    nbytes_of,
    read_back,
)
from gpushard.devices.payload.ring import RingFetch
from gpushard.errors import DeviceMemoryError, StoreError, UnsupportedError
from gpushard.fetching.job import Job
from gpushard.options import KIB
from gpushard.selecting.selection import Ints
from gpushard.source import Source
from gpushard.stores.base import ByteRequest, lasts
from gpushard.stores.local import LocalStore
from gpushard.stores.ranged import RangedStore

# Ranges are widened to whole pages on both sides; from this size on that adds an eighth
# at most. Smaller ranges gain nothing: below 16 KiB kvikio goes through the host.
MIN_MEAN_NBYTES = 64 * KIB


@dataclass(frozen=True, slots=True)
class DirectRead:
    """Requests that kvikio can answer.

    Attributes
    ----------
    files
        One open file for each request.
    spans
        Half-open range to read for each request: the range itself, or whole pages.
    refuse_changed
        Raises `ObjectChangedError` if one of the files was replaced meanwhile.
    """

    files: Sequence[Any]
    spans: Sequence[tuple[int, int]]
    refuse_changed: Callable[[], None]


def open_direct(
    files: KvikioFiles, source: Source, requests: Sequence[ByteRequest]
) -> DirectRead | None:
    """Files and ranges for kvikio; None for small ranges and for stores it cannot read.

    Raises as any fetch.
    """
    is_small = sum(map(nbytes_of, requests)) < MIN_MEAN_NBYTES * len(requests)
    if is_small or not source.layout.levels:
        return None
    store = source.store
    try:
        if isinstance(store, LocalStore):
            return _open_local(files, store, requests, source.options.file_handles)
        if isinstance(store, RangedStore) and source.options.kvikio_remote:
            return _open_remote(files, store, requests, source.options.file_handles)
    except UnsupportedError:
        return None
    return None


def _open_local(
    files: KvikioFiles, store: LocalStore, requests: Sequence[ByteRequest], limit: int
) -> DirectRead | None:
    handles = [store.open_file(request.key, request.version) for request in requests]
    opened: list[Any] = []
    spans: list[tuple[int, int]] = []
    for handle, request in zip(handles, requests, strict=True):
        object_nbytes = handle.version[2]
        stop = request.stop or 0
        if stop > object_nbytes:
            return None  # the ring's read reports the error
        opened.append(files.file_of(handle.fd, handle.version, limit))
        first = request.start - request.start % PAGE_NBYTES
        last = -(-stop // PAGE_NBYTES) * PAGE_NBYTES
        spans.append((first, min(last, object_nbytes)))

    def refuse_changed() -> None:
        for handle in handles:
            store.confirm(handle)

    return DirectRead(opened, spans, refuse_changed)


def _open_remote(
    files: KvikioFiles, store: RangedStore, requests: Sequence[ByteRequest], limit: int
) -> DirectRead | None:
    if not store.url.startswith(("http://", "https://", "s3://")):
        return None
    # Only a version can tell afterwards that the bytes belong to the index.
    if not all(lasts(request.version) for request in requests):
        return None
    urls = [f"{store.url.rstrip('/')}/{request.key}" for request in requests]
    opened = [
        files.remote_file(url, request.version, limit)
        for url, request in zip(urls, requests, strict=True)
    ]
    versions = {request.key: request.version for request in requests}

    def refuse_changed() -> None:
        for key, version in versions.items():
            store.refuse_changed(key, version)

    spans = [
        (request.start, request.start + nbytes_of(request)) for request in requests
    ]
    return DirectRead(opened, spans, refuse_changed)


@dataclass(frozen=True, slots=True)
class LaneLanding:
    """Device memory of a lane, starting at `address`."""

    lane: Lane
    address: int

    def bring(self, lane: Lane, encoded: Encoded) -> NDArray[np.uint64]:
        """Addresses at which the bytes are already."""
        del lane
        return (encoded.at + self.address).astype(np.uint64)

    def on_host(self, encoded: Encoded) -> tuple[NDArray[np.uint8], Ints]:
        """Memory that they are read back to."""
        return read_back(self.lane, self.bring(self.lane, encoded), encoded.nbytes)


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
        places, nbytes = laid_out(requests, PAGE_NBYTES)
        if direct is not None:
            with self._lane() as lane:
                landing = _landing(lane, nbytes)
                if landing is not None:
                    addresses = [landing.address + at for at in places]
                    self._read(job, requests, direct, addresses)
                    yield [Landed(landing, at) for at in places]
                    return
        with self._ring.fetch(job, requests) as answers:
            yield answers

    def _read(
        self,
        job: Job,
        requests: Sequence[ByteRequest],
        direct: DirectRead,
        addresses: Sequence[int],
    ) -> None:
        """Read the ranges, and check that no file was replaced meanwhile."""
        parts = zip(direct.files, direct.spans, addresses, requests, strict=True)
        ranges = [
            FileRange(file, first, last - first, address - (request.start - first))
            for file, (first, last), address, request in parts
        ]
        with job.tally.stage("fetch"):
            try:
                self._files.read(ranges)
            except StoreError:
                # If the file was replaced, that is the better explanation.
                direct.refuse_changed()
                raise
            direct.refuse_changed()
        job.tally.add(n_direct_requests=len(requests))


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
    if not decodes:
        return RingFetch(device, budget, "the host decodes")
    try:
        files, label = _direct_files(source)
    except UnsupportedError as error:
        return RingFetch(device, budget, error.what)
    ring = RingFetch(device, budget, "small ranges")
    return DirectFetch(files, ring, lane, label)


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


def _landing(lane: Lane, nbytes: int) -> LaneLanding | None:
    """Memory of a lane to read files into; None if there is not enough."""
    try:
        return LaneLanding(lane, lane.landing_address(nbytes))
    except DeviceMemoryError:
        return None
