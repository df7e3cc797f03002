"""Payload in a store -> slots of device memory, read by kvikio.

What kvikio reads is checked afterwards, because files may be replaced meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpushard.device_reading.payload.answers import nbytes_of
from gpushard.device_reading.payload.device_slots import (
    PAGE_NBYTES,
    DeviceFetch,
    Fetch,
    Handover,
    Reading,
)
from gpushard.device_reading.payload.kvikio_file import (
    FileRange,
    KvikioFiles,
    find_kvikio,
    find_kvikio_remote,
)
from gpushard.errors import StoreError, UnsupportedError
from gpushard.fetching.job import Job
from gpushard.options import KIB
from gpushard.source import Source
from gpushard.stores.base import ByteRequest, lasts
from gpushard.stores.local.store import LocalStore
from gpushard.stores.ranged import RangedStore

# Ranges are widened to whole pages on both sides; from this size on that adds an eighth
# at most. Smaller ranges gain nothing: below 16 KiB kvikio goes through the host.
MIN_MEAN_NBYTES = 64 * KIB


@dataclass(frozen=True, slots=True)
class OpenRanges:
    """Ranges of open files that kvikio can read.

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
) -> OpenRanges | None:
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
) -> OpenRanges | None:
    handles = [store.open_file(request.key, request.version) for request in requests]
    opened: list[Any] = []
    spans: list[tuple[int, int]] = []
    for handle, request in zip(handles, requests, strict=True):
        stop = request.stop or 0
        if stop > handle.nbytes:
            return None  # the ring's read reports the error
        opened.append(files.file_of(handle.fd, handle.version, limit))
        first = request.start - request.start % PAGE_NBYTES
        last = -(-stop // PAGE_NBYTES) * PAGE_NBYTES
        spans.append((first, min(last, handle.nbytes)))

    def refuse_changed() -> None:
        for handle in handles:
            store.confirm(handle)

    return OpenRanges(opened, spans, refuse_changed)


def _open_remote(
    files: KvikioFiles, store: RangedStore, requests: Sequence[ByteRequest], limit: int
) -> OpenRanges | None:
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
    return OpenRanges(opened, spans, refuse_changed)


class DirectFetch(DeviceFetch):
    """Has kvikio read ranges into device memory; see `DeviceFetch`."""

    alignment = PAGE_NBYTES

    def __init__(
        self, files: KvikioFiles, handover: Handover, ring: Fetch, label: str
    ) -> None:
        super().__init__(handover, ring, label)
        self._files = files

    def begin(self, job: Job, requests: Sequence[ByteRequest]) -> Reading | None:
        """Has kvikio read; None for small ranges, and for what it cannot open."""
        opened = open_direct(self._files, job.source, requests)
        return None if opened is None else partial(self._read, job, requests, opened)

    def _read(
        self,
        job: Job,
        requests: Sequence[ByteRequest],
        opened: OpenRanges,
        addresses: Sequence[int],
    ) -> None:
        """Read the ranges, and check that no file was replaced meanwhile."""
        parts = zip(opened.files, opened.spans, addresses, requests, strict=True)
        ranges = [
            FileRange(file, first, last - first, address - (request.start - first))
            for file, (first, last), address, request in parts
        ]
        try:
            self._files.read(ranges)
        except StoreError:
            # If the file was replaced, that is the better explanation.
            opened.refuse_changed()
            raise
        opened.refuse_changed()
        job.tally.add(n_direct_requests=len(requests))


def direct_files(source: Source) -> tuple[KvikioFiles, str]:
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
