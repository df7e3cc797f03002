"""Any zarr `Store`: memory, zip, fsspec, wrappers, and stores of other packages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import StoreError
from gpushard.options import KIB, MIB
from gpushard.stores.base import ByteRequest, FetchCosts, Fetched
from gpushard.stores.documents import document_bytes, document_request
from gpushard.stores.failures import failure, refuse_unsafe_key

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest as ZarrByteRequest
    from zarr.abc.store import Store as ZarrAbstractStore
    from zarr.core.buffer import Buffer, BufferPrototype

# What is behind an unknown store is taken for a network; `obstores` has the figures.
# 10 requests at once are zarr-python's own default (`async.concurrency`).
_UNKNOWN_COSTS = FetchCosts(
    gap_nbytes=MIB,
    max_request_nbytes=16 * MIB,
    concurrency=10,
    prefers_whole_objects=True,
)
# A request to a store in this process costs about 100 us in zarr's event loop.
_PROCESS_COSTS = FetchCosts(
    gap_nbytes=64 * KIB,
    max_request_nbytes=16 * MIB,
    concurrency=10,
    prefers_whole_objects=False,
)

Result = TypeVar("Result")


class ZarrStore:
    """Read access through a zarr `Store`.

    Safe for several threads, also from inside a running event loop. zarr's interface
    tells neither sizes nor versions, so nothing read through it is cached.

    Parameters
    ----------
    store
        Any store of zarr-python 3.
    loop
        Event loop that the store is used in; None for zarr's own.
    prototype
        Buffers that the store is asked for, on the host; None for zarr's usual ones.

    Attributes
    ----------
    zarr_store
        The same.
    """

    def __init__(
        self,
        store: ZarrAbstractStore,
        loop: asyncio.AbstractEventLoop | None = None,
        prototype: BufferPrototype | None = None,
    ) -> None:
        from zarr.core.buffer import default_buffer_prototype
        from zarr.storage import MemoryStore, ZipStore

        self.zarr_store = store
        self._loop = loop
        self._prototype = prototype or default_buffer_prototype()
        near = isinstance(store, (MemoryStore, ZipStore))
        self._costs = _PROCESS_COSTS if near else _UNKNOWN_COSTS

    def __reduce__(self) -> tuple[Callable[..., ZarrStore], tuple[object, ...]]:
        return ZarrStore, (self.zarr_store,)

    def __repr__(self) -> str:
        return f"ZarrStore({self.zarr_store!r})"

    @property
    def url(self) -> str:
        """What the zarr store calls itself, such as ``memory://...``."""
        return str(self.zarr_store)

    @property
    def costs(self) -> FetchCosts:
        """Those of a network, unless the store is known to be near."""
        return self._costs

    def read(self, requests: Sequence[ByteRequest]) -> list[Fetched | None]:
        """Answer each request, in order; None where there is no such object.

        Raises
        ------
        StoreError
            The store failed, or answered other bytes than asked.
        """
        for request in requests:
            refuse_unsafe_key(request.key, self.url)
        return run(self._read_all(requests), self._loop)

    def current_version(
        self,
        key: str,  # noqa: ARG002  the protocol's signature
    ) -> tuple[bool, Hashable | None]:
        """Always ``(False, None)``: zarr stores do not tell versions."""
        return False, None

    def get(self, key: str) -> bytes | None:
        """Bytes of a whole object, or None if there is none.

        Raises
        ------
        StoreError
            As for `read`.
        """
        fetched = self.read([document_request(key)])[0]
        return document_bytes(fetched, key, self.url)

    def list_children(self, prefix: str) -> list[str] | None:
        """Sorted names directly below `prefix`; None where the store cannot list.

        Raises
        ------
        StoreError
            The store failed to list.
        """
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
        """Open the store: those that were unpickled or just made may not be yet."""
        try:
            # zarr's own readers call it too; no public method opens a made store.
            await self.zarr_store._ensure_open()  # noqa: SLF001
        except Exception as error:
            raise StoreError(
                f"cannot open {self.url}: {type(error).__name__}: {error}",
                hint="check the store and what is behind it",
            ) from error

    async def _read_all(self, requests: Sequence[ByteRequest]) -> list[Fetched | None]:
        await self._ensure_open()
        slots = asyncio.Semaphore(self._costs.concurrency)

        async def read_one(request: ByteRequest) -> Fetched | None:
            async with slots:
                return await self._read_one(request)

        # Gathered with their errors, so that no request outlives the read.
        answers = await asyncio.gather(*map(read_one, requests), return_exceptions=True)
        found: list[Fetched | None] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            found.append(answer)
        return found

    async def _read_one(self, request: ByteRequest) -> Fetched | None:
        key = request.key
        try:
            data = await self._get(key, _byte_range_of(request))
            if data is not None and len(data) < -request.start:
                # Up to 3.1, zarr's stores in memory cut an object that has less bytes
                # than its last ones are asked for.
                whole = await self._get(key, None)
                data = None if whole is None else whole[request.start :]
        except (KeyError, FileNotFoundError):
            return None
        except Exception as error:
            # Some stores refuse a range that holds no byte.
            object_nbytes = await self._size_if_known(key)
            if object_nbytes is None or not _is_empty(request, object_nbytes):
                raise self._failure(key, error) from error
            return Fetched(np.empty(0, np.uint8), object_nbytes, None)
        if data is None:
            return None
        limit = _longest_answer(request)
        if limit is not None and len(data) > limit:
            raise failure(
                StoreError,
                self.url,
                key,
                "the store answered other bytes than asked",
                expected=f"at most {limit} bytes",
                got=f"{len(data)} bytes",
                hint="what is behind it may ignore byte ranges; check its server",
            )
        is_whole = (request.start, request.stop) == (0, None) and (
            request.max_nbytes is None or len(data) < request.max_nbytes
        )
        return Fetched(data, len(data) if is_whole else None, None)

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

    def _failure(self, key: str, error: Exception) -> StoreError:
        return failure(
            StoreError,
            self.url,
            key,
            f"{type(error).__name__}: {error}",
            hint="check the store and what is behind it",
        )


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


