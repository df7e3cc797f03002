"""The three steps of a roll, in every order, cut off anywhere, beside readers."""

from __future__ import annotations

import itertools
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from zarr.storage import MemoryStore

import gpushard
from forked import answers_in_forks, forked
from gpushard.moving import watch
from gpushard.rolling import RollingArray
from gpushard.rolling.steps import Steps
from rolling_arrays import (
    PLAIN,
    SHARD,
    Beside,
    document,
    filled,
    rolling,
    shards_of,
    steps,
)

STEPS = {
    "write": lambda a: a.write_shards(steps(6, 8), at=6),
    "move": lambda a: a.move_window(2, 8),
    "delete": lambda a: a.delete_shards(0, 2),
}


@pytest.mark.parametrize("order", list(itertools.permutations(STEPS)))
def test_in_any_order_only_the_end_where_a_step_is_missing_is_fill(order, tmp_path):
    a = rolling(tmp_path / "a", 0, 6)
    done: set[str] = set()
    for step in order:
        STEPS[step](a)
        done.add(step)
        start, stop = (2, 8) if "move" in done else (0, 6)
        want = steps(start, stop)
        if "move" not in done and "delete" in done:
            want[:2] = filled(2)
        if "move" in done and "write" not in done:
            want[-2:] = filled(2)
        for reader in (RollingArray.open(tmp_path / "a"), a.refresh()):
            assert np.array_equal(reader[...], want), (order, step)
        assert np.array_equal(gpushard.open_array(tmp_path / "a")[...], want)
    assert shards_of(tmp_path / "a") == {"c/1/0", "c/2/0", "c/3/0"}


def test_a_roll_takes_the_steps_in_the_order_that_readers_need(tmp_path, monkeypatch):
    a = rolling(tmp_path / "a", 0, 6)
    taken: list[str] = []

    def noting(name, step):
        def noted(*arguments, **named):
            result = step(*arguments, **named)
            taken.append(name)
            start = 0 if name == "write" else 2
            whole = RollingArray.open(tmp_path / "a")[...]
            assert np.array_equal(whole, steps(start, start + 6))
            return result

        return noted

    for name in ("write", "move", "delete"):
        monkeypatch.setattr(Steps, name, noting(name, getattr(Steps, name)))
    a.roll(steps(6, 8))
    assert taken == ["write", "move", "delete"]


def test_a_view_keeps_its_window_while_the_array_rolls_on(tmp_path):
    a = rolling(tmp_path / "a", 0, 6)
    view = RollingArray.open(tmp_path / "a").view()
    a.roll(steps(6, 8), delete=False)
    assert np.array_equal(view[...], steps(0, 6))
    assert np.array_equal(view.at[0:2], steps(0, 2))
    assert view.domain[0] == range(6)


@pytest.mark.parametrize("warm", [False, True])
def test_a_view_is_told_what_is_gone_and_still_reads_the_rest(warm, tmp_path):
    a = rolling(tmp_path / "a", 0, 6)
    view = RollingArray.open(tmp_path / "a").view()
    if warm:  # indexes are known, and files are open
        assert np.array_equal(view[...], steps(0, 6))
    a.roll(steps(6, 8))
    for key in (..., 0, slice(0, 4, 3), (slice(None), 2)):
        with pytest.raises(gpushard.WindowMovedError) as caught:
            view[key]
        assert caught.value.shard_key == "c/0/0"
        assert "refresh" in str(caught.value)
    assert np.array_equal(view[2:], steps(2, 6))


def test_damage_policies_do_not_take_a_shard_that_has_rolled_off_for_damage(tmp_path):
    a = rolling(tmp_path / "a", 0, 6)
    view = a.view()
    a.drop(2)
    with pytest.raises(gpushard.WindowMovedError):
        view.read(errors="fill")


@pytest.mark.usefixtures("settled")
def test_indexes_that_are_known_stay_known_when_the_window_moves(tmp_path):
    a = rolling(tmp_path / "a", 0, 4 * SHARD)
    reader = RollingArray.open(tmp_path / "a")
    assert np.array_equal(reader[...], steps(0, 4 * SHARD))
    a.roll(steps(4 * SHARD, 5 * SHARD))
    report = reader.refresh().view().explain()
    assert report.n_index_requests == 1
    assert np.array_equal(reader[...], steps(SHARD, 5 * SHARD))


