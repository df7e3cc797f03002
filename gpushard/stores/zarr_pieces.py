"""Large answers of zarr stores, put together of small ones.

Zarr stores answer in threads of their own. For each thread, a C library keeps as much
memory as the largest answers in it took. The pieces count only if the store tells the
same of the object before and after them, so that no bytes of two versions are mixed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
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


async def fetch_in_pieces(
    store: ZarrAbstractStore, request: ByteRequest, get: Get, *, looks_behind: bool
) -> Fetched | None:
    """Answer to a request, put together of pieces; None if it must come in one piece.

    That is so if it is small or missing, if the store refuses a piece, or if the pieces
    may be of two versions of the object.

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

    Raises
    ------
    MemoryError
        The host has no room for the bytes.
    """
    before = await look_at(store, request.key)
    if before is None:
        return None
    start, stop = request.within(before.nbytes)
    nbytes, piece_nbytes = stop - start, request.piece_nbytes or MIB
    if nbytes <= piece_nbytes:
        return None
    most = longest_answer(request)
    is_at_end = request.start < 0 or most is None or nbytes < most
    into = request.into
    has_room = into is not None and len(into) >= nbytes
    data = into[:nbytes] if into is not None and has_room else in_pages(nbytes)
    wanted = _Wanted(request.key, start, data, int(is_at_end and looks_behind), get)
    left = deque(range(0, nbytes, piece_nbytes))
    lanes = [contained(wanted.fetch(left, piece_nbytes)) for _ in range(_AT_ONCE)]
    # As for several requests: all have ended when the first error is raised.
    ended = await asyncio.gather(*lanes, return_exceptions=True)
    for one in ended:
        if isinstance(one, BaseException):
            raise one
    if not all(ended) or await look_at(store, request.key) != before:
        return None
    return Fetched(data, before.nbytes if request.stop is None else None, None)


class _Wanted(NamedTuple):
    """Bytes of an object from `start` on, to be fetched into `data`.

    With the last of them, `n_behind` bytes behind them are asked for, too.
    """

    key: str
    start: int
    data: NDArray[np.uint8]
    n_behind: int
    get: Get

    async def fetch(self, left: deque[int], piece_nbytes: int) -> bool:
        """Fetch the pieces that begin at `left`; return whether all were sound.

        After one that is not, or an error, none is left for others.
        """
        while left:
            is_sound = False
            try:
                is_sound = await self._put(left.popleft(), piece_nbytes)
            finally:
                if not is_sound:
                    left.clear()
            if not is_sound:
                return False
        return True

    async def _put(self, first: int, piece_nbytes: int) -> bool:
        """Fetch the piece at `first`; returns whether it is as long as expected."""
        from zarr.abc.store import RangeByteRequest

        stop = min(first + piece_nbytes, len(self.data))
        n_behind = self.n_behind if stop == len(self.data) else 0
        span = RangeByteRequest(self.start + first, self.start + stop + n_behind)
        try:
            data = await self.get(self.key, span)
        except Exception:  # noqa: BLE001  the request in one piece tells what is wrong
            return False
        if data is None or len(data) != stop - first:
            return False
        self.data[first:stop] = data
        return True
