"""What gpushard asks of a store: byte ranges of objects, many at a time.

A store is synchronous and batch-shaped: it takes all requests of a stage at once and
answers when all are there; how it runs them side by side is its own business.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class ByteRequest(NamedTuple):
    """Half-open byte range ``[start, stop)`` of one object.

    Attributes
    ----------
    key
        The object's key in the store.
    start, stop
        ``start >= 0`` with ``stop`` None: from `start` to the end. ``start < 0``:
        the last ``-start`` bytes, `stop` is None; shorter objects are answered whole.
    version
        If given, the bytes must come from that version of the object; when the store
        can no longer serve it, it raises `ObjectChangedError`.
    into
        uint8, host, writable: where the bytes may be put, which saves a copy. What
        exceeds it is left out, which only a store that tells the object's size may do.
        A store may answer with memory of its own as well.
    max_nbytes
        Of a whole object (``start == 0``, `stop` None): the bytes that are taken of it
        at most, whatever its size; a longer object is answered cut there.
    is_indexed
        Whether an index names the range: it is there, unless the object was replaced or
        deleted since.
    """

    key: str
    start: int = 0
    stop: int | None = None
    version: Hashable | None = None
    into: NDArray[np.uint8] | None = None
    max_nbytes: int | None = None
    is_indexed: bool = False

    def within(self, object_nbytes: int) -> tuple[int, int]:
        """Half-open range that answers it in an object of that size."""
        if self.stop is not None and 0 <= self.start <= self.stop <= object_nbytes:
            return self.start, self.stop  # most requests, of small reads too
        if self.start < 0:
            return max(0, object_nbytes + self.start), object_nbytes
        stop = object_nbytes if self.stop is None else self.stop
        if self.max_nbytes is not None:
            stop = min(stop, self.start + self.max_nbytes)
        stop = min(stop, object_nbytes)
        return min(self.start, stop), stop


class PassingVersion:
    """Base of version tokens that may tell a change, but not that there was none.

    They hold for one read: nothing that was read by one is kept for the next.
    """

    __slots__ = ()


def lasts(version: Hashable | None) -> bool:
    """Whether what was read of that version may be kept: it is known again later."""
    return version is not None and not isinstance(version, PassingVersion)


class Fetched(NamedTuple):
    """Answer to a `ByteRequest`.

    Attributes
    ----------
    data
        uint8, shape (n_bytes,), host. May be read-only. A range that reaches past the
        object's end is answered with the bytes there are.
    object_nbytes
        Size of the whole object, or None where the store does not tell.
    version
        Opaque token of the version read (a file's identity, an ETag), or None where
        the store does not tell. What is read of objects without one, or with a
        `PassingVersion`, is never kept between reads.
    """

    data: NDArray[np.uint8]
    object_nbytes: int | None
    version: Hashable | None


@dataclass(frozen=True, slots=True)
class FetchCosts:
    """How a store wants to be read.

    Attributes
    ----------
    gap_nbytes
        Unwanted bytes between two ranges up to which one request is cheaper than two.
    max_request_nbytes
        Size at which a request is cut, so that several run side by side. Neighbouring
        ranges are asked for in one request up to it; a range is never cut.
    concurrency
        Requests that may be in flight at once.
    prefers_whole_objects
        Whether a request costs so much that fetching a whole shard, index included,
        beats reading the index first (true where there is a network between).
    bounds_requests
        Whether ranges that would make a larger request than `max_request_nbytes` stay
        apart; otherwise a request may reach over it with its last range.
    reads_in_shares
        Whether requests cost next to nothing (true of files): then every thread asks
        for the share of neighbouring ranges that it decodes. Otherwise they are one
        request, and decoding what it brings is shared.
    answers_in_own_memory
        Whether large answers lie in memory that others took of the C library, which
        keeps it when it is freed.
    """

    gap_nbytes: int
    max_request_nbytes: int
    concurrency: int
    prefers_whole_objects: bool
    bounds_requests: bool = False
    reads_in_shares: bool = False
    answers_in_own_memory: bool = False


@runtime_checkable
class Store(Protocol):
    """Read access to objects by key."""

    @property
    def url(self) -> str:
        """Address of the store's root, for messages and for pickling readers."""
        ...

    @property
    def costs(self) -> FetchCosts:
        """How this store wants to be read."""
        ...

    def read(self, requests: Sequence[ByteRequest]) -> list[Fetched | None]:
        """Answer each request, in order; None where there is no such object.

        Raises
        ------
        ObjectChangedError
            A requested version is gone.
        StoreError
            The store failed, or answered other bytes than asked.
        """
        ...

    def current_version(self, key: str) -> tuple[bool, Hashable | None]:
        """Tell cheaply whether an object was replaced: ``(known, version)``.

        ``(False, None)`` where asking costs a request; then the check rides on the
        payload request's `version`. ``(True, None)``: the object is gone.
        """
        ...

    def get(self, key: str) -> bytes | None:
        """Read a whole small object (a metadata document); None if there is none.

        Raises
        ------
        StoreError
            The store failed, or the object is larger than `MAX_DOCUMENT_NBYTES`.
        """
        ...

    def list_children(self, prefix: str) -> list[str] | None:
        """List the names directly below `prefix`; None where the store cannot list."""
        ...


def end_of(store: Store, request: ByteRequest) -> int:
    """Byte behind the last one there is of a range that its object does not fill."""
    (answer,) = store.read([request._replace(into=None)])
    return request.start + (0 if answer is None else len(answer.data))
