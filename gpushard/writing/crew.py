"""Threads that encode, divided among the shards that are encoded side by side."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager


class Crew:
    """Threads that encode.

    More threads than CPUs would take turns, each with tables of its own in the caches.

    Parameters
    ----------
    n_threads
        Number of threads that may work at a time.
    """

    def __init__(self, n_threads: int) -> None:
        self._n_threads = n_threads
        self._n_shards = 0
        self._lock = threading.Lock()

    @contextmanager
    def at_a_shard(self) -> Generator[None]:
        """Count a shard among those that are encoded, until the end of the context."""
        with self._lock:
            self._n_shards += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_shards -= 1

    @property
    def n_each(self) -> int:
        """Threads for inner chunks of one shard that are encoded now, at least one."""
        return max(1, self._n_threads // max(1, self._n_shards))
