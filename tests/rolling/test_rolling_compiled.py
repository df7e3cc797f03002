"""Rolling arrays read by the compiled loops, which open files by themselves."""

from __future__ import annotations

import numpy as np
import pytest

import gpushard
from fused_cases import (
    FUSED,
    assert_all_fused,
    need_fast_packages,
    watch_sinks,
)
from gpushard.fused.opening import ObjectFiles
from gpushard.fused.sharded import ShardedRead
from gpushard.fused.unsharded import UnshardedRead
from gpushard.rolling import RollingArray
from gpushard.stores.local.store import LocalStore
from rolling_arrays import WIDTH, filled, rolling, steps

need_fast_packages()

pytestmark = pytest.mark.usefixtures("way")


def test_the_loops_read_the_files_of_a_window(way, tmp_path, monkeypatch):
    a = rolling(tmp_path / "a", -2, 6)
    a.delete_shards(2, 4)
    seen = watch_sinks(monkeypatch)
    read = []
    tasks = ShardedRead.tasks
    monkeypatch.setattr(
        ShardedRead, "tasks", lambda self, n: read.append(self) or tasks(self, n)
    )
    want = np.concatenate([steps(-2, 2), filled(2), steps(4, 6)])
    reader = RollingArray.open(tmp_path / "a", options=FUSED)
    assert np.array_equal(reader[...], want)
    assert_all_fused(seen)
    assert len(read) == (way == "whole")


def test_the_loops_tell_what_is_gone_from_what_is_missing(tmp_path):
    a = rolling(tmp_path / "a", 0, 6)
    reader = RollingArray.open(tmp_path / "a", options=FUSED)
    view = reader.view()
    a.roll(steps(6, 8))
    with pytest.raises(gpushard.WindowMovedError):
        view[...]
    assert np.array_equal(view[2:], steps(2, 6))
    assert np.array_equal(reader[...], steps(2, 8))


def test_the_loops_tell_files_that_are_gone_from_those_that_are_missing(
    way, tmp_path, monkeypatch
):
    read = []
    tasks = UnshardedRead.tasks
    monkeypatch.setattr(
        UnshardedRead, "tasks", lambda self, n: read.append(self) or tasks(self, n)
    )
    a = rolling(tmp_path / "a", 0, 6, chunks=(2, WIDTH), shards=None)
    a.delete_shards(4, 6)
    reader = RollingArray.open(tmp_path / "a", options=FUSED)
    view = reader.view()
    assert np.array_equal(view[...], np.concatenate([steps(0, 4), filled(2)]))
    a.roll(steps(6, 8))
    with pytest.raises(gpushard.WindowMovedError):
        view[...]
    assert np.array_equal(view[2:4], steps(2, 4))
    # The short way reads the files that are there, and leaves the other two reads.
    assert len(read) == {"requests": 0, "whole": 3}.get(way, 2)


def test_the_loops_open_files_at_negative_places(way, tmp_path, monkeypatch):
    read = []
    opening = ObjectFiles.opening
    monkeypatch.setattr(
        ObjectFiles, "opening", lambda *given: read.append(given) or opening(*given)
    )
    rolling(tmp_path / "a", -12, 6, chunks=(2, WIDTH), shards=None)
    reader = RollingArray.open(tmp_path / "a", options=FUSED)
    assert np.array_equal(reader[...], steps(-12, 6))
    assert len(read) == (way != "requests")


def test_a_roll_between_index_and_payload_is_followed(tmp_path, monkeypatch):
    a = rolling(tmp_path / "a", 0, 6)
    reader = RollingArray.open(tmp_path / "a", options=FUSED)
    opening, rolls = LocalStore.open_file, [6, 8]

    def open_file(self, key, version):
        self._handles.clear()
        if rolls:
            start = rolls.pop(0)
            a.roll(steps(start, start + 2))
        return opening(self, key, version)

    monkeypatch.setattr(LocalStore, "open_file", open_file)
    assert np.array_equal(reader[...], steps(4, 10))
    assert not rolls


def test_a_file_that_vanishes_in_the_window_is_an_error(tmp_path, monkeypatch):
    rolling(tmp_path / "a", 0, 6)
    reader = RollingArray.open(tmp_path / "a", options=FUSED)
    opening = LocalStore.open_file

    def open_file(self, key, version):
        self._handles.clear()
        (tmp_path / "a" / key).unlink(missing_ok=True)
        return opening(self, key, version)

    monkeypatch.setattr(LocalStore, "open_file", open_file)
    with pytest.raises(gpushard.ObjectChangedError, match="deleted"):
        reader[...]
