"""Rolling arrays in stores that fail while the window moves."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from threading import Thread
from typing import Any

import numpy as np
import pytest

import gpushard
from gpushard.moving import watch
from gpushard.options import MIB, Options
from gpushard.reading import rounds
from gpushard.rolling import RollingArray, reader
from gpushard.rolling import steps as rolling_steps
from gpushard.stores.base import ByteRequest
from gpushard.stores.local.files import FileWriter
from open_files import open_files_below
from range_server import RangeServer
from rolling_arrays import filled, rolling, steps


def fails(*_: Any, **__: Any) -> Any:
    raise gpushard.StoreError("the disk is away")


@pytest.mark.parametrize("change", ["drop", "roll"])
def test_a_move_whose_shards_cannot_be_deleted_is_told_as_done(
    change, tmp_path, monkeypatch
):
    a = rolling(tmp_path, 0, 4)
    with monkeypatch.context() as patch:
        patch.setattr(FileWriter, "delete", fails)
        stop = 4 if change == "drop" else 6
        what = rf"moved, to range\(2, {stop}\).*the disk is away.*sweep"
        with pytest.raises(gpushard.StoreError, match=what):
            a.drop(2) if change == "drop" else a.roll(steps(4, 6))
    assert np.array_equal(a.refresh()[...], steps(2, stop))
    assert a.sweep() == 1


def test_a_move_is_done_even_if_the_window_cannot_be_read_again(tmp_path, monkeypatch):
    a = rolling(tmp_path, 0, 4)
    with monkeypatch.context() as patch:
        patch.setattr(reader, "load_array", fails)
        assert a.roll(steps(4, 6)) is a
        assert a.domain[0] == range(2, 6)
    assert np.array_equal(a[...], steps(2, 6))


@pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="looks at open files through /proc"
)
def test_shards_that_the_window_has_left_take_no_room_on_the_disk(tmp_path):
    """A deleted file takes it as long as anybody, such as a reader, has it open."""
    a = rolling(tmp_path, 0, 4)
    b = RollingArray.open(tmp_path)
    for start in (4, 6, 8):
        assert np.array_equal(b[...], steps(start - 4, start))
        assert np.array_equal(a[...], steps(start - 4, start))
        a.roll(steps(start, start + 2))
        b.refresh()
    deleted = [path for path in open_files_below(tmp_path) if "(deleted)" in path]
    assert not deleted


def test_an_array_that_rolls_on_between_two_rounds_is_followed(tmp_path, monkeypatch):
    a = rolling(tmp_path, 0, 8)
    narrow = Options(memory_limit=4 * MIB, small_read_chunks=0)
    b = RollingArray.open(tmp_path, options=narrow)
    versions, n_asked = rounds._versions, [0]

    def asked(*given):
        n_asked[0] += 1
        if n_asked[0] == 2:
            a.roll(steps(8, 12))
        return versions(*given)

    monkeypatch.setattr(rounds, "_versions", asked)
    rows = np.tile([0, 7, 3, 1], 30_000)
    assert np.array_equal(b.oindex[rows], steps(4, 12)[rows])


CHANGES: dict[str, tuple[str, Callable[[RollingArray], object]]] = {
    "roll": ("", lambda a: a.roll(steps(4, 6))),
    "past all": ("reset", lambda a: a.roll(steps(4, 8))),
    "drop, and back": ("cut", lambda a: a.drop(4).prepend(steps(2, 4))),
}


@pytest.mark.network
@pytest.mark.parametrize("change", CHANGES)
def test_a_window_that_moves_at_any_request_is_read_as_one(change, tmp_path):
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    options = Options(small_read_chunks=0, whole_object_max_nbytes=0)
    fault, moved = CHANGES[change]
    for nth in count():
        a = rolling(tmp_path / str(nth), 0, 4)
        with RangeServer(tmp_path / str(nth)) as server:
            b = RollingArray.open(server.url, options=options)
            seen: list[str] = []

            def answering(_: str, key: str, *now: Any) -> None:
                a, server, seen, nth = now
                seen.append(key)
                if len(seen) == nth + 1:
                    moved(a)
                    server.cut_first = int(fault == "cut")
                    server.fail_first, server.failure = int(fault == "reset"), 0

            now = a, server, seen, nth
            server.before_answer = lambda *asked, now=now: answering(*asked, *now)
            values = b[...]
        first = int(values[0, 0]) // 10
        assert np.array_equal(values, steps(first, first + len(values)))
        assert (first, len(values)) in [(0, 4), (a.domain[0].start, len(a))]
        if len(seen) <= nth:  # the window was not moved any more
            break
    assert nth >= 4


def sparse(place: Any) -> RollingArray:
    """Window of three shards, of which the one in the middle was never written."""
    return rolling(place, 0, 2).append(steps(4, 6), at=4)


def test_a_window_that_was_asked_for_once_is_asked_for_when_it_has_moved(tmp_path):
    a = sparse(tmp_path)
    view = RollingArray.open(tmp_path).view()
    assert np.array_equal(view[2:4], filled(2))
    a.drop(2)
    with pytest.raises(gpushard.WindowMovedError):
        view[:2]


def test_a_window_that_moves_while_it_is_asked_for_is_asked_for_again(
    tmp_path, monkeypatch
):
    a, loading = sparse(tmp_path), watch.load_array
    view = RollingArray.open(tmp_path).view()

    def overtaken(*given: Any) -> Any:
        layout = loading(*given)
        monkeypatch.undo()
        a.drop(2)
        return layout

    monkeypatch.setattr(watch, "load_array", overtaken)
    assert np.array_equal(view[2:4], filled(2))
    with pytest.raises(gpushard.WindowMovedError):
        view[:2]


def test_what_a_drop_deletes_is_what_it_dropped_at_last(monkeypatch):
    obstore = pytest.importorskip("obstore", reason="the extra `remote` is missing")
    objects = obstore.store.MemoryStore()
    a, moving = rolling(objects, 0, 8), rolling_steps.moved_document
    b = RollingArray.open(objects)

    def overtaken(*given: Any) -> bytes:
        monkeypatch.undo()
        b.drop(2)
        return moving(*given)

    monkeypatch.setattr(rolling_steps, "moved_document", overtaken)
    assert a.drop(2).domain[0] == range(4, 8)
    assert a.sweep() == 0


def test_a_sweep_beside_a_prepend_leaves_its_shards_alone(tmp_path, monkeypatch):
    a, b = rolling(tmp_path, 0, 4), RollingArray.open(tmp_path)
    sweeping = Thread(target=b.sweep)
    move = rolling_steps.Steps.move

    def moved_later(*given: Any) -> Any:
        sweeping.start()
        sweeping.join(0.2)  # as long as it takes if nothing keeps it waiting
        return move(*given)

    monkeypatch.setattr(rolling_steps.Steps, "move", moved_later)
    a.prepend(steps(-2, 0))
    sweeping.join()
    assert np.array_equal(a.refresh()[...], steps(-2, 4))


def test_a_version_that_is_gone_with_the_window_is_told_as_rolled_off():
    obstore = pytest.importorskip("obstore", reason="the extra `remote` is missing")
    a = rolling(obstore.store.MemoryStore(), 0, 4)
    store = a.view().source.store
    (found,) = store.read([ByteRequest("c/0/0", 0, 1)])
    assert found is not None
    a.roll(steps(4, 6))
    with pytest.raises(gpushard.WindowMovedError):
        store.read([ByteRequest("c/0/0", 0, 1, found.version)])
