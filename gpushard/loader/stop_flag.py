"""A flag that one thread sets to end others; no interrupt leaves its lock taken.

The lock of a `threading.Event` is taken in lines of Python. An interrupt of `set` may
leave it taken, and then the next call, of the same thread, never returns.
"""

from __future__ import annotations

from _thread import allocate_lock
from contextlib import suppress


class StopFlag:
    """Set once, and from then on; any thread may ask for it or wait for it."""

    __slots__ = ("_is_set", "_until_set")

    def __init__(self) -> None:
        self._is_set = False
        self._until_set = allocate_lock()  # taken until it is set
        self._until_set.acquire()

    def set(self) -> None:
        """Set it; to do so again changes nothing."""
        self._is_set = True
        self._pass_on()

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Wait until it is set, at most so long; returns whether it is."""
        if self._until_set.acquire(timeout=seconds):
            self._pass_on()
        return self._is_set

    def _pass_on(self) -> None:
        """Let the next one through who waits."""
        with suppress(RuntimeError):  # nobody has it: set before, or passed on
            self._until_set.release()
