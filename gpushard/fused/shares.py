"""Boxes in shares, which threads claim one after the other within the compiled loops.

So a thread asks for the interpreter's lock twice a call, and none waits at the end for
more than a small share that another one has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gpushard.fused.columns import ENTRY, FILE, SOURCE
from gpushard.fused.room import address_of
from gpushard.options import KIB, MIB
from gpushard.selecting.selection import Ints
from gpushard.workers import Task

# What the decoded inner chunks of a share take: at its smallest much more time than a
# claim (0.1 us where another thread has just made one) ...
_SMALLEST_NBYTES = 64 * KIB
_LARGEST_NBYTES = 8 * MIB
# ... and of all that one call places, after which a thread looks whether it is still
# to go on.
_CALL_NBYTES = 32 * MIB
_CACHE_LINE = 64
_NONE_LEFT = 1 << 62


class Shares:
    """Shares of boxes, and the one that is claimed next.

    Parameters
    ----------
    cuts
        int64, shape (n_shares + 1,). Boxes of share s: ``cuts[s]:cuts[s + 1]``.
    most
        About how many boxes one call places.

    Attributes
    ----------
    cuts
        As given.
    is_placed
        bool, shape (n_boxes,). Whether each box was placed.
    """

    def __init__(self, cuts: Ints, most: int) -> None:
        self.cuts = cuts
        self.is_placed = np.zeros(int(cuts[-1]), np.bool_)
        self._most = most
        # In a cache line of its own: threads take it from one another.
        memory = np.zeros(2 * _CACHE_LINE // 8, np.int64)
        first = -address_of(memory) % _CACHE_LINE // 8
        self._next = memory[first : first + 1]

    @classmethod
    def of(cls, boxes: Ints, chunk_nbytes: int, n_workers: int) -> Shares:
        """Shares of boxes, those of an inner chunk in one, for so many threads."""
        firsts = first_boxes(boxes)
        n_chunks = len(firsts) - 1
        least, largest, at_once = (
            max(nbytes // chunk_nbytes, 1)
            for nbytes in (_SMALLEST_NBYTES, _LARGEST_NBYTES, _CALL_NBYTES)
        )
        cuts = firsts[shrinking_cuts(n_chunks, least, largest, n_workers)]
        return cls(cuts, -(-at_once * len(boxes) // max(n_chunks, 1)))

    @property
    def words(self) -> tuple[int, int, int, int]:
        """What the loops are told of them (see `columns.WORDS`)."""
        n_shares = len(self.cuts) - 1
        return address_of(self.cuts), n_shares, address_of(self._next), self._most

    @property
    def first_left(self) -> int:
        """The share that is claimed next; their number if none is."""
        return min(int(self._next[0]), len(self.cuts) - 1)

    @property
    def are_left(self) -> bool:
        """Whether any is still to be claimed."""
        return self.first_left < len(self.cuts) - 1

    def tasks(self, claim: Callable[[], object]) -> Iterator[Task]:
        """What claims shares, as often as a thread is free to while any are left."""

        def task() -> None:
            claim()

        while self.are_left:
            yield task

    def soon(self) -> int:
        """Where those end that the next two calls are going to claim."""
        reach = int(self.cuts[self.first_left]) + 2 * self._most
        return min(int(np.searchsorted(self.cuts, reach)), len(self.cuts) - 1)

    def end(self) -> None:
        """Let no more be claimed."""
        # A claim at the same moment adds to this, or is overwritten: both are far off.
        self._next[0] = _NONE_LEFT


def first_boxes(boxes: Ints) -> Ints:
    """First box of each inner chunk, and how many boxes there are: (n_chunks + 1,)."""
    which = boxes[:, [FILE, SOURCE, ENTRY]]
    is_first = np.append(True, (which[1:] != which[:-1]).any(axis=1))[: len(boxes)]
    return np.append(np.flatnonzero(is_first), len(boxes))


def shrinking_cuts(n: int, least: int, largest: int, n_workers: int) -> list[int]:
    """Where to cut `n` inner chunks, that no worker waits long for the last one.

    Pieces have `largest` at the most and become smaller towards the end, down to
    `least`.
    """
    cuts = [0]
    most = min(n // (4 * n_workers), largest)
    while (left := n - cuts[-1]) > 0:
        size = max(min(most, left // (2 * n_workers)), least)
        cuts.append(n if left < size + least else cuts[-1] + size)
    return cuts
