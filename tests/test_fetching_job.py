"""How much of a read is fetched as one task, and for how many shards at a time."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from asked_store import opened, put
from gpushard.fetching import pieces
from gpushard.options import KIB, MIB
from gpushard.reading.results import host_job
from gpushard.report import Tally
from gpushard.selecting.expressions import basic
from hostile_shards import ZSTD
from lone_chunks import let_little_count
from spec_shards import LITTLE, document, sharding

N = 1 << 12


@pytest.fixture(autouse=True)
def _nothing_is_little(monkeypatch):
    """Let small arrays meet what large ones do."""
    let_little_count(monkeypatch)


def job_over(tmp_path, meta, **options):
    a, _ = opened(put(tmp_path, meta), **options)
    out = np.empty(a.shape, a.dtype)
    return host_job(a.source, [basic(slice(None), a.shape)], [out], Tally())


def plain_job(tmp_path, **options):
    return job_over(tmp_path, document((N,), (N,), LITTLE), **options)


@pytest.mark.parametrize(
    ("limit", "batch_nbytes", "wanted", "n_workers", "share"),
    [
        (64 * MIB, 4 * MIB, 64 * MIB, 1, 4 * MIB),  # alone: a batch
        (64 * MIB, 4 * MIB, 16 * MIB, 2, 2 * MIB),  # four tasks for each worker
        (64 * MIB, 4 * MIB, 16 * MIB, 4, 1 * MIB),
        (64 * MIB, 4 * MIB, 1 * MIB, 4, 256 * KIB),  # but no small ones
        (64 * MIB, 4 * MIB, 512 * MIB, 4, 4 * MIB),  # and none above a batch
        (64 * MIB, 64 * MIB, 64 * MIB, 1, 32 * MIB),  # half of the limit is fetched,
        (64 * MIB, 64 * MIB, 1024 * MIB, 4, 8 * MIB),  # by all workers together
        (64 * MIB, 100 * KIB, 16 * MIB, 4, 100 * KIB),
    ],
)
def test_a_task_fetches_a_share_of_what_is_wanted(
    tmp_path, limit, batch_nbytes, wanted, n_workers, share
):
    job = plain_job(tmp_path, memory_limit=limit, batch_nbytes=batch_nbytes)
    assert job.batch_nbytes(wanted, n_workers) == share


def test_a_sink_that_wants_batches_of_a_size_gets_them(tmp_path):
    job = plain_job(tmp_path, memory_limit=64 * MIB)
    sink = SimpleNamespace(batch_nbytes=12345)
    assert replace(job, sink=sink).batch_nbytes(64 * MIB, 4) == 12345


def test_beside_an_inner_chunk_that_takes_most_of_the_limit_its_stored_bytes_fit(
    tmp_path,
):
    n = 10 * MIB
    meta = document((n,), (n,), LITTLE, ZSTD)
    job = job_over(tmp_path, meta, memory_limit=12 * MIB)
    room = job.source.room
    assert room.is_tight
    assert 1 < room.most_stored_nbytes < 4 * MIB
    assert job.batch_nbytes(n, 1) == room.most_stored_nbytes
    wide = replace(job, source=job.source.limited(64 * MIB))
    assert not wide.source.room.is_tight
    assert wide.batch_nbytes(n, 1) == 4 * MIB


def test_shards_are_cut_into_as_many_as_have_indexes_that_fit(tmp_path):
    per_shard, n_shards = 8, 50
    n = per_shard * n_shards
    shard = sharding((1,), codecs=[LITTLE], index_codecs=[LITTLE])
    job = job_over(tmp_path, document((n,), (per_shard,), shard), memory_limit=64 * KIB)
    # A quarter of the limit has room for indexes, and 700 bytes beside each.
    most = 16 * KIB // (16 * per_shard + 700)
    (block,) = job.plan.blocks()
    cut = list(pieces.cut_shards(job, block))
    assert [len(one.shard_coords) for one in cut] == [most, most, n_shards - 2 * most]
    coords = np.concatenate([one.shard_coords for one in cut])
    assert np.array_equal(coords, block.shard_coords)
    # Fetched bytes, and 17 more for each entry of 16 while they are parsed.
    held = pieces.indexes_nbytes(job.source, job.plan)
    assert held == int(17 / 8 * most * (16 * per_shard + 700))


def test_nested_shards_are_cut_into_as_many_as_have_indexes_that_fit(tmp_path):
    nested, n_nested = 8, 50
    n = nested * n_nested
    within = sharding((1,), codecs=[LITTLE], index_codecs=[LITTLE])
    outer = sharding((nested,), codecs=[within], index_codecs=[LITTLE])
    job = job_over(tmp_path, document((n,), (n,), outer), memory_limit=64 * KIB)
    # The quarter of the limit is halved, for indexes of both levels.
    most = 8 * KIB // (16 * nested + 700)
    (block,) = job.plan.blocks()
    cut = [np.unique(p.entry[0]).tolist() for p in pieces.cut_rows(job, block, 1)]
    assert [len(one) for one in cut] == [most] * (n_nested // most) + [n_nested % most]
    assert [k for one in cut for k in one] == list(range(n_nested))
