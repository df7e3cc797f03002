"""Bytes in pages of their own, which go back to the system as soon as nobody has them.

What a C library gives it keeps when it is freed, and what is small and stays is laid in
between. NumPy asks for huge pages besides, of which a part counts whole.
"""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

from gpushard.options import KIB

# Smaller ones are sooner had from the C library, which fills its gaps with them.
_LEAST_NBYTES = 256 * KIB
_PRIVATE = {}
if hasattr(mmap, "MAP_PRIVATE"):  # not on Windows, where memory is private anyway
    _PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}


def in_pages(nbytes: int) -> NDArray[np.uint8]:
    """Room for `nbytes`: uint8, host, of any content.

    Raises
    ------
    MemoryError
        The host has no more memory.
    """
    if nbytes < _LEAST_NBYTES:
        return np.empty(nbytes, np.uint8)
    try:
        return np.frombuffer(mmap.mmap(-1, nbytes, **_PRIVATE), np.uint8)
    except OSError as error:
        raise MemoryError(f"no room for {nbytes} bytes") from error
