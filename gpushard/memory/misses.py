"""Which inner chunks were read lately without being kept, and what that has cost."""

from __future__ import annotations

WHOLE, PART = 4, 1
"""What a read spends on an inner chunk: all of it is decoded, or at most a quarter."""


class Misses:
    """Keys that were missed lately, each with what was spent on it since.

    Threads that note keys at the same time forget a few.

    Parameters
    ----------
    n_latest
        As many of the latest inner chunks are remembered for sure, and twice as many at
        most.
    """

    def __init__(self, n_latest: int) -> None:
        self._n_latest = n_latest
        self._latest: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._n_noted = 0

    def __len__(self) -> int:
        return len(self._latest) + len(self._before)

    def weight(self, key: int) -> int:
        """What was spent on an inner chunk lately."""
        return self._latest.get(key) or self._before.get(key, 0)

    def note(self, key: int, weight: int, n_chunks: int = 1) -> None:
        """Remember that `weight` was spent on an inner chunk.

        It may stand for `n_chunks` that were read together.
        """
        latest = self._latest
        if key not in latest:
            self._n_noted += n_chunks
        latest[key] = self.weight(key) + weight
        if self._n_noted > self._n_latest:
            self._before, self._latest, self._n_noted = latest, {}, 0
