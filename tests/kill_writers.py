"""Kills writers at random moments and looks at what they leave.

``python tests/kill_writers.py STRATEGY KILLS DIRECTORY`` prints how many kills left a
torn shard, and fails if a value is wrong or a torn shard is not told.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import warnings
from itertools import count

import numpy as np

import gpushard
import gpushard.writing.assign  # loaded once, not in every writer
from gpushard.options import Options
from gpushard.write_options import WriteOptions

LOCATION = {"random_write": "start"}
PLACES = np.s_[3:61, 3:61]  # part of the outer inner chunks, all of the others


def create(place: str, strategy: str) -> gpushard.Array:
    write = WriteOptions(strategy=strategy, max_unused_fraction=0.9)
    location = LOCATION.get(strategy, "end")
    return gpushard.create_array(
        place,
        shape=(64, 64),
        dtype="f8",
        chunks=(8, 8),
        shards={"shape": (64, 64), "index_location": location},
        compressors=None,
        options=Options(write=write),
    )


def slow_fsync(fd: int, fsync=os.fsync) -> None:
    """As on a disk that takes its time, which is when a kill is likely to come."""
    time.sleep(0.003)
    fsync(fd)


def write_for_ever(a: gpushard.Array, first: int, ready: int) -> None:
    os.fsync = slow_fsync
    for k in count(first):
        a[PLACES] = k
        if k == first:
            os.write(ready, b".")


def kill_one(a: gpushard.Array, first: int) -> None:
    """Start a writer, and kill it at a random moment after its first write."""
    heard, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        write_for_ever(a, first, ready)
    os.read(heard, 1)
    time.sleep(random.random() * 0.06)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(heard)
    os.close(ready)


def one_value(a: gpushard.Array) -> int:
    """The one value that every element written to has."""
    values = np.unique(a[PLACES])
    if len(values) != 1 or a[0, 0] != 0:
        raise SystemExit(f"a mixture of {values}")
    return int(values[0])


def main(strategy: str, n_kills: int, place: str) -> None:
    # Writers are forked beside threads that only wait for work.
    warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)
    a = create(place, strategy)
    last, n_torn = 1, 0
    for _ in range(n_kills):
        kill_one(a, last)
        try:
            value, is_torn = one_value(gpushard.open_array(place)), False
        except gpushard.CorruptShardError:
            value, is_torn = 0, True
        restored = gpushard.repair(a)
        if restored != (["c/0/0"] if is_torn else []):
            raise SystemExit(f"torn: {is_torn}, restored: {restored}")
        if is_torn and strategy == "rewrite":
            raise SystemExit("a shard that is replaced was torn")
        n_torn += is_torn
        value = value or one_value(gpushard.open_array(place))
        if value < last:
            raise SystemExit(f"{value} after {last} was published")
        last = value + 1
        gpushard.compact(a)
    print(f"{strategy}: {n_kills} kills, {n_torn} torn and restored")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
