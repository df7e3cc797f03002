"""Requests to a zarr store side by side: as many at once as the costs of the store say.

The requests of all threads run in one event loop, which counts them for each store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from gpushard.stores.base import ByteRequest, Fetched
from gpushard.stores.zarr.loop import without_exits
from gpushard.stores.zarr.ranges import Way


class _Read(NamedTuple):
    """A read of several requests.

    Attributes
    ----------
    left
        Positions of the requests that are still to be made.
    found
        Answer to each request, or its error. Until then an error, so that no request
        counts as answered that lost its lane.
    waiting
        Lanes that wait for a slot; they end when no request is left.
    """

    way: Way
    requests: Sequence[ByteRequest]
    left: deque[int]
    found: list[Fetched | BaseException | None]
    waiting: set[asyncio.Task[None]]

    async def answer_next(self) -> None:
        """Answer the next request; after an error none is left."""
        i = self.left.popleft()
        if not self.left:
            self._end_waiting()
        try:
            self.found[i] = await without_exits(self.way.get(self.requests[i]))
        # A `GeneratorExit` may be of the store; if it ends the lane, nothing follows.
        except (Exception, asyncio.CancelledError, GeneratorExit) as error:  # noqa: BLE001  raised later
            self.found[i] = error
            self.left.clear()
            self._end_waiting()

    def _end_waiting(self) -> None:
        for lane in self.waiting:
            lane.cancel()


class Lanes:
    """Lanes of reads, each of which makes one request after the other.

    The first lane of a read waits for no other read, so that a short read begins at
    once. All other lanes share slots: so many requests may be under way, whatever the
    number of reads.
    """

    def __init__(self, n_slots: int) -> None:
        self._n_slots = n_slots
        self._slots = asyncio.Semaphore(n_slots)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def answer(
        self, way: Way, requests: Sequence[ByteRequest]
    ) -> list[Fetched | None]:
        """Answers to requests, in order.

        If several requests fail, the error of the first of them is raised, when all
        that are under way have ended.
        """
        n = len(requests)
        if n == 1:  # nothing to run in parallel
            return [await way.get(requests[0])]
        self._begin_here()
        lost: list[Fetched | BaseException | None] = [asyncio.CancelledError()]
        read = _Read(way, requests, deque(range(n)), lost * n, set())
        n_lanes = min(n, self._n_slots)
        lanes = [self._run(read, is_first=k == 0) for k in range(n_lanes)]
        # What ends a lane is among the answers, or others have cancelled it.
        await asyncio.gather(*lanes, return_exceptions=True)
        answers: list[Fetched | None] = []
        for fetched in read.found:
            if isinstance(fetched, BaseException):
                raise fetched
            answers.append(fetched)
        return answers

    def _begin_here(self) -> None:
        """Have slots in the loop that runs: a forked process has one of its own."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._slots = loop, asyncio.Semaphore(self._n_slots)

    async def _run(self, read: _Read, *, is_first: bool) -> None:
        """Make one request after the other until none is left."""
        while is_first and read.left:
            await read.answer_next()
        while read.left:
            await self._wait_for_slot(read)
            try:
                if read.left:  # others may have made it meanwhile
                    await read.answer_next()
            finally:
                self._slots.release()

    async def _wait_for_slot(self, read: _Read) -> None:
        """Take a slot; the lane is cancelled if no request is left for it."""
        lane: Any = asyncio.current_task()  # of a coroutine, never None
        read.waiting.add(lane)
        try:
            await self._slots.acquire()
        finally:
            read.waiting.discard(lane)
