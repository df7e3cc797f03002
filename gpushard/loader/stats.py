"""Counters of a loader -> its speed, and what kept its consumer waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpushard.loader.fields import Field
from gpushard.loader.loads import Incidents
from gpushard.loader.prefetch import WaitStats


@dataclass
class Progress:
    """Counters of a loader since it was made.

    Attributes
    ----------
    n_batches, n_samples, nbytes
        Batches and samples that were handed out, and the bytes of these batches.
    busy_seconds
        Time from asking for the first batch to the end, of the epochs that have ended.
    waits
        How long the consumer waited, and how full it found the queue.
    incidents
        Failures that were handled.
    """

    n_batches: int = 0
    n_samples: int = 0
    nbytes: int = 0
    busy_seconds: float = 0.0
    waits: WaitStats = field(default_factory=WaitStats)
    incidents: Incidents = field(default_factory=Incidents)
    begun: float | None = None

    def begin(self) -> None:
        """Note that an epoch begins."""
        self.end()
        self.begun = time.perf_counter()

    # The clock is a default, because an iteration may be dropped with the last modules.
    def end(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Note that the epoch ends."""
        if self.begun is not None:
            self.busy_seconds += clock() - self.begun
            self.begun = None

    def handed(self, n_samples: int, nbytes: int) -> None:
        """Note that a batch was handed out."""
        self.n_batches += 1
        self.n_samples += n_samples
        self.nbytes += nbytes


def figures(progress: Progress, fields: Sequence[Field], depth: int) -> dict[str, Any]:
    """Figures of a loader, by name; `depth` is the length of its queue."""
    running = 0.0
    if progress.begun is not None:
        running = time.perf_counter() - progress.begun
    seconds = progress.busy_seconds + running
    waits = progress.waits
    slots = max(waits.n_looks * depth, 1)
    counts = [dict(f.tally.counts) for f in fields]
    stored = sum(c.get("payload_nbytes", 0) for c in counts)
    return {
        "batches": progress.n_batches,
        "samples": progress.n_samples,
        "bytes": progress.nbytes,
        "seconds": seconds,
        "samples_per_second": progress.n_samples / seconds if seconds else 0.0,
        "bytes_per_second": progress.nbytes / seconds if seconds else 0.0,
        "waiting_seconds": waits.seconds,
        "queue_occupancy": min(waits.n_found / slots, 1.0),
        "stored_bytes_read": stored,
        "index_requests": sum(c.get("n_index_requests", 0) for c in counts),
        "index_cache_hits": sum(c.get("n_index_hits", 0) for c in counts),
        "chunk_cache_hits": sum(c.get("n_kept_inner_chunks", 0) for c in counts),
        "read_amplification": _amplification(fields, counts),
        "samples_skipped": progress.incidents.n_skipped,
        "reads_retried": progress.incidents.n_retries,
    }


def _amplification(fields: Sequence[Field], counts: Sequence[dict[str, int]]) -> float:
    """Elements decoded for each element wanted; 1 if nothing is decoded in vain.

    An inner chunk counts whole if it reaches beyond the array's edge, or if patches
    share it. Inner chunks that are kept (`Options.chunk_cache_nbytes`) do not count. Of
    a rectilinear grid, inner chunks count as if all were of their mean size.
    """
    decoded = wanted = 0
    for one, count in zip(fields, counts, strict=True):
        chunk_nbytes = one.members[0].source.mean_chunk_nbytes
        n_decoded = count.get("loaded_chunks", 0) - count.get("n_kept_inner_chunks", 0)
        decoded += n_decoded * chunk_nbytes
        wanted += count.get("loaded_samples", 0) * one.sample_nbytes
    return decoded / wanted if wanted else 0.0
