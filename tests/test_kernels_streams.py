"""Streams before and behind the vendor's decoders: moved, folded into rows."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from cuda_host.launch import (
    SCHEDULES,
    Kernels,
)
from gate_cases import OK
from gpushard.devices.statuses import Status
from kernel_rows import POISON, addresses, held, sizes

CHECKSUM, DECODER, SHORT = Status.CHECKSUM, Status.DECODER, Status.SHORT

TRAILER = 4  # an Adler-32 stands behind each stream, and moves with it

schedules = pytest.mark.parametrize("schedule", SCHEDULES)


@pytest.fixture(scope="module")
def kernels():
    return Kernels()


# ---- copy


@schedules
def test_streams_are_copied_between_all_alignments(kernels, schedule):
    rng = np.random.default_rng(schedule)
    cases = list(product(range(0, 17, 3), range(0, 17, 3), [0, 1, 5, 16, 19, 100]))
    cases += [(a, b, n) for a, b in ((0, 0), (1, 2), (3, 3)) for n in (16_384, 40_001)]
    sources = [held(rng.bytes(n), a) for a, _, n in cases]
    targets = [np.full(16 + b + n + 16, POISON, np.uint8) for _, b, n in cases]
    dst = addresses(targets) + np.array([16 + b for _, b, _ in cases], np.uint64)
    args = [addresses(sources), sizes(sources), dst, np.uint32(len(cases))]
    kernels.launch("gs_copy_streams", (5, 2), 128, args, schedule=schedule)
    for (_, b, n), source, target in zip(cases, sources, targets, strict=True):
        np.testing.assert_array_equal(target[16 + b : 16 + b + n], source)
        assert (target[: 16 + b] == POISON).all()
        assert (target[16 + b + n :] == POISON).all()


# ---- realignment


@schedules
def test_streams_move_to_multiples_of_four(kernels, schedule):
    rng = np.random.default_rng(schedule)
    lengths = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 40, 255, 1000] * 4
    streams = [
        held(rng.integers(0, 256, n + TRAILER, np.uint8).tobytes(), rng.integers(16))
        for n in lengths
    ]
    src, nbytes = addresses(streams), np.array(lengths, np.uint64)
    rooms = [-(-n // 4) * 4 + TRAILER for n in lengths]
    arena = np.full(sum(rooms), POISON, np.uint8)
    used, base = np.zeros(1, np.uint64), addresses([arena])[0]
    args = [src, nbytes, used, base, np.uint32(len(streams))]
    kernels.launch("gs_realign", 3, 128, args, schedule=schedule)
    assert used[0] == len(arena)
    places = src - base
    assert not (places % np.uint64(4)).any()
    in_order = np.argsort(places, kind="stable")
    room_ends = np.cumsum(np.array(rooms)[in_order])
    np.testing.assert_array_equal(places[in_order], [0, *room_ends[:-1].tolist()])
    for stream, place, room in zip(streams, places.astype(int), rooms, strict=True):
        moved = arena[place : place + room]
        np.testing.assert_array_equal(moved[: stream.nbytes], stream)
        assert (moved[stream.nbytes :] == POISON).all()


# ---- folding


def fold(kernels, status, decoder_status, actual, capacity, *, schedule, rows=None):
    args = [
        np.array(decoder_status, np.int32),
        np.array(actual, np.uint64),
        np.array(capacity, np.uint64),
        None if rows is None else np.array(rows, np.uint32),
        status,
        np.uint32(len(actual)),
    ]
    kernels.launch("gs_fold", 1, 256, args, schedule=schedule)


@schedules
def test_failed_and_short_streams_mark_their_rows(kernels, schedule):
    status = np.array([OK, OK, OK, CHECKSUM, CHECKSUM, OK], np.uint32)
    actual = [10, 10, 9, 10, 3, 11]
    failures = [0, 12, 0, 12, 0, 0]
    fold(kernels, status, failures, actual, [10] * 6, schedule=schedule)
    assert status.tolist() == [OK, DECODER, SHORT, CHECKSUM, CHECKSUM, SHORT]


@schedules
@pytest.mark.parametrize("failed", range(4))
def test_a_failed_stream_outweighs_short_ones_of_its_row(kernels, failed, schedule):
    status = np.zeros(2, np.uint32)
    decoder_status = [10 if k == failed else 0 for k in range(4)] + [0, 0]
    rows, actual = [1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 2, 2]
    fold(kernels, status, decoder_status, actual, [2] * 6, rows=rows, schedule=schedule)
    assert status.tolist() == [OK, DECODER]
