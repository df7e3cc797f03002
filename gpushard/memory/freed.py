"""Returns freed memory to the system, in reads with little memory.

The C library of most Linux systems keeps memory that threads free, for each thread
apart. Gaps between decoded inner chunks are too small for what decoders work in, so a
process grew to four times what it held. Other libraries return large blocks at once.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.threads.forks import after_fork
from gpushard.threads.pools import run_in_turn


class Freed:
    """Counts memory that was taken and freed since memory was last returned."""

    def __init__(self) -> None:
        self.renew()
        after_fork(self.renew)

    def renew(self) -> None:
        """Start counting at zero, with a new lock."""
        self._lock = threading.Lock()
        self._nbytes = 0

    def note(self, nbytes: int, most_nbytes: int) -> None:
        """Count `nbytes` soon to be freed; above `most_nbytes`, return memory first."""
        with self._lock:
            is_due = self._nbytes > most_nbytes
            self._nbytes = nbytes + (0 if is_due else self._nbytes)
        if is_due:
            give_back()


freed = Freed()


def decode_in_turn(decode: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """Result of `decode`, run while nothing else runs that takes as much memory."""
    heeded: Any = np.geterr()  # each thread has its own settings

    def work() -> NDArray[Any]:
        try:
            with np.errstate(**heeded):
                return decode()
        finally:
            give_back()

    return run_in_turn(work)


def give_back() -> None:
    """Return unused pages to the system."""
    _trim()(0)


@cache
def _trim() -> Callable[[int], object]:
    """Function `malloc_trim` of glibc, for all threads; elsewhere a no-op."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return _keep


def _keep(nbytes: int) -> None:
    """Do nothing: other libraries return memory by themselves."""
