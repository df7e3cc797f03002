"""Byte ranges of the objects of a zarr store, and the ways to them.

A *way* answers the requests of a read. `store` chooses the way for a store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import StoreError
from gpushard.stores.base import ByteRequest, Fetched
from gpushard.stores.failures import failure, told, without_credentials
from gpushard.stores.zarr.sizes import store_inside, tells_sizes, told_size

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest as ZarrByteRequest
    from zarr.abc.store import Store as ZarrAbstractStore
    from zarr.core.buffer import Buffer, BufferPrototype


def _byte_range_of(request: ByteRequest) -> ZarrByteRequest | None:
    """The request's range as zarr spells it; None for the whole object."""
    from zarr.abc.store import (
        OffsetByteRequest,
        RangeByteRequest,
        SuffixByteRequest,
    )

    if request.start < 0:
        return SuffixByteRequest(-request.start)
    if request.stop is not None:
        return RangeByteRequest(request.start, request.stop)
    if request.max_nbytes is not None:
        return RangeByteRequest(0, request.max_nbytes)
    return OffsetByteRequest(request.start) if request.start else None


def _byte_range_within(
    request: ByteRequest, object_nbytes: int | None
) -> ZarrByteRequest | None:
    """The request's range in an object of that size; None if it has no known bytes."""
    from zarr.abc.store import RangeByteRequest

    if object_nbytes is None or _byte_range_of(request) is None:
        return None
    start, stop = request.within(object_nbytes)
    return RangeByteRequest(start, stop) if start < stop else None


def longest_answer(request: ByteRequest) -> int | None:
    """Most bytes that may answer a request; None if there is no limit."""
    if request.start < 0:
        return -request.start
    if request.stop is None:
        return request.max_nbytes
    return max(0, request.stop - request.start)


class ZarrObjects:
    """The objects of a zarr store, in bytes and errors of ours.

    Attributes
    ----------
    store
        The zarr store.
    """

    def __init__(self, store: ZarrAbstractStore, prototype: BufferPrototype) -> None:
        self.store = store
        self._prototype = prototype

    @property
    def url(self) -> str:
        """Name that the zarr store gives itself, such as ``memory://...``."""
        # Icechunk's has several lines.
        return without_credentials(" ".join(str(self.store).split()))

    async def get(
        self, key: str, byte_range: ZarrByteRequest | None
    ) -> NDArray[np.uint8] | None:
        """Bytes in a range of an object, None for all of it; None if there is none."""
        buffer = await self.store.get(key, self._prototype, byte_range)
        return None if buffer is None else _bytes_of(buffer)

    @property
    def tells_sizes(self) -> bool:
        """Whether the size of an object is known without fetching all of it."""
        return tells_sizes(self._sized_by)

    @property
    def _sized_by(self) -> ZarrAbstractStore:
        return self.store if tells_sizes(self.store) else store_inside(self.store)

    async def size_if_known(self, key: str) -> int | None:
        """Size of an object; None if the store does not tell it."""
        try:
            return told_size(await self._sized_by.getsize(key))
        except Exception:  # noqa: BLE001  the first error of the store is the telling one
            return None

    def checked(
        self, request: ByteRequest, data: NDArray[np.uint8]
    ) -> NDArray[np.uint8]:
        """`data`, the answer to a request, if it is not longer than requested."""
        limit = longest_answer(request)
        if limit is not None and len(data) > limit:
            raise failure(
                self.url,
                request.key,
                "the store answered other bytes than asked",
                expected=f"at most {limit} bytes",
                got=f"{len(data)} bytes",
                hint="what is behind it may ignore byte ranges; check its server",
            )
        return data

    def failure(self, key: str, error: BaseException) -> StoreError | MemoryError:
        """Error of ours for one of the store."""
        if isinstance(error, MemoryError):  # the reader names the array
            return MemoryError(str(error))
        return failure(
            self.url,
            key,
            told(error),
            hint="check the store and what is behind it",
        )


class Way(Protocol):
    """How the requests to a zarr store are answered."""

    async def get(self, request: ByteRequest) -> Fetched | None:
        """Answer to a request; None if there is no object.

        Raises
        ------
        StoreError
            The store failed, or answered with other bytes than requested.
        """
        ...


