"""Writers that are killed, and writers beside one another, lose nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import gpushard
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
    script = Path(__file__).with_name("kill_writers.py")
    command = [sys.executable, script, strategy, str(N_KILLS), tmp_path / "a"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{N_KILLS} kills" in done.stdout


WRITER = """
import sys
import gpushard
from gpushard.options import Options
from gpushard.write_options import WriteOptions

me = int(sys.argv[1])
for argument in sys.argv[3:]:
    strategy, place = argument.split("=")
    options = Options(write=WriteOptions(strategy=strategy))
    a = gpushard.open_array(place, options=options)
    for k in range(int(sys.argv[2])):
        a[me, k] = 100 * me + k + 1  # all in one shard, and in one inner chunk
        a[me + 4 * k + 4] = me + 1  # rows of shards that others write to as well
"""


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
    arguments = [f"{name}={place}" for name, place in places.items()]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(me), str(N_WRITES), *arguments],
            env=environment(),
        )
        for me in range(N_WRITERS)
    ]
    assert [writer.wait(timeout=120) for writer in writers] == [0] * N_WRITERS
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


def environment() -> dict[str, str]:
    root = str(Path(__file__).parents[1])
    return os.environ | {"PYTHONPATH": root}
