"""Any zarr `Store`: memory, zip, fsspec, wrappers, and stores of other packages."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Generator,
    Hashable,
    Sequence,
)
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpushard.errors import StoreError
from gpushard.options import KIB, MIB
from gpushard.stores.base import (
    NETWORK_COSTS,
    ByteRequest,
    FetchCosts,
    Fetched,
)
from gpushard.stores.documents import document_bytes, document_request
from gpushard.stores.failures import refuse_unsafe_key, told
from gpushard.stores.local.root import absolute
from gpushard.stores.zarr.lanes import Lanes
from gpushard.stores.zarr.listing import lists_all, next_keys
from gpushard.stores.zarr.loop import run_in_loop, run_without_loop
from gpushard.stores.zarr.pieces import PiecedGets
from gpushard.stores.zarr.ranges import Gets, GetsAndCuts, Way, ZarrObjects
from gpushard.stores.zarr.sizes import store_inside, tells_sizes
from gpushard.threads.forks import after_fork

if TYPE_CHECKING:
    import asyncio

    from zarr.abc.store import Store as ZarrAbstractStore
    from zarr.core.buffer import BufferPrototype

# Clients of zarr's stores seldom have more connections (s3fs: 10).
_UNKNOWN_COSTS = replace(NETWORK_COSTS, concurrency=32, answers_in_own_memory=True)
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

        self._loop = loop
        self._objects = _objects_of(store, prototype or default_buffer_prototype())
        self.costs = costs or _costs_of(store)
        self._is_near = _never_waits(store)
        self._way = _way_to(self._objects, self.costs)
        self._lanes = Lanes(self.costs.concurrency)
        self._zip_path = _zip_path(store)
        if self._zip_path is not None:
            after_fork(self._open_zip_anew)

    def __reduce__(self) -> tuple[Callable[..., ZarrStore], tuple[object, ...]]:
        return ZarrStore, (self.zarr_store, None, None, self.costs)

    def __repr__(self) -> str:
        return f"ZarrStore({self.zarr_store!r})"

    @property
    def zarr_store(self) -> ZarrAbstractStore:
        """The zarr store."""
        return self._objects.store

    @property
    def url(self) -> str:
        """Name that the zarr store gives itself, such as ``memory://...``."""
        return self._objects.url

    @property
    def is_read_only(self) -> bool:
        """Whether the zarr store refuses writes."""
        return self.zarr_store.read_only

    def read(self, requests: Sequence[ByteRequest]) -> list[Fetched | None]:
        """Answer each request, in order; None for an object that does not exist."""
        for request in requests:
            refuse_unsafe_key(request.key, self.url)
        # Two threads must not open a store at once; in the loop they take turns.
        if self._is_near and self.zarr_store._is_open:  # noqa: SLF001
            found = run_without_loop(lambda: self._read_in_turn(requests))
            if found is not None:
                return found
        return run_in_loop(lambda: self._read_all(requests), self._loop)

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

    def size_of(self, key: str) -> int | None:
        """Size of an object; None if the zarr store does not tell it."""
        if self._is_near and self.zarr_store._is_open:  # noqa: SLF001
            return run_without_loop(lambda: self._objects.size_if_known(key))
        return run_in_loop(lambda: self._objects.size_if_known(key), self._loop)

    def list_children(self, prefix: str) -> list[str] | None:
        """Sorted names directly below `prefix`; None if the store cannot list."""
        if not self.zarr_store.supports_listing:
            return None
        prefix = prefix.strip("/")
        if prefix:
            refuse_unsafe_key(prefix, self.url)
        return run_in_loop(lambda: self._list(prefix), self._loop)

    def list_keys(self, prefix: str) -> Generator[Sequence[str]] | None:
        """Keys below the directory `prefix`, some at a time; None as for a store."""
        if not lists_all(self.zarr_store):
            return None
        prefix = prefix.strip("/")
        if prefix:
            refuse_unsafe_key(prefix, self.url)
        return self._keys_below(f"{prefix}/" if prefix else "")

    def _keys_below(self, prefix: str) -> Generator[Sequence[str]]:
        run_in_loop(self._ensure_open, self._loop)
        listing: list[AsyncIterator[str]] = []

        async def some_more() -> list[str]:
            try:
                if not listing:
                    listing.append(self.zarr_store.list_prefix(prefix))
                return await next_keys(listing[0])
            except Exception as error:
                raise self._objects.failure(prefix, error) from error

        async def end() -> None:
            for keys in listing:
                if isinstance(keys, AsyncGenerator):
                    await keys.aclose()

        try:
            while some := run_in_loop(some_more, self._loop):
                yield some
        finally:
            run_in_loop(end, self._loop)

    async def _list(self, prefix: str) -> list[str]:
        await self._ensure_open()
        try:
            names = [name async for name in self.zarr_store.list_dir(prefix)]
        except (KeyError, FileNotFoundError):
            return []
        except Exception as error:
            raise self._objects.failure(prefix, error) from error
        return sorted({name.strip("/") for name in names} - {""})

    def _open_zip_anew(self) -> None:
        """Read a zip file in a forked process through an open file of its own.

        Who reads from the inherited one moves it for the parent, too.
        """
        from zarr.storage import ZipStore

        if self._zip_path is not None:
            self._objects.store = ZipStore(self._zip_path, read_only=True)

    async def _ensure_open(self) -> None:
        """Open the store: a new or unpickled store may not be open yet."""
        try:
            # zarr's own readers call this too; there is no public method for it.
            await self.zarr_store._ensure_open()  # noqa: SLF001
        except Exception as error:
            raise StoreError(
                f"cannot open {self.url}: {told(error)}",
                hint="check the store and what is behind it",
            ) from error

    async def _read_in_turn(
        self, requests: Sequence[ByteRequest]
    ) -> list[Fetched | None]:
        return [await self._way.get(request) for request in requests]

    async def _read_all(self, requests: Sequence[ByteRequest]) -> list[Fetched | None]:
        await self._ensure_open()
        return await self._lanes.answer(self._way, requests)


