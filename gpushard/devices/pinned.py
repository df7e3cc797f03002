"""Pinned memory: pieces that nobody has any more are handed out again.

CuPy's pool would do that, too. But it rounds up to powers of two, and whoever has it
ask the driver holds its lock. While work goes on that never ends, the driver does not
answer (docs/damaged.md).
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.endless import Endless
from gpushard.errors import DeviceMemoryError

_PAGE_NBYTES = 4096
# A piece is handed out for half of its size and more.
_MOST_TIMES = 2


class PinnedPieces:
    """Pinned memory of a device, which keeps what arrays over it let go of.

    Parameters
    ----------
    pin
        Number of bytes -> memory, which is given back to the driver when it is dropped.
        Raises `DeviceMemoryError` if there is none.
    endless
        Keeps memory for good once work never ends.
    """

    def __init__(self, pin: Callable[[int], Any], endless: Endless) -> None:
        self._pin = pin
        self._endless = endless
        self._unused: dict[int, deque[Any]] = {}

    def take(self, nbytes: int) -> NDArray[np.uint8] | None:
        """Array over the smallest unused piece that fits; None if there is none."""
        most_nbytes = _MOST_TIMES * _whole_pages(nbytes)
        for size in sorted(self._unused):
            if nbytes <= size <= most_nbytes:
                with suppress(IndexError):
                    memory = self._unused[size].pop()
                    return self._array_over(memory, nbytes, size)
        return None

    def make(self, nbytes: int) -> NDArray[np.uint8]:
        """Array over memory that is pinned for it: uint8, (nbytes,).

        Unused pieces in whose place this one can be handed out are given back first:
        requests that grow would leave a piece each. If no more can be pinned, all that
        is unused is given back. Raises `DeviceMemoryError` if that does not help.
        """
        size = _whole_pages(nbytes)
        self._drop_unused(-(-size // _MOST_TIMES), size)
        try:
            memory = self._pin(size)
        except DeviceMemoryError:
            if not self._drop_unused():
                raise
            memory = self._pin(size)
        return self._array_over(memory, nbytes, size)

    def _array_over(self, memory: Any, nbytes: int, size: int) -> NDArray[np.uint8]:
        array = np.frombuffer(memory, np.uint8, nbytes)
        weakref.finalize(array, self._let_go, memory, size).atexit = False
        return array

    def _let_go(self, memory: Any, size: int) -> None:
        if self._endless.is_under_way:
            self._endless.keep(memory)
        else:
            self._unused.setdefault(size, deque()).append(memory)

    def _drop_unused(self, least: int = 0, end: int = sys.maxsize) -> bool:
        """Give back unused pieces of such sizes in bytes; whether there was any."""
        n_dropped = 0
        # Of the sizes only: in Python 3.11, making pairs may begin a collection, which
        # may let go of a piece of another size.
        for size in list(self._unused):
            if least <= size < end:
                with suppress(IndexError):
                    while True:
                        self._unused[size].pop()
                        n_dropped += 1
        return n_dropped > 0


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE_NBYTES) * _PAGE_NBYTES
