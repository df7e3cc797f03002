"""Contract of a store: it takes requests for byte ranges of objects, many at a time.

A store is synchronous and works in batches: it takes all requests of a stage at once,
and returns when all answers are there. How it runs requests in parallel is up to it.
What a store says about writes, `gpushard.stores.writers` describes.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gpushard.options import KIB, MIB


class ByteRequest(NamedTuple):
    """Half-open byte range ``[start, stop)`` of one object.

    Attributes
    ----------
    key
        The object's key in the store.
    start, stop
        Half-open range of bytes. If `stop` is None, the range goes to the end of the
        object. If ``start < 0``, `stop` is None and the range is the last ``-start``
        bytes; a shorter object is answered whole.
    version
        If given, the bytes must come from that version of the object. If the store can
        no longer serve it, the store raises `ObjectChangedError`.
    into
        uint8, host, writable. Memory that the store may put the bytes into, which saves
        a copy. The store may also answer with memory of its own. Bytes that do not fit
        are left out; only a store that tells the object's size may do that.
    max_nbytes
        For a whole object (``start == 0``, `stop` None): limit of the answer. A larger
        object is answered with its first `max_nbytes` bytes.
    is_indexed
        Whether an index names the range. Such a range exists, unless the object was
        replaced or deleted since.
    piece_nbytes
        If given, a store that `answers_in_threads` and tells no versions fetches the
        bytes in pieces of this size, and copies each to its place.
    """

    key: str
    start: int = 0
    stop: int | None = None
    version: Hashable | None = None
    into: NDArray[np.uint8] | None = None
    max_nbytes: int | None = None
    is_indexed: bool = False
    piece_nbytes: int | None = None

    def answered_into(self, memory: NDArray[np.uint8]) -> ByteRequest:
        """The same request with `memory` to put the bytes into."""
        # Faster than `_replace`: a load of a loader has thousands.
        key, start, stop, version, _, most, is_indexed, piece = self
        return ByteRequest(key, start, stop, version, memory, most, is_indexed, piece)

    def within(self, object_nbytes: int) -> tuple[int, int]:
        """Half-open range of the answer for an object of `object_nbytes` bytes."""
        if self.stop is not None and 0 <= self.start <= self.stop <= object_nbytes:
            return self.start, self.stop  # the usual case, kept fast for small reads
        if self.start < 0:
            return max(0, object_nbytes + self.start), object_nbytes
        stop = object_nbytes if self.stop is None else self.stop
        if self.max_nbytes is not None:
            stop = min(stop, self.start + self.max_nbytes)
        stop = min(stop, object_nbytes)
        return min(self.start, stop), stop


class PassingVersion:
    """Base of version tokens that can show a change, but not that there was none.

    They are valid within one read only. Nothing that was read with one is kept.
    """

    __slots__ = ()


def lasts(version: Hashable | None) -> bool:
    """Whether data of that version may be kept, because the version is recognisable."""
    return version is not None and not isinstance(version, PassingVersion)


class Fetched(NamedTuple):
    """Answer to a `ByteRequest`.

    Attributes
    ----------
    data
        uint8, shape (n_bytes,), host, contiguous. May be read-only, and does not change
        any more. If the range reaches past the end of the object, only the existing
        bytes.
    object_nbytes
        Size of the whole object, or None if the store does not tell it.
    version
        Opaque token of the version that was read (a file's identity, an ETag), or None
        if the store does not tell it. Data without a version, or with a
        `PassingVersion`, is never kept between reads.
    """

    data: NDArray[np.uint8]
    object_nbytes: int | None
    version: Hashable | None


@dataclass(frozen=True, slots=True)
class FetchCosts:
    """How requests to a store should be made.

    Attributes
    ----------
    gap_nbytes
        Largest number of unwanted bytes between two ranges for which one request is
        cheaper than two.
    idle_gap_nbytes
        The same, if less, while requests are at most `concurrency`: another request
        then waits for none of them.
    max_request_nbytes
        Size up to which neighbouring ranges share a request. Larger amounts are divided
        into several parallel requests. A single range is never divided.
    concurrency
        Number of requests that may be in flight at once.
    prefers_whole_objects
        Whether a request costs so much that fetching a whole shard with its index beats
        reading the index first (true if there is a network in between).
    bounds_requests
        Whether a range goes into a request of its own if it would make the request
        larger than `max_request_nbytes`. If not, the last range may exceed that size.
    reads_in_shares
        Whether requests cost next to nothing (true for files). Then every thread reads
        the share of neighbouring ranges that it decodes. If not, one request reads all
        of them, and threads share the decoding.
    answers_in_own_memory
        Whether large answers lie in memory that other code got from the C library. That
        library keeps such memory after it is freed.
    reads_on
        Whether a range may be answered with bytes that lie behind the object's end.
    """

    gap_nbytes: int
    max_request_nbytes: int
    concurrency: int
    prefers_whole_objects: bool
    bounds_requests: bool = False
    reads_in_shares: bool = False
    answers_in_own_memory: bool = False
    reads_on: bool = False
    idle_gap_nbytes: int | None = None

    @property
    def answers_in_threads(self) -> bool:
        """Whether such answers come in several threads, each of which keeps memory.

        A store in this process answers with views, or in one thread.
        """
        return self.answers_in_own_memory and self.prefers_whole_objects


# Of a store behind a network, and of one that is not known. Object stores answer after
# 20 to 100 ms, with 50 to 100 MB/s a connection: 4 MiB take about as long as the wait
# for them. Gaps are narrow and requests many, because nobody knows what a line brings
# (`docs/decisions/2026-11-29-narrow-gaps.md`).
NETWORK_COSTS = FetchCosts(
    gap_nbytes=64 * KIB,
    max_request_nbytes=4 * MIB,
    concurrency=64,
    prefers_whole_objects=True,
    idle_gap_nbytes=16 * KIB,
)


@runtime_checkable
class Store(Protocol):
    """Read access to objects by key."""

    @property
    def url(self) -> str:
        """Address of the store's root, for messages and for pickling readers."""
        ...

    @property
    def costs(self) -> FetchCosts:
        """How requests to this store should be made."""
        ...

    def read(self, requests: Sequence[ByteRequest]) -> list[Fetched | None]:
        """Answer each request, in order; None for an object that does not exist.

        Raises
        ------
        ObjectChangedError
            A requested version no longer exists.
        StoreError
            The store failed, or answered with other bytes than requested.
        """
        ...

    def current_version(self, key: str) -> tuple[bool, Hashable | None]:
        """Check cheaply whether an object was replaced: ``(known, version)``.

        ``(False, None)`` if the check costs a request; the payload request's `version`
        then does the check. ``(True, None)`` if the object is gone.
        """
        ...

    def get(self, key: str) -> bytes | None:
        """Read a whole small object (a metadata document); None if it does not exist.

        Raises
        ------
        StoreError
            The store failed, or the object is larger than `MAX_DOCUMENT_NBYTES`.
        """
        ...

    def list_children(self, prefix: str) -> list[str] | None:
        """List the names directly below `prefix`; None if the store cannot list.

        Raises
        ------
        StoreError
            The store failed.
        """
        ...


@runtime_checkable
class ListingStore(Protocol):
    """What a store has in addition if it can list all keys below a prefix."""

    def list_keys(self, prefix: str) -> Generator[Sequence[str]] | None:
        """List the keys below the directory `prefix`, some at a time, in any order.

        None if the store cannot list, or a listing may leave out what `read` finds. A
        file system's directories may be among the keys.

        Raises
        ------
        StoreError
            The store failed, at once or on the way.
        """
        ...


def end_of(store: Store, request: ByteRequest) -> int:
    """Offset behind the last existing byte of a range that reaches past its object."""
    (answer,) = store.read([request._replace(into=None)])
    return request.start + (0 if answer is None else len(answer.data))
