"""Large answers of zarr stores, put together of small ones.

Zarr stores answer in threads of their own. For each thread, a C library keeps as much
memory as the largest answers in it took. The pieces count only if the store tells the
same of the object before and after them, so that no bytes of two versions are mixed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.pages import into_or_pages
from gpushard.stores.base import ByteRequest, Fetched
from gpushard.stores.zarr.loop import without_exits
from gpushard.stores.zarr.ranges import Gets, ZarrObjects, longest_answer
from gpushard.stores.zarr.sizes import told_size

if TYPE_CHECKING:
    from zarr.abc.store import Store as ZarrAbstractStore

# Each thread of a store may keep the memory of as many pieces.
_AT_ONCE = 2
# What file systems tell of the last reader of an object, and not of the object.
_OF_READERS = ("time", "atime", "last_accessed_on")


class ObjectState(NamedTuple):
    """What a store tells of an object at some moment.

    Attributes
    ----------
    nbytes
        Size of the object.
    properties
        All else that may change with the object: times, tags, versions.
    """

    nbytes: int
    properties: Mapping[str, Any]


async def _object_state(store: ZarrAbstractStore, key: str) -> ObjectState | None:
    """What a store tells of an object now; None if it tells no size of it."""
    from zarr.storage import FsspecStore

    try:
        if not isinstance(store, FsspecStore) or type(store).get is not FsspecStore.get:
            return ObjectState(told_size(await store.getsize(key)), {})
        root = store.path.rstrip("/")
        path = f"{root}/{key}" if root else key
        info: dict[str, Any] = dict(await store.fs._info(path))  # noqa: SLF001
        for name in _OF_READERS:
            info.pop(name, None)
        return ObjectState(told_size(int(info["size"])), info)
    except Exception:  # noqa: BLE001  the request for the bytes tells what is wrong
        return None


class PiecedGets:
    """Requests that name the size of a piece by several `get`s, others by one.

    A request is answered at once by `gets` after all if it is small or missing, if the
    store refuses a piece, or if the pieces may be of two versions of the object.

    Parameters
    ----------
    objects
        The objects of the store.
    inner_store
        The store that tells the state of an object: `objects.store` or the one in it.
    """

    def __init__(
        self, objects: ZarrObjects, inner_store: ZarrAbstractStore, gets: Gets
    ) -> None:
        self._objects = objects
        self._inner_store = inner_store
        self._gets = gets

    async def get(self, request: ByteRequest) -> Fetched | None:
        """Answer to a request; raises also `MemoryError` if the host has no room."""
        if request.piece_nbytes is None:
            return await self._gets.get(request)
        found = await self._answer_of_pieces(request, request.piece_nbytes)
        return found or await self._gets.get(request)

    async def _answer_of_pieces(
        self, request: ByteRequest, piece_nbytes: int
    ) -> Fetched | None:
        """Answer put together of pieces; None if it must come in one piece."""
        before = await _object_state(self._inner_store, request.key)
        if before is None:
            return None
        start, stop = request.within(before.nbytes)
        nbytes = stop - start
        if nbytes <= piece_nbytes:
            return None
        data = into_or_pages(request.into, nbytes)
        n_behind = self._n_behind(request, nbytes)
        fetch = _PiecedFetch(self._objects, request.key, start, data, n_behind)
        is_sound = await fetch.fetch_all(piece_nbytes)
        if (
            not is_sound
            or await _object_state(self._inner_store, request.key) != before
        ):
            return None
        return Fetched(data, before.nbytes if request.stop is None else None, None)

    def _n_behind(self, request: ByteRequest, nbytes: int) -> int:
        """Bytes to ask for behind an answer of `nbytes` bytes: one behind an object.

        A size that the store kept from earlier may not know it. A store that refuses
        ranges beyond the end is not asked.
        """
        most = longest_answer(request)
        is_at_end = request.start < 0 or most is None or nbytes < most
        return int(is_at_end and not self._gets.asks_sizes)


class _PiecedFetch(NamedTuple):
    """Bytes of an object from `start` on, to be fetched into `data`.

    With the last of them, `n_behind` bytes behind them are asked for, too.
    """

    objects: ZarrObjects
    key: str
    start: int
    data: NDArray[np.uint8]
    n_behind: int

    async def fetch_all(self, piece_nbytes: int) -> bool:
        """Fetch all pieces, a few at once; return whether all were sound."""
        left = deque(range(0, len(self.data), piece_nbytes))
        work = [self._fetch_pieces(left, piece_nbytes) for _ in range(_AT_ONCE)]
        # As for several requests: all have ended when the first error is raised.
        lanes = map(without_exits, work)
        outcomes = await asyncio.gather(*lanes, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return all(outcomes)

    async def _fetch_pieces(self, left: deque[int], piece_nbytes: int) -> bool:
        """Fetch the pieces that begin at `left`; return whether all were sound.

        After one that is not, or an error, none is left for others.
        """
        while left:
            is_sound = False
            try:
                is_sound = await self._fetch_piece(left.popleft(), piece_nbytes)
            finally:
                if not is_sound:
                    left.clear()
            if not is_sound:
                return False
        return True

    async def _fetch_piece(self, first: int, piece_nbytes: int) -> bool:
        """Fetch the piece at `first`; returns whether it is as long as expected."""
        from zarr.abc.store import RangeByteRequest

        stop = min(first + piece_nbytes, len(self.data))
        n_behind = self.n_behind if stop == len(self.data) else 0
        span = RangeByteRequest(self.start + first, self.start + stop + n_behind)
        try:
            data = await self.objects.get(self.key, span)
        except Exception:  # noqa: BLE001  the request in one piece tells what is wrong
            return False
        if data is None or len(data) != stop - first:
            return False
        self.data[first:stop] = data
        return True
