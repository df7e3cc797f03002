"""Coroutine of a zarr store -> its result, from outside of zarr's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from gpushard.errors import StoreError
from gpushard.stores.event_loops import Result, Work, result_in
from gpushard.stores.failures import told
from gpushard.threads.stop_flag import flag_here
from gpushard.zarr_thread import running_loop


def run_in_loop(
    work: Work[Result], loop: asyncio.AbstractEventLoop | None = None
) -> Result:
    """Result of a coroutine that runs in `loop`, or else in zarr's own event loop.

    Network sessions of a zarr store belong to that loop and work in no other. On return
    or error, the coroutine has ended.

    Raises
    ------
    StoreError
        The caller runs inside of that loop, the system gives no thread for the loop, or
        the coroutine was cancelled: by others, or because nobody waits for the calling
        thread any more.
    """
    its_loop = loop or _zarrs_loop()
    try:
        is_inside = asyncio.get_running_loop() is its_loop
    except RuntimeError:
        is_inside = False
    if is_inside:
        raise StoreError(
            "a read cannot wait for zarr's event loop from inside of it",
            hint="call it from another thread, with asyncio.to_thread",
        )
    try:
        return result_in(its_loop, lambda: without_exits(work()), flag_here())
    except asyncio.CancelledError as error:  # not by an interrupt
        raise StoreError(
            "a request to the zarr store was cancelled",
            hint="read again; see whether the store, or who runs zarr's loop, gives up",
        ) from error


def _zarrs_loop() -> asyncio.AbstractEventLoop:
    from zarr import config
    from zarr.core.sync import _get_executor

    loop = running_loop()
    if config.get("threading.max_workers", None) is not None:
        _get_executor()  # bounds the threads that stores call from that loop
    return loop


async def without_exits(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Result of a coroutine that is a task of its own.

    An exit exception in a task would end the loop, and its caller would wait forever.
    Others that are no `Exception` either, such as panics of Rust, no caller expects.

    Raises
    ------
    StoreError
        The zarr store raised a `KeyboardInterrupt`, a `SystemExit` or the like.
    """
    try:
        return await coroutine
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise  # the two last ones end coroutines, here and in the loop
    except BaseException as error:
        raise StoreError(
            f"the zarr store gave up: {told(error)}",
            hint="see what the store calls; it must not exit from where it is called",
        ) from error


def run_without_loop(work: Work[Result]) -> Result | None:
    """Result of a coroutine, without an event loop; None if it waits for anything."""
    coroutine = work()
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    finally:
        coroutine.close()
    return None