def test_an_array_that_is_read_follows_to_the_next_window(tmp_path):
    a = rolling(tmp_path / "a", 0, 6)
    reader = RollingArray.open(tmp_path / "a")
    a.roll(steps(6, 8)).roll(steps(8, 10))
    assert np.array_equal(reader[...], steps(4, 10))
    assert reader.domain[0] == range(4, 10)
    a.roll(steps(10, 12))
    assert np.array_equal(reader.oindex[[0, 3]], steps(6, 12)[[0, 3]])
    a.roll(steps(12, 14))
    first, last = reader.read_many([0, np.s_[-2:]])
    assert np.array_equal(first, steps(8, 9)[0])
    assert np.array_equal(last, steps(12, 14))
    a.drop(2)
    with pytest.raises(gpushard.SelectionError, match="window"):
        reader.at[8]


def test_a_shard_that_was_never_written_is_fill_after_the_window_moved(tmp_path):
    a = rolling(tmp_path / "a", 0, 6)
    view = a.view()
    a.delete_shards(2, 4)
    a.drop(2, delete=False)
    want = np.concatenate([steps(0, 2), filled(2), steps(4, 6)])
    assert np.array_equal(view[...], want)


class VanishesAfter:
    """Deletes a shard once its index was read."""

    def __init__(self, store, key, then=lambda: None):
        self._read = store.read
        self._path = Path(store.root, key)
        self._key = key
        self._then = then

    def __call__(self, requests):
        answers = self._read(requests)
        if any(r.key == self._key for r in requests) and self._path.exists():
            self._then()
            self._path.unlink(missing_ok=True)
        return answers


@pytest.mark.parametrize("rolls_past", [False, True])
def test_a_shard_that_vanishes_in_a_read_is_an_error_unless_rolled_past(
    rolls_past, tmp_path
):
    options = gpushard.Options(file_handles=1)  # none stays open
    a = rolling(tmp_path / "a", 0, 4, chunks=(1, 1), shards=(2, 6))
    reader = RollingArray.open(tmp_path / "a", options=options)
    store = reader._view.source.store
    others = RollingArray.open(tmp_path / "a")
    then = (lambda: others.roll(steps(4, 6))) if rolls_past else (lambda: None)
    inner = super(type(store), store)

    def read(requests):
        return store._watch.read(vanishing, requests)

    vanishing = VanishesAfter(store, "c/0/0", then)
    vanishing._read = inner.read
    store.read = read
    want = a[...]
    if rolls_past:
        assert np.array_equal(reader[...], steps(2, 6))
    else:
        with pytest.raises(gpushard.ObjectChangedError) as caught:
            reader[:, 0:1]
        assert not isinstance(caught.value, gpushard.WindowMovedError)
        assert len(want) == 4


def roll_for_ever(place: Path, ready: int) -> bool:
    a = RollingArray.open(place)
    os.write(ready, b".")
    while True:
        stop = a.domain[0].stop
        a.roll(steps(stop, stop + 2))


def test_a_writer_killed_anywhere_leaves_a_whole_window(tmp_path):
    rolling(tmp_path / "a", 0, 6)
    rng = np.random.default_rng(0)
    for _ in range(4):
        heard, ready = os.pipe()
        writer = forked(partial(roll_for_ever, tmp_path / "a", ready))
        os.close(ready)  # so that the end of a writer is the end of what is heard
        assert os.read(heard, 1)
        for _ in range(3):
            check_window(tmp_path / "a")
        writer.join(rng.uniform(0, 0.05))
        assert writer.exitcode is None
        writer.kill()
        writer.join()
        os.close(heard)
        check_window(tmp_path / "a")
    a = RollingArray.open(tmp_path / "a")
    stop = a.domain[0].stop
    a.roll(steps(stop, stop + 2))
    a.sweep()
    check_window(tmp_path / "a")
    assert len(shards_of(tmp_path / "a")) == 3


def check_window(place):
    """Every value of the window is where it belongs."""
    view = RollingArray.open(place).view()
    domain = view.domain[0]
    assert len(domain) == 6
    try:
        values = view[...]
    except gpushard.WindowMovedError:
        return
    assert np.array_equal(values, steps(domain.start, domain.stop))


def append_all(place: Path, me: int, n: int) -> bool:
    a = RollingArray.open(place)
    for k in range(n):
        if me < 2:  # these know where their steps belong
            at = 4 * k + 2 * me
            a.append(steps(at, at + 2), at=at)
        else:  # these take their turns behind the end of another array
            b = RollingArray.open(f"{place}-queue")
            at = 100 * me + 2 * k
            b.append(steps(at, at + 2))
    return True


