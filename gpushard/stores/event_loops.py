"""Coroutine -> its result, from outside of the event loop that it runs in.

A `concurrent.futures.Future` would do, but for the handlers of signals. Python runs one
between any two steps of the main thread, also while that thread has the lock of its
future. If the handler waits for the same loop then, the loop waits for the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from gpushard.threads.stop_flag import StopFlag

if TYPE_CHECKING:
    import asyncio

Result = TypeVar("Result")
Work = Callable[[], Coroutine[Any, Any, Result]]
"""Makes a coroutine, in the loop: an interrupt leaves none that was never awaited."""


class _Wait:
    """What `StopFlag` breaks off: it has `end` called in a loop."""

    __slots__ = ("_end", "_loop")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, end: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._end = end

    def break_off(self) -> None:
        """Have the coroutine cancelled."""
        with suppress(RuntimeError):  # the loop is closed, and has cancelled it
            self._loop.call_soon_threadsafe(self._end)


def result_in(
    loop: asyncio.AbstractEventLoop, work: Work[Result], stop: StopFlag | None = None
) -> Result:
    """Result of a coroutine that runs in `loop`, which another thread runs.

    On return or error the coroutine has ended. An interrupt cancels it, and so does
    `stop` once it is set.

    Raises
    ------
    Exception
        What the coroutine raised.
    asyncio.CancelledError
        Others have cancelled the coroutine, or set `stop`.
    """
    tasks: list[asyncio.Task[Result]] = []
    ended: SimpleQueue[None] = SimpleQueue()

    def note_end(task: asyncio.Task[Result]) -> None:
        if not task.cancelled():
            task.exception()  # asyncio logs errors that nobody has seen
        ended.put(None)

    async def awaited() -> Result:
        return await work()

    def begin() -> None:
        tasks.append(loop.create_task(awaited()))
        tasks[0].add_done_callback(note_end)

    def end() -> None:
        under_way = [*tasks]  # the other thread may just take it
        for task in under_way:
            task.cancel()
            # Again: the interrupted thread may have taken what the first one told.
            task.add_done_callback(note_end)
        if not under_way:
            ended.put(None)

    flag, wait = stop or StopFlag(), _Wait(loop, end)
    try:
        loop.call_soon_threadsafe(begin)
        if not flag.begin(wait):
            wait.break_off()
        ended.get()
    except BaseException:
        loop.call_soon_threadsafe(end)
        ended.get()
        raise
    finally:
        flag.end(wait)
    return tasks.pop().result()  # kept by nobody: an error's frames hold `tasks`
