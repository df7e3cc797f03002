"""Memory that the caches of all arrays have together, where nobody has set it."""

from __future__ import annotations

import threading
from operator import attrgetter
from typing import Protocol
from weakref import WeakSet

from gpushard.memory.chunk_slots import Slots
from gpushard.options import MIB
from gpushard.threads.forks import after_fork

# All arrays that a process reads with the default options.
_LIMIT_NBYTES = 64 * MIB


class Sharer(Protocol):
    """A cache whose memory counts."""

    @property
    def held_nbytes(self) -> int:
        """Memory that it could give up."""
        ...

    def give_up_half(self) -> None:
        """Drop half of what it has, if that is possible without waiting."""
        ...


class ChunkShare:
    """A bound on the memory of several caches.

    Whoever comes first has it first. Once it is used up, a cache that would still have
    at most half of what the largest has takes half of that, so that an array that is
    read later has its part; others make do with what they have.

    Parameters
    ----------
    limit_nbytes
        The bound.
    """

    def __init__(self, limit_nbytes: int) -> None:
        self._limit_nbytes = limit_nbytes
        # Memory is summed when a cache grows, which is rare. A running count would have
        # to be corrected after interrupts, and where readers still hold what a cache
        # gave up.
        self._all_slots: WeakSet[Slots] = WeakSet()
        self._sharers: WeakSet[Sharer] = WeakSet()
        self.renew_lock()
        after_fork(self.renew_lock)

    @property
    def held_nbytes(self) -> int:
        """Memory of all caches."""
        return sum(slots.nbytes for slots in self._all_slots)

    def grow(self, sharer: Sharer, slots: Slots, n_most: int) -> bool:
        """Let the memory of a cache grow; False if it cannot, or cannot now.

        Raises
        ------
        MemoryError
            The host has no more memory.
        """
        # A taken lock is not waited for: the handler of a signal may read while its own
        # thread is here. Nor does a holder of this lock ever wait for that of a cache,
        # or the other way round, so that there is no deadlock.
        if self._lock.locked():
            return False
        with self._lock:
            nbytes = slots.next_nbytes(n_most)
            if not (self._fits(nbytes) or self._takes(sharer, nbytes)):
                return False
            self._all_slots.add(slots)
            self._sharers.add(sharer)
            return slots.grow(n_most)

    def renew_lock(self) -> None:
        """Make a new lock, which nobody holds."""
        self._lock = threading.Lock()

    def _fits(self, nbytes: int) -> bool:
        return self.held_nbytes + nbytes <= self._limit_nbytes

    def _takes(self, sharer: Sharer, nbytes: int) -> bool:
        """Whether there is room after the largest cache has given up half."""
        largest = max(self._sharers, key=attrgetter("held_nbytes"), default=sharer)
        if 2 * (sharer.held_nbytes + nbytes) > largest.held_nbytes:
            return False
        largest.give_up_half()
        return self._fits(nbytes)


SHARE = ChunkShare(_LIMIT_NBYTES)
"""The share of all arrays whose options leave their cache open."""
