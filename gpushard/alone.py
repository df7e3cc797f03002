"""One thread at a time, and none in the middle of what it does there itself.

Python runs the handler of a signal between any two steps of the main thread. If the
handler reads, it must not wait for a lock that its own thread has, nor for others that
wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Here(threading.local):
    """How many calls of `Alone` this thread is in."""

    n_calls = 0


_here = _Here()


def is_inside() -> bool:
    """Whether this thread has stopped in the middle of what it does alone.

    Only the handler of a signal learns that it is. Other threads may wait for it.
    """
    return _here.n_calls > 0


class Alone:
    """Calls functions, one at a time; they wait for nobody who comes here.

    Attributes
    ----------
    is_entered
        Whether one is being called.
    """

    __slots__ = ("_lock", "is_entered")

    def __init__(self) -> None:
        # Unlike other locks, this one lets in a thread that has it. If the function has
        # begun, the thread finds `is_entered`.
        self._lock = threading.RLock()
        self.is_entered = False

    def __call__(self, do: Callable[..., _T], *arguments: Any) -> _T | None:
        """Result of ``do(*arguments)``; None if this thread is in here already."""
        with self._lock:
            if self.is_entered:
                return None
            n_before = _here.n_calls
            try:
                _here.n_calls, self.is_entered = n_before + 1, True
                return do(*arguments)
            finally:
                _here.n_calls, self.is_entered = n_before, False
