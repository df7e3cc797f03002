"""Memory that was freed goes back to the system, where there is little of it.

The C library of most Linux systems keeps what threads free, each thread's apart, and
what decoders work in does not fit into the gaps between what they decode to: a process
grew to four times what it held. Other libraries give large blocks back at once.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import cache


class Freed:
    """What was taken and freed since memory was last given back."""

    def __init__(self) -> None:
        self.renew()
        if hasattr(os, "register_at_fork"):  # a child has none of the threads
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        """Nothing was taken."""
        self._lock = threading.Lock()
        self._nbytes = 0

    def note(self, nbytes: int, most_nbytes: int) -> None:
        """So much is taken, and freed soon; beyond `most_nbytes` it is given back."""
        with self._lock:
            is_due = self._nbytes > most_nbytes
            self._nbytes = nbytes + (0 if is_due else self._nbytes)
        if is_due:
            give_back()


freed = Freed()


def give_back() -> None:
    """Give pages that nobody uses back to the system."""
    _trim()(0)


@cache
def _trim() -> Callable[[int], object]:
    """`malloc_trim` of glibc, for all threads at once; nothing where there is none."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return _keep


def _keep(nbytes: int) -> None:
    """Nothing, as other libraries give back by themselves; `nbytes` they may keep."""