def _longest_answer(request: ByteRequest) -> int | None:
    if request.start < 0:
        return -request.start
    if request.stop is None:
        return request.max_nbytes
    return max(0, request.stop - request.start)


def _is_empty(request: ByteRequest, object_nbytes: int) -> bool:
    """Whether no byte of an object of that size is in the range."""
    if request.start < 0:
        return object_nbytes == 0
    stop = object_nbytes if request.stop is None else request.stop
    return min(stop, object_nbytes) <= request.start


def _bytes_of(buffer: Buffer) -> NDArray[np.uint8]:
    """Bytes of a zarr buffer on the host, without a copy where they are there."""
    return np.ascontiguousarray(buffer.as_numpy_array()).reshape(-1).view(np.uint8)


def run(
    coroutine: Coroutine[Any, Any, Result],
    loop: asyncio.AbstractEventLoop | None = None,
) -> Result:
    """Result of a coroutine that runs in `loop`, or in zarr's own event loop.

    Network sessions of a zarr store belong to that loop and work in no other. zarr has
    no public name for its own. When it returns or raises, the coroutine has ended.
    """
    from zarr.core.sync import _get_loop, sync

    its_loop = loop or _get_loop()
    try:
        is_inside = asyncio.get_running_loop() is its_loop
    except RuntimeError:
        is_inside = False
    if is_inside:
        coroutine.close()
        raise StoreError(
            "a read cannot wait for zarr's event loop from inside of it",
            hint="call it from another thread, with asyncio.to_thread",
        )
    tasks: list[asyncio.Task[Any]] = []
    tracked = _tracked(coroutine, tasks)
    try:
        if loop is None:
            return sync(tracked)
        return asyncio.run_coroutine_threadsafe(tracked, loop).result()
    except BaseException:
        if not (tasks and tasks[0].done()):  # the wait was interrupted, not the work
            asyncio.run_coroutine_threadsafe(_ended(tasks), its_loop).result()
        raise


async def _tracked(
    coroutine: Coroutine[Any, Any, Result], tasks: list[asyncio.Task[Any]]
) -> Result:
    """Result of a coroutine, whose task is added to `tasks` as it begins."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in one
    tasks.append(task)
    return await coroutine


async def _ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks that began, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    if tasks:  # none, if the wait was interrupted before it began
        await asyncio.wait(tasks)
