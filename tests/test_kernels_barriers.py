"""Barriers of the kernels are needed: without one, a schedule gives another result.

A barrier is skipped by all threads; what the kernels compute then must in one of the
schedules differ from what they compute with it. So no barrier can get lost unseen, the
trailing ones included, which keep a fast warp out of the next round.
"""

from __future__ import annotations

import re
import signal
from functools import cache
from unittest import mock

import numpy as np
import pytest

import scatter_cases
from blosc_batch import Batch
from blosc_cases import NBYTES, frames_of
from cuda_host.deaths import deaths_of
from cuda_host.launch import SCHEDULES, Kernels
from gpushard.devices.kernels import kernel_directory
from kernel_rows import addresses, held, sizes
from scatter_cases import launch
from test_kernels_crc32c import message, signed
from test_kernels_scatter_turn import laid, turned_case
from test_kernels_trailers import FORMATS, Streams
from test_kernels_trailers import message as numbered_message

BARRIER = re.compile(r"^ *__sync(?:threads|warp)\(\);", re.MULTILINE)
SOURCES = {path.name: path.read_text() for path in kernel_directory().glob("*.cu*")}
# Whose kernels run with the headers that have barriers.
USERS = {"crc.cuh": "crc32c.cu", "scan.cuh": "gate.cu"}


def checksums(kernels, schedule):
    """Two blocks share rows of several rounds; every second one is damaged."""
    rows = [held(signed(message(3000 + k))) for k in range(6)]
    for row in rows[::2]:
        row[5] ^= 1
    src_nbytes, status = sizes(rows), np.zeros(len(rows), np.uint32)
    args = [addresses(rows), src_nbytes, status, np.uint32(len(rows))]
    kernels.launch("gs_crc32c_verify", 2, 256, args, schedule=schedule)
    return [src_nbytes, status]


def offsets_and_streams(kernels, schedule):
    """Offsets of more streams than threads, and a few streams that are moved."""
    nbytes = np.random.default_rng(1).integers(0, 999, 1500).astype(np.uint64)
    offset = np.zeros(len(nbytes) + 1, np.uint64)
    args = [nbytes, offset, np.uint32(len(nbytes))]
    kernels.launch("gs_align_offsets", 1, 512, args, schedule=schedule)
    streams = [held(message(5000 + k)) for k in range(4)]
    src, arena = addresses(streams), np.zeros(4 * 5004, np.uint8)
    places = np.arange(5, dtype=np.uint64) * np.uint64(5004)
    args = [src, sizes(streams), places, addresses([arena])[0], np.uint32(4)]
    kernels.launch("gs_realign", 1, 128, args, schedule=schedule)
    # What lies between the streams is nobody's.
    ends = zip(places.astype(int), map(len, streams), strict=False)
    return [offset, *(arena[place : place + n] for place, n in ends)]


def verdict(kernels, schedule):
    status = (np.arange(700) % 7).astype(np.uint32)
    words = np.zeros(16, np.uint32)
    args = [status, np.uint32(len(status)), words]
    kernels.launch("gs_verdict", 1, 256, args, schedule=schedule)
    return [words]


def gates(kernels, schedule):
    return [*offsets_and_streams(kernels, schedule), *verdict(kernels, schedule)]


def frames(kernels, schedule):
    """Counts of the streams of a few frames, one warp after the other."""
    batch = Batch(frames_of(NBYTES)[:12])
    batch.run(kernels, schedule, grid=1)
    return [batch.count, batch.status]


def turns(kernels, schedule):
    """Squares of two sizes of units, one block after the other."""
    outs = []
    for target in ("i4", "f8"):
        case = turned_case((90, 150), (64, 128))
        out = np.zeros((90, 150), target)
        scatter, rows = laid(case, out)
        with mock.patch.object(scatter_cases, "KERNELS", kernels):
            launch(scatter, rows, out, schedule=schedule, n_blocks=2)
        outs.append(out)
    return outs


def trailers(kernels, schedule):
    """More streams than a block takes at a time; some rows have failed before."""
    found = []
    for kernel in FORMATS:
        nbytes = [9, 700, 1, 300, 0, 400, 33, 300] * 20
        # No two alike: what is left of one must not do for the next.
        streams = Streams(kernel, map(numbered_message, nbytes, range(len(nbytes))))
        # Few threads meet at these barriers: more draws of those that are held back.
        for more in range(0, 24, 2):
            status = (np.arange(len(nbytes)) % 3 == 1).astype(np.uint32)
            streams.verify(kernels, status=status, schedule=schedule + more, grid=1)
            found.append(status)
    return found


RUNS = {
    "crc32c.cu": checksums,
    "gate.cu": gates,
    "blosc.cu": frames,
    "scatter_turn.cu": turns,
    "trailers.cu": trailers,
}
# Without these, threads that disagree about a row go to different barriers: the shim
# ends the process.
DEADLY = {("trailers.cu", 0), ("trailers.cu", 1)}
ALL_BARRIERS = [
    (name, nth)
    for name, text in sorted(SOURCES.items())
    for nth in range(len(BARRIER.findall(text)))
]


BARRIERS = [barrier for barrier in ALL_BARRIERS if barrier not in DEADLY]


def results(kernels, user):
    """What its kernels compute, in each schedule, first in those that hold back."""
    for schedule in reversed(SCHEDULES):
        yield tuple(a.tobytes() for a in RUNS[user](kernels, schedule))


@cache
def right_results(user):
    return list(results(Kernels(), user))


def kernels_without(name, nth):
    """Kernels none of whose threads waits at the nth barrier of `name`."""
    found = list(BARRIER.finditer(SOURCES[name]))[nth]
    line = 1 + SOURCES[name].count("\n", 0, found.start())
    return Kernels(skipped=(kernel_directory() / name, line))


def test_all_barriers_are_found_and_run():
    stated = re.findall(r"__sync(?:threads|warp)\(", "".join(SOURCES.values()))
    assert len(ALL_BARRIERS) == len(stated)
    assert set(ALL_BARRIERS) >= DEADLY
    assert {USERS.get(name, name) for name, _ in BARRIERS} == set(RUNS)


@pytest.mark.parametrize("user", RUNS)
def test_the_result_is_the_same_in_all_schedules(user):
    assert len(set(right_results(user))) == 1


@pytest.mark.parametrize(("name", "nth"), BARRIERS)
def test_a_barrier_that_is_skipped_is_noticed(name, nth):
    user = USERS.get(name, name)
    kernels = kernels_without(name, nth)
    pairs = zip(results(kernels, user), right_results(user), strict=True)
    assert any(got != right for got, right in pairs)


@pytest.mark.parametrize(("name", "nth"), sorted(DEADLY))
def test_a_barrier_that_is_skipped_ends_the_process(name, nth):
    death = deaths()[name, nth]
    assert death.status == -signal.SIGABRT
    assert "cuda_host: gs_verify_" in death.said, death.said


@cache
def deaths():
    """How runs end without the barriers that none survives."""
    calls = {
        (
            name,
            nth,
        ): f"list(b.results(b.kernels_without({name!r}, {nth}), {name!r}))"
        for name, nth in DEADLY
    }
    found = deaths_of(list(calls.values()), "import test_kernels_barriers as b")
    return dict(zip(calls, found, strict=True))
