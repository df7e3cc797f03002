"""Locks of files, which the kernel holds for an open file (`flock`).

A forked process has the open files of its parent, and so its locks. It closes these
files at once, or a lock would outlive a parent that is killed.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from threading import get_ident

from gpushard.errors import StoreError
from gpushard.forks import after_fork


class FileLocks:
    """The lock files that this process has open, and the thread that holds each."""

    def __init__(self) -> None:
        self._holder_by_fd: dict[int, int | None] = {}
        after_fork(self._close_all)

    def has(self, fd: int) -> bool:
        """Whether the file was opened by this process, and not by its parent."""
        return fd in self._holder_by_fd

    def take(self, fd: int) -> None:
        """Lock an open file, as soon as no other thread or process has the lock.

        Raises
        ------
        StoreError
            This thread has it: it is in the handler of a signal, and would wait for
            itself.
        """
        # The handler of a signal may come right after the lock was taken.
        self._holder_by_fd[fd] = get_ident()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._holder_by_fd[fd] = None
            self._refuse_own(fd)
            fcntl.flock(fd, fcntl.LOCK_EX)
            self._holder_by_fd[fd] = get_ident()

    def release(self, fd: int) -> None:
        """Release a lock, and close its file."""
        self._holder_by_fd.pop(fd, None)  # an interrupt may come before it is there
        # A process that is being forked has the file open too, until it closes it.
        try:
            fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            os.close(fd)

    def _refuse_own(self, fd: int) -> None:
        wanted, me = os.fstat(fd), get_ident()
        own = [one for one, holder in [*self._holder_by_fd.items()] if holder == me]
        if any(os.path.samestat(os.fstat(one), wanted) for one in own):
            raise StoreError(
                "the handler of a signal writes to what its thread is writing to",
                hint="set a flag in the handler, and write when the thread is done",
            )

    def _close_all(self) -> None:
        for fd in self._holder_by_fd:
            with suppress(OSError):
                os.close(fd)
        self._holder_by_fd.clear()


file_locks = FileLocks()
