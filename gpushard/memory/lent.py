"""Memory of large results that is reused when nobody refers to a result any more.

The system clears each page before it hands it out, which takes as long as reading plain
elements into it. Therefore pages come back here when the last view of a result is gone.
The system is told that it may take them. Pages that it leaves are lent out again.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import methodcaller
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from gpushard.options import MIB
from gpushard.pages import HUGE_NBYTES, mapped_pages

# One to read into while the previous result is still in use, and a spare one.
_MOST_KEPT = 2
# Larger results are rarely read in a loop.
_MOST_NBYTES = 512 * MIB
# Only Linux takes pages back when it needs them, and never loses later writes to them.
_FREE: int = getattr(mmap, "MADV_FREE", 0)
_HUGE: int = getattr(mmap, "MADV_HUGEPAGE", 0)


class Lender:
    """Lends memory out, and keeps some of what comes back.

    Memory is lent again only if nothing refers to it: no result, no view of one, and
    no tensor that shares its memory. Safe for several threads.

    `loader.memory.Memory` works in the same way for the loads of a loader, which follow
    one another so fast that their pages stay. Nobody knows when the next large result
    is read, or whether one is: therefore the system may take these pages meanwhile,
    which needs mappings of whole huge pages.

    Parameters
    ----------
    most_nbytes
        Size of the largest piece that is lent.
    """

    def __init__(self, most_nbytes: int = _MOST_NBYTES) -> None:
        self._most_nbytes = most_nbytes
        self._back: deque[_Loan] = deque(maxlen=_MOST_KEPT)

    def take(self, nbytes: int) -> NDArray[np.uint8] | None:
        """Memory of any content: uint8, host, at least `nbytes`, on a cache line.

        None if `nbytes` is too large, or if the system cannot take pages back.

        Raises
        ------
        MemoryError
            The host has no more memory.
        """
        if not _FREE or not _HUGE or nbytes > self._most_nbytes:
            return None
        # The system aligns a mapping of whole huge pages to a huge page.
        length = -(-nbytes // HUGE_NBYTES) * HUGE_NBYTES
        pages = self._found(length) or _mapped(length, nbytes)
        return None if pages is None else self._lent(pages)

    def _found(self, length: int) -> mmap.mmap | None:
        """Pages that came back, between one and two times `length` bytes."""
        for _ in range(len(self._back)):
            try:
                loan = self._back.popleft()
            except IndexError:  # another thread took it
                break
            pages = loan.pages
            if pages is None:  # an interrupt kept it from getting them
                continue
            if length <= len(pages) <= 2 * length:
                return pages
            self._back.append(loan)
        return None

    def _lent(self, pages: mmap.mmap) -> NDArray[np.uint8]:
        owner = _Owner(np.frombuffer(pages, np.uint8))
        free = partial(pages.madvise, _FREE)
        # Neither callback runs Python code, in which an interrupt would be lost. The
        # callback that is registered last runs first, so that pages are marked as free
        # before anybody else can get them.
        owner.back = _Loan(owner, self._back.append)
        owner.back.pages = pages
        owner.freed = _Freed(owner, methodcaller("free"))
        owner.freed.free = free
        return np.asarray(owner)


class _Owner:
    """Owner of a result's memory, which lives as long as the last view of it."""

    __slots__ = ("__array_interface__", "__weakref__", "back", "freed")

    back: _Loan
    freed: _Freed

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self.__array_interface__ = memory.__array_interface__


class _Loan(ref[_Owner]):
    """A weak reference to the owner of some pages, which keeps the pages for reuse."""

    pages: mmap.mmap | None = None


class _Freed(ref[_Owner]):
    """A weak reference that tells the system that pages are free, after the owner."""

    free: Callable[[], Any] = int  # does nothing, until it is set


def _mapped(length: int, nbytes: int) -> mmap.mmap | None:
    """New pages, of which `nbytes` will be filled; None if none can be taken back."""
    pages = mapped_pages(length)
    try:
        pages.madvise(_FREE)
    except OSError:  # an old kernel, or a process whose pages are all locked
        return None
    with suppress(OSError):  # the kernel may have no huge pages
        # All of a huge page counts, even if only a part of it is used.
        pages.madvise(_HUGE, 0, nbytes // HUGE_NBYTES * HUGE_NBYTES)
    return pages


lender = Lender()
