"""Memory of the emulated device, which nobody may touch outside a copy or a kernel."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray

PAGE = mmap.PAGESIZE
JUNK = 0xCB
ALIGNMENT = 256
NONE, READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Memory:
    """Pages that end at one nobody may touch; readable only while it is `open`."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        room = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        self.room_nbytes = -(-room // PAGE) * PAGE
        self._map = mmap.mmap(-1, self.room_nbytes + PAGE)
        self._view = np.frombuffer(self._map, np.uint8)
        self._base = self._view.ctypes.data
        self._view[: self.room_nbytes] = JUNK
        self.address = self._base + self.room_nbytes - room
        self.protect(NONE)
        _protect(self._base + self.room_nbytes, PAGE, NONE)

    def protect(self, access: int) -> None:
        _protect(self._base, self.room_nbytes, access)

    def vacate(self) -> None:
        """Let go of the pages, which somebody else may have now."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def __del__(self) -> None:
        _protect(self._base, self.room_nbytes + PAGE, READ_WRITE)

    def behind(self) -> NDArray[np.uint8]:
        """Bytes between the end of the allocation and the forbidden page."""
        return self._view[self.address - self._base + self.nbytes : self.room_nbytes]


def _protect(address: int, nbytes: int, access: int) -> None:
    if _libc.mprotect(address, nbytes, access):
        raise OSError(ctypes.get_errno(), "mprotect")
