"""Locks of files, which the kernel holds for an open file (`flock`).

A forked process has the open files of its parent, and so its locks. It closes these
files at once, or a lock would outlive a parent that is killed.

An interrupt may come between any two calls, and before the first line of a function.
So a lock file is an object that closes itself at most once: whoever was interrupted
releases it again, whatever was done of that before.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from threading import Timer, get_ident
from typing import TYPE_CHECKING

from gpushard.errors import StoreError
from gpushard.threads.forks import after_fork

if TYPE_CHECKING:
    from io import FileIO

_log = logging.getLogger("gpushard.stores")
# Writers hold a lock for as long as one shard takes; most for milliseconds.
LONG_WAIT_S = 10.0


class FileLocks:
    """The lock files that this process has open, and the thread that holds each."""

    def __init__(self) -> None:
        self._holder_by_file: dict[FileIO, int | None] = {}
        after_fork(self._close_all)

    def has(self, file: FileIO) -> bool:
        """Whether the file was opened by this process, and not by its parent."""
        return file in self._holder_by_file

    def take(self, file: FileIO, place: str) -> None:
        """Lock an open file, as soon as no other thread or process has the lock.

        The wait has no end: a holder that is stopped may go on, and then wrote what it
        read before. A long one is logged, with the `place` of the file.

        Raises
        ------
        StoreError
            This thread has it: it is in the handler of a signal, and would wait for
            itself.
        """
        # The handler of a signal may come right after the lock was taken.
        self._holder_by_file[file] = get_ident()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._holder_by_file[file] = None
            self._refuse_own(file)
            with _telling(place):
                fcntl.flock(file, fcntl.LOCK_EX)
            self._holder_by_file[file] = get_ident()

    def release(self, file: FileIO) -> None:
        """Release a lock, and close its file; do nothing if that is done."""
        try:
            self._holder_by_file.pop(file, None)
        finally:
            if not file.closed:
                # A process that is being forked has the file open too, until it closes
                # it.
                try:
                    fcntl.flock(file, fcntl.LOCK_UN)
                finally:
                    file.close()

    def _refuse_own(self, file: FileIO) -> None:
        wanted, me = os.fstat(file.fileno()), get_ident()
        own = [one for one, holder in [*self._holder_by_file.items()] if holder == me]
        if any(os.path.samestat(os.fstat(one.fileno()), wanted) for one in own):
            raise StoreError(
                "the handler of a signal writes to what its thread is writing to",
                hint="set a flag in the handler, and write when the thread is done",
            )

    def _close_all(self) -> None:
        for file in self._holder_by_file:
            with suppress(OSError):
                file.close()
        self._holder_by_file.clear()


@contextmanager
def _telling(place: str) -> Generator[None]:
    """Log that the block waits for a lock, if it does for long."""
    text = "waiting since %g s for whoever holds the lock of %s"
    timer = Timer(LONG_WAIT_S, _log.warning, (text, LONG_WAIT_S, place))
    timer.daemon = True
    try:
        with suppress(RuntimeError):  # no thread begins while the interpreter ends
            timer.start()
        yield
    finally:
        timer.cancel()


file_locks = FileLocks()
