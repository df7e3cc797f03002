"""Shard indexes count against the memory limit, or are refused by name."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import numpy as np
import pytest
import zarr

import gpushard
from asked_store import IN_REQUESTS, put
from asked_store import opened as opened_and_asked
from damaged_arrays import WAYS, on_host, opened
from gpushard.errors import LimitError
from gpushard.fetching import index_room
from gpushard.inspection import room
from gpushard.inspection.verify import verify_array
from gpushard.options import KIB, MIB
from gpushard.reading import read
from lone_chunks import trace_pages
from spec_shards import LITTLE, document, index_of, sharding

INDEXED = {"index_codecs": [LITTLE]}
N_SHARDS, PER_SHARD = 64, 16 * KIB


@pytest.fixture(autouse=True)
def _pages_are_traced(monkeypatch):
    trace_pages(monkeypatch)


def put_empty(place: Any, n_shards: int, per_shard: int) -> Any:
    """Shards of nothing but an index, in which every inner chunk is missing."""
    meta = document((n_shards * per_shard,), (per_shard,), sharding((1,), **INDEXED))
    index = np.full((per_shard, 2), 2**64 - 1, "<u8").tobytes()
    return put(place, meta, **{f"c_{k}": index for k in range(n_shards)})


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """64 shards with indexes of 256 KiB."""
    return put_empty(tmp_path_factory.mktemp("many"), N_SHARDS, PER_SHARD)


@pytest.mark.parametrize("few", [0, 8], ids=["long way", "short way"])
@pytest.mark.parametrize("way", ["plain", "compiled", "device"])
def test_indexes_of_many_shards_stay_within_the_memory_limit(way, few, many):
    limit = 8 * MIB
    kept = {"memory_limit": limit, "index_cache_nbytes": 0, "small_read_chunks": few}
    a = opened(many, way, **kept)
    key = slice(None, None, PER_SHARD)
    a.read(slice(0, 2 * PER_SHARD, PER_SHARD))  # what is loaded once
    tracemalloc.start()
    try:
        found = a.read(key)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not on_host(found).any()
    assert peak < N_SHARDS + limit


def test_of_several_indexes_one_at_a_time_is_held_twice(many):
    """Of 64 indexes of 256 KiB, read as one: 17 bytes an entry, and 16 of one."""
    a, _ = opened_and_asked(many, memory_limit=64 * MIB, small_read_chunks=0)
    a.read(slice(0, 2 * PER_SHARD, PER_SHARD))  # what is loaded once
    tracemalloc.start()
    try:
        a.read(slice(None, None, PER_SHARD))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 17 * N_SHARDS * PER_SHARD + 2 * MIB


@pytest.mark.parametrize("way", WAYS)
def test_an_index_that_takes_half_of_the_limit_is_refused_by_name(way, tmp_path):
    put_empty(tmp_path, 1, 1 << 18)
    for limit, is_read in ((16 * MIB, True), (15 * MIB, False)):
        a = opened(tmp_path, way, memory_limit=limit)
        for key in (slice(None), slice(5, 6)):
            if is_read:
                assert not on_host(a.read(key)).any()
                continue
            with pytest.raises(LimitError, match=r"raise options\.memory_limit"):
                a.read(key)


def test_an_index_of_two_mebibytes_is_read_whatever_the_limit_is(tmp_path):
    put_empty(tmp_path, 1, 1 << 17)
    a = opened(tmp_path, "plain", memory_limit=1)
    assert not a[:].any()


def test_nested_indexes_are_refused_with_those_around_them(tmp_path):
    n = 1 << 17
    nested = sharding((n,), codecs=[sharding((1,), **INDEXED)], **INDEXED)
    put(tmp_path, document((n * n,), (n * n,), nested))
    options = gpushard.Options(memory_limit=15 * MIB, small_read_chunks=0)
    with pytest.raises(LimitError, match="memory_limit"):
        gpushard.open_array(tmp_path, device="cpu", options=options)[:10]
    options = options.but(memory_limit=16 * MIB)
    assert not gpushard.open_array(tmp_path, device="cpu", options=options)[:10].any()


@pytest.mark.parametrize(("per_shard", "left"), [(1 << 10, 16), (1 << 16, 13)])
def test_indexes_in_hand_leave_less_for_what_is_fetched(
    tmp_path, monkeypatch, per_shard, left
):
    """One of 1 MiB is held with 1.1 MiB of columns: 3 sixteenths of the limit."""
    put_empty(tmp_path, 1, per_shard)
    seen: list[int | None] = []
    real = read.run_tasks

    def run_tasks(tasks: Any, n_workers: int, most_nbytes: int | None = None) -> None:
        seen.append(most_nbytes)
        real(tasks, n_workers, most_nbytes)

    monkeypatch.setattr(read, "run_tasks", run_tasks)
    limit = 16 * MIB
    a, _ = opened_and_asked(
        tmp_path, IN_REQUESTS, memory_limit=limit, small_read_chunks=0
    )
    assert not a[:].any()
    assert seen[-1] == limit * left // 16 // 2


def test_the_memory_limit_can_be_raised_where_the_refusal_is_met(tmp_path):
    put_empty(tmp_path, 1, 1 << 18)
    given = {"codec_pipeline.path": "gpushard.GpushardCodecPipeline"}
    with zarr.config.set({**given, "gpushard.memory_limit": 4 * MIB}):
        a = zarr.open_array(tmp_path, mode="r")
        with pytest.raises(LimitError, match=r"gpushard\.memory_limit"):
            a[:]
    with zarr.config.set({**given, "gpushard.memory_limit": 16 * MIB}):
        assert not a[:].any()


def put_index(place: Any, entries: Any) -> Any:
    """Array of 2-byte inner chunks, their shard's index behind so many bytes."""
    n = len(entries)
    meta = document((n,), (n,), sharding((1,), index_codecs=[LITTLE]), dtype="uint16")
    return put(place, meta, c_0=bytes(2 * n) + entries.astype("<u8").tobytes())


