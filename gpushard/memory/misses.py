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
        As many of the latest keys are remembered for sure, and twice as many at most.
    """

    def __init__(self, n_latest: int) -> None:
        self._n_latest = n_latest
        self._latest: dict[int, int] = {}
        self._before: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._latest) + len(self._before)

    def weight(self, key: int) -> int:
        """What was spent on an inner chunk lately."""
        return self._latest.get(key) or self._before.get(key, 0)

    def note(self, key: int, weight: int) -> None:
        """Remember that `weight` was spent on an inner chunk."""
        latest = self._latest
        latest[key] = self.weight(key) + weight
        if len(latest) > self._n_latest:
            self._before, self._latest = latest, {}
