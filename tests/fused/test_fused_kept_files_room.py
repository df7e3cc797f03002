"""Which inner chunks of arrays without shards are kept, and in how much memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpushard import Options
from gpushard.fused import opening, unsharded
from gpushard.fused.columns import ENTRY
from gpushard.fused.short import unsharded as short_unsharded
from gpushard.memory import chunk_cache
from gpushard.memory.misses import Misses
from gpushard.options import KIB, MIB
from gpushard.stores.local import handles
from gpushard.stores.local.store import LocalStore
from test_fused_kept_files import (
    FILL,
    VALUES,
    WAYS,
    file_at,
    loaded,
    n_kept,
    options,
    read_all,
    written,
)
from unsharded_cases import OPENAT2, calls_replaced, need_opened_files, opened
from zarr_oracle import assert_same_bits

pytest.importorskip("numba", reason="the compiled loops are an extra")
calls = calls_replaced
in_loops, options = loaded, options


def test_of_files_that_were_just_written_nothing_is_kept(
    tmp_path, options, monkeypatch
):
    monkeypatch.setattr(handles, "_SETTLED_NS", 10**18)
    written(tmp_path)
    a = opened(tmp_path, options)
    for _ in range(3):
        read_all(a, VALUES)
    assert n_kept(a) == 0


@need_opened_files
@pytest.mark.parametrize("way", ["short", "whole"])
def test_a_file_counts_as_settled_if_it_was_before_it_was_opened(
    tmp_path, calls, way, monkeypatch
):
    written(tmp_path)
    now_ns = file_at(tmp_path, 4, 3).stat().st_ctime_ns
    monkeypatch.setattr(handles, "_SETTLED_NS", 10**9)
    clock = SimpleNamespace(ns=now_ns + 10**9 - 1)
    monkeypatch.setattr("gpushard.fused.kept_files.time_ns", lambda: clock.ns)

    def openat2(plain, *words):
        clock.ns += 10**10
        return plain(*words)

    calls("syscall", OPENAT2, openat2)
    a = opened(tmp_path, WAYS[way])
    key = np.s_[35:, 1:]
    assert_same_bits(a[key], VALUES[key])
    assert n_kept(a) < 4
    assert_same_bits(a[key], VALUES[key])
    assert n_kept(a) == 4


def test_missing_files_take_no_room_of_what_is_kept(tmp_path, options, monkeypatch):
    # So large that no key takes the place of another.
    monkeypatch.setattr(chunk_cache, "Misses", lambda n: Misses(4 * n))
    values = np.full((48, 33), FILL, "i4")
    values[:32] = VALUES[:32]
    written(tmp_path, values)
    a = opened(tmp_path, options.but(chunk_cache_nbytes=16 * 320))
    assert a.source.chunks.n_most == 16
    for _ in range(3):
        assert (a[33:, 5:] == FILL).all()  # which nobody knows the first time
        assert_same_bits(a[1:32, 5:], values[1:32, 5:])
    for _ in range(4):
        assert (a[33:, 5:] == FILL).all()
        assert set(a.source.chunks._slot_of) == set(range(16))


def test_no_more_is_held_than_is_allowed(tmp_path, options):
    written(tmp_path)
    a = opened(tmp_path, options.but(chunk_cache_nbytes=5 * 320))
    for _ in range(3):
        read_all(a, VALUES)
        assert a.source.chunks.held_nbytes <= 5 * 320
    assert n_kept(a) == 5


def test_with_a_memory_limit_nothing_is_kept_unless_it_is_asked_for(tmp_path):
    values = np.zeros((256, 256), "i4")
    written(tmp_path, values, chunks=(128, 128))
    for limits in ({"memory_limit": 64 * MIB}, {"chunk_cache_nbytes": 0}):
        assert opened(tmp_path, Options(**limits)).source.chunks is None
    both = Options(memory_limit=64 * MIB, chunk_cache_nbytes=MIB)
    assert opened(tmp_path, both).source.chunks.n_most == 16
    a = opened(tmp_path, Options())
    for _ in range(4):
        a.read(np.s_[5, 7], memory_limit=64 * MIB)
    assert n_kept(a) == 0


@pytest.mark.parametrize("kib", [16, 32])
def test_by_default_what_reads_come_back_to_is_kept_from_32_kib_on(tmp_path, kib):
    values = np.arange(64 * kib * KIB // 4, dtype="i4").reshape(64, -1) // 3
    written(tmp_path, values, chunks=(1, values.shape[1]))
    a = opened(tmp_path, Options(compile_nbytes=0))
    assert (a.source.chunks is not None) == (kib == 32)
    seen = []
    for _ in range(3):
        assert_same_bits(a[5, 10:900], values[5, 10:900])
        assert_same_bits(a[20:30, 7], values[20:30, 7])
        seen.append(n_kept(a))
    assert seen == ([0, 11, 11] if kib == 32 else [0, 0, 0])


@need_opened_files
def test_by_default_a_long_read_of_parts_keeps_at_once_and_one_of_all_does_not(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("gpushard.fused.kept_chunks._LONG_US", 1)
    values = np.arange(256 * 512, dtype="i4").reshape(256, 512)
    written(tmp_path, values, chunks=(32, 256))
    for few in (0, 8):
        options = Options(compile_nbytes=0, small_read_chunks=few)
        a = opened(tmp_path, options)
        assert_same_bits(a[...], values)
        assert n_kept(a) == 0
        a = opened(tmp_path, options)
        assert_same_bits(a[5:200, 100:300], values[5:200, 100:300])
        assert n_kept(a) == 14


@need_opened_files
def test_files_that_are_slow_are_noticed_beside_those_that_are_kept(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(opening, "N_TRIED", 2)
    monkeypatch.setattr(short_unsharded, "N_TRIED", 2)
    written(tmp_path)
    a = opened(tmp_path, WAYS["short"])
    a[:16]
    tried = []
    plain = short_unsharded.are_slow

    def are_slow(elapsed_s, n_files, chunk_us):
        tried.append(n_files)
        return plain(elapsed_s, n_files, chunk_us) or True

    monkeypatch.setattr(short_unsharded, "are_slow", are_slow)
    runs = []
    monkeypatch.setattr(short_unsharded.ShortUnshardedReader, "_run", counted(runs))
    now_s = short_unsharded.monotonic()
    monkeypatch.setattr(short_unsharded, "monotonic", lambda: now_s + 9)
    assert_same_bits(a[...], VALUES)
    assert tried == [2]
    assert runs[:2] == [8, 2]


def counted(runs: list[int]) -> Any:
    plain = short_unsharded.ShortUnshardedReader._run

    def run(self, source, placer, boxes, opener):
        runs.append(len(boxes))
        return plain(self, source, placer, boxes, opener)

    return run


class TaggingStore(LocalStore):
    """Files whose versions are texts, as servers have them."""

    def read(self, requests):
        found = super().read(requests)
        return [f and f._replace(version='"a tag"') for f in found]


def test_nothing_is_kept_of_stores_that_read_files_in_a_way_of_their_own(
    tmp_path, options
):
    written(tmp_path)
    a = opened(TaggingStore(tmp_path), options)
    assert a.source.chunks is None
    for _ in range(2):
        read_all(a, VALUES)


@need_opened_files
def test_what_another_thread_drops_before_it_is_placed_is_read_anew(
    tmp_path, monkeypatch
):
    written(tmp_path)
    a = opened(tmp_path, WAYS["whole"])
    read_all(a, VALUES)
    read_all(a, VALUES)
    assert n_kept(a)
    real = unsharded.KeptFiles

    def found_too_late(cache, boxes):
        hold = cache.find(boxes[:, ENTRY])
        cache.drop(hold, range(len(boxes)))
        return real(cache, boxes)

    monkeypatch.setattr(unsharded, "KeptFiles", found_too_late)
    read_all(a, VALUES)


@need_opened_files
def test_a_file_of_which_one_box_was_placed_is_read_anew_for_the_others(
    tmp_path, monkeypatch
):
    """Each selection of a read has a box in a file, which may change meanwhile."""
    written(tmp_path)
    a = opened(tmp_path, WAYS["whole"])
    keys = np.s_[1:7, 1:9], np.s_[2:8:2, 3]
    outs = [np.empty(VALUES[key].shape, "i4") for key in keys]
    for _ in range(2):
        a.read_many(keys, out=outs)
    assert n_kept(a) == 1
    n_changed = []
    finish = unsharded.UnshardedRead._finish_kept

    def changed(self, block, row, kept, file_boxes):
        is_placed = file_boxes.shares.is_placed
        assert is_placed.tolist() == [True, True]
        is_placed[1] = False
        for out in outs:
            out[...] = -1
        n_changed.append(1)
        finish(self, block, row, kept, file_boxes)

    monkeypatch.setattr(unsharded.UnshardedRead, "_finish_kept", changed)
    a.read_many(keys, out=outs)
    assert n_changed
    for key, out in zip(keys, outs, strict=True):
        assert_same_bits(out, VALUES[key])
