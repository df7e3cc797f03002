"""The thread in which zarr runs its event loop."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from gpushard.errors import StoreError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


def running_loop() -> AbstractEventLoop:
    """The event loop of zarr, which runs. zarr has no public name for it.

    If the system gives no thread for it, zarr keeps the loop all the same, and whoever
    calls zarr from then on waits for ever. Such a loop is dropped here.

    Raises
    ------
    StoreError
        The system gives no thread, or no file descriptors.
    """
    from zarr.core import sync

    thread = sync.iothread[0]
    if thread is not None and not thread.is_alive():
        _drop_loop()
    try:
        return sync._get_loop()  # noqa: SLF001
    except RuntimeError as error:
        _drop_loop()
        raise StoreError(
            f"zarr's event loop cannot run: {error}",
            hint="raise the limit of threads (ulimit -u)",
        ) from error
    except OSError as error:
        if error.errno is None:  # a handler of a signal raised it, not the system
            raise
        why = error.strerror
        if error.errno == errno.EMFILE:
            why = "this process has no free file descriptors"
        raise StoreError(
            f"zarr's event loop cannot run: {why}",
            hint="close files, or raise the limit of open files (ulimit -n)",
        ) from error


def _drop_loop() -> None:
    """Have zarr make another loop, unless somebody is just starting a thread for it."""
    from zarr.core import sync

    with sync._get_lock():  # noqa: SLF001
        thread = sync.iothread[0]
        if thread is not None and not thread.is_alive():
            loop, sync.loop[0], sync.iothread[0] = sync.loop[0], None, None
            if loop is not None:
                loop.close()
