"""What a job holds at a time is a share of its limit, and nothing is left out."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpushard
from asked_store import BY_PRICE, IN_SHARES
from gpushard.fetching import pieces
from gpushard.fetching.index_room import held_nbytes, most_indexes
from gpushard.fetching.job import Job
from gpushard.options import KIB, MIB, Options
from gpushard.planning.plan import plan_read
from gpushard.reading.results import host_job
from gpushard.report import Tally
from gpushard.selecting.expressions import basic
from gpushard.selecting.patches import Patches
from hostile_shards import ZSTD
from lone_chunks import let_little_count
from spec_shards import LITTLE, document, sharding
from zarr_oracle import held


def job_of(meta: Any, *keys: Any, **given: Any) -> Job:
    """Job that reads `keys` of an array without objects, under options."""
    store = held({"zarr.json": json.dumps(meta).encode()})
    source = gpushard.open_array(store, options=Options(**given)).source
    wanted: list[Any] = [basic(key, source.layout.shape) for key in keys]
    outs = [np.empty(selection.shape, np.uint8) for selection in wanted]
    return host_job(source, wanted, outs, Tally())


def bounded(job: Job, nbytes: int) -> Job:
    """The job where reads may hold `nbytes` in all, which options do not let go low."""
    options = replace(job.source.options, bound_nbytes=nbytes)
    return replace(job, source=replace(job.source, options=options))


def blocks_of(job: Job) -> list[Any]:
    """Blocks of the job's plan, before they are cut."""
    return list(job.plan.blocks())


def columns_of(blocks: Any) -> np.ndarray:
    """Places of the inner chunks of some blocks, in their order."""
    return np.concatenate([block.position for block in blocks], axis=1)


@pytest.mark.parametrize(
    ("nbytes", "n_wanted", "n_workers"),
    [(128 * KIB - 1, 2, 1), (128 * KIB, 2, 4), (256 * KIB, 1, 1), (256, 999, 1)],
)
def test_threads_share_what_takes_longer_than_to_start_them(
    nbytes, n_wanted, n_workers
):
    meta = document((1000 * nbytes,), (nbytes,), LITTLE, ZSTD)
    job = job_of(meta, slice(0, n_wanted * nbytes), threads=4)
    assert job.n_workers == n_workers


def test_tasks_fetch_a_share_of_what_is_wanted_and_of_the_limit():
    meta = document((8 * KIB,), (KIB,), LITTLE, ZSTD)

    def batch(
        wanted_nbytes: int, n_workers: int, costs: Any = IN_SHARES, **given: Any
    ) -> int:
        job = job_of(meta, ..., **given)
        source = replace(job.source, store=SimpleNamespace(costs=costs))
        sink: Any = SimpleNamespace(batch_nbytes=None)
        return replace(job, source=source, sink=sink).batch_nbytes(
            wanted_nbytes, n_workers
        )

    roomy = {"memory_limit": 1024 * MIB, "batch_nbytes": 4 * MIB}
    assert batch(64 * MIB, 1, **roomy) == 4 * MIB
    assert batch(32 * MIB, 4, **roomy) == 2 * MIB
    assert batch(320 * MIB, 4, **roomy) == 4 * MIB
    assert batch(MIB, 4, **roomy) == 256 * KIB
    # A network is waited for once a batch.
    assert batch(64 * MIB, 1, BY_PRICE, **roomy) == 32 * MIB
    assert batch(32 * MIB, 4, BY_PRICE, **roomy) == 4 * MIB
    assert batch(3200 * MIB, 4, BY_PRICE, **roomy) == 32 * MIB
    tight = {"memory_limit": 6 * MIB, "batch_nbytes": 64 * MIB}
    assert batch(64 * MIB, 4, BY_PRICE, **tight) == 768 * KIB
    assert batch(64 * MIB, 1, **tight) == 3 * MIB
    assert batch(64 * MIB, 4, **tight) == 768 * KIB
    sink: Any = SimpleNamespace(batch_nbytes=12345)
    job = replace(job_of(meta, ..., **tight), sink=sink)
    assert job.batch_nbytes(64 * MIB, 4) == job.batch_nbytes(1, 1) == 12345


def test_columns_count_for_each_inner_chunk_and_each_cell_of_an_axis():
    def columns(n_chunks: int, *keys: Any, **given: Any) -> int:
        job = job_of(document((n_chunks,), (1,), LITTLE, ZSTD), *keys, **given)
        return pieces.columns_nbytes(job.source, job.plan)

    row, cell = pieces._CHUNK_NBYTES, pieces._CELL_NBYTES
    assert columns(100, ...) == 100 * (row + cell)
    assert columns(100, ..., ...) == 200 * (row + cell)
    many = 1 << 17
    # One selection has a block of its columns in hand, several what is merged.
    assert columns(many, ...) == (1 << 14) * row + (1 << 16) * cell
    assert columns(many, ..., ...) == many * row + 2 * (1 << 16) * cell
    job = job_of(document((many,), (1,), LITTLE, ZSTD), ..., ...)
    source = bounded(job, 4 * 20_000 * row).source
    some = pieces.columns_nbytes(source, job.plan)
    assert some == 20_000 * row + 2 * (1 << 16) * cell


