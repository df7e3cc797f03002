"""The host shim runs CUDA kernels as a device would, and catches what they do wrong."""

from __future__ import annotations

import ctypes
import re
import signal
from functools import cache

import numpy as np
import pytest

from cuda_host.build import HERE
from cuda_host.deaths import deaths_of
from cuda_host.launch import (
    ALL_SCHEDULES,
    BUILD,
    SCHEDULES,
    Kernels,
    in_sanitized_process,
    sanitized_environment,
)
from cuda_host.statuses import Status
from gpushard.devices.kernels import kernel_directory

PLANTED = HERE / "planted.cu"
POISON = 0xA5A5A5A5

PRELUDE = f"""
from pathlib import Path
import numpy as np
from cuda_host.launch import Kernels
planted = Kernels(paths=[Path({str(PLANTED)!r})])
"""
DIVERGENT = {
    "gs_returned": (64, "a barrier after part of the block has returned"),
    "gs_two_barriers": (64, "part of the block waits at another barrier"),
    "gs_incomplete_mask": (64, "lanes of the mask never arrive"),
    "gs_foreign_mask": (64, "a lane calls with a mask without it"),
    "gs_other_collective": (32, "meet in different collectives"),
    "gs_two_shuffles": (32, "meet at different places"),
}
# Arrays as gs_overrun numbers them.
OVERRUN = {
    "global": "heap-buffer-overflow",
    "static shared": "global-buffer-overflow",
    "dynamic shared": "heap-buffer-overflow",
}

both_switches = pytest.mark.parametrize(
    "build", [BUILD] if in_sanitized_process() else ["plain", "ucontext"]
)
schedules = pytest.mark.parametrize("schedule", SCHEDULES)


@pytest.fixture(scope="module")
def planted():
    return Kernels(paths=[PLANTED])


def launching(name, *args, threads=32):
    arguments = ", ".join(args)
    return f"planted.launch({name!r}, 1, {threads}, [{arguments}], shared_nbytes=128)"


MISALIGNED = launching("gs_misaligned", "np.zeros(64, 'u1')", "np.uint32(4)")


@cache
def plain_deaths():
    """How launches end that the shim notices without a sanitizer of the process."""
    calls = {name: launching(name, threads=n) for name, (n, _) in DIVERGENT.items()}
    calls["gs_deep"] = launching("gs_deep", "np.zeros(32, 'u4')", "np.uint32(261000)")
    calls["misaligned"] = MISALIGNED
    return dict(zip(calls, deaths_of(list(calls.values()), PRELUDE), strict=True))


@cache
def sanitized_deaths():
    """How launches end that a sanitizer notices."""
    calls = {
        array: launching(
            "gs_overrun", "np.zeros(32, 'u4')", f"np.uint32({k})", "np.uint32(32)"
        )
        for k, array in enumerate(OVERRUN)
    }
    calls["misaligned"] = MISALIGNED
    deaths = deaths_of(list(calls.values()), PRELUDE, sanitized_environment())
    return dict(zip(calls, deaths, strict=True))


# ---- right kernels give right results


@both_switches
@schedules
def test_threads_of_a_block_exchange_through_shared_memory(build, schedule):
    values = np.arange(1024, dtype=np.uint32)
    out = np.zeros_like(values)
    Kernels(build, [PLANTED]).launch(
        "gs_reverse", 4, 256, [values, out], schedule=schedule
    )
    np.testing.assert_array_equal(out, values.reshape(4, 256)[:, ::-1].ravel())


@schedules
def test_every_thread_of_a_three_dimensional_grid_runs_once(planted, schedule):
    out = np.zeros(2 * 3 * 4 * 5 * 6 * 7, np.uint32)
    planted.launch("gs_where", (2, 3, 4), (5, 6, 7), [out], schedule=schedule)
    np.testing.assert_array_equal(out, np.arange(out.size))


@both_switches
@schedules
@pytest.mark.parametrize("width", [32, 8])
def test_shuffles_and_votes_follow_the_cuda_rules(build, schedule, width):
    out = np.zeros((64, 10), np.uint64)
    Kernels(build, [PLANTED]).launch(
        "gs_shuffles", 1, 64, [out, np.int32(width)], schedule=schedule
    )
    thread = np.arange(64)
    lane = thread % width
    first = thread - lane
    odd = thread % 2
    warp = thread // 32 * 32
    ballots = [sum(1 << i for i in range(32) if (w + i) % 3 == 0) for w in (0, 32)]
    expected = np.stack(
        [
            1000 + first + 3,
            np.where(lane < 2, thread, thread - 2),
            np.where(lane + 2 >= width, thread, thread + 2),
            thread ^ 5,
            np.repeat(ballots, 32),
            thread >= 32,
            thread < 32,
            (warp + 30 + odd) * (odd + 1),
            np.where(thread % 32 < 16, 0xFFFF, 0),
            thread % 32 < 16,
        ],
        axis=1,
    )
    np.testing.assert_array_equal(out, expected)


