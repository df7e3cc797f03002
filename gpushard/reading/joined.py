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
from gpushard.reading.results import host_job, read_at_once, read_little
from gpushard.reading.rounds import columns_share, read_in_rounds
from gpushard.remade import naming_source
from gpushard.report import Tally
from gpushard.selecting.selection import Listed, ParsedSelection, Selection
from gpushard.source import Source


class ArrayRead(NamedTuple):
    """What is read of one array, and the host arrays that it is written to."""

    source: Source
    selections: Sequence[ParsedSelection]
    outs: Sequence[NDArray[Any]]


def read_joined(
    reads: Iterable[ArrayRead], tally: Tally, damage: Damage
) -> list[Source]:
    """Read selections of several arrays; returns the arrays.

    Raises
    ------
    LimitError, CorruptShardError, StoreError
        As for a read of one array.
    """
    sources: list[Source] = []
    jobs: list[Job] = []
    taken_share = 0.0  # of the memory for columns, by `jobs`
    for source, selections, outs in reads:
        sources.append(source)
        own_damage = damage.of_array(source.store.url, source.layout.inner_grid)
        short = [s for s in selections if not isinstance(s, Listed)]
        has_lists = len(short) < len(selections)
        if not has_lists and _are_read_alone(source, short, outs, tally, own_damage):
            continue
        share = 1.0 if has_lists else columns_share(source, short)
        if jobs and taken_share + share > 1:
            execute(jobs)
            jobs, taken_share = [], 0.0
        if has_lists or share > 1:
            reader = partial(read_at_once, tally=tally, damage=own_damage)
            read_in_rounds(source, selections, outs, reader)
            continue
        with tally.stage("plan"):
            jobs.append(host_job(source, short, outs, tally, own_damage))
        taken_share += share
    execute(jobs)
    return sources


def _are_read_alone(
    source: Source,
    selections: Sequence[Selection],
    outs: Sequence[NDArray[Any]],
    tally: Tally,
    damage: Damage,
) -> bool:
    """Whether so little of an array in local files is wanted that it was read by now.

    Columns and tasks take longer than such a read. Others wait for their answers
    together.
    """
    is_far = source.store.costs.prefers_whole_objects
    if tally.is_wanted or is_far or len(selections) > 1:
        return False
    with naming_source(source):
        return read_little(source, selections[0], outs[0], damage)
