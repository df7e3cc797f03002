"""Inner chunks of arrays without shards that are kept, and what happens to their files.

What is kept must never be taken for what a file has now, if that has changed.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, note
from hypothesis import strategies as st
from zarr.codecs import Crc32cCodec, GzipCodec, ZstdCodec

import gpushard
import selection_strategies as sts
from gpushard import Options
from gpushard.fused import choice, opening
from gpushard.fused.short import unsharded as short_unsharded
from gpushard.options import MIB
from gpushard.pipeline import HostPipeline
from gpushard.stores.local import handles
from gpushard.stores.local.handles import packed_version
from gpushard.stores.local.store import LocalStore
from unsharded_cases import (
    OPENAT2,
    STATX,
    calls_replaced,
    need_opened_files,
    opened,
)
from zarr_oracle import assert_same_bits

pytest.importorskip("numba", reason="the compiled loops are an extra")
calls = calls_replaced

KEPT = Options(chunk_cache_nbytes=MIB)
# With Python alone; with the loops, for a few and for many inner chunks; without either
# of the short ways. Those of `FINDING` only find what others have kept.
WAYS = {
    "small": KEPT.but(compile_nbytes=2**62, small_read_chunks=1000),
    "short": KEPT.but(compile_nbytes=0),
    "whole": KEPT.but(compile_nbytes=0, small_read_chunks=0),
}
FINDING = {"general": KEPT.but(compile_nbytes=2**62, small_read_chunks=0)}
AT_EMPTY_PATH, AT_STATX_FORCE_SYNC = 0x1000, 0x2000
SHAPE, CHUNKS, FILL = (40, 33), (8, 10), -7
VALUES = np.arange(40 * 33, dtype="i4").reshape(SHAPE)
PLACES = [(i, j) for i in range(5) for j in range(4)]
# A part of one inner chunk, of two, of some, and of all of them.
KEYS = np.s_[3, 4:9], np.s_[5:11, 2], np.s_[4:33:3, 5:25], np.s_[1:, 1:]


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    """The loops are there, and other work on the machine does not make files slow."""
    choice._load()
    monkeypatch.setattr(opening, "_SLOW_US", 1e9)
    monkeypatch.setattr(short_unsharded.ShortUnshardedReader, "n_few", 1)
    monkeypatch.setattr(handles, "_SETTLED_NS", 0)


@pytest.fixture(params=WAYS)
def options(request):
    if request.param != "small" and opening.file_calls() is None:
        pytest.skip("this system opens no files for the loops")
    return WAYS[request.param]


def written(place: Path, values: Any = VALUES, **how: Any) -> Any:
    """An array of 8 x 10 inner chunks, each in a file."""
    how = {"chunks": CHUNKS, "compressors": [ZstdCodec()], "fill_value": FILL, **how}
    z = zarr.create_array(place, shape=values.shape, dtype=values.dtype, **how)
    z[...] = values
    return z


def file_at(place: Path, i: int, j: int) -> Path:
    return place / "c" / str(i) / str(j)


def bury(path: Path, grave: Path) -> None:
    """Take a file away, but keep it, so that no later file has its inode."""
    grave.mkdir(exist_ok=True)
    if path.exists():
        path.rename(grave / str(len(list(grave.iterdir()))))


def put_anew(path: Path, data: bytes, grave: Path) -> None:
    """Put another file in the place of one, if there is any."""
    bury(path, grave)
    path.write_bytes(data)


def n_kept(a: gpushard.Array) -> int:
    return len(a.source.chunks or ())


def read_all(a: gpushard.Array, values: Any) -> None:
    for key in KEYS:
        assert_same_bits(a[key], np.asarray(values[key]))


def refuse_work(monkeypatch) -> None:
    """No file is read and nothing is decoded, by Python or by the loops."""

    def refused(*args: Any, **how: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(LocalStore, "read", refused)
    monkeypatch.setattr(HostPipeline, "decode", refused)
    monkeypatch.setattr(short_unsharded.ShortUnshardedReader, "_read", refused)
    monkeypatch.setattr("gpushard.fused.unsharded.UnshardedRead._are_slow", refused)


def test_what_is_kept_is_neither_fetched_nor_decoded(tmp_path, options, monkeypatch):
    written(tmp_path)
    a = opened(tmp_path, options)
    for _ in range(2):
        read_all(a, VALUES)
    assert n_kept(a) == 20
    refuse_work(monkeypatch)
    read_all(a, VALUES)
    report = a.explain(KEYS[-1])
    assert (report.n_kept_inner_chunks, report.n_payload_requests) == (20, 0)


@need_opened_files
@pytest.mark.parametrize("way", ["short", "whole"])
@pytest.mark.parametrize(("name", "n"), [("statx", 3 * 9), ("syscall", 9)])
def test_a_kept_file_is_looked_at_once_and_not_opened(tmp_path, calls, way, name, n):
    written(tmp_path)
    called = []

    def count(plain, *words):
        called.append(words)
        return plain(*words)

    calls(name, {"statx": STATX, "syscall": OPENAT2}[name], count)
    a = opened(tmp_path, WAYS[way].but(threads=1))
    rows = [1, 9, 3, 39, 2]
    for _ in range(2):
        assert_same_bits(a.oindex[rows, 2:25], VALUES[rows, 2:25])
    assert len(called) == n


# Where a `struct statx` has a file's device, inode, size and times, in seconds and ns.
@need_opened_files
@pytest.mark.parametrize("offset", [136, 140, 32, 40, 96, 104, 112, 120])
def test_a_file_is_opened_again_whatever_part_of_its_version_differs(
    tmp_path, calls, offset
):
    written(tmp_path)
    n_read = 0

    def statx(plain, *words):
        nonlocal n_read
        found = plain(*words)
        if words[2] != AT_EMPTY_PATH:
            assert words[2] == AT_STATX_FORCE_SYNC
            ctypes.c_uint8.from_address(words[4] + offset).value ^= 1
        else:
            n_read += 1
        return found

    calls("statx", STATX, statx)
    a = opened(tmp_path, WAYS["short"])
    for n in (2 * 4, 4 * 4):
        assert_same_bits(a[:16, :20], VALUES[:16, :20])
        assert n_read == n


@need_opened_files
def test_files_behind_those_that_were_tried_are_kept_with_their_own_versions(
    tmp_path, monkeypatch
):
    written(tmp_path)
    a = opened(tmp_path, WAYS["short"])
    assert_same_bits(a[...], VALUES)
    refuse_work(monkeypatch)
    assert_same_bits(a[...], VALUES)


def test_every_way_finds_what_every_other_way_kept(tmp_path):
    written(tmp_path, compressors=[GzipCodec(), Crc32cCodec()])
    ways = WAYS | FINDING
    if opening.file_calls() is None:
        ways = {"small": ways["small"]} | FINDING
    for first, second in permutations(ways, 2):
        a = opened(tmp_path, ways[first])
        b = gpushard.Array(replace(a.source, options=ways[second].resolved()))
        a[2:30, 3:30]
        assert n_kept(a) == (0 if first in FINDING else 12)
        assert_same_bits(b[2:30, 3:30], VALUES[2:30, 3:30])
        assert b.explain(np.s_[2:30, 3:30]).n_kept_inner_chunks == n_kept(a)
        assert_same_bits(b[...], VALUES)


def test_a_file_replaced_by_one_of_the_same_size_is_read_anew(tmp_path, options):
    values = np.random.default_rng(1).integers(0, 1 << 30, SHAPE).astype("i4")
    written(tmp_path / "a", values, compressors=[Crc32cCodec()])
    written(tmp_path / "b", -values, compressors=[Crc32cCodec()])
    a, want = opened(tmp_path / "a", options), values.copy()
    read_all(a, want)
    for i, j in PLACES:
        path, other = (file_at(tmp_path / name, i, j) for name in "ab")
        data = other.read_bytes()
        assert len(data) == path.stat().st_size
        put_anew(path, data, tmp_path / "grave")
        region = np.s_[8 * i : 8 * i + 8, 10 * j : 10 * j + 10]
        want[region] = -values[region]
        read_all(a, want)
    read_all(a, want)
    assert n_kept(a) == 20


def test_another_file_of_the_same_size_and_time_is_read_anew(tmp_path, options):
    written(tmp_path / "a", compressors=[Crc32cCodec()])
    written(tmp_path / "b", -VALUES, compressors=[Crc32cCodec()])
    one, other = (file_at(tmp_path / name, 0, 0) for name in "ab")
    for path in (one, other):
        os.utime(path, ns=(10**18, 10**18))
    a, want = opened(tmp_path / "a", options), VALUES.copy()
    read_all(a, want)
    before = one.stat()
    other.replace(one)
    after = one.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert after.st_ino != before.st_ino
    want[:8, :10] *= -1
    read_all(a, want)


def test_a_file_overwritten_in_place_is_read_anew_though_its_time_is_set_back(
    tmp_path, options
):
    written(tmp_path / "a", compressors=[Crc32cCodec()])
    written(tmp_path / "b", -VALUES, compressors=[Crc32cCodec()])
    one, other = (file_at(tmp_path / name, 0, 0) for name in "ab")
    a, want = opened(tmp_path / "a", options), VALUES.copy()
    read_all(a, VALUES)
    before = one.stat()
    changed_ns = before.st_ctime_ns
    while changed_ns == before.st_ctime_ns:  # the file system's clock has ticks
        with one.open("r+b") as file:
            file.write(other.read_bytes())
        os.utime(one, ns=(before.st_atime_ns, before.st_mtime_ns))
        changed_ns = one.stat().st_ctime_ns
    after = one.stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert after.st_mtime_ns == before.st_mtime_ns
    want[:8, :10] *= -1
    read_all(a, want)


def test_a_deleted_file_reads_as_the_fill_value_and_a_new_one_as_what_it_has(
    tmp_path, options
):
    z = written(tmp_path)
    a, want = opened(tmp_path, options), VALUES.copy()
    read_all(a, want)
    data = file_at(tmp_path, 0, 0).read_bytes()
    file_at(tmp_path, 0, 0).unlink()
    want[:8, :10] = FILL
    for _ in range(2):
        read_all(a, want)
    assert n_kept(a) == 19
    z[:8, :10] = VALUES[:8, :10]
    assert file_at(tmp_path, 0, 0).read_bytes() == data
    for _ in range(4):
        read_all(a, VALUES)
    assert n_kept(a) == 20


def test_what_this_process_writes_is_what_it_reads(tmp_path, options):
    written(tmp_path)
    a = opened(tmp_path, options)
    want = VALUES.copy()
    for k in range(4):
        read_all(a, want)
        key = KEYS[k]
        a[key] = want[key] = -k
    read_all(a, want)


def test_arrays_of_one_store_keep_their_own(tmp_path, options):
    zarr.create_group(tmp_path)
    written(tmp_path / "a")
    written(tmp_path / "b", -VALUES)
    group = gpushard.open_group(tmp_path, device="cpu", options=options)
    a, b = group["a"], group["b"]
    again = opened(tmp_path / "a", options)
    for _ in range(2):
        read_all(a, VALUES)
        read_all(b, -VALUES)
        read_all(again, VALUES)
    assert n_kept(a) == n_kept(b) == n_kept(again) == 20
    assert a.source.store is b.source.store


@pytest.mark.filterwarnings("ignore::gpushard.DamageWarning")
def test_a_damaged_file_is_never_kept(tmp_path, options):
    written(tmp_path, compressors=[ZstdCodec(), Crc32cCodec()])
    path = file_at(tmp_path, 0, 0)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    a = opened(tmp_path, options)
    for _ in range(3):
        with pytest.raises(gpushard.CorruptShardError):
            a[:16, :20]
        filled = a.read(np.s_[:16, :20], errors="fill")
        assert (filled[:8, :10] == FILL).all()
        assert_same_bits(filled[8:], VALUES[8:16, :20])
    assert n_kept(a) <= 3


def test_a_link_inside_the_store_is_followed_to_what_it_leads_to_now(tmp_path, options):
    written(tmp_path)
    written(tmp_path / "b", -VALUES)
    path = file_at(tmp_path, 0, 0)
    path.rename(tmp_path / "kept")
    path.symlink_to(tmp_path / "kept")
    a, want = opened(tmp_path, options), VALUES.copy()
    for _ in range(2):
        read_all(a, want)
    path.unlink()
    path.symlink_to(file_at(tmp_path / "b", 0, 0))
    want[:8, :10] *= -1
    for _ in range(2):
        read_all(a, want)


def test_versions_of_the_loops_are_those_of_python(tmp_path):
    whole = 1 << 64
    odd = (os.makedev(7, 300), whole - 5, 1 << 40, -1, 1 << 63)
    packed = np.frombuffer(packed_version(odd), np.int64)
    assert packed.view("u4")[:2].tolist() == [7, 300]
    assert packed[1:].tolist() == [-5, 1 << 40, -1, -(1 << 63)]


def test_a_store_whose_directory_is_gone_says_so_whatever_is_kept(tmp_path, options):
    written(tmp_path / "a")
    a = opened(tmp_path / "a", options)
    for _ in range(2):
        read_all(a, VALUES)
    (tmp_path / "a").rename(tmp_path / "b")
    for key in KEYS:
        with pytest.raises(gpushard.StoreError, match="directory is gone"):
            a[key]


STEPS = st.one_of(
    st.tuples(st.just("read"), sts.basic_keys(SHAPE)),
    st.tuples(st.just("oindex"), sts.orthogonal_keys(SHAPE)),
    st.tuples(st.sampled_from(["a", "b", "delete"]), st.sampled_from(PLACES)),
)


@given(
    st.lists(STEPS, min_size=4, max_size=25),
    st.sampled_from(sorted(WAYS)),
    st.sampled_from([900, MIB]),
)
def test_whatever_is_rewritten_in_between_all_ways_read_the_same(
    settled, tmp_path_factory, steps, way, nbytes
):
    place = tmp_path_factory.mktemp("kept")
    for name, values in (("a", VALUES), ("b", -VALUES)):
        written(place / name, values, compressors=[Crc32cCodec()])
    data = {
        (n, at): file_at(place / n, *at).read_bytes() for n in "ab" for at in PLACES
    }
    a = opened(place / "a", WAYS[way].but(chunk_cache_nbytes=nbytes))
    general = opened(place / "a", FINDING["general"].but(chunk_cache_nbytes=0))
    for step, of in steps:
        note(f"{step} {of}")
        if step in ("a", "b"):
            put_anew(file_at(place / "a", *of), data[step, of], place / "grave")
        elif step == "delete":
            bury(file_at(place / "a", *of), place / "grave")
        else:
            for _ in range(2):
                got, want = (
                    b[of] if step == "read" else b.oindex[of] for b in (a, general)
                )
                assert_same_bits(np.asarray(got), np.asarray(want))
