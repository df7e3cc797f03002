"""Knobs: what is copied, and how many CPUs a process may use."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest

from gpushard.errors import OptionError
from gpushard.machine import usable_cpu_count
from gpushard.options import DEFAULT, GIB, KIB, MIB, Options

CPU_MAX = "/sys/fs/cgroup/cpu.max"


@pytest.fixture
def machine(monkeypatch):
    """Pretend to a machine: CPUs of the affinity mask, content of cpu.max."""

    def pretend(affinity: int | None, cpu_max: str | None) -> None:
        real = Path.read_text

        def read_text(path: Path, *args, **kwargs) -> str:
            if str(path) != CPU_MAX:
                return real(path, *args, **kwargs)
            if cpu_max is None:
                raise FileNotFoundError(path)
            return cpu_max

        monkeypatch.setattr(Path, "read_text", read_text)
        monkeypatch.setattr(os, "cpu_count", lambda: 32)
        if affinity is None:
            monkeypatch.delattr(os, "sched_getaffinity", raising=False)
        else:
            mask = set(range(affinity))
            monkeypatch.setattr(os, "sched_getaffinity", lambda _: mask, raising=False)

    return pretend


@pytest.mark.parametrize(
    ("affinity", "cpu_max", "n_cpus"),
    [
        (8, "max 100000\n", 8),
        (8, "200000 100000\n", 2),
        (8, "250000 100000\n", 3),
        (8, "50000 100000\n", 1),
        (8, "1600000 100000\n", 8),
        (3, None, 3),
        (1, None, 1),
        (None, None, 32),
        (None, "400000 100000", 4),
    ],
)
def test_the_cpu_count_is_the_affinity_cut_by_the_quota(
    machine, affinity, cpu_max, n_cpus
):
    machine(affinity, cpu_max)
    assert usable_cpu_count() == n_cpus
    assert Options().threads == n_cpus


@pytest.mark.parametrize("cpu_max", ["", "max", "garbage here", "100000", "-1"])
def test_a_quota_that_cannot_be_read_is_none(machine, cpu_max):
    machine(4, cpu_max)
    assert usable_cpu_count() == 4


def test_but_copies_with_the_changes_that_are_not_none():
    changed = DEFAULT.but(threads=3, memory_limit=None, batch_nbytes=KIB)
    assert (changed.threads, changed.batch_nbytes) == (3, KIB)
    assert changed.memory_limit == DEFAULT.memory_limit
    assert (
        dataclasses.replace(
            changed, threads=DEFAULT.threads, batch_nbytes=DEFAULT.batch_nbytes
        )
        == DEFAULT
    )


def test_but_takes_zero_and_false_for_changes():
    assert DEFAULT.but(small_read_chunks=0).small_read_chunks == 0


def test_but_refuses_a_knob_that_is_none():
    with pytest.raises(TypeError, match="no_such_knob"):
        DEFAULT.but(no_such_knob=1)


@pytest.mark.parametrize("value", [1e9, 0, "1GB", True])
def test_a_size_that_is_no_whole_number_is_refused(value):
    with pytest.raises(OptionError, match=f"a whole number from 1 .*got {value!r}"):
        DEFAULT.but(memory_limit=value)


def test_integers_of_numpy_become_pythons():
    limit = DEFAULT.but(memory_limit=np.int64(MIB)).memory_limit
    assert (limit, type(limit)) == (MIB, int)
    with pytest.raises(OptionError, match="got 0"):
        DEFAULT.but(memory_limit=np.uint8(0))


def test_a_strategy_in_the_place_of_write_options_is_refused():
    with pytest.raises(OptionError, match="WriteOptions, got 'rewrite'"):
        DEFAULT.but(write="rewrite")


def test_options_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DEFAULT.threads = 1


def test_batches_fit_the_memory_limit_several_times():
    assert KIB * KIB == MIB
    assert MIB * KIB == GIB
    assert 4 * DEFAULT.batch_nbytes <= DEFAULT.resolved().memory_limit
