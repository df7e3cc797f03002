"""One thread at a time, and none in the middle of what it does there itself.

Python runs the handler of a signal between any two steps of the main thread. If the
handler reads, it must not wait for a lock that its own thread has, nor for others that
wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock, get_ident
from typing import Any, TypeVar

_T = TypeVar("_T")


# Each thread that is in a call of `Alone`, once for each.
_inside: list[int] = []


def is_inside() -> bool:
    """Whether this thread has stopped in the middle of what it does alone.

    Only the handler of a signal learns that it is. Other threads may wait for it.
    """
    return get_ident() in _inside


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
        self._lock = RLock()
        self.is_entered = False

    def call(self, do: Callable[..., _T], *arguments: Any) -> _T | None:
        """Result of ``do(*arguments)``; None if this thread is in here already."""
        with self._lock:
            if self.is_entered:
                return None
            thread = get_ident()
            # An interrupt comes after a call, not before it: both are done, or neither.
            try:
                _inside.append(thread)
                self.is_entered = True
                return do(*arguments)
            finally:
                self.is_entered = False
                try:  # noqa: SIM105 - an interrupt could come as `suppress` begins
                    _inside.remove(thread)
                except ValueError:  # there was no memory to note it in
                    pass
