"""Unsharded arrays in files that the compiled loops open, read and close."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import sys
from itertools import count
from time import perf_counter, sleep
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import gpushard
import selection_strategies as sts
from gpushard.fused import opening, system_calls, unsharded
from gpushard.fused.chain import fused_chain
from gpushard.fused.sink import FusedSink
from gpushard.stores.local.store import LocalStore
from unsharded_cases import (
    CHAINS,
    COMPILED,
    FILL,
    OPENAT2,
    SHAPE,
    STATX,
    calls_replaced,
    need_opened_files,
    opened,
    stored,
    values_of,
)
from zarr_oracle import assert_same_bits

pytest.importorskip("numba", reason="the compiled loops are an extra")
pytestmark = need_opened_files
calls = calls_replaced


@pytest.fixture(autouse=True)
def is_patient(monkeypatch):
    """Other work on the machine does not make files slow."""
    monkeypatch.setattr(opening, "_SLOW_US", 1e9)


@pytest.fixture
def left(monkeypatch):
    """For each read of a test, the number of files that the loops left over."""
    found = []
    plain = unsharded.UnshardedRead.left_over

    def left_over(self):
        blocks = list(plain(self))
        found.append(sum(len(block.shard_coords) for block in blocks))
        return iter(blocks)

    monkeypatch.setattr(unsharded.UnshardedRead, "left_over", left_over)
    return found


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("dtype", ["i4", "i1", "f8"])
def test_the_loops_read_every_file_and_fill_what_is_missing(
    tmp_path, left, chain, dtype
):
    values = values_of(dtype)
    stored(tmp_path, values, **CHAINS[chain])
    a = opened(tmp_path)
    assert_same_bits(a[...], values)
    assert_same_bits(a[3:45:2, 36:1:-5], values[3:45:2, 36:1:-5])
    rows = [3, 40, 3, 17]
    assert_same_bits(a.oindex[rows, 2:30], values[rows, 2:30])
    assert_same_bits(a.vindex[rows, [5, 36, 5, 0]], values[rows, [5, 36, 5, 0]])
    one, other = a.read_many([(slice(0, 9), 3), (slice(4, 33), slice(3, 12))])
    assert_same_bits(one, values[0:9, 3])
    assert_same_bits(other, values[4:33, 3:12])
    assert left
    assert not any(left)


@pytest.mark.parametrize("chain", ["raw", "zstd", "v2"])
@given(data=st.data())
def test_random_selections_are_those_of_numpy(chain, data, tmp_path_factory):
    place = tmp_path_factory.getbasetemp() / f"unsharded-{chain}"
    values = values_of()
    if not place.exists():
        stored(place, values, **CHAINS[chain])
    key = data.draw(sts.basic_keys(SHAPE))
    assert_same_bits(opened(place)[key], values[key])


def test_fill_values_of_damaged_files_are_those_of_the_general_path(tmp_path, left):
    values = values_of(with_gaps=False)
    stored(tmp_path, values, **CHAINS["zstd-crc"])
    flipped = tmp_path / "c/2/1"
    data = bytearray(flipped.read_bytes())
    data[-6] ^= 1
    flipped.write_bytes(bytes(data))
    (tmp_path / "c/0/3").write_bytes(b"")
    (tmp_path / "c/1/1").write_bytes(bytes(100_000))
    a = opened(tmp_path)
    with pytest.raises(gpushard.CorruptShardError, match=r"c/"):
        a[...]
    found = []
    got = a.read(errors=found.append)
    assert sorted(error.inner_chunk for error in found) == [(0, 3), (1, 1), (2, 1)]
    for i, j in [(0, 3), (1, 1), (2, 1)]:
        values[8 * i : 8 * i + 8, 10 * j : 10 * j + 10] = FILL
    assert_same_bits(got, values)
    assert left[-1] == 3


def test_links_are_left_to_the_general_path_and_lead_where_they_may(tmp_path, left):
    values = values_of(with_gaps=False)
    place = tmp_path / "a"
    stored(place, values, **CHAINS["zstd"])
    (place / "c/1/1").rename(place / "kept")
    (place / "c/1/1").symlink_to("../../kept")
    (place / "c/3").rename(place / "row")
    (place / "c/3").symlink_to("../row")
    a = opened(place)
    assert_same_bits(a[...], values)
    assert left == [1 + 4]
    (place / "kept").rename(tmp_path / "outside")
    (place / "c/1/1").unlink()
    (place / "c/1/1").symlink_to(tmp_path / "outside")
    with pytest.raises(gpushard.StoreError, match="leads out of the store"):
        opened(place)[...]
    trusted = LocalStore(place, COMPILED, allow_symlinks_outside=True)
    assert_same_bits(opened(trusted)[...], values)
    assert left[-1] == 0
    (tmp_path / "outside").unlink()
    for store in (place, trusted):
        with pytest.raises(gpushard.StoreError, match="leads nowhere"):
            opened(store)[...]


def put_directory(path):
    path.unlink()
    path.mkdir()


def put_fifo(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("put", [put_directory, put_fifo])
def test_what_is_no_regular_file_is_named(tmp_path, put):
    stored(tmp_path, values_of(with_gaps=False), **CHAINS["zstd"])
    put(tmp_path / "c/1/1")
    with pytest.raises(gpushard.StoreError, match="something else where a file"):
        opened(tmp_path)[...]


def test_a_file_that_may_not_be_read_is_named(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may read every file")
    stored(tmp_path, values_of(with_gaps=False), **CHAINS["zstd"])
    (tmp_path / "c/1/1").chmod(0)
    with pytest.raises(gpushard.StoreError, match="Permission denied"):
        opened(tmp_path)[...]


@pytest.mark.parametrize("name", ["\\ud800", "\\u0000", ".."])
@pytest.mark.parametrize("small_read_chunks", [0, 32])
def test_names_that_are_no_path_are_refused(tmp_path, name, small_read_chunks):
    group = zarr.create_group(tmp_path, zarr_format=2)
    group.create_array("a", shape=(400,), chunks=(2,), dtype="i4")
    zarr.consolidate_metadata(tmp_path)
    metadata = tmp_path / ".zmetadata"
    metadata.write_text(metadata.read_text().replace('"a/', f'"{name}/'))
    options = COMPILED.but(small_read_chunks=small_read_chunks)
    group = gpushard.open_group(tmp_path, device="cpu", options=options)
    a = group[json.loads(f'"{name}"')]
    with pytest.raises(gpushard.StoreError, match="no key below"):
        a[...]
    assert a[5:5].shape == (0,)


def test_a_store_that_is_gone_has_no_fill_values(tmp_path):
    place = tmp_path / "a"
    stored(place, values_of(), **CHAINS["zstd"])
    a = opened(place)
    place.rename(tmp_path / "b")
    with pytest.raises(gpushard.StoreError, match="directory is gone"):
        a[...]
    place.symlink_to(tmp_path / "b")
    with pytest.raises(gpushard.StoreError, match="leads out of the store"):
        a[...]


def test_a_file_that_is_written_to_meanwhile_is_read_again(tmp_path, left, calls):
    values = values_of(with_gaps=False)
    stored(tmp_path, values, **CHAINS["raw"])
    victim = tmp_path / "c/1/1"
    looks = []

    def statx(plain, fd, *rest):
        is_victim = os.path.samestat(os.fstat(fd), victim.stat())
        if is_victim:
            looks.append(fd)
            if len(looks) == 2:  # as a writer in place does
                victim.write_bytes(np.full(80, 5, "i4").tobytes())
        return plain(fd, *rest)

    calls("statx", STATX, statx)
    got = opened(tmp_path)[...]
    values[8:16, 10:20] = 5
    assert_same_bits(got, values)
    assert left == [1]


def test_a_store_that_goes_during_the_read_has_no_fill_values(tmp_path, left, calls):
    place = tmp_path / "a"
    stored(place, values_of(with_gaps=False), **CHAINS["zstd"])
    opens = []

    def openat2(plain, *words):
        opens.append(words)
        if len(opens) == 9:
            shutil.rmtree(place)
        return plain(*words)

    calls("syscall", OPENAT2, openat2)
    with pytest.raises(gpushard.StoreError, match="directory is gone"):
        opened(place, COMPILED.but(threads=1))[...]
    assert left == [28 - 8]


def test_files_beyond_the_limit_of_open_ones_are_read_again(tmp_path, left, calls):
    values = values_of()
    stored(tmp_path, values, **CHAINS["zstd"])

    def openat2(plain, *words):
        ctypes.set_errno(24)
        return -1

    calls("syscall", OPENAT2, openat2)
    assert_same_bits(opened(tmp_path)[...], values)
    assert left == [28]


def test_that_loops_can_open_files_is_known_while_no_more_can_be_open():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        found = system_calls.file_calls.__wrapped__()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found == system_calls.file_calls()


@pytest.mark.parametrize(
    ("platform", "machine", "release"),
    [
        ("darwin", "arm64", "24.6.0"),
        ("linux", "x86_64", "4.18.0-553.el8_10.x86_64"),
        ("linux", "x86_64", "5.5.19"),
        ("linux", "x86_64", "a kernel of our own"),
        ("linux", "mips64", "6.1.0"),
    ],
)
def test_no_system_call_is_asked_for_by_a_number_that_another_one_may_have(
    platform, machine, release, monkeypatch
):
    """Sandboxes as old as such kernels end processes that ask for an unknown one."""

    def loaded(*_, **__):
        raise AssertionError("a function of the C library is looked for")

    system = SimpleNamespace(machine=machine, release=release)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os, "uname", lambda: system)
    monkeypatch.setattr(ctypes, "CDLL", loaded)
    assert system_calls.file_calls.__wrapped__() is None


@pytest.mark.parametrize("release", ["5.6.0", "5.10.0-8-amd64", "10.0"])
def test_loops_open_files_from_the_first_kernel_that_can_on(release, monkeypatch):
    system = SimpleNamespace(machine="aarch64", release=release)
    monkeypatch.setattr(os, "uname", lambda: system)
    assert system_calls.file_calls.__wrapped__() == system_calls.file_calls()


def test_files_that_take_long_are_left_to_those_who_wait_for_many(
    tmp_path, left, calls, monkeypatch
):
    values = values_of(with_gaps=False)
    stored(tmp_path, values, **CHAINS["zstd"])
    opens = []

    def openat2(plain, *words):
        opens.append(words)
        return plain(*words)

    calls("syscall", OPENAT2, openat2)
    monkeypatch.setattr(opening, "_SLOW_US", -1e9)
    assert_same_bits(opened(tmp_path)[...], values)
    n_tried = unsharded._N_TRIALS * unsharded.N_TRIED
    assert len(opens) == n_tried
    assert left == [28 - n_tried]


def test_systems_that_open_no_files_for_the_loops_read_as_before(
    tmp_path, left, monkeypatch
):
    values = values_of()
    stored(tmp_path, values, **CHAINS["zstd"])
    monkeypatch.setattr(opening, "file_calls", lambda: None)
    assert_same_bits(opened(tmp_path)[...], values)
    assert not left


def test_no_descriptor_stays_open(tmp_path):
    stored(tmp_path, values_of(), **CHAINS["zstd"])
    a = opened(tmp_path)
    a[...]
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        a[...]
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("n_waits", "is_slow"), [(4, True), (3, False)])
def test_files_are_slow_if_the_thread_waits_for_them(n_waits, is_slow, monkeypatch):
    counts = iter([10, 10 + n_waits])
    monkeypatch.setattr(opening, "_n_waits", lambda: next(counts))
    beginning = opening.Beginning.now()._replace(at_s=perf_counter() - 1)
    waited_s = beginning.waited_s(8)
    assert (waited_s >= 1) == is_slow
    assert opening.are_slow(waited_s, 8, 100) is False  # patience of `is_patient`
    monkeypatch.setattr(opening, "_SLOW_US", 300)
    assert opening.are_slow(waited_s, 8, 100) == is_slow


def test_a_thread_that_sleeps_is_told_from_one_that_works():
    beginning = opening.Beginning.now()
    for _ in range(8):
        sleep(0.001)
    assert beginning.waited_s(8) >= 0.008
    beginning = opening.Beginning.now()
    while perf_counter() - beginning.at_s < 0.02:
        pass
    assert beginning.waited_s(1000) == 0


@pytest.mark.parametrize("waits", [0, 9])
def test_files_that_others_delay_are_read_in_the_loops(
    waits, tmp_path, left, monkeypatch
):
    values = values_of(with_gaps=False)
    stored(tmp_path, values, **CHAINS["zstd"])
    a = opened(tmp_path)
    # To take any time beside decoding is to take long.
    chunk_us = fused_chain(a.source).chunk_us
    monkeypatch.setattr(opening, "_SLOW_US", -chunk_us)
    counts = count(step=waits)
    monkeypatch.setattr(opening, "_n_waits", lambda: next(counts))
    assert_same_bits(a[...], values)
    n_tried = unsharded._N_TRIALS * unsharded.N_TRIED
    assert left == [28 - n_tried if waits else 0]


def test_files_are_tried_only_before_other_threads_are_at_work(
    tmp_path, left, monkeypatch
):
    """Those hold Python's lock, and a wait for it is none for a disk."""
    monkeypatch.setattr("gpushard.planning.blocks.BLOCK_SHARDS", 32)
    zarr.create_array(tmp_path, shape=(200,), chunks=(1,), dtype="u1", fill_value=7)
    answers = iter([True, False])
    monkeypatch.setattr(unsharded, "are_slow", lambda *_: next(answers, True))
    a = opened(tmp_path, options=COMPILED.but(threads=2))
    assert (a[...] == 7).all()
    assert left == [0]
    assert next(answers, None) is None


def test_files_that_are_found_missing_together_are_filled_so(tmp_path, monkeypatch):
    form = {"dtype": "u1", "fill_value": 7, "compressors": None}
    zarr.create_array(tmp_path, shape=(200,), chunks=(1,), **form)
    monkeypatch.setattr(unsharded, "are_slow", lambda *_: True)
    n_rows, plain = [], FusedSink.fill

    def fill(sink, job, block, rows):
        n_rows.append(len(rows))
        plain(sink, job, block, rows)

    monkeypatch.setattr(FusedSink, "fill", fill)
    assert (opened(tmp_path)[...] == 7).all()
    assert sum(n_rows) == 200 - unsharded._N_TRIALS * unsharded.N_TRIED
    assert len(n_rows) < 20
