"""The checksum kernel finds what the crc32c package finds, and every flipped bit."""

from __future__ import annotations

import numpy as np
import pytest
from crc32c import crc32c

from cuda_host.launch import (
    SCHEDULES,
    Kernels,
)
from cuda_host.statuses import Status
from kernel_rows import addresses, held, sizes

NAME = "gs_crc32c_verify"
# None and one byte, about a word, about a round of 256 words, and several of them.
LENGTHS = [*range(10), 31, 32, 33, 1021, 1024, 1028, 1031, 2048, 4096, 5003, 65_537]

schedules = pytest.mark.parametrize("schedule", SCHEDULES)


@pytest.fixture(scope="module")
def kernels():
    return Kernels()


def signed(data: bytes) -> bytes:
    return data + crc32c(data).to_bytes(4, "little")


def message(nbytes: int) -> bytes:
    return np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8).tobytes()


def verify(kernels, rows, *, status=None, grid=2, schedule=0):
    src, src_nbytes = addresses(rows), sizes(rows)
    status = np.zeros(len(rows), np.uint32) if status is None else status
    kernels.launch(
        NAME,
        grid,
        kernels.threads(NAME),
        [src, src_nbytes, status, np.uint32(len(rows))],
        schedule=schedule,
    )
    return src_nbytes, status


@schedules
def test_right_checksums_are_taken_off_at_every_alignment(kernels, schedule):
    rows = [
        held(signed(message(nbytes)), k % 16) for k, nbytes in enumerate(LENGTHS * 4)
    ]
    src_nbytes, status = verify(kernels, rows, schedule=schedule)
    assert status.tolist() == [Status.OK] * len(rows)
    np.testing.assert_array_equal(src_nbytes, sizes(rows) - 4)


@schedules
def test_one_flipped_bit_anywhere_is_found(kernels, schedule):
    rng = np.random.default_rng(schedule)
    rows = []
    for k, nbytes in enumerate(LENGTHS):
        # In the first and last bytes, which no full word holds, and somewhere between.
        for byte in {0, nbytes // 2, max(nbytes - 1, 0), nbytes + 3}:
            damaged = bytearray(signed(message(nbytes)))
            damaged[byte] ^= 1 << int(rng.integers(8))
            rows.append(held(bytes(damaged), k % 4))
    src_nbytes, status = verify(kernels, rows, schedule=schedule)
    assert status.tolist() == [Status.CHECKSUM] * len(rows)
    np.testing.assert_array_equal(src_nbytes, sizes(rows))


def test_words_that_change_places_are_found(kernels):
    data = bytearray(signed(message(4096)))
    data[0:4], data[1024:1028] = data[1024:1028], data[0:4]
    _, status = verify(kernels, [held(bytes(data))])
    assert status.tolist() == [Status.CHECKSUM]


@schedules
def test_rows_shorter_than_a_checksum_contradict_themselves(kernels, schedule):
    rows = [held(bytes(n)) for n in range(4)] + [held(signed(b"")), held(bytes(4))]
    src_nbytes, status = verify(kernels, rows, grid=1, schedule=schedule)
    assert status.tolist() == [Status.FORMAT] * 4 + [Status.OK] * 2
    assert src_nbytes.tolist() == [0, 1, 2, 3, 0, 0]


@schedules
def test_rows_that_failed_before_are_left_alone(kernels, schedule):
    rows = [held(signed(message(100))), held(b"no"), held(signed(message(2000)))]
    status = np.array([Status.HOST, Status.SIZE, Status.OK], np.uint32)
    src_nbytes, status = verify(kernels, rows, status=status, schedule=schedule)
    assert status.tolist() == [Status.HOST, Status.SIZE, Status.OK]
    assert src_nbytes.tolist() == [104, 2, 2000]


@pytest.mark.parametrize("grid", [1, 3, 7])
def test_any_number_of_blocks_shares_the_rows(kernels, grid):
    rows = [held(signed(message(nbytes))) for nbytes in range(300, 305)]
    src_nbytes, status = verify(kernels, rows, grid=grid)
    assert not status.any()
    assert src_nbytes.tolist() == [300, 301, 302, 303, 304]
