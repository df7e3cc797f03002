"""Loads of a loader: a fused read that was planned or begun, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import GpushardError
from gpushard.fetching.job import Job
from gpushard.loader.fields import Finish, SampleRows
from gpushard.loader.losses import Losses
from gpushard.reading.read import Prepared
from gpushard.selecting.selection import Ints
from gpushard.threads.workers import StartedTasks


@dataclass(slots=True)
class Load:
    """Result of one fused read.

    Attributes
    ----------
    start
        First turn of the rank in this load.
    kept
        bool, shape (n_turns,): which turns have a sample that could be read.
    samples
        int64, shape (n_kept,).
    arrays
        One array for each field, of shape (n_kept, *sample_shape).
    """

    start: int
    kept: NDArray[np.bool_]
    samples: Ints
    arrays: list[SampleRows]

    @property
    def stop(self) -> int:
        """One past the last turn in this load."""
        return self.start + len(self.kept)


@dataclass(slots=True)
class PlannedLoad:
    """A fused read that was planned, or that was begun.

    Attributes
    ----------
    start
        First turn of the rank in this read.
    kept
        bool, shape (n_turns,): which turns have a sample that is not known to be lost.
    samples
        int64, shape (n_kept,).
    losses
        What failed reads of the epoch have told.
    ends_epoch
        Whether the epoch was read from its first turn on, and this is its last load.
    jobs, finishers
        Jobs of the read, and the functions for their results.
    prepared
        The jobs, ready to run; None if they are not ready yet.
    early
        Work on the jobs that other threads do once they are free.
    error
        Error that ended the read before it was waited for.
    """

    start: int
    kept: NDArray[np.bool_]
    samples: Ints
    losses: Losses
    ends_epoch: bool = False
    jobs: list[Job] = field(default_factory=list[Job])
    finishers: list[Finish] = field(default_factory=list[Finish])
    prepared: Prepared | None = None
    early: StartedTasks | None = None
    error: GpushardError | None = None

    def unplan(self) -> None:
        """Let go of the plan, and of the memory for its results."""
        self.jobs.clear()
        self.finishers.clear()
        self.prepared = self.early = self.error = None


@dataclass
class Incidents:
    """Failures that were handled: reads that were repeated, samples left out."""

    n_retries: int = 0
    n_skipped: int = 0
