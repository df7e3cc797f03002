"""Bodies of answers, each received within a time that grows with its size.

obstore limits the wait for an answer, and the pause between two pieces of its body. A
server that sends a byte now and then stays within both limits. Only an asynchronous
call of obstore can be abandoned halfway, so bodies are awaited in an event loop of
their own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpushard.memory.pages import in_pages
from gpushard.options import KIB, MIB

if TYPE_CHECKING:
    from obstore import GetResult

# Larger bodies come in pieces. obstore joins the pieces that it returns and so holds
# their bytes twice, for each request in flight.
_PIECE_NBYTES, _LEAST_PIECE_NBYTES = 2 * MIB, 64 * KIB
_PIECES = 256

_lock = threading.Lock()
# Process -> its loop; one for each process, as a fork has no threads of its parent.
_loops: dict[int, asyncio.AbstractEventLoop] = {}


def piece_nbytes(memory_limit: int | None) -> int:
    """Size of the pieces of a body under `memory_limit`, or without a limit (None)."""
    if memory_limit is None:
        return _PIECE_NBYTES
    return min(max(memory_limit // _PIECES, _LEAST_PIECE_NBYTES), _PIECE_NBYTES)


def body_of(
    result: GetResult, nbytes: int, limit_s: float, most: int | None = None
) -> NDArray[np.uint8]:
    """Body of an answer, uint8, on the host.

    Parameters
    ----------
    nbytes
        Size that the answer's head states. Of a longer body only a few bytes more are
        read, because a server may send without end.
    limit_s
        Seconds for the whole body.
    most
        Size of its pieces if the body is larger; None: as without a memory limit.

    Raises
    ------
    TimeoutError
        The body was not complete after `limit_s`. Nothing waits for it any longer.
    """
    body = _collect(result, nbytes, limit_s, most or _PIECE_NBYTES)
    waiting = asyncio.run_coroutine_threadsafe(body, _loop())
    try:
        return waiting.result()
    finally:
        waiting.cancel()  # needed if this wait was interrupted


async def _collect(
    result: GetResult, nbytes: int, limit_s: float, most: int
) -> NDArray[np.uint8]:
    async with asyncio.timeout(limit_s):
        if nbytes > most:
            return await _put_together(result, nbytes + 1, most)
        # Every piece except the last has the requested size. This one is the last.
        async for piece in result.stream(min_chunk_size=nbytes + 1):
            return np.frombuffer(piece, np.uint8)
        return np.empty(0, np.uint8)


async def _put_together(
    result: GetResult, most_nbytes: int, piece_nbytes: int
) -> NDArray[np.uint8]:
    """A body of up to `most_nbytes`; obstore holds only one piece of it twice."""
    body, end = in_pages(most_nbytes), 0
    async for piece in result.stream(min_chunk_size=piece_nbytes):
        part = np.frombuffer(piece, np.uint8)[: most_nbytes - end]
        body[end : end + len(part)] = part
        end += len(part)
        if end == most_nbytes:
            break
    return body[:end]


def _loop() -> asyncio.AbstractEventLoop:
    """Event loop of this process, which runs as long as the process."""
    pid = os.getpid()
    loop = _loops.get(pid)
    if loop is not None:
        return loop
    with _lock:
        if pid not in _loops:
            loop = asyncio.new_event_loop()
            name = "gpushard-bodies"
            threading.Thread(target=loop.run_forever, name=name, daemon=True).start()
            _loops[pid] = loop
        return _loops[pid]
