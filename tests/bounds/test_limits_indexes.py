"""Shard indexes count against the limits, before anything is read."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import gpushard
from gpushard import options
from gpushard.fetching.job import Job
from gpushard.fetching.pieces import beside_columns
from gpushard.inspection.room import workers
from gpushard.options import GIB, MIB, Options
from gpushard.reading.results import host_job
from gpushard.report import Tally
from gpushard.selecting.expressions import basic
from spec_shards import document, sharding
from zarr_oracle import held


def array_of(n_entries: int, n_shards: int = 1, **given: Any) -> gpushard.Array:
    """Inner chunks of a byte, none of which is stored."""
    meta = document((n_shards * n_entries,), (n_entries,), sharding((1,)))
    store = held({"zarr.json": json.dumps(meta).encode()})
    return gpushard.open_array(store, device="cpu", options=Options(**given))


@pytest.mark.parametrize("n_small", [0, 8])
def test_an_index_of_more_than_half_the_memory_limit_is_refused(n_small):
    """Of 4 MiB, it takes twice as much while it is parsed."""
    given = {"small_read_chunks": n_small}
    a = array_of(1 << 18, memory_limit=8 * MIB, **given)
    with pytest.raises(gpushard.LimitError, match=r"raise options\.memory_limit"):
        a[:5]
    # And four bytes of a checksum.
    assert not array_of(1 << 18, memory_limit=17 * MIB, **given)[:5].any()


def test_indexes_in_hand_are_held_beside_all_else():

    def job_of(n_entries: int) -> Job:
        a = array_of(n_entries, n_shards=8, memory_limit=64 * MIB)
        wanted, out = basic(slice(None, None, n_entries), a.shape), np.empty(8, "u1")
        return host_job(a.source, [wanted], [out], Tally())

    large, small = job_of(1 << 16), job_of(16)
    for jobs in ([large], [small, large], [large, small]):
        for job in beside_columns(jobs):
            # Eight of 1 MiB, in twice their size, in steps of a sixteenth.
            left = job.source.options
            assert left.bound_nbytes == left.alone_nbytes == (64 - 20) * MIB


def test_objects_with_large_indexes_are_verified_by_fewer_threads():
    """131,072 entries take 96 bytes each."""
    assert workers(array_of(1 << 17, threads=8, memory_limit=64 * MIB).source) == 1
    assert workers(array_of(1 << 17, threads=8, memory_limit=256 * MIB).source) == 2
    assert workers(array_of(1 << 8, threads=8, memory_limit=256 * MIB).source) == 8


@pytest.mark.parametrize(
    ("usable", "alone"), [(16 * GIB, 2 * GIB), (GIB, 256 * MIB), (None, 256 * MIB)]
)
def test_left_open_one_inner_chunk_may_take_an_eighth_of_the_memory(
    usable, alone, monkeypatch
):
    monkeypatch.setattr(options, "usable_memory_nbytes", lambda: usable)
    resolved = Options().resolved()
    assert (resolved.alone_nbytes, resolved.bound_nbytes) == (alone, 256 * MIB)
