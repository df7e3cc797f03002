"""Coroutine -> its result, from outside of the event loop that it runs in.

A `concurrent.futures.Future` would do, but for the handlers of signals. Python runs one
between any two steps of the main thread, also while that thread has the lock of its
future. If the handler waits for the same loop then, the loop waits for the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

Result = TypeVar("Result")
Work = Callable[[], Coroutine[Any, Any, Result]]
"""Makes a coroutine, in the loop: an interrupt leaves none that was never awaited."""


def result_in(loop: asyncio.AbstractEventLoop, work: Work[Result]) -> Result:
    """Result of a coroutine that runs in `loop`, which another thread runs.

    On return or error the coroutine has ended. An interrupt cancels it.

    Raises
    ------
    Exception
        What the coroutine raised.
    asyncio.CancelledError
        Others have cancelled the coroutine.
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
        if not tasks:
            ended.put(None)
            return
        tasks[0].cancel()
        # Again: the interrupted thread may have taken what the first one told.
        tasks[0].add_done_callback(note_end)

    try:
        loop.call_soon_threadsafe(begin)
        ended.get()
    except BaseException:
        loop.call_soon_threadsafe(end)
        ended.get()
        raise
    return tasks.pop().result()  # kept by nobody: an error's frames hold `tasks`
