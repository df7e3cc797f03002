"""Large answers of zarr stores, put together of small ones.

Zarr stores answer in threads of their own. For each thread, a C library keeps as much
memory as the largest answers in it took.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpushard.memory.pages import in_pages
from gpushard.stores.base import ByteRequest, Fetched
from gpushard.stores.zarr_loop import contained

if TYPE_CHECKING:
    from zarr.abc.store import Store as ZarrAbstractStore

# Each thread of a store may keep the memory of as many pieces.
_AT_ONCE = 2

Reader = Callable[[ByteRequest], Awaitable[Fetched | None]]


def tells_sizes(store: ZarrAbstractStore) -> bool:
    """Whether a store tells the size of an object without fetching all of it."""
    from zarr.abc.store import Store

    return getattr(type(store), "getsize", None) is not Store.getsize


class Pieces:
    """One range of an object, fetched in pieces, a few at a time.

    Parameters
    ----------
    request
        The object, and memory for the bytes, if there is any.
    start, stop
        The half-open range; the object may end before.
    piece_nbytes
        Size of a piece.
    read
        Fetches one piece.
    """

    def __init__(
        self,
        request: ByteRequest,
        start: int,
        stop: int,
        piece_nbytes: int,
        read: Reader,
    ) -> None:
        self._key, self._start = request.key, start
        self._is_indexed = request.is_indexed
        self._nbytes = max(0, stop - start)
        self._piece_nbytes = piece_nbytes
        self._read = read
        memory = request.into
        if memory is None or len(memory) < self._nbytes:
            memory = in_pages(self._nbytes)
        self._bytes = memory
        self._firsts = iter(range(0, self._nbytes, piece_nbytes))
        self._end = self._nbytes
        self._is_gone = self._is_over = False

    async def fetch(self) -> NDArray[np.uint8] | None:
        """The bytes, as far as the object has them; None if there is no object."""
        lanes = [contained(self._run()) for _ in range(_AT_ONCE)]
        # As for several requests: all have ended when the first error is raised.
        for ended in await asyncio.gather(*lanes, return_exceptions=True):
            if ended is not None:
                raise ended
        return None if self._is_gone else self._bytes[: self._end]

    async def _run(self) -> None:
        """Fetch one piece after the other, until no more are wanted."""
        for first in self._firsts:
            is_last = True
            try:
                is_last = await self._fetch(first)
            finally:
                self._is_over |= is_last
            if self._is_over:
                return

    async def _fetch(self, first: int) -> bool:
        """Fetch the piece at `first`; returns whether it is the last that is wanted."""
        stop = min(first + self._piece_nbytes, self._nbytes)
        piece = (self._key, self._start + first, self._start + stop)
        answer = await self._read(ByteRequest(*piece, is_indexed=self._is_indexed))
        if answer is None:
            self._is_gone = True
            return True
        end = first + len(answer.data)
        self._bytes[first:end] = answer.data
        self._end = min(self._end, end) if end < stop else self._end
        return end < stop