def test_appends_of_several_processes_lose_nothing(tmp_path):
    rolling(tmp_path / "a", 0, 0)
    rolling(tmp_path / "a-queue", 0, 0)
    n = 6
    writers = [partial(append_all, tmp_path / "a", me, n) for me in range(4)]
    assert answers_in_forks(writers) == [True] * 4
    assert np.array_equal(RollingArray.open(tmp_path / "a")[...], steps(0, 4 * n))
    queue = RollingArray.open(tmp_path / "a-queue")[...]
    for me in (2, 3):
        mine = queue[queue[:, 0] // 1000 == me]
        assert np.array_equal(mine, steps(100 * me, 100 * me + 2 * n))
    assert len(queue) == 4 * n


def test_readers_beside_a_writer_see_whole_windows_only(tmp_path):
    a = rolling(tmp_path / "a", 0, 6)
    views = RollingArray.open(tmp_path / "a")

    def look():
        view = views.refresh().view()
        start = view.domain[0].start
        try:
            values = view[...]
        except gpushard.WindowMovedError:
            return
        assert np.array_equal(values, steps(start, start + 6))

    follower = RollingArray.open(tmp_path / "a")

    def follow():
        values = follower[...]
        start = int(values[0, 0]) // 10
        assert np.array_equal(values, steps(start, start + 6))

    with Beside(look) as looking, Beside(follow) as following:
        for start in range(6, 86, SHARD):
            a.roll(steps(start, start + SHARD))
    assert looking.n_runs > 3
    assert following.n_runs > 3
    assert a.domain[0] == range(80, 86)


def test_a_prepend_beside_a_drop_is_refused_and_nothing_is_lost(tmp_path, monkeypatch):
    a = rolling(tmp_path / "a", 0, 4)
    write = Steps.write

    def dropped_meanwhile(self, window, values, **named):
        write(self, window, values, **named)
        RollingArray.open(tmp_path / "a").drop(2)

    monkeypatch.setattr(Steps, "write", dropped_meanwhile)
    with pytest.raises(gpushard.WindowMovedError, match="prepend again"):
        a.prepend(steps(-2, 0))
    assert np.array_equal(a.refresh()[...], steps(2, 4))


@pytest.mark.parametrize(("method", "first"), [("append", 4), ("prepend", -2)])
def test_a_place_taken_for_fill_values_is_not_given_to_another(
    method, first, monkeypatch
):
    store = MemoryStore()  # where a shard that is there is all that keeps others away
    a, other = rolling(store, 0, 4), RollingArray.open(store)
    move = Steps.move

    def beside(self, change):
        monkeypatch.undo()
        with pytest.raises(gpushard.StoreError, match="another writer"):
            getattr(other, method)(steps(first, first + 2))
        return move(self, change)

    monkeypatch.setattr(Steps, "move", beside)
    getattr(a, method)(filled(2))
    assert np.array_equal(a.at[first : first + 2], filled(2))
    getattr(other, method)(steps(6, 8))
    assert a.refresh().shape[0] == 8


def test_a_window_that_need_not_move_is_not_written(tmp_path):
    a = rolling(tmp_path / "a", 0, 4)
    before = os.stat(tmp_path / "a/zarr.json").st_ino
    a.append(steps(0, 2) + 1, at=0)
    assert os.stat(tmp_path / "a/zarr.json").st_ino == before
    assert document(tmp_path / "a")["shape"] == [4, PLAIN["shape"][1]]
    assert np.array_equal(a[:2], steps(0, 2) + 1)


def test_a_sparse_window_is_not_opened_again_for_each_missing_shard(
    tmp_path, monkeypatch
):
    a = rolling(tmp_path / "a", 0, 2)
    a.append(filled(2)).append(steps(4, 6))
    opened = []
    load = watch.load_array
    monkeypatch.setattr(
        watch, "load_array", lambda *place: opened.append(1) or load(*place)
    )
    reader = RollingArray.open(tmp_path / "a")
    for _ in range(5):
        assert np.array_equal(reader[2:4], filled(2))
    assert len(opened) == 1
    view = reader.view()
    a.roll(steps(6, 8))
    assert np.array_equal(reader[2:4], filled(2))
    with pytest.raises(gpushard.WindowMovedError):
        view[0]
    assert len(opened) == 2


@pytest.mark.parametrize("where", ["files", "memory"])
def test_a_document_that_grew_beyond_its_cap_is_not_moved(where, tmp_path, monkeypatch):
    a = rolling(tmp_path / "a" if where == "files" else MemoryStore(), 0, 6)
    monkeypatch.setattr("gpushard.rolling.steps.MAX_DOCUMENT_NBYTES", 100)
    monkeypatch.setattr("gpushard.stores.documents.MAX_DOCUMENT_NBYTES", 100)
    with pytest.raises(gpushard.StoreError, match="document is too large") as caught:
        a.move_window(2, 8)
    assert caught.value.got == "101 bytes"


def test_no_steps_are_taken_in_an_array_that_does_not_roll(tmp_path):
    a = gpushard.create_array(tmp_path, shape=4, dtype="i4", chunks=2)
    with pytest.raises(gpushard.UnsupportedError, match="only rolling arrays"):
        Steps(a.source)
