"""What of the memory limit is left, and what it is where nobody sets one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpushard
from asked_store import BY_PRICE, put
from asked_store import opened as asked
from damaged_arrays import opened
from gpushard import LimitError, Options, options
from gpushard.converting import tiles
from gpushard.fetching import pieces
from gpushard.machine import usable_memory_nbytes
from gpushard.memory.turns import turns
from gpushard.options import KIB, MIB
from gpushard.reading import joined, ranges, rounds, surrounded, whole
from gpushard.reading.results import host_job
from gpushard.report import Tally
from gpushard.selecting import index_arrays
from gpushard.selecting.expressions import basic
from gpushard.threads.work_queue import Spawner
from hostile_shards import ZSTD
from lone_chunks import N, let_little_count, put_chunk, zstd
from spec_shards import LITTLE, document, sharding

NOISE = np.random.default_rng(3).integers(0, 256, N, "u1")

RAISE = r"raise options\.memory_limit"


@pytest.fixture(autouse=True)
def _nothing_is_little(monkeypatch):
    """Let small arrays meet what large ones do."""
    let_little_count(monkeypatch)


def test_left_open_the_limit_is_256_mib_and_more_for_one_inner_chunk(monkeypatch):
    for usable, alone in ((16 << 30, 2 << 30), (1 << 30, 256 * MIB), (None, 256 * MIB)):
        monkeypatch.setattr(options, "usable_memory_nbytes", lambda n=usable: n)
        found = Options().resolved()
        assert (found.memory_limit, found.bound_nbytes) == (256 * MIB, 256 * MIB)
        assert found.alone_nbytes == alone
        assert found.is_left_open
        assert found.but(threads=3).alone_nbytes == alone


def test_a_limit_that_is_set_is_never_exceeded(monkeypatch):
    monkeypatch.setattr(options, "LEAST_MEMORY_NBYTES", 64 * MIB)
    for limit, bound in ((1, 64 * MIB), (64 * MIB, 64 * MIB), (256 * MIB, 256 * MIB)):
        for found in (
            Options(memory_limit=limit).resolved(),
            Options().resolved().but(memory_limit=limit),
            Options().but(memory_limit=limit).resolved(),
        ):
            assert found.memory_limit == limit
            assert found.bound_nbytes == found.alone_nbytes == bound
            assert not found.is_left_open
            assert found.resolved() is found


def test_what_is_held_already_leaves_less(monkeypatch):
    monkeypatch.setattr(options, "usable_memory_nbytes", lambda: 8 << 30)
    held = Options().resolved().beside(100 * MIB, 200 * MIB)
    assert (held.memory_limit, held.bound_nbytes) == (156 * MIB, 156 * MIB)
    assert held.alone_nbytes == (1 << 30) - 100 * MIB


def test_an_inner_chunk_larger_than_a_batch_reads_where_nobody_set_a_limit(
    tmp_path, monkeypatch
):
    place = put_chunk(tmp_path, [ZSTD], zstd(bytes(N)), is_sharded=False)
    monkeypatch.setattr(options, "DEFAULT_MEMORY_LIMIT", N // 2)
    for usable, is_read in ((16 * N, True), (8 * N, False)):
        monkeypatch.setattr(options, "usable_memory_nbytes", lambda n=usable: n)
        a = opened(place, "plain")
        if is_read:
            assert not a[:].any()
        else:
            with pytest.raises(LimitError, match=f"at most {usable // 8} bytes"):
                a[:]


# What else is held


def test_columns_in_hand_are_held_beside_batches(tmp_path, monkeypatch):
    n = 1 << 14
    meta = document((n,), (n,), sharding((1,), codecs=[LITTLE], index_codecs=[LITTLE]))
    a, _ = asked(put(tmp_path, meta), memory_limit=64 * MIB)
    out = np.empty(n, np.uint8)
    job = host_job(a.source, [basic(slice(None), a.shape)], [out], Tally())
    held = 300 * n + 80 * n
    (beside,) = pieces.beside_columns([job])
    found = beside.source.options
    assert found.bound_nbytes <= 64 * MIB - held
    assert found.memory_limit <= found.bound_nbytes
    monkeypatch.setattr(options, "LEAST_MEMORY_NBYTES", 64 * MIB)
    limited = replace(job, source=job.source.limited(8 * MIB))
    (beside,) = pieces.beside_columns([limited])
    # Below the least limit there is room for them.
    assert beside.source.options.memory_limit == 8 * MIB
    assert beside.source.options.bound_nbytes <= 64 * MIB - held


def test_columns_of_all_axes_are_held_before_any_job_begins(tmp_path):
    n = 1 << 12
    meta = document((n,), (n,), sharding((1,), codecs=[LITTLE], index_codecs=[LITTLE]))
    a, _ = asked(put(tmp_path, meta), memory_limit=64 * MIB)
    selection = basic(slice(None), a.shape)
    jobs = [
        host_job(a.source, [selection], [np.empty(n, np.uint8)], Tally())
        for _ in range(5)
    ]
    found = {job.source.options.bound_nbytes for job in pieces.beside_columns(jobs)}
    # Inner chunks of one job at a time have columns.
    assert found == {64 * MIB - 300 * n - 5 * 80 * n}


def test_columns_of_all_workers_take_a_quarter_of_the_limit(tmp_path, monkeypatch):
    n = 1 << 14
    meta = document((n,), (n,), sharding((1,), codecs=[LITTLE], index_codecs=[LITTLE]))
    returned: list[int] = []
    monkeypatch.setattr(pieces.freed, "note", lambda n, _: returned.append(n))
    for n_workers, most in ((3, n), (16, 3495), (1000, 1024)):
        a, _ = asked(put(tmp_path / str(most), meta), memory_limit=64 * MIB)
        out = np.empty(n, np.uint8)
        job = host_job(a.source, [basic(slice(None), a.shape)], [out], Tally())
        (block,) = job.plan.blocks()
        cut = [p.n_chunks for p in pieces.cut_rows(job, block, n_workers)]
        assert max(cut) == most
        assert sum(cut) == n
        # Where threads are many, each keeps what it has freed until it is returned.
        assert returned == ([] if most == n else [300 * k for k in cut])
        returned.clear()


def test_inner_chunks_of_several_selections_take_a_quarter_of_the_limit(tmp_path):
    a, _ = asked(put(tmp_path, document((8,), (8,), LITTLE)))
    for limit, most in ((64 * MIB, 55_924), (1, 1 << 14), (1 << 40, 1 << 17)):
        assert pieces.most_merged(a.source.limited(limit)) == most


def test_several_long_index_arrays_are_refused_beyond_a_quarter_of_the_limit(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(index_arrays, "KEPT_ELEMENTS", 8)
    monkeypatch.setattr(surrounded, "_MOST_ROW_NBYTES", 11)  # these have 12
    values = np.arange(64, dtype=np.uint8).reshape(8, 8)
    place = put(tmp_path, document((8, 8), (8, 8), LITTLE), c_0_0=values.tobytes())
    a = gpushard.open_array(place, device="cpu")
    rows, columns = np.arange(20) % 8, np.arange(12) % 8
    key = a.oindex[rows, columns]
    assert np.array_equal(key, values[np.ix_(rows, columns)])
    needed = 4 * 96 * 12
    for limit, is_read in ((needed, True), (needed - 4, False)):
        store: Any = a.source.store
        narrow = gpushard.open_array(store, options=Options(memory_limit=limit))
        if is_read:
            assert np.array_equal(narrow.oindex[rows, columns], key)
        else:
            with pytest.raises(LimitError, match=RAISE):
                narrow.oindex[rows, columns]


def test_selections_whose_axes_take_a_quarter_of_the_limit_are_read_in_turn(tmp_path):
    n = 1000
    meta = document((n,), (n,), sharding((1,), codecs=[LITTLE], index_codecs=[LITTLE]))
    entries = np.stack([np.arange(n), np.ones(n)], axis=1).astype("<u8").tobytes()
    values = np.resize(np.arange(7), n).astype("u1")
    place = put(tmp_path, meta, c_0=values.tobytes() + entries)
    keys = [slice(k, k + 600) for k in range(4)]
    for limit, n_together in ((4 * 48 * 600, 1), (4 * 48 * 1200, 2), (MIB, 4)):
        a, _ = asked(place, memory_limit=limit)
        read: list[int] = []

        def noted(_: Any, selections: Any, outs: Any, read: list[int] = read) -> None:
            assert len(selections) == len(outs)
            read.append(len(selections))

        wanted = [basic(key, a.shape) for key in keys]
        rounds.read_in_rounds(a.source, wanted, [None] * 4, noted)
        assert read == [n_together] * (4 // n_together)
        for key, got in zip(keys, a.read_many(keys), strict=True):
            assert np.array_equal(got, values[key])


@pytest.mark.parametrize(
    ("n_together", "n_alone"), [(0, 4), (1, 0), (2, 0), (4, 0)], ids=str
)
def test_joined_arrays_are_read_together_while_their_axes_take_a_quarter(
    n_together, n_alone, tmp_path, monkeypatch
):
    n, n_keys = 100, 3
    # Each array has three slices of a hundred cells, of 48 bytes each.
    limit = 4 * 48 * n * (n_keys * n_together or 2)
    meta = document((n,), (n,), sharding((1,), codecs=[LITTLE], index_codecs=[LITTLE]))
    entries = np.stack([np.arange(n), np.ones(n)], axis=1).astype("<u8").tobytes()
    values = np.resize(np.arange(7), n).astype("u1")
    place = put(tmp_path, meta, c_0=values.tobytes() + entries)
    arrays = [asked(place, memory_limit=limit)[0] for _ in range(4)]
    read: list[int] = []
    alone: list[int] = []
    execute, in_rounds = joined.execute, joined.read_in_rounds
    monkeypatch.setattr(
        joined, "execute", lambda jobs: execute(jobs) or read.append(len(jobs))
    )
    monkeypatch.setattr(
        joined, "read_in_rounds", lambda *a: in_rounds(*a) or alone.append(1)
    )
    found = gpushard.concat(arrays).read_many([slice(None)] * n_keys)
    assert [k for k in read if k] == [n_together] * (4 // (n_together or 5))
    assert len(alone) == n_alone
    for one in found:
        assert np.array_equal(one, np.tile(values, 4))


def test_shards_that_are_fetched_whole_count_as_fetched(tmp_path):
    n = 64 * KIB
    shard = sharding((n // 4,), codecs=[LITTLE, ZSTD], index_codecs=[LITTLE])
    a, _ = asked(put(tmp_path, document((8 * n,), (n,), shard)), BY_PRICE)
    out = np.empty(8 * n, np.uint8)
    job = host_job(a.source, [basic(slice(None), a.shape)], [out], Tally())
    (block,) = job.plan.blocks()
    works = list(whole.whole_tasks(job, block, 4))
    most = whole.most_fetched(a.source, (0,))
    assert all(isinstance(w, Spawner) and w.nbytes >= most for w in works)


@pytest.mark.parametrize(
    ("key", "n_workers", "copied_nbytes"),
    [
        (slice(0, 2 * KIB), 4, 0),  # whole inner chunks are not copied
        (slice(KIB // 2, 3 * KIB // 2), 1, KIB // 2),
        (slice(KIB // 2, 3 * KIB // 2), 4, KIB),  # no more than is fetched
    ],
)
def test_what_threads_copy_of_plain_inner_chunks_counts_as_fetched(
    key, n_workers, copied_nbytes, tmp_path
):
    n = 4 * KIB
    meta = document(
        (n,), (n,), sharding((KIB,), codecs=[LITTLE], index_codecs=[LITTLE])
    )
    entries = np.stack([np.arange(4) * KIB, np.full(4, KIB)], axis=1).astype("<u8")
    a, _ = asked(put(tmp_path, meta, c_0=bytes(n) + entries.tobytes()))
    selection = basic(key, a.shape)
    job = host_job(a.source, [selection], [np.empty(selection.shape, "u1")], Tally())
    (block,) = job.plan.blocks()
    (work,) = ranges.range_tasks(job, block, n_workers)
    assert work.nbytes == selection.shape[0] + copied_nbytes


def test_a_conversion_reads_large_inner_chunks_one_at_a_time(tmp_path, monkeypatch):
    meta = document((4 * N,), (N,), LITTLE, ZSTD)
    data = zstd(NOISE.tobytes())
    chunks = {f"c_{k}": data for k in range(4)}
    source = put(tmp_path / "a", meta, **chunks)
    held: list[bool] = []
    read = gpushard.Array.read

    def noted(self: Any, *given: Any, **named: Any) -> Any:
        held.append(turns.copying.locked())
        return read(self, *given, **named)

    monkeypatch.setattr(gpushard.Array, "read", noted)
    shapes: Any = {"shards": (N,), "chunks": (KIB,), "num_threads": 2}
    gpushard.convert(source, tmp_path / "b", memory_limit=1 << 20, **shapes)
    assert held == [False] * 4
    held.clear()
    limit = 12 * N
    gpushard.convert(source, tmp_path / "c", memory_limit=limit, **shapes)
    assert len(held) == 4
    held.clear()
    monkeypatch.setattr(options, "DEFAULT_MEMORY_LIMIT", 6 * N)
    monkeypatch.setattr(tiles, "_INDEX_SHARE", 8)
    monkeypatch.setattr(tiles, "_READ_SHARE", 16)
    gpushard.convert(source, tmp_path / "e", **shapes)
    assert held == [True] * 4


# What the system says that a process may use


def pretend(monkeypatch, files: dict[str, str]) -> None:
    real = Path.read_text

    def read_text(path: Path, *args: Any, **kwargs: Any) -> str:
        if str(path).startswith(("/proc/self/cgroup", "/sys/fs/cgroup")):
            if str(path) not in files:
                raise FileNotFoundError(path)
            return files[str(path)]
        return real(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr("os.sysconf", lambda name: 1 << (20 if "PAGES" in name else 12))


@pytest.mark.parametrize(
    ("files", "nbytes"),
    [
        ({}, 1 << 32),
        ({"/sys/fs/cgroup/memory.max": "123\n"}, 123),
        ({"/sys/fs/cgroup/memory.max": "max\n"}, 1 << 32),
        ({"/sys/fs/cgroup/a/b/memory.max": "5", "/sys/fs/cgroup/a/memory.max": "4"}, 4),
        ({"/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "77"}, 77),
        ({"/sys/fs/cgroup/memory/memory.limit_in_bytes": str(1 << 62)}, 1 << 32),
    ],
)
def test_usable_memory_is_the_machines_cut_by_control_groups(
    monkeypatch, files, nbytes
):
    groups = "9:cpu,cpuacct:/x\n4:memory:/a/b\n0::/a/b\n"
    pretend(monkeypatch, {"/proc/self/cgroup": groups, **files})
    assert usable_memory_nbytes.__wrapped__() == nbytes


def test_usable_memory_is_unknown_where_the_system_does_not_tell(monkeypatch):
    def untold(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr("os.sysconf", untold)
    assert usable_memory_nbytes.__wrapped__() is None
    pretend(monkeypatch, {})
    assert usable_memory_nbytes.__wrapped__() == 1 << 32


def test_beside_columns_the_limit_that_an_error_names_is_enough(tmp_path):
    place = put_chunk(tmp_path, [ZSTD], zstd(NOISE.tobytes()), is_sharded=True)
    at = np.arange(300_000) % N
    with pytest.raises(LimitError, match="beside its columns and indexes") as caught:
        opened(place, "plain", memory_limit=3 * N).vindex[at]
    told = re.search(rf"{RAISE} \((\d+) bytes are enough\)", str(caught.value))
    a = opened(place, "plain", memory_limit=int(told[1]))
    assert np.array_equal(a.vindex[at], NOISE[at])