class Gets:
    """Each request by a `get` of the store.

    Attributes
    ----------
    asks_sizes
        Whether the store refuses a range that may reach beyond the end of its object:
        known before, or found out by one that it refused. Then the object's size comes
        first.
    """

    def __init__(self, objects: ZarrObjects, *, asks_sizes: bool) -> None:
        self._objects = objects
        self.asks_sizes = asks_sizes
        # Kinds of ranges that were answered beyond the end of an object.
        self._answered_beyond: set[type] = set()

    async def get(self, request: ByteRequest) -> Fetched | None:
        """Answer to a request; see `Way`."""
        byte_range = _byte_range_of(request)
        if self.asks_sizes and request.stop is None and byte_range is not None:
            if not self._objects.tells_sizes:
                return await self._get_cut(request)
            object_nbytes = await self._objects.size_if_known(request.key)
            # Some stores give the size 0 to objects that do not exist.
            byte_range = _byte_range_within(request, object_nbytes) or byte_range
        try:
            data = await self._get(request, byte_range)
        except (KeyError, FileNotFoundError):
            return None
        except Exception as error:  # noqa: BLE001  told, if the size does not help
            return await self._get_within(request, error)
        if data is None:
            return None
        self._objects.checked(request, data)
        if not self.asks_sizes and _is_beyond(request, len(data)):
            self._answered_beyond.add(type(byte_range))
        return _fetched(request, data)

    async def _get_cut(self, request: ByteRequest) -> Fetched | None:
        """Answer to a request, cut from the object: to ask its size would fetch it."""
        whole = await self.get(ByteRequest(request.key))
        if whole is None:
            return None
        # A copy, because a view would keep all of the object in memory.
        data = whole.data[slice(*request.within(len(whole.data)))].copy()
        return Fetched(data, len(whole.data), None)

    async def _get(
        self, request: ByteRequest, byte_range: ZarrByteRequest | None
    ) -> NDArray[np.uint8] | None:
        data = await self._objects.get(request.key, byte_range)
        if data is None or len(data) >= -request.start:
            return data
        # Up to 3.1, zarr's stores in memory return too little if more last bytes are
        # requested than an object has.
        whole = await self._objects.get(request.key, None)
        return None if whole is None else whole[request.start :]

    async def _get_within(self, request: ByteRequest, error: Exception) -> Fetched:
        """Answer to a request that failed, if the object's size makes it another one.

        Some stores refuse a range that has no bytes, one that reaches beyond the end of
        the object, or the last bytes of an object. If the store fails for this request
        too, the first failure is raised.
        """
        key = request.key
        object_nbytes = await self._objects.size_if_known(key)
        if object_nbytes is not None and not range(*request.within(object_nbytes)):
            return Fetched(np.empty(0, np.uint8), object_nbytes, None)
        byte_range = _byte_range_within(request, object_nbytes)
        if byte_range in (None, _byte_range_of(request)):
            raise self._objects.failure(key, error) from error
        try:
            data = await self._objects.get(key, byte_range)
        except Exception:  # noqa: BLE001  the first failure is the telling one
            data = None
        if data is None:
            raise self._objects.failure(key, error) from error
        # What it answered before, it only failed to answer for a moment.
        self.asks_sizes |= type(_byte_range_of(request)) not in self._answered_beyond
        return Fetched(self._objects.checked(request, data), object_nbytes, None)


class GetsAndCuts(Gets):
    """As `Gets`, from a store whose answers go on behind the end of an object.

    Where a range might not end with its object, the whole object is fetched and cut. A
    range that an index names lies inside of the object, and who asks for one byte wants
    to know whether there is an object.
    """

    async def get(self, request: ByteRequest) -> Fetched | None:
        """Answer to a request, with bytes of its object only."""
        if request.is_indexed or request.stop == 1 or request.start:
            return await super().get(request)
        whole = await super().get(ByteRequest(request.key))
        if whole is None:
            return None
        return _fetched(request, whole.data[: longest_answer(request)])


def _fetched(request: ByteRequest, data: NDArray[np.uint8]) -> Fetched:
    """Answer to a request; `data` tell the object's size if they are all of it."""
    is_whole = (request.start, request.stop) == (0, None) and (
        request.max_nbytes is None or len(data) < request.max_nbytes
    )
    return Fetched(data, len(data) if is_whole else None, None)


def _is_beyond(request: ByteRequest, nbytes: int) -> bool:
    """Whether a range without a known end was answered with `nbytes` bytes of it."""
    if request.stop is not None:
        return False
    return request.start < 0 or nbytes < (request.max_nbytes or 0)


def _bytes_of(buffer: Buffer) -> NDArray[np.uint8]:
    """Bytes of a zarr buffer on the host; a view if the buffer is there already."""
    return np.ascontiguousarray(buffer.as_numpy_array()).reshape(-1).view(np.uint8)
