"""Large answers of zarr stores, put together of small ones.

Zarr stores answer in threads of their own. For each thread, a C library keeps as much
memory as the largest answers in it took. The pieces count only if the store tells the
same of the object before and after them, so that no bytes of two versions are mixed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.memory.pages import in_pages
from gpushard.options import MIB
from gpushard.stores.base import ByteRequest, Fetched
from gpushard.stores.zarr_loop import contained
from gpushard.stores.zarr_ranges import longest_answer

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest as ZarrByteRequest
    from zarr.abc.store import Store as ZarrAbstractStore

# Each thread of a store may keep the memory of as many pieces.
_AT_ONCE = 2
# What file systems tell of the last reader of an object, and not of the object.
_OF_READERS = ("time", "atime", "last_accessed_on")

Get = Callable[[str, "ZarrByteRequest | None"], Awaitable[NDArray[np.uint8] | None]]


class Look(NamedTuple):
    """What a store tells of an object at some moment.

    Attributes
    ----------
    nbytes
        Size of the object.
    told
        All else that may change with the object: times, tags, versions.
    """

    nbytes: int
    told: Mapping[str, Any]


def answering(store: ZarrAbstractStore) -> ZarrAbstractStore:
    """The store whose bytes are read: wrappers that only pass `get` on are opened."""
    from zarr.storage import WrapperStore

    while isinstance(store, WrapperStore) and type(store).get is WrapperStore.get:
        store = store._store  # noqa: SLF001
    return store


def tells_sizes(store: ZarrAbstractStore) -> bool:
    """Whether a store tells the size of an object without fetching all of it."""
    from zarr.abc.store import Store

    return getattr(type(store), "getsize", None) is not Store.getsize


async def look_at(store: ZarrAbstractStore, key: str) -> Look | None:
    """What a store tells of an object now; None if it tells no size of it."""
    from zarr.storage import FsspecStore

    try:
        if not isinstance(store, FsspecStore) or type(store).get is not FsspecStore.get:
            return Look(await store.getsize(key), {})
        root = store.path.rstrip("/")
        told = dict(await store.fs._info(f"{root}/{key}" if root else key))  # noqa: SLF001
        for name in _OF_READERS:
            told.pop(name, None)
        return Look(int(told["size"]), told)
    except Exception:  # noqa: BLE001  the request for the bytes tells what is wrong
        return None


class Pieces:
    """One range of an object, fetched in pieces, a few at a time.

    Parameters
    ----------
    store
        The store that tells what the object is (`answering`).
    request
        The range, the size of a piece, and memory for the bytes, if there is any.
    get
        Fetches one piece.
    looks_behind
        Whether to ask for one byte behind the end of the object, which a size that was
        kept from earlier may not know.
    """

    def __init__(
        self,
        store: ZarrAbstractStore,
        request: ByteRequest,
        get: Get,
        *,
        looks_behind: bool,
    ) -> None:
        self._store, self._request = store, request
        self._get = get
        self._piece_nbytes = request.piece_nbytes or MIB
        self._looks_behind = looks_behind
        self._start = self._n_behind = 0
        self._bytes = np.empty(0, np.uint8)
        self._is_over = False

    async def fetch(self) -> Fetched | None:
        """The answer; None if it must come in one piece.

        That is so if it is small or missing, if the store refuses a piece, or if the
        pieces may be of two versions of the object.

        Raises
        ------
        MemoryError
            The host has no room for the bytes.
        """
        request = self._request
        before = await look_at(self._store, request.key)
        if before is None or not self._begin(before.nbytes):
            return None
        firsts = iter(range(0, len(self._bytes), self._piece_nbytes))
        lanes = [contained(self._run(firsts)) for _ in range(_AT_ONCE)]
        # As for several requests: all have ended when the first error is raised.
        for ended in await asyncio.gather(*lanes, return_exceptions=True):
            if ended is not None:
                raise ended
        if self._is_over or await look_at(self._store, request.key) != before:
            return None
        object_nbytes = before.nbytes if request.stop is None else None
        return Fetched(self._bytes, object_nbytes, None)

    def _begin(self, object_nbytes: int) -> bool:
        """Take memory for what the object has of the range; False if that is little."""
        request = self._request
        self._start, stop = request.within(object_nbytes)
        nbytes = stop - self._start
        if nbytes <= self._piece_nbytes:
            return False
        most = longest_answer(request)
        is_at_end = request.start < 0 or most is None or nbytes < most
        self._n_behind = int(is_at_end and self._looks_behind)
        into = request.into
        has_room = into is not None and len(into) >= nbytes
        self._bytes = (
            into[:nbytes] if into is not None and has_room else in_pages(nbytes)
        )
        return True

    async def _run(self, firsts: Iterator[int]) -> None:
        """Fetch one piece after the other, until one is not as expected."""
        for first in firsts:
            if self._is_over:
                return
            is_sound = False
            try:
                is_sound = await self._put(first)
            finally:
                if not is_sound:
                    self._is_over = True

    async def _put(self, first: int) -> bool:
        """Fetch the piece at `first`; returns whether it is as long as expected."""
        from zarr.abc.store import RangeByteRequest

        stop = min(first + self._piece_nbytes, len(self._bytes))
        n_behind = self._n_behind if stop == len(self._bytes) else 0
        start, end = self._start + first, self._start + stop + n_behind
        try:
            data = await self._get(self._request.key, RangeByteRequest(start, end))
        except Exception:  # noqa: BLE001  the request in one piece tells what is wrong
            return False
        if data is None or len(data) != stop - first:
            return False
        self._bytes[first:stop] = data
        return True
