"""Encoders of an array's codec chains, and threads for shards side by side."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from gpushard.codecs.chain_encoder import ChainEncoder
from gpushard.layout import INDEX_ELEMENTS
from gpushard.source import Source

_FINDING = "encoders"


def encoders_of(source: Source) -> Sequence[ChainEncoder]:
    """Encoder of an array's inner chunks, and of the indexes at each level.

    They are for this write. What they share with those of other writes takes little
    memory, but to ask zarr for it takes longer than to encode a small inner chunk.
    """
    if _FINDING not in source.findings:
        layout = source.layout
        chunks = ChainEncoder(layout.chain, layout.elements)
        indexes = (ChainEncoder(n.index_chain, INDEX_ELEMENTS) for n in layout.levels)
        source.findings[_FINDING] = (chunks, *indexes)
    return [one.anew() for one in source.findings[_FINDING]]


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
