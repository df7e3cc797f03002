"""Each knob of a read is heeded wherever it is used: memory, threads, batches."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpushard
from asked_store import BY_PRICE, IN_REQUESTS, asked_nbytes, opened, put
from gpushard import Options
from gpushard.fused import choice, files, sharded, shares
from gpushard.fused.short import sharded as short_sharded
from gpushard.options import KIB, MIB
from gpushard.reading import ranges, read, results
from gpushard.rolling import RollingArray
from hostile_shards import GZIP, ZSTD
from rolling_arrays import rolling
from spec_shards import LITTLE, document, sharding

NOISE = np.random.default_rng(7).integers(0, 256, MIB, "u1")
INDEXED = {"index_codecs": [LITTLE]}


def put_plain(place: Path, nbytes: int) -> Path:
    """One shard of 1 MiB of plain elements, `nbytes` in each inner chunk."""
    start = np.arange(0, MIB, nbytes)
    entries = np.stack([start, np.full_like(start, nbytes)], 1).astype("<u8")
    meta = document((MIB,), (MIB,), sharding((nbytes,), **INDEXED))
    return put(place, meta, c_0=NOISE.tobytes() + entries.tobytes())


def rectilinear(lengths: list[int], *codecs: Any) -> Any:
    """Document of an array of objects of these lengths."""
    meta = document((sum(lengths),), (1,), *codecs)
    grid = {"kind": "inline", "chunk_shapes": [lengths]}
    meta["chunk_grid"] = {"name": "rectilinear", "configuration": grid}
    return meta


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """256 inner chunks of 4 KiB."""
    return put_plain(tmp_path_factory.mktemp("plain"), 4 * KIB)


@pytest.fixture(scope="module")
def coarse(tmp_path_factory):
    """16 inner chunks of 64 KiB."""
    return put_plain(tmp_path_factory.mktemp("coarse"), 64 * KIB)


@pytest.fixture
def runs(monkeypatch) -> list[tuple[int, int | None]]:
    """Threads, and fetched bytes that may wait, of each stage of a read."""
    seen: list[Any] = []
    real = read.run_tasks

    def run_tasks(tasks: Any, n_workers: int, most_nbytes: int | None = None) -> None:
        seen.append((n_workers, most_nbytes))
        real(tasks, n_workers, most_nbytes)

    monkeypatch.setattr(read, "run_tasks", run_tasks)
    return seen


@pytest.mark.parametrize(("threads", "most"), [(1, 32 * KIB), (4, 8 * KIB)])
def test_a_batch_takes_its_threads_part_of_half_the_memory_limit(plain, threads, most):
    a, store = opened(plain, threads=threads, memory_limit=64 * KIB)
    assert np.array_equal(a[:], NOISE)
    assert max(store.payload_nbytes()) <= most


@pytest.mark.parametrize("threads", [1, 4])
def test_a_batch_takes_no_more_than_the_option_says(plain, threads):
    a, store = opened(plain, threads=threads, batch_nbytes=16 * KIB)
    assert np.array_equal(a[:], NOISE)
    assert max(store.payload_nbytes()) <= 16 * KIB


def test_parts_of_plain_inner_chunks_count_twice_while_threads_copy_them(
    coarse, monkeypatch
):
    """All but 128 bytes of an inner chunk are wanted, then all of each, then few."""
    counted: list[int] = []
    real = ranges.Spawner

    def spawner(spawn: Any, nbytes: int) -> Any:
        counted.append(nbytes)
        return real(spawn, nbytes)

    monkeypatch.setattr(ranges, "Spawner", spawner)
    a, store = opened(coarse, threads=2, small_read_chunks=0, compile_nbytes=2**60)
    part = 64 * KIB - 128
    assert np.array_equal(a[64 : 64 + part], NOISE[64 : 64 + part])
    assert (store.payload_nbytes(), counted) == ([part], [2 * part])
    a[: 64 * KIB]
    few = np.concatenate([np.arange(k, k + 1000) for k in (5000, 70000)])
    assert np.array_equal(a.oindex[few], NOISE[few])
    # So little is read by one thread, which has one copy at a time.
    assert counted[1:] == [64 * KIB, 70000 - 5000 + 1000 + 1000]


def test_the_memory_limit_has_room_for_eight_requests(plain):
    a, store = opened(plain, IN_REQUESTS, threads=1, memory_limit=256 * KIB)
    assert np.array_equal(a[:], NOISE)
    largest = max(r.stop - r.start for c in store.calls for r in c if r.stop)
    assert 4 * KIB < largest <= 32 * KIB


def test_few_inner_chunks_are_fetched_together_only_within_the_memory_limit(coarse):
    few = slice(8 * 64 * KIB)
    for limit, most in ((512 * KIB, 512 * KIB), (256 * KIB, 64 * KIB)):
        a, store = opened(coarse, threads=1, memory_limit=limit)
        assert np.array_equal(a[few], NOISE[few])
        assert max(store.payload_nbytes()) == most


def test_half_of_the_memory_limit_is_for_what_waits_to_be_decoded(plain, runs):
    a, _ = opened(plain, threads=1, memory_limit=640 * KIB)
    a[:]
    assert runs[-1] == (1, 320 * KIB)


@pytest.mark.parametrize(
    ("threads", "limit", "n"), [(3, MIB, 3), (8, MIB, 4), (8, 600 * KIB, 2)]
)
def test_threads_are_as_many_as_asked_for_and_have_room(
    tmp_path, runs, threads, limit, n
):
    """An inner chunk of 128 KiB is held encoded and decoded."""
    meta = document(
        (2 * MIB,), (2 * MIB,), sharding((128 * KIB,), codecs=[LITTLE, ZSTD])
    )
    a, _ = opened(put(tmp_path, meta), threads=threads, memory_limit=limit)
    assert not a[:].any()
    assert {n_workers for n_workers, _ in runs} == {n}


@pytest.mark.parametrize("first", [1, 128 * KIB])
def test_the_first_object_does_not_say_how_many_threads_are_worth_it(
    tmp_path, runs, first
):
    meta = rectilinear([first, *[128 * KIB] * 8], LITTLE, ZSTD)
    a, _ = opened(put(tmp_path, meta), threads=3)
    assert not a[:].any()
    assert {n_workers for n_workers, _ in runs} == {3}


@pytest.fixture(scope="module")
def empty_shards(tmp_path_factory):
    """Eight shards, each of nothing but an index of 64 KiB; and eight in one shard."""
    n = 4 * KIB
    index = np.full((n, 2), 2**64 - 1, "<u8").tobytes()
    meta = document((8 * n,), (n,), sharding((1,), **INDEXED))
    shards = {f"c_{k}": index for k in range(8)}
    side = put(tmp_path_factory.mktemp("side"), meta, **shards)
    inner = sharding((1,), **INDEXED)
    nested = sharding((n,), codecs=[inner], **INDEXED)
    ranges = np.stack([np.arange(8) * 16 * n, np.full(8, 16 * n)], 1).astype("<u8")
    meta = document((8 * n,), (8 * n,), nested)
    within = put(tmp_path_factory.mktemp("in"), meta, c_0=8 * index + ranges.tobytes())
    return {"side by side": side, "in one another": within}


@pytest.mark.parametrize("key", [np.s_[:], np.s_[4095:4097]], ids=["all", "two"])
@pytest.mark.parametrize("lie", ["side by side", "in one another"])
@pytest.mark.parametrize(("limit", "n"), [(520 * KIB, 2), (260 * KIB, 1)])
def test_indexes_that_are_read_together_fit_the_memory_limit(
    empty_shards, key, lie, limit, n
):
    """Each counts as 65 KiB, four times; of two levels each has half of the room."""
    n_levels = 1 if lie == "side by side" else 2
    a, store = opened(empty_shards[lie], memory_limit=n_levels * limit)
    assert not a[key].any()
    assert max(map(asked_nbytes, store.calls)) == n * 64 * KIB


def test_objects_that_are_fetched_whole_fit_half_the_memory_limit(tmp_path):
    n = 64
    meta = document((n * 4 * KIB,), (4 * KIB,), LITTLE, GZIP)
    a, _ = opened(put(tmp_path, meta))
    most = a.source.largest_chunk_nbytes
    for limit, n_at_once in ((8 * most, 4), (4 * most, 2)):
        a, store = opened(tmp_path, threads=1, memory_limit=limit)
        assert not a[:].any()
        assert max(map(len, store.calls)) == n_at_once


def test_the_largest_object_says_how_many_are_fetched_whole_together(tmp_path):
    meta = rectilinear([KIB, *[64 * KIB] * 16], LITTLE, GZIP)
    a, store = opened(put(tmp_path, meta), threads=1, memory_limit=768 * KIB)
    assert a.source.largest_chunk_nbytes == 192 * KIB
    assert not a[:].any()
    assert max(map(len, store.calls)) == 2


@pytest.mark.parametrize(("n_more", "is_sane"), [(0, True), (1, False)])
def test_a_wrapped_shard_has_room_for_some_gaps(tmp_path, n_more, is_sane):
    """64 bytes are allowed twice, then 256 for each inner chunk, then 4 MiB."""
    inner = sharding((16,), **INDEXED)
    n_gap = 4 * 256 + 4 * MIB + n_more
    entries = np.stack([np.arange(0, 64, 16) + n_gap + 64, np.full(4, 16)], 1)
    inside = bytes(n_gap + 64) + bytes(range(64)) + entries.astype("<u8").tobytes()
    stored = gzip.compress(inside)
    place = put(tmp_path, document((64,), (64,), inner, GZIP), c_0=stored)
    a, _ = opened(place, batch_nbytes=1)
    if is_sane:
        assert np.array_equal(a[:], np.arange(64))
        a[0:16] = 3
        assert a[0:64:16].tolist() == [3, 16, 32, 48]
        return
    with pytest.raises(gpushard.CorruptShardError):
        a[:]
    with pytest.raises(gpushard.CorruptShardError):
        a[0:16] = 3
    assert (place / "c" / "0").read_bytes() == stored


@pytest.mark.parametrize(("n_chunks", "is_small"), [(3, True), (4, False)])
def test_reads_are_small_up_to_the_option(plain, monkeypatch, n_chunks, is_small):
    general: list[Any] = []
    monkeypatch.setattr(results, "execute", general.append)
    a, _ = opened(plain, small_read_chunks=3)
    a[: n_chunks * 4 * KIB]
    assert (not general) is is_small


@pytest.mark.parametrize(("n_rows", "is_whole"), [(127, False), (128, True)])
def test_objects_are_fetched_whole_from_the_fraction_on(plain, n_rows, is_whole):
    a, store = opened(plain, BY_PRICE, whole_object_fraction=0.5)
    a[: n_rows * 4 * KIB]
    assert (len(store.calls) == 1) is is_whole


@pytest.mark.parametrize(("most", "is_whole"), [(MIB - 1, False), (MIB, True)])
def test_objects_above_the_option_are_never_fetched_whole(plain, most, is_whole):
    a, store = opened(plain, BY_PRICE, whole_object_max_nbytes=most)
    a[:]
    assert (len(store.calls) == 1) is is_whole


def test_a_window_on_files_is_each_threads_part_of_half_the_memory_limit():
    options = Options(threads=4, memory_limit=64 * KIB)
    assert files.window_nbytes(options, widest=100) == 8 * KIB
    assert files.window_nbytes(options, widest=9000) == 9000  # at once, or not at all


@pytest.fixture
def loops():
    pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")
    choice._load()


@pytest.mark.parametrize(("limit", "is_direct"), [(MIB, False), (2 * MIB, True)])
def test_compiled_reads_lay_out_axes_within_a_quarter_of_the_memory_limit(
    tmp_path, loops, monkeypatch, limit, is_direct
):
    """An axis of 4,096 inner chunks takes 400 KiB."""
    n = 4 * KIB
    meta = document((n,), (n,), sharding((1,), codecs=[LITTLE, ZSTD]))
    made: list[Any] = []
    real = sharded.ShardedRead
    monkeypatch.setattr(sharded, "ShardedRead", lambda *a: made.append(a) or real(*a))
    options = Options(compile_nbytes=0, small_read_chunks=0, memory_limit=limit)
    a = gpushard.open_array(put(tmp_path, meta), device="cpu", options=options)
    assert not a[:].any()
    assert bool(made) is is_direct


@pytest.mark.parametrize("threads", [1, 3])
def test_short_compiled_reads_take_no_more_threads_than_asked_for(
    coarse, loops, monkeypatch, threads
):
    n_workers = [1]
    real = short_sharded.run_tasks

    def run_tasks(tasks: Any, n: int) -> None:
        n_workers.append(n)
        real(tasks, n)

    monkeypatch.setattr(short_sharded, "run_tasks", run_tasks)
    monkeypatch.setattr(shares, "_SHARE_US", 1)
    options = Options(threads=threads, compile_nbytes=0)
    a = gpushard.open_array(coarse, device="cpu", options=options)
    assert np.array_equal(a[:], NOISE)
    assert max(n_workers) == threads


def test_no_short_way_is_taken_where_there_is_none_asked_for(plain, loops, monkeypatch):
    def read_short(*_: Any) -> bool:
        raise AssertionError("a short way was taken")

    monkeypatch.setattr(short_sharded.ShortShardedReader, "read", read_short)
    few = slice(8 * KIB)
    options = Options(compile_nbytes=0)
    a = gpushard.open_array(plain, device="cpu", options=options)
    with pytest.raises(AssertionError, match="short way"):
        a[few]
    options = options.but(small_read_chunks=0)
    a = gpushard.open_array(plain, device="cpu", options=options)
    assert np.array_equal(a[few], NOISE[few])


@pytest.mark.parametrize("kind", ["array", "concatenated", "rolling"])
def test_the_memory_limit_of_one_read_holds_for_it(tmp_path, coarse, runs, kind):
    if kind == "rolling":
        rolling(tmp_path / "a", 0, 6)
        options = Options(small_read_chunks=0, compile_nbytes=2**60)
        a: Any = RollingArray.open(tmp_path / "a", device="cpu", options=options)
    else:
        a, _ = opened(coarse)
        a = a if kind == "array" else gpushard.concat([a, a])
    a.read(memory_limit=640 * KIB)
    assert runs[-1][1] == 320 * KIB


@pytest.mark.parametrize("n", [1, 3])
def test_a_loader_reads_with_the_threads_asked_for(coarse, runs, n):
    a, _ = opened(coarse, threads=8)
    with gpushard.Loader(a, batch_size=MIB, num_threads=n) as batches:
        assert np.array_equal(next(iter(batches)), NOISE)
    assert {n_workers for n_workers, _ in runs} == {n}
