"""Canaries around rows are written before a decoder, and missed by every fold."""

from __future__ import annotations

import numpy as np
import pytest

from blosc_batch import Batch
from blosc_frames import encode
from cuda_host.launch import SCHEDULES, Kernels
from cuda_host.statuses import Status
from gate_cases import DATA, NBYTES, zstd
from gpushard.devices.structs import CANARIES, GATE, TRAILERS
from kernel_rows import POISON, addresses, held, sizes

OK, OVERRUN, CHECKSUM = Status.OK, Status.OVERRUN, Status.CHECKSUM
SEED = 0x1234_5678_9ABC_DEF1
N_ROWS, PITCH, LEAD = 300, 512, 256
FOLDS = ["gs_fold", "gs_verify_zlib", "gs_verify_gzip", "gs_verify_zstd"]
schedules = pytest.mark.parametrize("schedule", SCHEDULES)


@pytest.fixture(scope="module")
def kernels():
    return Kernels()


class Arena:
    """Rows with room between them, each with a dummy that some gate refused."""

    def __init__(self, nbytes, n_rows=N_ROWS):
        room = np.full(LEAD + n_rows * PITCH + LEAD + 16, POISON, np.uint8)
        first = -room.ctypes.data % 16
        self.memory = room[first : first + LEAD + n_rows * PITCH + LEAD]
        self.nbytes, self.n_rows = nbytes, n_rows
        self.first = LEAD + PITCH * np.arange(n_rows)
        self.rows = (self.memory.ctypes.data + self.first).astype(np.uint64)
        self.status = np.zeros(n_rows, np.uint32)

    @property
    def behind(self):
        """Where the canaries behind the rows begin."""
        return self.first + -(-self.nbytes // 16) * 16

    def guard(self, kernels, seed=SEED, schedule=0):
        """Let a gate write the canaries; rows without a status are fine."""
        lz4 = held(self.nbytes.to_bytes(4, "little") + b"x")
        streams = np.zeros((4, self.n_rows), np.uint64)
        src = np.full(self.n_rows, lz4.ctypes.data, np.uint64)
        gate = np.zeros((), GATE)
        columns = {"src": src, "src_nbytes": np.full(self.n_rows, 5, np.uint64)}
        columns |= {"dst": self.rows, "status": self.status}
        names = "stream_src", "stream_nbytes", "stream_dst", "stream_capacity"
        columns |= dict(zip(names, streams, strict=True))
        for name, column in columns.items():
            gate[name] = column.ctypes.data
        gate["decoded_nbytes"], gate["n_rows"] = self.nbytes, self.n_rows
        gate["canary_seed"] = seed
        kernels.launch("gs_gate_lz4", 2, 128, [gate[()]], schedule=schedule)

    def canaries(self, seed=SEED):
        record = np.zeros((), CANARIES)
        record["rows"], record["nbytes"] = self.rows.ctypes.data, self.nbytes
        record["seed"], record["n_rows"] = seed, self.n_rows
        return record[()]

    def fold(self, kernels, kernel="gs_fold", *, seed=SEED, schedule=0, grid=2):
        """Statuses after a fold of one good stream of the first row."""
        outcome, one = np.zeros(1, np.int32), np.ones(1, np.uint64)
        row = np.zeros(1, np.uint32)
        if kernel == "gs_fold":
            args = [outcome, one, one, row, self.status, np.uint32(1)]
            args.append(self.canaries(seed))
        else:
            frame, decoded = held(zstd(b"x")), held(b"x")
            found = {
                "stream_src": addresses([frame]),
                "stream_nbytes": sizes([frame]),
                "stream_dst": addresses([decoded]),
                "stream_capacity": one,
                "stream_row": row,
                "status": self.status,
                "decoder_status": outcome,
                "actual_nbytes": np.zeros(1, np.uint64),
            }
            trailers = np.zeros((), TRAILERS)
            for name, column in found.items():
                trailers[name] = column.ctypes.data
            trailers["n_streams"], trailers["canaries"] = 1, self.canaries(seed)
            args = [trailers[()]]
        kernels.launch(kernel, grid, kernels.threads(kernel), args, schedule=schedule)
        return self.status.tolist()


@schedules
@pytest.mark.parametrize("nbytes", [1, 16, 33, 200, 464])
def test_canaries_lie_around_a_row_and_nowhere_else(kernels, nbytes, schedule):
    arena = Arena(nbytes)
    arena.guard(kernels, schedule=schedule)
    around = np.concatenate([arena.first - 16, arena.behind])
    is_canary = np.zeros(len(arena.memory), bool)
    is_canary[(around[:, np.newaxis] + np.arange(16)).reshape(-1)] = True
    assert (arena.memory[~is_canary] == POISON).all()
    found = arena.memory[is_canary].reshape(-1, 16)
    assert len({canary.tobytes() for canary in found}) == 2 * N_ROWS


def test_another_seed_makes_other_canaries(kernels):
    made = []
    for seed in (SEED, SEED + 1, SEED):
        arena = Arena(100)
        arena.guard(kernels, seed)
        at = np.concatenate([arena.first - 16, arena.behind])[:, np.newaxis]
        made.append(arena.memory[at + np.arange(16)])
    assert (made[0] != made[1]).any(axis=1).all()
    assert (made[0] == made[2]).all()


def test_no_seed_writes_no_canary_and_misses_none(kernels):
    arena = Arena(100)
    arena.guard(kernels, seed=0)
    assert (arena.memory == POISON).all()
    assert arena.fold(kernels, seed=0) == [OK] * N_ROWS


def test_rows_that_a_gate_refused_get_no_canaries(kernels):
    arena = Arena(100)
    arena.status[:] = CHECKSUM
    arena.guard(kernels)
    assert (arena.memory == POISON).all()
    assert arena.fold(kernels) == [CHECKSUM] * N_ROWS


@schedules
@pytest.mark.parametrize("kernel", FOLDS)
def test_a_row_whose_canary_was_overwritten_does_not_count(kernels, kernel, schedule):
    arena = Arena(100)
    arena.guard(kernels)
    # Streams of one byte are no such rows'; gs_verify_* finds the first row short.
    first = arena.fold(kernels, kernel, schedule=schedule)[0]
    assert first == (OK if kernel == "gs_fold" else Status.SHORT)
    for k in (3, 150, N_ROWS - 1):
        arena.memory[arena.behind[k] + k % 16] ^= 1
    for k in (7, 151):
        arena.memory[arena.first[k] - 1 - k % 16] ^= 0x80
    got = arena.fold(kernels, kernel, schedule=schedule)
    wanted = [first] + [OK] * (N_ROWS - 1)
    for k in (3, 7, 150, 151, N_ROWS - 1):
        wanted[k] = OVERRUN
    assert got == wanted


@schedules
def test_every_byte_of_a_canary_counts(kernels, schedule):
    arena = Arena(100, n_rows=32)
    arena.guard(kernels)
    for k in range(16):
        arena.memory[arena.behind[2 * k] + k] ^= 4
        arena.memory[arena.first[2 * k + 1] - 16 + k] ^= 4
    assert arena.fold(kernels, schedule=schedule) == [OVERRUN] * 32


def test_a_stream_that_copies_canaries_forges_none(kernels):
    """LZ4 copies what lies before its output, if a stream says so."""
    arena = Arena(100, n_rows=8)
    arena.guard(kernels)
    steps = np.arange(16)
    for k in range(1, 8):  # with the one before it, and that behind the row before
        source = arena.first[k] - 16 if k % 2 else arena.behind[k - 1]
        arena.memory[arena.behind[k] + steps] = arena.memory[source + steps]
    assert arena.fold(kernels) == [OK] + [OVERRUN] * 7


@schedules
def test_rows_of_blosc_frames_have_canaries_where_they_are_decoded_to(
    kernels, schedule
):
    values, n_rows = np.frombuffer(DATA, "<i4"), 70
    frames = [encode(values, "lz4", k % 2, 512) for k in range(n_rows)]
    batch = Batch([*frames, b""], NBYTES)
    pitch = -(-(NBYTES + 48) // 256) * 256
    room = np.full(2 * (n_rows + 1) * pitch + 512, POISON, np.uint8)
    starts = -room.ctypes.data % 256 + 256 + pitch * np.arange(2 * (n_rows + 1))
    rows = [room[start : start + NBYTES] for start in starts]
    batch.staging, batch.decoded = rows[: n_rows + 1], rows[n_rows + 1 :]
    batch.canary_seed = SEED
    assert batch.run(kernels, schedule) == [OK] * n_rows + [Status.FORMAT]
    first = batch.dst[:n_rows].astype(np.int64) - room.ctypes.data
    assert np.isin(first, starts[: n_rows + 1]).any()
    assert not np.isin(first, starts[: n_rows + 1]).all()
    behind = first + -(-NBYTES // 16) * 16
    around = np.concatenate([first - 16, behind])[:, np.newaxis] + np.arange(16)
    assert len(np.unique(room[around], axis=0)) == 2 * n_rows
    room[around] = POISON
    assert (room == POISON).all()
