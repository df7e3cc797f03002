"""What C libraries are given: addresses of memory, and contexts.

Each thread that decodes has a context of its own, which is freed when the thread ends.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from gpushard.codecs.base import HostBytes


class Context:
    """A context at `address`, which `free` gives back when this object is gone.

    `address` is 0 if there was no memory for one.
    """

    def __init__(self, address: int, free: Callable[[int], Any]) -> None:
        self.address = address
        if address:
            # The system frees what is left when the process ends.
            weakref.finalize(self, free, address).atexit = False


class ThreadContexts(threading.local):
    """The contexts of one library, of which each thread has its own.

    Parameters
    ----------
    make
        Makes a context of a library and returns its address; 0 for lack of memory.
    free
        Name of the library's function that frees a context.
    """

    def __init__(self, make: Callable[[Any], int], free: str) -> None:
        self._make = make
        self._free = free
        self._own: Context | None = None

    def own(self, lib: Any) -> Context:
        """The calling thread's context, to be held while the library uses it.

        What only the thread has goes when the interpreter ends, while a daemon thread
        still decodes.
        """
        if self._own is None:
            self._own = Context(self._make(lib), getattr(lib, self._free))
        return self._own


def address_of(memory: HostBytes) -> int:
    """Address of the first of these bytes."""
    try:  # takes a quarter of the time of NumPy's attribute
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))
    except TypeError:  # read-only
        return np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
