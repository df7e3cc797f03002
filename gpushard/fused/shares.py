"""Shares of boxes, which threads claim one after the other in the compiled loops.

A thread therefore takes the interpreter's lock only twice per call. At the end, none
waits for more than a small share of another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gpushard.fused.addresses import address_of
from gpushard.fused.columns import ENTRY, FILE, SOURCE
from gpushard.options import KIB, MIB
from gpushard.pages import LINE_NBYTES
from gpushard.selecting.selection import Ints
from gpushard.source import Source
from gpushard.threads.work_queue import Task

# Least size of the decoded inner chunks of a share: decoding them takes much longer
# than a claim (0.1 us if another thread has just made one).
_SMALLEST_NBYTES = 64 * KIB
_LARGEST_NBYTES = 8 * MIB
# Size of the decoded inner chunks that one call places, after which a thread checks
# whether to go on.
_CALL_NBYTES = 32 * MIB
# Passing a share to another thread takes 0.1 ms, or 0.2 ms if other work has displaced
# the thread's caches. A share takes at least this long.
_SHARE_US = 400
_NONE_LEFT = 1 << 62

NO_SHARES = 0, 0, 0, 0
"""`Shares.words` of a call that places all boxes."""


class Shares:
    """Shares of boxes, and the number of the share to claim next.

    Parameters
    ----------
    cuts
        int64, shape (n_shares + 1,). Boxes of share s: ``cuts[s]:cuts[s + 1]``.
    most
        About how many boxes one call places.

    Attributes
    ----------
    cuts
        The parameter.
    is_placed
        bool, shape (n_boxes,). Whether each box was placed.
    """

    def __init__(self, cuts: Ints, most: int) -> None:
        self.cuts = cuts
        self.is_placed = np.zeros(int(cuts[-1]), np.bool_)
        self._most = most
        # It has its own cache line, because all threads write to it.
        memory = np.zeros(2 * LINE_NBYTES // 8, np.int64)
        first = -address_of(memory) % LINE_NBYTES // 8
        self._next = memory[first : first + 1]

    @classmethod
    def of(
        cls,
        boxes: Ints,
        chunk_nbytes: int,
        n_workers: int,
        firsts: Ints | None = None,
        most: int | None = None,
    ) -> Shares:
        """Shares for `n_workers` threads; an inner chunk's boxes are in one share.

        `firsts` is what `first_boxes` returns, if that is known, and `most` about how
        many boxes one call places at most, if these take longer than decoding.
        """
        firsts = first_boxes(boxes) if firsts is None else firsts
        n_chunks = len(firsts) - 1
        least, largest, at_once = (
            max(nbytes // chunk_nbytes, 1)
            for nbytes in (_SMALLEST_NBYTES, _LARGEST_NBYTES, _CALL_NBYTES)
        )
        cuts = firsts[shrinking_cuts(n_chunks, least, largest, n_workers)]
        n_boxes = -(-at_once * len(boxes) // max(n_chunks, 1))
        return cls(cuts, n_boxes if most is None else min(n_boxes, most))

    @property
    def words(self) -> tuple[int, int, int, int]:
        """The words that describe the shares to the loops (see `words.WORDS`)."""
        n_shares = len(self.cuts) - 1
        return address_of(self.cuts), n_shares, address_of(self._next), self._most

    @property
    def first_left(self) -> int:
        """Number of the share to claim next; the number of shares if none is left."""
        return min(int(self._next[0]), len(self.cuts) - 1)

    @property
    def are_left(self) -> bool:
        """Whether any share is left to claim."""
        return self.first_left < len(self.cuts) - 1

    def tasks(self, claim: Callable[[], object]) -> Iterator[Task]:
        """Tasks that call `claim`, one after the other while shares are left."""

        def task() -> None:
            claim()

        while self.are_left:
            yield task

    def end_of_next(self) -> int:
        """End of the shares that the next two calls will claim."""
        reach = int(self.cuts[self.first_left]) + 2 * self._most
        return min(int(np.searchsorted(self.cuts, reach)), len(self.cuts) - 1)

    def stop_claims(self) -> None:
        """Stop all claims."""
        # A concurrent claim adds 1 to this or is overwritten; the number stays high.
        self._next[0] = _NONE_LEFT


def n_sharing(source: Source, work_us: float, n_chunks: int) -> int:
    """Number of threads that share `n_chunks` inner chunks; 1 if another is no help."""
    n_threads = min(source.options.threads, source.room.most_workers)
    return max(min(int(work_us / _SHARE_US), n_threads, n_chunks), 1)


def first_boxes(boxes: Ints) -> Ints:
    """First box of each inner chunk, then the number of boxes: (n_chunks + 1,)."""
    which = boxes[:, [FILE, SOURCE, ENTRY]]
    is_first = np.append(True, (which[1:] != which[:-1]).any(axis=1))[: len(boxes)]
    return np.append(np.flatnonzero(is_first), len(boxes))


def shrinking_cuts(n: int, least: int, largest: int, n_workers: int) -> list[int]:
    """Cuts of `n` inner chunks so that no worker waits long for the last piece.

    Pieces have at most `largest` inner chunks, and become smaller towards the end, down
    to `least`.
    """
    cuts = [0]
    most = min(n // (4 * n_workers), largest)
    while (left := n - cuts[-1]) > 0:
        size = max(min(most, left // (2 * n_workers)), least)
        cuts.append(n if left < size + least else cuts[-1] + size)
    return cuts
