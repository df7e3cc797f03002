"""Any zarr `Store`: memory, zip, fsspec, wrappers, and stores of other packages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import StoreError
from gpushard.options import KIB, MIB
from gpushard.stores.base import ByteRequest, FetchCosts, Fetched
from gpushard.stores.documents import document_bytes, document_request
from gpushard.stores.failures import failure, refuse_unsafe_key, without_credentials
from gpushard.stores.zarr_loop import contained, run
from gpushard.stores.zarr_pieces import answering, fetch_in_pieces, tells_sizes
from gpushard.stores.zarr_ranges import (
    byte_range_of,
    byte_range_within,
    first_failure,
    gives_ranges,
    is_beyond,
    is_whole,
    longest_answer,
    reads_on,
    refuses_beyond,
)

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest as ZarrByteRequest
    from zarr.abc.store import Store as ZarrAbstractStore
    from zarr.core.buffer import Buffer, BufferPrototype

# An unknown store counts as behind a network; `ranged` explains the figures. zarr's
# own default is 10 requests at once (`async.concurrency`).
_UNKNOWN_COSTS = FetchCosts(
    gap_nbytes=MIB,
    max_request_nbytes=16 * MIB,
    concurrency=10,
    prefers_whole_objects=True,
    answers_in_own_memory=True,
)
# A request to a store in this process costs about 100 us in zarr's event loop.
_PROCESS_COSTS = FetchCosts(
    gap_nbytes=64 * KIB,
    max_request_nbytes=16 * MIB,
    concurrency=10,
    prefers_whole_objects=False,
    answers_in_own_memory=True,
)


class ZarrStore:
    """Read access through a zarr `Store`.

    Safe for several threads, also from inside a running event loop. zarr's interface
    tells neither sizes nor versions, so data that is read through it is never cached.

    Parameters
    ----------
    store
        Any store of zarr-python 3.
    loop
        Event loop that the store is used in; None for zarr's own.
    prototype
        Kind of host buffers to request from the store; None for zarr's default.
    costs
        How to read the store; None chooses by what is known about it.

    Attributes
    ----------
    zarr_store
        The zarr store.
    costs
        As passed, or those of a network, unless the store is known to be in this
        process.
    """

    def __init__(
        self,
        store: ZarrAbstractStore,
        loop: asyncio.AbstractEventLoop | None = None,
        prototype: BufferPrototype | None = None,
        costs: FetchCosts | None = None,
    ) -> None:
        from zarr.core.buffer import default_buffer_prototype

        self.zarr_store = store
        self._loop = loop
        self._prototype = prototype or default_buffer_prototype()
        self.costs = costs or _costs_of(store)
        self._gives_ranges = gives_ranges(store)
        self._asks_sizes = refuses_beyond(store)
        self._answering = answering(store)
        self._divides = self.costs.answers_in_threads and not self.costs.reads_on
        self._divides &= tells_sizes(self._answering)
        self._answered: set[type] = set()  # kinds of ranges beyond an object's end

    def __reduce__(self) -> tuple[Callable[..., ZarrStore], tuple[object, ...]]:
        return ZarrStore, (self.zarr_store, None, None, self.costs)

    def __repr__(self) -> str:
        return f"ZarrStore({self.zarr_store!r})"

    @property
    def url(self) -> str:
        """Name that the zarr store gives itself, such as ``memory://...``."""
        # Icechunk's has several lines.
        return without_credentials(" ".join(str(self.zarr_store).split()))

    @property
    def is_read_only(self) -> bool:
        """Whether the zarr store refuses writes."""
        return self.zarr_store.read_only

    def read(self, requests: Sequence[ByteRequest]) -> list[Fetched | None]:
        """Answer each request, in order; None for an object that does not exist."""
        for request in requests:
            refuse_unsafe_key(request.key, self.url)
        return run(self._read_all(requests), self._loop)

    def current_version(
        self,
        key: str,  # noqa: ARG002  the protocol's signature
    ) -> tuple[bool, Hashable | None]:
        """Always ``(False, None)``, because zarr stores do not tell versions."""
        return False, None

    def get(self, key: str) -> bytes | None:
        """Bytes of a whole object; None if there is no object."""
        fetched = self.read([document_request(key)])[0]
        return document_bytes(fetched, key, self.url)

    def list_children(self, prefix: str) -> list[str] | None:
        """Sorted names directly below `prefix`; None if the store cannot list."""
        if not self.zarr_store.supports_listing:
            return None
        prefix = prefix.strip("/")
        if prefix:
            refuse_unsafe_key(prefix, self.url)
        return run(self._list(prefix), self._loop)

    async def _list(self, prefix: str) -> list[str]:
        await self._ensure_open()
        try:
            names = [name async for name in self.zarr_store.list_dir(prefix)]
        except (KeyError, FileNotFoundError):
            return []
        except Exception as error:
            raise self._failure(prefix, error) from error
        return sorted({name.strip("/") for name in names} - {""})

    async def _ensure_open(self) -> None:
        """Open the store: a new or unpickled store may not be open yet."""
        try:
            # zarr's own readers call this too; there is no public method for it.
            await self.zarr_store._ensure_open()  # noqa: SLF001
        except Exception as error:
            raise StoreError(
                f"cannot open {self.url}: {type(error).__name__}: {error}",
                hint="check the store and what is behind it",
            ) from error

    async def _read_all(self, requests: Sequence[ByteRequest]) -> list[Fetched | None]:
        await self._ensure_open()
        if len(requests) == 1:  # nothing to run in parallel
            return [*await self._call(requests, n_calls=1)]
        slots = asyncio.Semaphore(self.costs.concurrency)
        calls = self._calls(requests)

        async def call(positions: Sequence[int]) -> Sequence[Fetched | None]:
            async with slots:
                some = [requests[i] for i in positions]
                return await contained(self._call(some, len(calls)))

        # gather returns errors instead of raising, so that all requests end first.
        answers = await asyncio.gather(*map(call, calls), return_exceptions=True)
        found: list[Fetched | None] = [None] * len(requests)
        for positions, answer in zip(calls, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            for i, fetched in zip(positions, answer, strict=True):
                found[i] = fetched
        return found

    async def _call(
        self, requests: Sequence[ByteRequest], n_calls: int
    ) -> Sequence[Fetched | None]:
        """Answers to the requests of one call of the store, out of `n_calls` calls."""
        if self._is_divided(requests[0]):
            found = await fetch_in_pieces(
                self._answering,
                requests[0],
                self._get,
                looks_behind=not self._asks_sizes,
            )
            return [found or await self._read_one(requests[0])]
        if self._gives_ranges and requests[0].is_indexed:
            return await self._read_ranges(requests, n_calls)
        return [await self._read_one(requests[0])]

    def _calls(self, requests: Sequence[ByteRequest]) -> Sequence[Sequence[int]]:
        """Positions of the requests that each call of the store answers.

        All indexed ranges of one object form one call. Every other request is a call of
        its own, and so is a range that is fetched in pieces.
        """
        calls: dict[str | int, list[int]] = {}
        for i, request in enumerate(requests):
            is_joined = self._gives_ranges and request.is_indexed
            is_joined = is_joined and not self._is_divided(request)
            calls.setdefault(request.key if is_joined else i, []).append(i)
        return list(calls.values())

    async def _read_ranges(
        self, requests: Sequence[ByteRequest], n_calls: int
    ) -> Sequence[Fetched | None]:
        """Answers to ranges of one object; all None if the object is gone."""
        key = requests[0].key
        try:
            buffers = await self._get_ranges(requests, n_calls)
        except (Exception, BaseExceptionGroup) as error:
            cause = first_failure(error)
            if cause is None:
                return [None] * len(requests)
            # Some stores refuse a range that has no bytes, or reaches beyond the end.
            object_nbytes = await self._size_if_known(key)
            if object_nbytes is None or all(
                is_whole(request, object_nbytes) for request in requests
            ):
                raise self._failure(key, cause) from error
            return [await self._read_one(request) for request in requests]
        answers: list[Fetched | None] = []
        for i, request in enumerate(requests):
            if i not in buffers:
                raise self._other_bytes(request, "no answer")
            found = buffers[i]
            data = None if found is None else self._checked(request, found)
            answers.append(None if data is None else Fetched(data, None, None))
        return answers

    async def _get_ranges(
        self, requests: Sequence[ByteRequest], n_calls: int
    ) -> dict[int, NDArray[np.uint8] | None]:
        """Bytes that the store returns for ranges of one object, by position."""
        costs = self.costs
        given = self.zarr_store.get_ranges(
            requests[0].key,
            [byte_range_of(request) for request in requests],
            prototype=self._prototype,
            max_concurrency=max(1, costs.concurrency // n_calls),
            max_gap_bytes=costs.gap_nbytes,
            max_coalesced_bytes=costs.max_request_nbytes,
        )
        # Read to the end: a generator that is left early keeps its requests running.
        groups = [group async for group in given]
        return {
            i: None if buffer is None else _bytes_of(buffer)
            for group in groups
            for i, buffer in group
        }

    def _is_cut(self, request: ByteRequest) -> bool:
        """Whether to fetch the whole object, because a range would not end with it.

        A range that an index names lies inside of the object, and who asks for one byte
        wants to know whether there is an object.
        """
        if request.is_indexed or request.stop == 1:
            return False
        return self.costs.reads_on and request.start == 0

    def _is_divided(self, request: ByteRequest) -> bool:
        """Whether a request is fetched in pieces, if its answer is large."""
        return self._divides and request.piece_nbytes is not None

    async def _read_one(self, request: ByteRequest) -> Fetched | None:
        key, asked = request.key, byte_range_of(request)
        is_cut = self._is_cut(request)
        if is_cut:
            asked = None
        if self._asks_sizes and request.stop is None and asked is not None:
            object_nbytes = await self._size_if_known(key)
            # Some stores give the size 0 to objects that do not exist.
            asked = byte_range_within(request, object_nbytes) or asked
        try:
            data = await self._get(key, asked)
            if data is not None and len(data) < -request.start:
                # Up to 3.1, zarr's stores in memory return too little if more last
                # bytes are requested than an object has.
                whole = await self._get(key, None)
                data = None if whole is None else whole[request.start :]
        except (KeyError, FileNotFoundError):
            return None
        except Exception as error:  # noqa: BLE001  told, if the size does not help
            return await self._read_within(request, error)
        if data is None:
            return None
        if is_cut:
            data = data[: longest_answer(request)]
        self._checked(request, data)
        if not self._asks_sizes and is_beyond(request, len(data)):
            self._answered.add(type(asked))
        is_whole = (request.start, request.stop) == (0, None) and (
            request.max_nbytes is None or len(data) < request.max_nbytes
        )
        return Fetched(data, len(data) if is_whole else None, None)

    async def _read_within(self, request: ByteRequest, error: Exception) -> Fetched:
        """Answer to a request that failed, if the object's size makes it another one.

        Some stores refuse a range that has no bytes, one that reaches beyond the end of
        the object, or the last bytes of an object. If the store fails for this request
        too, the first failure is raised.
        """
        key = request.key
        object_nbytes = await self._size_if_known(key)
        if object_nbytes is not None and not range(*request.within(object_nbytes)):
            return Fetched(np.empty(0, np.uint8), object_nbytes, None)
        asked = byte_range_within(request, object_nbytes)
        if asked in (None, byte_range_of(request)):
            raise self._failure(key, error) from error
        try:
            data = await self._get(key, asked)
        except Exception:  # noqa: BLE001  the first failure is the telling one
            data = None
        if data is None:
            raise self._failure(key, error) from error
        # What it answered before, it only failed to answer for a moment.
        self._asks_sizes |= type(byte_range_of(request)) not in self._answered
        return Fetched(self._checked(request, data), object_nbytes, None)

    def _checked(
        self, request: ByteRequest, data: NDArray[np.uint8]
    ) -> NDArray[np.uint8]:
        """`data`, the answer to a request, if it is not longer than requested."""
        limit = longest_answer(request)
        if limit is not None and len(data) > limit:
            raise self._other_bytes(request, f"{len(data)} bytes")
        return data

    def _other_bytes(self, request: ByteRequest, got: str) -> StoreError:
        return failure(
            self.url,
            request.key,
            "the store answered other bytes than asked",
            expected=f"at most {longest_answer(request)} bytes",
            got=got,
            hint="what is behind it may ignore byte ranges; check its server",
        )

    async def _get(
        self, key: str, byte_range: ZarrByteRequest | None
    ) -> NDArray[np.uint8] | None:
        buffer = await self.zarr_store.get(key, self._prototype, byte_range)
        return None if buffer is None else _bytes_of(buffer)

    async def _size_if_known(self, key: str) -> int | None:
        try:
            return await self.zarr_store.getsize(key)
        except Exception:  # noqa: BLE001  the first error of the store is the telling one
            return None

    def _failure(self, key: str, error: BaseException) -> StoreError | MemoryError:
        if isinstance(error, MemoryError):  # the reader names the array
            return MemoryError(str(error))
        return failure(
            self.url,
            key,
            # Lines after the first are meant for developers of those libraries.
            without_credentials(f"{type(error).__name__}: {error}".split("\n")[0]),
            hint="check the store and what is behind it",
        )


def _costs_of(store: ZarrAbstractStore) -> FetchCosts:
    from zarr.storage import MemoryStore, ZipStore

    is_near = isinstance(store, (MemoryStore, ZipStore))
    costs = _PROCESS_COSTS if is_near else _UNKNOWN_COSTS
    return replace(costs, reads_on=True) if reads_on(store) else costs


def _bytes_of(buffer: Buffer) -> NDArray[np.uint8]:
    """Bytes of a zarr buffer on the host; a view if the buffer is there already."""
    return np.ascontiguousarray(buffer.as_numpy_array()).reshape(-1).view(np.uint8)
