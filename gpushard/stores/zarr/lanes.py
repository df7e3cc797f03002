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
        Positions of requests that are answered together, for each call to come.
    n_at_once
        Requests that a call may have under way at once.
    found
        Answer to each request; the error of a call at the first of its requests. Until
        then an error, so that no request counts as answered that lost its lane.
    waiting
        Lanes that wait for a slot; they end when no call is left.
    """

    way: Way
    requests: Sequence[ByteRequest]
    left: deque[Sequence[int]]
    n_at_once: int
    found: list[Fetched | BaseException | None]
    waiting: set[asyncio.Task[None]]

    def next_call(self) -> Sequence[int]:
        """Positions of the requests of the next call; none waits behind the last."""
        positions = self.left.popleft()
        if not self.left:
            self.end_waiting()
        return positions

    def end_waiting(self) -> None:
        """End the lanes that wait for a slot."""
        for lane in self.waiting:
            lane.cancel()

    async def call(self, positions: Sequence[int], n_at_once: int) -> None:
        """Answer some requests together; after an error no call is left."""
        some = [self.requests[i] for i in positions]
        try:
            answers = await without_exits(self.way.answer(some, n_at_once))
            for i, fetched in zip(positions, answers, strict=True):
                self.found[i] = fetched
        # A `GeneratorExit` may be of the store; if it ends the lane, nothing follows.
        except (Exception, asyncio.CancelledError, GeneratorExit) as error:  # noqa: BLE001  raised later
            self.found[positions[0]] = error
            self.left.clear()
            self.end_waiting()


class Lanes:
    """Lanes of reads, each of which has one call after the other under way.

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
        if len(requests) == 1:  # nothing to run in parallel
            return [*await way.answer(requests, 1)]
        self._begin_here()
        calls = _calls(way, requests)
        n_lanes = min(len(calls), self._n_slots)
        n_at_once = self._n_slots // max(1, n_lanes)
        lost: list[Fetched | BaseException | None] = [asyncio.CancelledError()]
        found = lost * len(requests)
        read = _Read(way, requests, deque(calls), n_at_once, found, set())
        lanes = [self._run(read, is_first=n == 0) for n in range(n_lanes)]
        # What ends a lane is among the answers, or others have cancelled it.
        await asyncio.gather(*lanes, return_exceptions=True)
        answers: list[Fetched | None] = []
        for fetched in found:
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
        """Make one call after the other until none is left."""
        while read.left:
            n_taken = 0
            try:
                if not is_first:
                    await self._wait_for_slot(read)
                    n_taken = 1
                if read.left:  # others may have taken it meanwhile
                    positions = read.next_call()
                    n_more = min(len(positions), read.n_at_once) - 1
                    # A call for many ranges takes what is free, and waits for no more.
                    while n_more and not self._slots.locked():
                        await self._slots.acquire()
                        n_taken, n_more = n_taken + 1, n_more - 1
                    await read.call(positions, n_taken + is_first)
            finally:
                for _ in range(n_taken):
                    self._slots.release()

    async def _wait_for_slot(self, read: _Read) -> None:
        """Take a slot; the lane is cancelled if no call is left for it."""
        lane: Any = asyncio.current_task()  # of a coroutine, never None
        read.waiting.add(lane)
        try:
            await self._slots.acquire()
        finally:
            read.waiting.discard(lane)


def _calls(way: Way, requests: Sequence[ByteRequest]) -> Sequence[Sequence[int]]:
    """Positions of the requests that are answered together, for each call."""
    calls: dict[str | int, list[int]] = {}
    for i, request in enumerate(requests):
        calls.setdefault(request.key if way.joins(request) else i, []).append(i)
    return list(calls.values())