@schedules
def test_atomics_lose_no_update(planted, schedule):
    n = 1024
    out = np.array([0, 0, 2**32 - 1, 0, 2**32 - 1, 0, n, 0, 0, 0], np.uint32)
    wide = np.zeros(1, np.uint64)
    real = np.zeros(1, np.float32)
    planted.launch("gs_atomics", 4, 256, [out, wide, real], schedule=schedule)
    xor = np.bitwise_xor.reduce(np.arange(n))
    total = n * (n - 1) // 2
    assert out[:7].tolist() == [total, n - 1, 0, 2**32 - 1, 0xFFFF0000, xor, 0]
    assert out[7] == out[8] + 1
    assert out[9] in (Status.SIZE, Status.FORMAT)
    assert wide[0] == n << 33
    assert real[0] == n


def intrinsic_row(x, y, z):
    wide = x << 32 | y
    both = y << 32 | x
    other = wide ^ z

    def signed(v):
        return v - 2**32 if v >> 31 else v

    def byte(pick):
        value = both >> (pick & 7) * 8 & 0xFF
        return (0xFF if value & 0x80 else 0) if pick & 8 else value

    def lowest(v):
        return (v & -v).bit_length()

    product = np.float32(x) * np.float32(y) + np.float32(1)
    return [
        x * y >> 32,
        (signed(x) * signed(y) >> 32) & 0xFFFFFFFF,
        wide * other >> 64,
        both >> (z & 31) & 0xFFFFFFFF,
        both << (z & 31) >> 32 & 0xFFFFFFFF,
        both >> min(z, 32) & 0xFFFFFFFF,
        both << min(z, 32) >> 32 & 0xFFFFFFFF,
        sum(byte(z >> 4 * i) << 8 * i for i in range(4)),
        x.bit_count(),
        wide.bit_count(),
        lowest(x),
        32 - x.bit_length(),
        64 - wide.bit_length(),
        int(f"{x:032b}"[::-1], 2),
        int(f"{wide:064b}"[::-1], 2),
        x & 0x7F7FFFFF,
        min(x, y),
        max(x, y),
        lowest(wide),
        int(np.float64(x).view(np.uint64)),
        int(product.view(np.uint32)),
    ]


