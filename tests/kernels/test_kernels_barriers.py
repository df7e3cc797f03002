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
from cuda_host.deaths import deaths_of
from cuda_host.launch import SCHEDULES, Kernels
from gpushard.devices.decoding.filters import ItemFilter
from gpushard.devices.decoding.steps import filter_record
from gpushard.devices.kernels import kernel_directory
from kernel_rows import addresses, held, sizes
from scatter_cases import launch
from test_kernels_crc32c import message, signed
from test_kernels_scatter_turn import laid, turned_case
from test_kernels_streams import TRAILER
from test_kernels_trailers import FORMATS, Streams
from test_kernels_trailers import message as numbered_message

BARRIER = re.compile(r"^ *__sync(?:threads|warp)\(\);", re.MULTILINE)
SOURCES = {path.name: path.read_text() for path in kernel_directory().glob("*.cu*")}
# Whose kernels run with the headers that have barriers.
USERS = {"crc.cuh": "crc32c.cu", "scan.cuh": "filters.cu", "realign.cuh": "gate.cu"}


def checksums(kernels, schedule):
    """Two blocks share rows of several rounds; every second one is damaged."""
    rows = [held(signed(message(3000 + k))) for k in range(6)]
    for row in rows[::2]:
        row[5] ^= 1
    src_nbytes, status = sizes(rows), np.zeros(len(rows), np.uint32)
    args = [addresses(rows), src_nbytes, status, np.uint32(len(rows))]
    kernels.launch("gs_crc32c_verify", 2, 256, args, schedule=schedule)
    return [src_nbytes, status]


def moved_streams(kernels, schedule):
    """A few streams that one block moves, and the zlib trailers behind them."""
    streams = [held(message(5000 + k)) for k in range(4)]
    nbytes = sizes(streams) - np.uint64(TRAILER)
    src, arena = addresses(streams), np.zeros(4 * 5008, np.uint8)
    used, base = np.zeros(1, np.uint64), addresses([arena])[0]
    args = [src, nbytes, used, base, np.uint32(len(streams))]
    kernels.launch("gs_realign", 1, 128, args, schedule=schedule)
    return [arena, src - base, used]


def sums(kernels, schedule):
    """Sums of a few rows, of more items than a block takes at a time."""
    rows = [held(message(8 * 1300 + k)[: 8 * 1300]) for k in range(3)]
    decoded = [np.zeros(1300, np.int64) for _ in rows]
    items = ItemFilter("gs_delta", 1300, np.dtype("i8"), np.dtype("i8"))
    tables = addresses(rows), sizes(rows), addresses(decoded), np.zeros(3, np.uint32)
    names = "src", "src_nbytes", "dst", "status"
    at = {name: t.ctypes.data for name, t in zip(names, tables, strict=True)}
    record = filter_record(items, len(rows), **at)
    kernels.launch("gs_delta", 1, 256, [record], schedule=schedule)
    return decoded


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
    "gate.cu": moved_streams,
    "filters.cu": sums,
    "scatter_turn.cu": turns,
    "trailers.cu": trailers,
}
# Without these, threads that disagree about a row go to different barriers, where the
# shim ends the process; or they copy to an address that nobody has written yet.
DEADLY = {
    ("trailers.cu", 0): signal.SIGABRT,
    ("trailers.cu", 1): signal.SIGABRT,
    ("realign.cuh", 0): signal.SIGSEGV,
}
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
    assert set(ALL_BARRIERS) >= DEADLY.keys()
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
    assert death.status == -DEADLY[name, nth], death.said
    is_told = "cuda_host: gs_verify_" in death.said
    assert is_told == (DEADLY[name, nth] == signal.SIGABRT), death.said


@cache
def deaths():
    """How runs end without the barriers that none survives."""
    run = "list(b.results(b.kernels_without({!r}, {}), {!r}))"
    calls = {
        (name, nth): run.format(name, nth, USERS.get(name, name))
        for name, nth in DEADLY
    }
    found = deaths_of(list(calls.values()), "import test_kernels_barriers as b")
    return dict(zip(calls, found, strict=True))
