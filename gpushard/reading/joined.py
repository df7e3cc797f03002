"""Selections of several arrays, read in as few batches as have columns that fit.

All columns of a batch are made before it is read. So arrays are read together while the
columns of their axes take no more than their part of the memory limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from numpy.typing import NDArray

from gpushard.damage import Damage
from gpushard.fetching.job import Job
from gpushard.reading.read import execute
from gpushard.reading.results import host_job, read_at_once
from gpushard.reading.rounds import columns_share, read_in_rounds
from gpushard.report import Tally
from gpushard.selecting.selection import Listed, Wanted
from gpushard.source import Source


class Share(NamedTuple):
    """What is read of one array, and the host arrays that it lands in."""

    source: Source
    wanted: Sequence[Wanted]
    outs: Sequence[NDArray[Any]]


def read_joined(shares: Iterable[Share], tally: Tally, damage: Damage) -> list[Source]:
    """Read every share; returns their arrays.

    Raises
    ------
    LimitError, CorruptShardError, StoreError
        As for a read of one array.
    """
    read: list[Source] = []
    jobs: list[Job] = []
    taken = 0.0
    for source, wanted, outs in shares:
        read.append(source)
        selections = [one for one in wanted if not isinstance(one, Listed)]
        is_listed = len(selections) < len(wanted)
        share = 1.0 if is_listed else columns_share(source, selections)
        if jobs and taken + share > 1:
            execute(jobs)
            jobs, taken = [], 0.0
        if is_listed or share > 1:
            reader = partial(read_at_once, tally=tally, damage=_of(source, damage))
            read_in_rounds(source, wanted, outs, reader)
            continue
        with tally.stage("plan"):
            mine = _of(source, damage)
            jobs.append(host_job(source, selections, outs, tally, mine))
        taken += share
    execute(jobs)
    return read


def _of(source: Source, damage: Damage) -> Damage:
    return damage.of_array(source.store.url, source.layout.inner_grid)