def test_intrinsics_compute_what_cuda_documents(planted):
    edges = np.array([0, 1, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 2**32 - 1], np.uint32)
    grid = np.meshgrid(edges, edges, edges, indexing="ij")
    rng = np.random.default_rng(5)
    random = rng.integers(0, 2**32, (3, 500), dtype=np.uint32)
    a, b, c = (
        np.concatenate([g.ravel(), r]) for g, r in zip(grid, random, strict=True)
    )
    out = np.zeros((a.size, 21), np.uint64)
    planted.launch(
        "gs_intrinsics", -(-a.size // 256), 256, [a, b, c, out, np.uint32(a.size)]
    )
    expected = [
        intrinsic_row(*row)
        for row in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    ]
    np.testing.assert_array_equal(out, np.array(expected, np.uint64))


def fast_divisor(divisor):
    log = (divisor - 1).bit_length()
    magic = 2**32 * (2**log - divisor) // divisor + 1
    return divisor, magic, min(log, 1), max(log - 1, 0)


def test_fast_division_is_exact_for_every_word(planted):
    rng = np.random.default_rng(6)
    edges = [1, 2, 3, 5, 7, 641, 2**16, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1]
    divisors = edges + rng.integers(1, 2**32, 200).tolist() + list(range(1, 100))
    numbers = np.array(
        [
            [0, 1, d - 1, d, min(2 * d - 1, 2**32 - 1), 2**31, 2**32 - 1, 12345678]
            for d in divisors
        ],
        np.uint32,
    )
    tables = np.repeat(
        np.array([fast_divisor(d) for d in divisors], np.uint32), 8, axis=0
    )
    out = np.zeros((numbers.size, 2), np.uint32)
    planted.launch(
        "gs_divide",
        -(-numbers.size // 256),
        256,
        [numbers, tables, out, np.uint32(numbers.size)],
    )
    np.testing.assert_array_equal(out[:, 0], numbers.ravel() // tables[:, 0])
    np.testing.assert_array_equal(out[:, 1], numbers.ravel() % tables[:, 0])


def test_bounded_reads_are_little_endian_and_never_wrap(planted):
    data = np.arange(16, dtype=np.uint8) * 17
    out = np.zeros(11, np.uint64)
    planted.launch("gs_reads", 1, 1, [data, np.uint64(16), out])
    raw = data.tobytes()
    reads = [int.from_bytes(raw[1 : 1 + n], "little") for n in (1, 2, 3, 4, 8)]
    assert out.tolist() == [*reads, 1, 1, 0, 0, 0, 0]


class Pair(ctypes.Structure):
    _fields_ = (("first", ctypes.c_uint64), ("second", ctypes.c_uint16))


def test_parameters_arrive_by_value_with_their_alignment(planted):
    wide = np.zeros(32, np.uint8)
    wide[12:16] = np.frombuffer(np.uint32(77).tobytes(), np.uint8)
    wide[16] = 9
    out = np.zeros(8, np.uint64)
    args = [
        Pair(2**40, 513),
        np.uint8(200),
        wide.view("V32")[0],
        np.float64(2**50),
        None,
        out,
    ]
    planted.launch("gs_parameters", 1, 1, args)
    assert out.tolist() == [2**40, 513, 200, 77, 9, 2**50, 1, 0]


def test_a_wrong_argument_is_refused_before_the_launch(planted):
    values = np.zeros(256, np.uint32)
    with pytest.raises(ValueError, match="are not as many"):
        planted.launch("gs_reverse", 1, 256, [values])
    with pytest.raises(ValueError, match="argument 1 has another size than 4"):
        planted.launch("gs_reverse", 1, 256, [values, np.uint32(0)])
    with pytest.raises(ValueError, match="block 512"):
        planted.launch("gs_reverse", 1, 512, [values, values])
    with pytest.raises(ValueError, match="grid 0"):
        planted.launch("gs_reverse", 0, 256, [values, values])
    with pytest.raises(TypeError, match="no kernel argument"):
        planted.launch("gs_reverse", 1, 256, [values, 3])


def test_shared_memory_of_every_block_starts_as_garbage(planted):
    out = np.zeros(3 * 64, np.uint32)
    planted.launch("gs_shared_at_start", 3, 32, [out], shared_nbytes=128)
    assert (out == POISON).all()


# ---- planted bugs are caught


def results_by_schedule(planted, name, *scalars):
    results = set()
    for schedule in SCHEDULES:
        values = np.arange(256, dtype=np.uint32)
        out = np.zeros_like(values)
        planted.launch(name, 1, 256, [values, out, *scalars], schedule=schedule)
        results.add(out.tobytes())
    return len(results)


def test_a_missing_barrier_changes_the_result_with_the_schedule(planted):
    assert results_by_schedule(planted, "gs_reverse") == 1
    assert results_by_schedule(planted, "gs_reverse_unguarded") > 1


def test_a_missing_warp_barrier_changes_the_result_with_the_schedule(planted):
    assert results_by_schedule(planted, "gs_reverse_warps", np.bool_(True)) == 1
    assert results_by_schedule(planted, "gs_reverse_warps", np.bool_(False)) > 1


def test_blocks_run_in_another_order_in_each_schedule(planted):
    last = []
    for schedule in ALL_SCHEDULES:
        out = np.zeros(1, np.uint32)
        planted.launch("gs_last_block", 1000, 32, [out], schedule=schedule)
        last.append(int(out[0]))
    assert last[:2] == [999, 0]
    assert len(set(last)) == len(ALL_SCHEDULES)


@pytest.mark.skipif(in_sanitized_process(), reason="aborts, sanitized or not")
@pytest.mark.parametrize("name", DIVERGENT)
def test_a_divergent_kernel_dies_with_its_source_line(name):
    death, (_, why) = plain_deaths()[name], DIVERGENT[name]
    assert death.status == -signal.SIGABRT
    assert re.search(rf"{name}: .*{why}.*planted\.cu:\d+", death.said), death.said


@pytest.mark.skipif(in_sanitized_process(), reason="faults, sanitized or not")
def test_a_stack_overflow_faults_instead_of_running_into_a_neighbour(planted):
    out = np.zeros(32, np.uint32)
    planted.launch("gs_deep", 1, 32, [out, np.uint32(200_000)])
    assert out.all()
    assert plain_deaths()["gs_deep"].status == -signal.SIGSEGV


@pytest.mark.skipif(in_sanitized_process(), reason="starts a sanitized process")
@pytest.mark.parametrize("array", OVERRUN)
def test_one_element_past_an_array_is_found(array):
    death = sanitized_deaths()[array]
    assert death.status == -signal.SIGABRT
    assert OVERRUN[array] in death.said, death.said
    assert "planted.cu" in death.said, death.said


@pytest.mark.skipif(in_sanitized_process(), reason="starts a sanitized process")
@pytest.mark.parametrize("deaths", [plain_deaths, sanitized_deaths])
def test_a_misaligned_vector_access_is_found(deaths):
    death = deaths()["misaligned"]
    assert death.status != 0
    assert "misaligned address" in death.said, death.said


def test_statuses_are_those_of_the_kernels():
    header = (kernel_directory() / "common.cuh").read_text()
    told = re.findall(r"constexpr Status STATUS_(\w+) = (\d+);", header)
    assert {name: int(number) for name, number in told} == {
        status.name: status.value for status in Status
    }
    count = re.search(r"STATUS_COUNT = (\d+);", header)
    assert int(count[1]) == len(Status)