def test_what_columns_take_is_not_left_for_inner_chunks():
    n = 1 << 14
    job = job_of(document((n,), (1,), LITTLE, ZSTD), ..., memory_limit=64 * MIB)
    (beside,) = pieces.beside_columns([job])
    columns = pieces.columns_nbytes(job.source, job.plan)
    assert beside.source.options.bound_nbytes == 64 * MIB - columns
    two = pieces.beside_columns([job, job])
    axes = n * pieces._CELL_NBYTES
    assert two[0].source.options.bound_nbytes == 64 * MIB - columns - axes
    few = job_of(document((1000,), (1,), LITTLE, ZSTD), ...)
    taken = columns + 1000 * pieces._CELL_NBYTES
    assert list(pieces.beside_columns([few])) == [few]
    assert not pieces.beside_columns([])
    limits = [j.source.options.bound_nbytes for j in pieces.beside_columns([few, job])]
    assert limits == [few.source.options.bound_nbytes - taken, 64 * MIB - taken]
    # Inner chunks keep half, however much columns take.
    (half,) = pieces.beside_columns([bounded(job, columns)])
    assert half.source.options.bound_nbytes == columns - columns // 2


def test_pieces_of_all_workers_fit_a_share_of_the_limit(monkeypatch):
    n, row, noted = 20_000, pieces._CHUNK_NBYTES, []
    note = SimpleNamespace(note=lambda *nbytes: noted.append(nbytes))
    monkeypatch.setattr(pieces, "freed", note)

    def cut(n_rows: int, n_workers: int) -> list[int]:
        limit = pieces._PIECES_SHARE * n_workers * n_rows * row
        job = bounded(job_of(document((n,), (n,), sharding((1,))), ...), limit)
        blocks = blocks_of(job)
        found = [p for b in blocks for p in pieces.cut_rows(job, b, n_workers)]
        np.testing.assert_array_equal(columns_of(found), [np.arange(n)])
        noted[:] = [(nbytes // row, most - limit // 16) for nbytes, most in noted]
        return [piece.n_chunks for piece in found]

    block = 1 << 14
    assert cut(block, 3) == [block, n - block]
    assert not noted
    assert cut(block // 2, 3) == [block // 2, block // 2, n - block]
    assert noted == [(size, 0) for size in [block // 2, block // 2, n - block]]
    assert set(cut(1, 3)) == {1 << 10, n % (1 << 10)}


def test_pieces_have_few_boxes_of_patches_but_at_least_an_inner_chunk(monkeypatch):
    monkeypatch.setattr(pieces, "_MOST_BOXES", 5)
    first = np.array([0, 0, 10, 11, 12, 20] + [30] * 7 + [40, 50, 60])
    n, two = len(first), np.array([2])
    job = job_of(document((100,), (10,), LITTLE, ZSTD), ...)
    patches = Patches(n, (first,), (two,), (np.arange(n) * 2,), (2 * n,))
    job = replace(job, plan=plan_read(job.source.layout, [patches]))
    (block,) = blocks_of(job)
    found = list(pieces.cut_rows(job, block, 1))
    np.testing.assert_array_equal(columns_of(found), block.position)
    part: Any = job.plan.parts[0]
    bounds = part.bounds
    boxes = part.nbytes + 5 * pieces._BOX_NBYTES  # so many are laid out together
    rows = part.n_chunks * pieces._CHUNK_NBYTES
    assert pieces.columns_nbytes(job.source, job.plan) == rows + boxes
    sizes = [np.diff(bounds)[piece.position[0]].tolist() for piece in found]
    assert sizes == [[2, 3], [1], [7], [1, 1, 1]]


def test_blocks_have_as_many_shards_as_have_indexes_that_fit():
    meta = document((32 * 2048,), (2048,), sharding((1,)))
    job = job_of(meta, slice(0, None, 64), memory_limit=MIB)
    n_fitting = most_indexes(job.source, 0)
    assert 1 < n_fitting < 16
    (block,) = blocks_of(job)
    found: list[Any] = list(pieces.cut_shards(job, block))
    np.testing.assert_array_equal(columns_of(found), block.position)
    shards = [block.shard_coords[:, 0] for block in found]
    np.testing.assert_array_equal(np.concatenate(shards), np.arange(32))
    assert {len(some) for some in shards[:-1]} == {n_fitting}
    # All inner chunks of a shard may be in hand, so its index counts once.
    held = held_nbytes(job.source, 32, job.plan.n_chunks)
    assert pieces.indexes_nbytes(job.source, job.plan) == held
    (block,) = blocks_of(job_of(meta, slice(2048)))
    assert [*pieces.cut_shards(job, block)] == [block]


def test_pieces_have_nested_shards_whose_indexes_fit():
    inner = sharding((1,), codecs=[LITTLE])
    meta = document((4096,), (2048,), sharding((256,), codecs=[inner]))
    job = job_of(meta, slice(0, None, 8), memory_limit=128 * KIB)
    n_fitting = most_indexes(job.source, 1)
    assert 1 < n_fitting < 8
    (block,) = blocks_of(job)
    found = list(pieces.cut_rows(job, block, 1))
    np.testing.assert_array_equal(columns_of(found), block.position)
    nested = [[*zip(p.shard.tolist(), p.entry[0].tolist(), strict=True)] for p in found]
    assert max(len(set(places)) for places in nested) == n_fitting
    # No nested shard is in two pieces, so each index is read once.
    assert sum(len(set(places)) for places in nested) == 16


def test_beside_an_inner_chunk_that_takes_most_of_the_limit_its_stored_bytes_fit(
    monkeypatch,
):
    let_little_count(monkeypatch)
    n = 10 * MIB
    job = job_of(document((n,), (n,), LITTLE, ZSTD), ..., memory_limit=12 * MIB)
    room = job.source.room
    assert room.is_tight
    assert 1 < room.most_stored_nbytes < 4 * MIB
    assert job.batch_nbytes(n, 1) == room.most_stored_nbytes
    wide = replace(job, source=job.source.limited(64 * MIB))
    assert not wide.source.room.is_tight
    assert wide.batch_nbytes(n, 1) == 4 * MIB
