"""Bytes right before or behind memory that must not be touched."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray

_PAGE = mmap.PAGESIZE


class GuardedRoom:
    """Memory between two pages on which any access ends the process.

    A library that reads past its input, in C or in compiled loops, is caught here
    although it was not built for it.

    Parameters
    ----------
    nbytes
        Most bytes that are put in.
    """

    def __init__(self, nbytes: int) -> None:
        n_pages = -(-nbytes // _PAGE)
        self.nbytes = n_pages * _PAGE
        self._map = mmap.mmap(-1, (n_pages + 2) * _PAGE)
        whole = np.frombuffer(self._map, np.uint8)
        address = whole.ctypes.data
        for guard in (address, address + _PAGE + self.nbytes):
            protect(guard, _PAGE)
        self._room = whole[_PAGE : _PAGE + self.nbytes]

    def hold(self, data: bytes, *, at_end: bool = True) -> NDArray[np.uint8]:
        """Copy of `data` against one of the two pages, until the next is held."""
        if len(data) > self.nbytes:
            return np.frombuffer(data, np.uint8)
        start = self.nbytes - len(data) if at_end else 0
        held = self._room[start : start + len(data)]
        held[:] = np.frombuffer(data, np.uint8)
        view = held.view()
        view.flags.writeable = False
        return view


def protect(address: int, nbytes: int) -> None:
    """Forbid any access to whole pages."""
    library = ctypes.CDLL(None, use_errno=True)
    failed = library.mprotect(
        ctypes.c_void_p(address), ctypes.c_size_t(nbytes), ctypes.c_int(0)
    )
    if failed:
        raise OSError(ctypes.get_errno(), "mprotect")
