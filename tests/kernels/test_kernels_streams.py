"""Streams before and behind the vendor's decoders: moved, folded into rows."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from cuda_host.launch import (
    SCHEDULES,
    Kernels,
)
from cuda_host.statuses import Status
from gate_cases import OK
from gpushard.devices.structs import BLOSC_STREAMS, CANARIES
from kernel_rows import POISON, addresses, held, sizes

CHECKSUM, DECODER, SHORT = Status.CHECKSUM, Status.DECODER, Status.SHORT

TRAILER = 4  # an Adler-32 stands behind each stream, and moves with it

schedules = pytest.mark.parametrize("schedule", SCHEDULES)


NO_ZLIB = np.uint32(0), np.uint64(0), np.uint64(0)


@pytest.fixture(scope="module")
def kernels():
    return Kernels()


def stream_tables(src, nbytes, dst, begin=(0, 0, 0, 0, 0)):
    """Streams of Blosc frames, those of each class from `begin` on."""
    record = np.zeros((), BLOSC_STREAMS)
    for name, table in zip(("src", "nbytes", "dst"), (src, nbytes, dst), strict=True):
        record[f"stream_{name}"] = table.ctypes.data
    record["begin"] = begin
    return record[()]


# ---- copy


@schedules
def test_streams_are_copied_between_all_alignments(kernels, schedule):
    rng = np.random.default_rng(schedule)
    cases = list(product(range(0, 17, 3), range(0, 17, 3), [0, 1, 5, 16, 19, 100]))
    cases += [(a, b, n) for a, b in ((0, 0), (1, 2), (3, 3)) for n in (16_384, 40_001)]
    sources = [held(rng.bytes(n), a) for a, _, n in cases]
    targets = [np.full(16 + b + n + 16, POISON, np.uint8) for _, b, n in cases]
    dst = addresses(targets) + np.array([16 + b for _, b, _ in cases], np.uint64)
    tables = addresses(sources), sizes(sources), dst
    args = [stream_tables(*tables), np.uint32(len(cases)), *NO_ZLIB]
    kernels.launch("gs_blosc_copy", (5, 2), 128, args, schedule=schedule)
    for (_, b, n), source, target in zip(cases, sources, targets, strict=True):
        np.testing.assert_array_equal(target[16 + b : 16 + b + n], source)
        assert (target[: 16 + b] == POISON).all()
        assert (target[16 + b + n :] == POISON).all()


# ---- realignment


class Moved:
    """Streams, a trailer behind each, and an arena that they are moved to."""

    def __init__(self, rng):
        self.lengths = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 40, 255, 1000] * 4
        self.streams = [
            held(
                rng.integers(0, 256, n + TRAILER, np.uint8).tobytes(), rng.integers(16)
            )
            for n in self.lengths
        ]
        self.src = addresses(self.streams)
        self.nbytes = np.array(self.lengths, np.uint64)
        self.rooms = [-(-n // 4) * 4 + TRAILER for n in self.lengths]
        self.arena = np.full(sum(self.rooms), POISON, np.uint8)
        self.used, self.base = np.zeros(1, np.uint64), addresses([self.arena])[0]

    def check(self, src):
        """Each lies whole in a place of its own, as the entries `src` say."""
        assert self.used[0] == len(self.arena)
        places = src - self.base
        assert not (places % np.uint64(4)).any()
        in_order = np.argsort(places, kind="stable")
        room_ends = np.cumsum(np.array(self.rooms)[in_order])
        np.testing.assert_array_equal(places[in_order], [0, *room_ends[:-1].tolist()])
        rows = zip(self.streams, places.astype(int), self.rooms, strict=True)
        for stream, place, room in rows:
            moved = self.arena[place : place + room]
            np.testing.assert_array_equal(moved[: stream.nbytes], stream)
            assert (moved[stream.nbytes :] == POISON).all()


@schedules
def test_streams_move_to_multiples_of_four(kernels, schedule):
    moved = Moved(np.random.default_rng(schedule))
    n = np.uint32(len(moved.streams))
    args = [moved.src, moved.nbytes, moved.used, moved.base, n]
    kernels.launch("gs_realign", 3, 128, args, schedule=schedule)
    moved.check(moved.src)


@schedules
@pytest.mark.parametrize("n_between", [0, 3])
def test_raw_streams_are_copied_as_those_of_zlib_move(kernels, n_between, schedule):
    rng = np.random.default_rng(schedule)
    raw = [held(rng.bytes(n), n % 5) for n in (40_001, 0, 17, 300)]
    targets = [np.full(source.nbytes + 1, POISON, np.uint8) for source in raw]
    moved, first = Moved(rng), len(raw) + n_between
    others = np.full(n_between, 12345, np.uint64)  # of other compressors: left alone
    src = np.concatenate([addresses(raw), others, moved.src])
    nbytes = np.concatenate([sizes(raw), others, moved.nbytes])
    dst = np.concatenate([addresses(targets), np.zeros_like(src[len(raw) :])])
    tables = stream_tables(src, nbytes, dst, [0, len(raw), first, first, len(src)])
    counts = np.uint32(len(raw)), np.uint32(len(moved.streams))
    args = [tables, *counts, moved.used, moved.base]
    kernels.launch("gs_blosc_copy", (3, 2), 128, args, schedule=schedule)
    moved.check(src[first:])
    assert (src[len(raw) : first] == others).all()
    for source, target in zip(raw, targets, strict=True):
        np.testing.assert_array_equal(target[:-1], source)
        assert target[-1] == POISON


# ---- folding


def fold(kernels, status, decoder_status, actual, capacity, *, schedule, rows=None):
    args = [
        np.array(decoder_status, np.int32),
        np.array(actual, np.uint64),
        np.array(capacity, np.uint64),
        None if rows is None else np.array(rows, np.uint32),
        status,
        np.uint32(len(actual)),
        np.zeros((), CANARIES)[()],
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
