"""Random arrays are read and written within the memory limit: a short run."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import gpushard
from gpushard.options import MIB
from memory_random_doors import Drawn, grown_by
from memory_sweep import in_a_child
from memory_uses import Nothing, Results
from places import ROOT, TESTS

pytestmark = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK),
    reason="only Linux tells the highest memory of a process since a moment",
)


def rows(place, seed, count, word, **environment):
    paths = os.pathsep.join([str(ROOT), str(TESTS)])
    command = [TESTS / "memory_random.py", place, seed, count, word]
    told = subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, command)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": paths, **environment},
    ).stdout
    return [json.loads(line) for line in told.splitlines()]


@pytest.mark.slow
def test_random_arrays_stay_within_the_memory_limit(tmp_path):
    pytest.importorskip(
        "zarr.codecs.numcodecs", reason="zarr 3.1.0 does not have all of its codecs yet"
    )
    told = rows(tmp_path / "arrays", 3018, 1, "whole|written$", N_DOORS="2")
    assert len(told) == 2
    assert {row["came"] for row in told} <= {"read", "LimitError"}
    assert not [row for row in told if row["broken"]]


def held(drawn):
    np.ones(40 * MIB, np.uint8)
    return Nothing


def given(drawn):
    values = np.ones(40 * MIB, np.uint8)
    drawn.begin()
    return Results(values[:0].nbytes)


def refused(drawn):
    drawn.owed = np.ones(40 * MIB, np.uint8).nbytes
    raise gpushard.LimitError("refused")


@pytest.mark.parametrize(
    ("door", "came", "is_counted"),
    [
        (held, "read", True),
        (given, "read", False),
        (lambda _: np.ones(40 * MIB, np.uint8), "read", False),
        (refused, "LimitError", False),
    ],
    ids=["held", "given", "output", "refused"],
)
def test_what_a_use_holds_counts_and_not_what_is_the_callers(door, came, is_counted):
    drawn = Drawn(None, TESTS, gpushard.Options(), np.random.default_rng(0))
    found, nbytes = in_a_child(lambda: grown_by(door, drawn), ("died", 0))
    assert found == came
    # NumPy asks for pages of 2 MiB, of which the array's first and last are not full.
    assert nbytes > 38 * MIB if is_counted else nbytes < 5 * MIB