def _objects_of(store: ZarrAbstractStore, prototype: BufferPrototype) -> ZarrObjects:
    from zarr.storage import ZipStore

    # Subclasses may read in other ways.
    if type(store) is not ZipStore:
        return ZarrObjects(store, prototype)
    from gpushard.stores.zarr.zip_members import ZipObjects

    return ZipObjects(store, prototype)


def _never_waits(store: ZarrAbstractStore) -> bool:
    """Whether a store's coroutines end at once, so that they need no event loop."""
    from zarr.storage import MemoryStore, ZipStore

    return type(store) in (MemoryStore, ZipStore)


def _zip_path(store: ZarrAbstractStore) -> Path | None:
    """Path of the zip file that a store only reads; None for any other store."""
    from zarr.storage import ZipStore

    if type(store) is not ZipStore or not store.read_only or store.path is None:
        return None
    return Path(absolute(store.path))  # a fork may change its directory


def _costs_of(store: ZarrAbstractStore) -> FetchCosts:
    from zarr.storage import MemoryStore, ZipStore

    is_near = isinstance(store, (MemoryStore, ZipStore))
    costs = _PROCESS_COSTS if is_near else _UNKNOWN_COSTS
    return replace(costs, reads_on=True) if _reads_on(store) else costs


def _way_to(objects: ZarrObjects, costs: FetchCosts) -> Way:
    """How requests to the store are answered, for the kind of store that it is."""
    store = objects.store
    kind = GetsAndCuts if costs.reads_on else Gets
    gets = kind(objects, asks_sizes=refuses_beyond(store))
    inner_store = store_inside(store)
    # Pieces of a store that reads on may have bytes of what follows the object.
    divides = (
        costs.answers_in_threads and not costs.reads_on and tells_sizes(inner_store)
    )
    return PiecedGets(objects, inner_store, gets) if divides else gets


def refuses_beyond(store: ZarrAbstractStore) -> bool:
    """Whether a store is known to fail for ranges beyond the end of an object.

    Icechunk's does, and prints the backtrace of a panic if the object is a document.
    """
    return _comes_from("icechunk", store)


def takes_any_key(store: ZarrAbstractStore) -> bool:
    """Whether a store takes objects that are neither documents nor chunks of Zarr.

    Icechunk's does not: it keeps arrays, not objects, and shows nothing of a session
    to anybody else before it is committed.
    """
    return not _comes_from("icechunk", store)


def _reads_on(store: ZarrAbstractStore) -> bool:
    """Whether a store answers a range with bytes that lie behind the object's end.

    virtualizarr's `ManifestStore` does, with those that follow in the file.
    """
    return _comes_from("virtualizarr", store)


def _comes_from(package: str, store: ZarrAbstractStore) -> bool:
    """Whether a store, or the one in a wrapper, is of a package."""
    from zarr.storage import WrapperStore

    if type(store).__module__.partition(".")[0] == package:
        return True
    return isinstance(store, WrapperStore) and _comes_from(package, store._store)  # noqa: SLF001