def test_an_index_is_verified_within_the_memory_limit_or_refused_by_name(tmp_path):
    n = 1 << 18
    overlapping = np.stack([np.arange(n), np.full(n, 2)], 1)
    a = gpushard.open_array(put_index(tmp_path, overlapping), device="cpu")
    limit = 96 * n * 4 // 3 + 4
    verify_array(gpushard.open_array(tmp_path, device="cpu").source)
    tracemalloc.start()
    result = verify_array(a.source.limited(limit))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result.counts["n_inner_chunks"] == n
    assert result.findings[0].kind == "overlap"
    assert peak < limit
    with pytest.raises(gpushard.LimitError, match=r"raise options.memory_limit"):
        verify_array(a.source.limited(limit - 128))


def test_nested_indexes_are_verified_within_the_memory_limit_or_refused(tmp_path):
    n = 1 << 9
    nested = sharding((n,), codecs=[sharding((1,), index_codecs=[LITTLE])])
    inner = np.full((n, 2), 2**64 - 1, "<u8").tobytes()
    entries = [(0, len(inner))] * n
    meta = document((n * n,), (n * n,), nested)
    a = gpushard.open_array(
        put(tmp_path, meta, c_0=inner + index_of(entries)), device="cpu"
    )
    limit = 96 * n * (n + 16) * 4 // 3 + 4
    assert verify_array(a.source.limited(limit)).status == "whole"
    with pytest.raises(gpushard.LimitError, match=r"raise options.memory_limit"):
        verify_array(a.source.limited(limit - 128))


def test_of_many_nested_shards_each_takes_what_it_counts(tmp_path):
    """Damaged ones too: each is an error, of which few are told one by one."""
    n, nested = 2_000, b"\x11" * 20
    nbytes = len(nested)
    inner = sharding((1,), codecs=[sharding((1,))], index_codecs=[LITTLE])
    index = index_of([(k * nbytes, nbytes) for k in range(n)], checksum=False)
    put(tmp_path, document((n,), (n,), inner), c_0=nested * n + index)
    a = gpushard.open_array(tmp_path, device="cpu")
    verify_array(gpushard.open_array(tmp_path, device="cpu").source.limited(16 * MIB))
    tracemalloc.start()
    result = verify_array(a.source)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (result.n_damaged_inner_chunks, len(result.findings)) == (n, 1_001)
    assert peak < n * (1 + 16) * 96


def test_nested_indexes_in_hand_count_one_for_each_inner_chunk(tmp_path):
    nested = sharding((64,), codecs=[sharding((1,), **INDEXED)], **INDEXED)
    put(tmp_path, document((2048,), (2048,), nested))
    source = gpushard.open_array(tmp_path, device="cpu").source
    assert source.index_nbytes == (32 * 16, 64 * 16)
    entries, objects = 17 * 2 * (32 + 10 * 64), 17 / 8 * 700 * (1 + 10)
    assert index_room.held_nbytes(source, 1, 10) == int(entries + objects)


def test_what_indexes_take_is_left_to_fewer_tasks_and_less_payload(tmp_path):
    put_empty(tmp_path, 1, 1 << 16)
    four = gpushard.Options(threads=4)
    source = gpushard.open_array(tmp_path, device="cpu", options=four).source
    nbytes = 96 << 16
    tight, wide = source.limited(8 * nbytes), source.limited(10**12)
    assert room.workers(tight) == 1
    assert room.workers(wide) == wide.most_workers > 1
    assert room.beside_indexes(tight).options.memory_limit < tight.options.memory_limit


@pytest.mark.parametrize(("limit", "n_threads"), [(64 * MIB, 4), (36 * MIB, 1)])
def test_a_conversion_leaves_its_reads_room_for_large_indexes(
    limit, n_threads, tmp_path
):
    n = 1 << 18
    src = put_empty(tmp_path / "a", 4, n)
    how = {"memory_limit": limit, "num_threads": n_threads, "chunks": (n,)}
    gpushard.convert(src, tmp_path / "b", shards=(n,), **how)
    assert not gpushard.open_array(tmp_path / "b", device="cpu")[:].any()


def test_a_conversion_reads_back_shards_with_large_indexes(tmp_path, monkeypatch):
    monkeypatch.setattr(index_room, "_LEAST_NBYTES", 0)
    n = 1 << 11
    src = put(tmp_path / "a", document((n,), (n,), LITTLE), c_0=bytes([7]) * n)
    how = {"memory_limit": 300 * KIB, "num_threads": 1, "chunks": (1,)}
    gpushard.convert(src, tmp_path / "b", shards=(n,), verify=True, **how)


# The indexes take more than a shard, and less.
@pytest.mark.parametrize("n_together", [24, 80])
def test_a_conversion_names_a_limit_that_leaves_indexes_room(n_together, tmp_path):
    n = 1 << 18
    src = put_empty(tmp_path / "a", 1, n)
    how = {"num_threads": 1, "chunks": (n,), "shards": (n_together * n,)}
    with pytest.raises(gpushard.OptionError, match="memory limit") as told:
        gpushard.convert(src, tmp_path / "b", memory_limit=MIB, **how)
    enough = int(re.findall(r"memory_limit of (\d+)", str(told.value))[0])
    with pytest.raises(gpushard.GpushardError, match="memory"):
        gpushard.convert(src, tmp_path / "b", memory_limit=enough - 2, **how)
    gpushard.convert(src, tmp_path / "c", memory_limit=enough, **how)
