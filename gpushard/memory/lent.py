"""Memory of large results, written again once nobody has what was read into it.

A page that the system gives was cleared first, which takes as long as reading plain
elements into it. So pages come back here when the last view of a result is gone, and
the system is told that it may take them: what it leaves is lent out again as it is.
"""

from __future__ import annotations

import mmap
from collections import deque
from contextlib import suppress
from functools import partial
from operator import methodcaller
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from gpushard.options import KIB, MIB

# One to read into while the result before is still there, and one to spare.
_MOST_KEPT = 2
# Larger results are sooner read once than in a loop.
_MOST_NBYTES = 512 * MIB
# Huge pages where they are usual; what of them is not filled would count whole.
_HUGE_NBYTES = 2048 * KIB
# Linux alone takes pages back at its leisure and loses nothing written after that.
_FREE: int = getattr(mmap, "MADV_FREE", 0)
_HUGE: int = getattr(mmap, "MADV_HUGEPAGE", 0)


class Lender:
    """Lends memory out, and keeps some of what comes back.

    Nothing is lent again that anything still refers to: not a result, not a view of
    one, not a tensor that shares its memory. Safe for several threads.

    Parameters
    ----------
    n_kept
        Pieces of memory kept at the most; those that came back first go.
    most_nbytes
        Size of the largest that is lent.
    """

    def __init__(
        self, n_kept: int = _MOST_KEPT, most_nbytes: int = _MOST_NBYTES
    ) -> None:
        self._most_nbytes = most_nbytes
        self._back: deque[_Loan] = deque(maxlen=n_kept)

    def take(self, nbytes: int) -> NDArray[np.uint8] | None:
        """Memory of any content: uint8, host, at least `nbytes`, on a cache line.

        None where the system has no pages that it could take back, or they are many.

        Raises
        ------
        MemoryError
            The host has no more memory.
        """
        if not _FREE or not _HUGE or nbytes > self._most_nbytes:
            return None
        # Whole huge pages: then the system lets them begin where one begins.
        length = -(-nbytes // _HUGE_NBYTES) * _HUGE_NBYTES
        pages = self._found(length) or _mapped(length, nbytes)
        return None if pages is None else self._lent(pages)

    def _found(self, length: int) -> mmap.mmap | None:
        """Pages that came back, so many bytes and not many more."""
        for _ in range(len(self._back)):
            try:
                loan = self._back.popleft()
            except IndexError:  # another thread took it
                break
            if length <= len(loan.pages) <= 2 * length:
                return loan.pages
            self._back.append(loan)
        return None

    def _lent(self, pages: mmap.mmap) -> NDArray[np.uint8]:
        owner = _Owner(np.frombuffer(pages, np.uint8))
        # What is called when the owner is gone runs no line of Python: an interrupt
        # that came there would be lost. What was registered last is called first: the
        # pages are the system's before anybody can be lent them.
        owner.back = _Loan(owner, self._back.append)
        owner.back.pages = pages
        owner.freed = _Freed(owner, methodcaller("free"))
        owner.freed.free = partial(pages.madvise, _FREE)
        return np.asarray(owner)


class _Owner:
    """Owner of a result's memory: gone when the last view of it is."""

    __slots__ = ("__array_interface__", "__weakref__", "back", "freed")

    back: _Loan
    freed: _Freed

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self.__array_interface__ = memory.__array_interface__


class _Loan(ref[_Owner]):
    """Pages while they have an owner, and then until they have the next one."""

    __slots__ = ("pages",)

    pages: mmap.mmap


class _Freed(ref[_Owner]):
    """Tells the system, once the owner is gone, that its pages are free."""

    __slots__ = ("free",)

    free: partial[Any]


def _mapped(length: int, nbytes: int) -> mmap.mmap | None:
    """New pages, of which `nbytes` are filled; None where none can be taken back."""
    try:
        pages = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no room for {length} bytes") from error
    try:
        pages.madvise(_FREE)
    except OSError:  # an old one, or a process that has all its pages locked
        return None
    with suppress(OSError):  # it has none
        pages.madvise(_HUGE, 0, nbytes // _HUGE_NBYTES * _HUGE_NBYTES)
    return pages


lender = Lender()
