"""Coroutine of a zarr store -> its result, from outside of zarr's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent import futures
from typing import Any, TypeVar

from gpushard.errors import StoreError

Result = TypeVar("Result")


def run(
    coroutine: Coroutine[Any, Any, Result],
    loop: asyncio.AbstractEventLoop | None = None,
) -> Result:
    """Result of a coroutine that runs in `loop`, or else in zarr's own event loop.

    Network sessions of a zarr store belong to that loop and work in no other. zarr has
    no public name for its loop. On return or error, the coroutine has ended.

    Raises
    ------
    StoreError
        The caller runs inside of that loop, or the coroutine was cancelled.
    """
    from zarr.core.sync import _get_loop, sync

    its_loop = loop or _get_loop()
    try:
        is_inside = asyncio.get_running_loop() is its_loop
    except RuntimeError:
        is_inside = False
    if is_inside:
        coroutine.close()
        raise StoreError(
            "a read cannot wait for zarr's event loop from inside of it",
            hint="call it from another thread, with asyncio.to_thread",
        )
    tasks: list[asyncio.Task[Any]] = []
    tracked = _tracked(coroutine, tasks)
    try:
        if loop is None:
            return sync(tracked)
        return asyncio.run_coroutine_threadsafe(tracked, loop).result()
    except (asyncio.CancelledError, futures.CancelledError) as error:
        # Cancelled by others: this wait cancels only below, after an interrupt.
        raise StoreError(
            "a request to the zarr store was cancelled",
            hint="read again; see whether the store, or who runs zarr's loop, gives up",
        ) from error
    except BaseException:
        if not (tasks and tasks[0].done()):  # the wait was interrupted, not the work
            asyncio.run_coroutine_threadsafe(_ended(tasks), its_loop).result()
        raise


async def _tracked(
    coroutine: Coroutine[Any, Any, Result], tasks: list[asyncio.Task[Any]]
) -> Result:
    """Result of a coroutine; its task is added to `tasks` when it begins."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in one
    tasks.append(task)
    return await contained(coroutine)


async def contained(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Result of a coroutine that is a task of its own.

    An exit exception in a task would end the loop, and its caller would wait forever.

    Raises
    ------
    StoreError
        The zarr store raised a `KeyboardInterrupt` or a `SystemExit`.
    """
    try:
        return await coroutine
    except (KeyboardInterrupt, SystemExit) as error:
        raise StoreError(
            f"the zarr store gave up: {type(error).__name__}: {error}",
            hint="see what the store calls; it must not exit from where it is called",
        ) from error


async def _ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks that have begun, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    if tasks:  # none, if the wait was interrupted before it began
        await asyncio.wait(tasks)
