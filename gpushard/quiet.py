"""Calls of libraries that warn of what a caller can do nothing about."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from threading import RLock

from gpushard.threads.forks import after_fork

# A turn takes milliseconds. The handler of a signal may wait for threads that wait for
# the turn of its own thread, in vain: they go on, and warn.
_PATIENCE_S = 1.0


class _Turn:
    """The lock of the thread whose warnings are left out."""

    def __init__(self) -> None:
        self.renew()
        after_fork(self.renew)

    def renew(self) -> None:
        """Make a new lock, which nobody holds."""
        self.lock = RLock()


_turn = _Turn()


@contextmanager
def without_warnings() -> Generator[None]:
    """Leave out all warnings of the block, one thread at a time.

    Python has one list of filters for all threads. Each of two that change it at once
    would take that of the other for the one to put back, and leave all warnings of the
    process out for good.
    """
    lock = _turn.lock
    if not lock.acquire(timeout=_PATIENCE_S):
        yield
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        lock.release()
