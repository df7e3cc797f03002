"""Knobs: what is copied, and how many CPUs a process may use."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path

import numpy as np
import pytest

from gpushard.errors import OptionError
from gpushard.machine import usable_cpu_count
from gpushard.options import _BOUNDS, DEFAULT, GIB, KIB, MIB, Options
from gpushard.write_options import WriteOptions

CPU_MAX = "/sys/fs/cgroup/cpu.max"


@pytest.fixture
def machine(monkeypatch):
    """Pretend to a machine: CPUs of the affinity mask, content of cpu.max."""

    def pretend(affinity: int | str | None, cpu_max: str | None) -> None:
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
        elif affinity == "refused":

            def refuse(_: int) -> set[int]:
                raise PermissionError(errno.EPERM, "Operation not permitted")

            monkeypatch.setattr(os, "sched_getaffinity", refuse, raising=False)
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
        ("refused", None, 32),
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


@pytest.mark.parametrize("name", _BOUNDS)
def test_every_number_may_be_its_least_and_its_most_and_nothing_beyond(name):
    least, most = _BOUNDS[name]
    for value in (least, most):
        assert getattr(DEFAULT.but(**{name: value}), name) == value
    for value in (least - 1, most + 1):
        with pytest.raises(OptionError, match=f"from {least} to {most}"):
            DEFAULT.but(**{name: value})


def test_integers_of_numpy_become_pythons():
    limit = DEFAULT.but(memory_limit=np.int64(MIB)).memory_limit
    assert (limit, type(limit)) == (MIB, int)
    with pytest.raises(OptionError, match="got 0"):
        DEFAULT.but(memory_limit=np.uint8(0))


def test_a_strategy_in_the_place_of_write_options_is_refused():
    with pytest.raises(OptionError, match="WriteOptions, got 'rewrite'"):
        DEFAULT.but(write="rewrite")


@pytest.mark.parametrize("value", [-0.1, 1.1, True, "half", None, float("nan")])
def test_a_fraction_that_is_no_number_from_0_to_1_is_refused(value):
    with pytest.raises(
        OptionError, match=r"max_unused_fraction .*a number from 0 to 1"
    ):
        WriteOptions(max_unused_fraction=value)


@pytest.mark.parametrize("name", ["relay", "gds", "kvikio_remote"])
@pytest.mark.parametrize("value", ["no", 0, None])
def test_what_is_on_or_off_is_nothing_else(name, value):
    with pytest.raises(OptionError, match=f"{name}.*True or False.*{value}"):
        Options(**{name: value})
    assert getattr(Options(**{name: np.False_}), name) is False


def test_the_fractions_0_and_1_are_taken():
    for value in (0, 1):
        assert WriteOptions(max_unused_fraction=value).max_unused_fraction == value


@pytest.mark.parametrize("name", ["strategy", "order", "write_empty_chunks"])
def test_a_write_option_of_another_value_is_refused(name):
    with pytest.raises(OptionError, match=f"{name} .*got 'other'"):
        WriteOptions(**{name: "other"})


def test_a_limit_of_one_read_leaves_a_cache_that_was_asked_for():
    resolved = Options(chunk_cache_nbytes=5 * MIB).resolved()
    assert resolved.but(memory_limit=GIB).chunk_cache_nbytes == 5 * MIB
    assert not resolved.but(memory_limit=GIB).shares_chunk_cache


def test_what_is_held_is_taken_off_every_limit_until_a_byte_is_left():
    def limits(options):
        return options.memory_limit, options.bound_nbytes, options.alone_nbytes

    whole = Options(memory_limit=100 * MIB).resolved()
    assert limits(whole.beside(30 * MIB, 50 * MIB)) == (50 * MIB, 70 * MIB, 70 * MIB)
    left = whole.beside(30 * MIB, 90 * MIB)
    assert limits(left) == (70 * MIB, 70 * MIB, 70 * MIB)
    none = left.beside(70 * MIB, 0)
    assert limits(none) == (1, 1, 1)
    assert none.held_nbytes == 100 * MIB
    assert not Options().resolved().beside(MIB, MIB).is_left_open


def test_options_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DEFAULT.threads = 1


def test_batches_fit_the_memory_limit_several_times():
    assert KIB * KIB == MIB
    assert MIB * KIB == GIB
    assert 4 * DEFAULT.batch_nbytes <= DEFAULT.resolved().memory_limit
