"""Writers that are killed, and writers beside one another, lose nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

import gpushard
import kill_writers
from forked import answers_in_a_fork, answers_in_forks
from gpushard.options import DEFAULT, Options
from gpushard.stores.local.files import FileWriter
from gpushard.stores.local.store import LocalStore
from gpushard.write_options import WriteOptions

STRATEGIES = {
    "rewrite": "end",
    "fixed_order": "end",
    "append_only": "end",
    "random_write": "start",
}
# More by hand, as docs/writing.md says: python tests/kill_writers.py.
N_KILLS = 4
N_WRITERS, N_WRITES = 4, 8


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_killed_writer_leaves_old_or_new_or_is_told(strategy, tmp_path):
    def work() -> bool:
        with redirect_stdout(StringIO()) as told:
            kill_writers.main(strategy, N_KILLS, str(tmp_path / "a"))
        return f"{N_KILLS} kills" in told.getvalue()

    assert answers_in_a_fork(work)


def write_all(me: int, places: dict[str, Path]) -> bool:
    for strategy, place in places.items():
        options = Options(write=WriteOptions(strategy=strategy))
        a = gpushard.open_array(place, options=options)
        for k in range(N_WRITES):
            a[me, k] = 100 * me + k + 1  # all in one shard, and in one inner chunk
            a[me + 4 * k + 4] = me + 1  # rows of shards that others write to as well
    return True


def test_writers_beside_one_another_lose_nothing(tmp_path):
    places = {name: tmp_path / name for name in STRATEGIES}
    for name, location in STRATEGIES.items():
        gpushard.create_array(
            places[name],
            shape=(4 * N_WRITES + 4, N_WRITES),
            dtype="i4",
            chunks=(4, 4),
            shards={"shape": (8, 12), "index_location": location},
            options=Options(write=WriteOptions(strategy=name)),
        )
    writers = [partial(write_all, me, places) for me in range(N_WRITERS)]
    assert answers_in_forks(writers) == [True] * N_WRITERS
    want = np.empty((4 * N_WRITES + 4, N_WRITES), "i4")
    for me in range(N_WRITERS):
        want[me] = 100 * me + np.arange(N_WRITES) + 1
        want[me + 4 :: 4] = me + 1
    for place in places.values():
        assert np.array_equal(gpushard.open_array(place)[...], want)


def test_a_directory_that_is_removed_when_it_was_just_made_is_made_again(
    tmp_path, monkeypatch
):
    files = FileWriter(LocalStore(str(tmp_path), DEFAULT))
    make, left = os.mkdir, [9]

    def made_and_removed(path, *, dir_fd):
        make(path, dir_fd=dir_fd)
        left[0] -= 1
        if left[0] >= 0:
            files.remove_empty_directories(["c/0/5"], "")

    monkeypatch.setattr(os, "mkdir", made_and_removed)
    files.put("c/0/5", [np.ones(3, np.uint8)])
    assert (tmp_path / "c/0/5").read_bytes() == b"\1\1\1"
    assert left[0] < 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_process_forked_during_a_write_does_not_keep_others_from_writing(tmp_path):
    files = FileWriter(LocalStore(str(tmp_path), DEFAULT))
    is_in, has_waited = threading.Event(), threading.Event()

    def wait() -> None:
        is_in.set()
        with files.locked("shard"):
            has_waited.set()

    waits = threading.Thread(target=wait)
    with files.locked("shard"):
        child = os.fork()
        if child == 0:
            signal.pause()
        waits.start()
        is_in.wait()
        time.sleep(0.05)  # until it waits for the lock
    try:
        assert has_waited.wait(timeout=20)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        waits.join()
