"""`verify`, `info` and `map` hold what a read may, whatever the files claim."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest

import gpushard
from asked_store import BY_PRICE, IN_REQUESTS, put
from asked_store import opened as asked
from gpushard import LimitError, Options
from gpushard.cli.mapping import open_map
from gpushard.inspection import contents, room, verify
from gpushard.inspection.census import census
from gpushard.inspection.shard_map import first_stored
from gpushard.inspection.verify import verify_array
from gpushard.options import KIB, MIB
from hostile_shards import GZIP, ZSTD
from lone_chunks import gzip, let_little_count, trace_pages, zstd
from spec_shards import LITTLE, document, sharding
from zarr_oracle import held

INDEXED = {"index_codecs": [LITTLE]}
N = 256 * KIB
NOISE = np.random.default_rng(5).integers(0, 256, N, "u1").tobytes()
RAISE = r"raise options\.memory_limit"


@pytest.fixture(autouse=True)
def _pages_are_traced(monkeypatch):
    trace_pages(monkeypatch)


def source_of(place: Any, **options: Any) -> Any:
    return gpushard.open_array(place, device="cpu", options=Options(**options)).source


def put_indexes(place: Any, n_shards: int, per_shard: int) -> Any:
    meta = document((n_shards * per_shard,), (per_shard,), sharding((1,), **INDEXED))
    index = np.full((per_shard, 2), 2**64 - 1, "<u8").tobytes()
    return put(place, meta, **{f"c_{k}": index for k in range(n_shards)})


def peak_of(work: Any) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_inner_chunks_are_counted_within_the_memory_limit(tmp_path):
    place = put_indexes(tmp_path, 64, 16 * KIB)
    source = source_of(place, memory_limit=16 * MIB, index_cache_nbytes=0)
    census(source_of(put_indexes(tmp_path / "warm up", 2, 8)))
    assert peak_of(lambda: census(source)) < 16 * MIB
    assert room.at_once(source, 64) == 8
    assert room.at_once(source, 3) == 3


def test_a_stored_shard_is_found_within_the_memory_limit(tmp_path):
    meta = document((400 << 16,), (1 << 16,), sharding((1,), **INDEXED))
    index = np.full((1 << 16, 2), 2**64 - 1, "<u8").tobytes()
    place = put(tmp_path, meta, c_399=index)
    source = source_of(place, memory_limit=16 * MIB)
    asked: list[int] = []
    real = contents.contents_of

    def noted(source: Any, some: Any, *more: Any) -> Any:
        asked.append(len(some))
        return real(source, some, *more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gpushard.inspection.shard_map.contents_of", noted)
        assert first_stored(source, source.layout.coordinates()) == (399,)
    assert max(asked) == 2


def test_what_does_not_fit_is_neither_counted_nor_drawn(tmp_path):
    place = put_indexes(tmp_path, 1, 1 << 18)
    for limit, fits in ((36 * MIB, True), (24 * MIB, False)):
        options = Options(memory_limit=limit)
        if fits:
            assert census(source_of(place, memory_limit=limit)).n_empty == 1 << 18
            assert open_map(str(place), None, options).shard.chunks.end == 16 << 18
            continue
        with pytest.raises(LimitError, match=RAISE):
            census(source_of(place, memory_limit=limit))
        for key in (None, "c/0"):
            with pytest.raises(LimitError, match=RAISE):
                open_map(str(place), key, options)


# Inner chunks and objects that are verified


def claimed(place: Any, nbytes: int) -> Any:
    """Inner chunks of N bytes; the second claims so many."""
    data = zstd(NOISE)
    entries = np.array([[0, len(data)], [len(data), nbytes]], "<u8")
    shard = sharding((N,), codecs=[LITTLE, ZSTD], **INDEXED)
    rest = bytes(nbytes) + entries.tobytes()
    return put(place, document((2 * N,), (2 * N,), shard), c_0=data + rest)


def test_an_inner_chunk_that_does_not_fit_as_stored_is_not_fetched(
    tmp_path, monkeypatch
):
    let_little_count(monkeypatch)
    place = claimed(tmp_path, 2 * N)
    result = verify_array(source_of(place, memory_limit=5 * N // 2), decodes=True)
    (found,) = result.findings
    assert (found.kind, found.inner_chunk) == ("unreadable", (1,))
    assert "memory_limit" in (found.hint or "")
    assert (result.counts["read_nbytes"], result.status) == (
        len(zstd(NOISE)),
        "unverified",
    )
    result = verify_array(source_of(place, memory_limit=64 * N), decodes=True)
    assert [found.kind for found in result.findings] == ["decode"]


def test_what_is_verified_side_by_side_is_counted_by_its_size(tmp_path, monkeypatch):
    seen: list[Any] = []
    real = verify.run_tasks

    def run_tasks(works: Any, n_workers: int, most: int | None = None) -> None:
        works = list(works)
        seen.append((most, [work.nbytes for work in works]))
        real(iter(works), n_workers, most)

    monkeypatch.setattr(verify, "run_tasks", run_tasks)
    source = source_of(claimed(tmp_path, 2 * N), memory_limit=64 * MIB, threads=2)
    verify_array(source, decodes=True)
    ((most, sizes),) = seen
    assert sum(sizes) == len(zstd(NOISE)) + 2 * N
    assert most == source.room.most_fetched_nbytes


def test_an_object_that_does_not_fit_is_told_and_the_others_are_verified(
    monkeypatch, tmp_path
):
    let_little_count(monkeypatch)
    shard = NOISE + np.array([0, N], "<u8").tobytes()
    wrapped = document((2 * N,), (N,), sharding((N,), **INDEXED), GZIP)
    plainly = document((2 * N,), (N,), LITTLE, ZSTD)
    padded = zstd(NOISE) + b"\x50\x2a\x4d\x18" + (N).to_bytes(4, "little") + bytes(N)
    good, large = gzip(shard), gzip(bytes(N)) + bytes(12 * N)
    limit = 9 * N
    place = put(tmp_path / "a", wrapped, c_0=large, c_1=good)
    result = verify_array(source_of(place, memory_limit=limit))
    assert [(f.kind, f.shard_key) for f in result.findings] == [("unreadable", "c/0")]
    in_memory = held({"zarr.json": dumped(plainly), "c/0": padded, "c/1": zstd(NOISE)})
    for limit, is_told in ((5 * N // 2, True), (64 * N, False)):
        result = verify_array(source_of(in_memory, memory_limit=limit), decodes=True)
        told = [(f.kind, f.shard_key) for f in result.findings]
        assert told == ([("unreadable", "c/0")] if is_told else [])
        assert result.counts["n_checked_inner_chunks"] == 2 - is_told


def dumped(meta: Any) -> bytes:
    return json.dumps(meta).encode()


def test_objects_of_no_told_size_are_held_by_fewer_threads(tmp_path, monkeypatch):
    let_little_count(monkeypatch)
    meta = document((8 * N,), (N,), LITTLE, ZSTD)
    four: dict[str, Any] = {"threads": 4, "memory_limit": 3 * MIB}
    untold = source_of(held({"zarr.json": dumped(meta)}), **four)
    told = source_of(put(tmp_path, meta), **four)
    assert told.most_workers == room.workers(told) == 4
    assert room.workers(untold) == 2
    assert room.workers(untold.limited(64 * MIB)) == 4


def test_payload_has_what_indexes_of_nested_shards_leave(tmp_path):
    inner = sharding((1,), **INDEXED)
    outer = sharding((64,), codecs=[inner], **INDEXED)
    n = 1 << 14
    place = put(tmp_path, document((n,), (n,), outer))
    limit = 8 * MIB
    source = source_of(place, memory_limit=limit)
    held_nbytes = (n + 16 * n // 64) * room.entry_nbytes(source)
    found = room.beside_indexes(source).options
    assert held_nbytes <= found.held_nbytes < limit // 2
    assert found.memory_limit <= limit - held_nbytes


def test_a_verification_leaves_room_for_objects_that_ranges_are_cut_from(tmp_path):
    place = put(tmp_path, document((8,), (8,), sharding((1,), **INDEXED)))
    for costs, limit, share in (
        (BY_PRICE, 64 * MIB, 4),
        (IN_REQUESTS, 64 * MIB, 2),
        (BY_PRICE, None, 2),
    ):
        source = asked(place, costs, memory_limit=limit)[0].source
        assert room.most_unverified(source) == source.options.memory_limit // share


@pytest.fixture
def at_once(monkeypatch) -> list[int]:
    """Numbers of objects whose contents are looked up together."""
    at_once: list[int] = []
    real = verify.contents_of

    def contents_of(source: Any, some: Any, *more: Any) -> Any:
        at_once.append(len(some))
        return real(source, some, *more)

    monkeypatch.setattr(verify, "contents_of", contents_of)
    return at_once


def empty_array(lengths: list[int], *codecs: Any) -> Any:
    """Store of an array none of whose objects, of these lengths, is stored."""
    meta = document((sum(lengths),), (1,), *codecs)
    grid = {"kind": "inline", "chunk_shapes": [lengths]}
    meta["chunk_grid"] = {"name": "rectilinear", "configuration": grid}
    return held({"zarr.json": json.dumps(meta).encode()})


@pytest.mark.parametrize("first", [1, 64 * KIB])
def test_of_chunks_of_untold_size_as_many_are_held_as_the_largest_leave_room(
    at_once, first
):
    store = empty_array([first, *[64 * KIB] * 16], LITTLE, GZIP)
    most = 192 * KIB  # of stored bytes, for 64 KiB of elements
    verify_array(source_of(store, threads=1, memory_limit=4 * 8 * most))
    assert max(at_once) == 8


@pytest.mark.parametrize("first", [1, 4 * KIB])
def test_as_many_indexes_are_held_as_the_largest_have_entries_for(at_once, first):
    chain = sharding((1,), **INDEXED)
    verify_array(source_of(empty_array([first, *[4 * KIB] * 16], chain)))
    assert max(at_once) == 4
