"""Shuffled bytes and bits come back in order, as the authors of the filters say."""

from __future__ import annotations

from itertools import product

import numcodecs
import numpy as np
import pytest

import blosc_frames
from blosc_frames import decode_stream, elements, encode
from cuda_host.launch import (
    SCHEDULES,
    Kernels,
    in_sanitized_process,
)
from cuda_host.statuses import Status
from gpushard.codecs import blosc_frame
from kernel_rows import POISON, addresses, held, struct

NONE, BYTES, BITS = range(3)
GUARD = 32

schedules = pytest.mark.parametrize("schedule", SCHEDULES)


@pytest.fixture(scope="module")
def kernels():
    return Kernels()


class Batch:
    """Filtered rows, and guarded room for the decoded ones."""

    def __init__(self, rows, filters, typesizes, block_nbytes, misalignment=(0, 0)):
        self.nbytes = len(rows[0])
        self.staging = [held(row, misalignment[0]) for row in rows]
        room = 2 * GUARD + misalignment[1] + self.nbytes
        self.decoded = [np.full(room, POISON, np.uint8) for _ in rows]
        self.start = GUARD + misalignment[1]
        self.src = addresses(self.staging)
        self.dst = addresses(self.decoded) + np.uint64(self.start)
        self.status = np.zeros(len(rows), np.uint32)
        self.filter, self.typesize, self.block_nbytes = (
            np.array(column, np.uint32) for column in (filters, typesizes, block_nbytes)
        )

    def run(self, kernels, schedule=0, grid=(2, 2), name="gs_unfilter"):
        tables = struct(
            src=self.src,
            dst=self.dst,
            status=self.status,
            filter=self.filter,
            typesize=self.typesize,
            block_nbytes=self.block_nbytes,
            decoded_nbytes=np.uint64(self.nbytes),
            n_rows=np.uint32(len(self.staging)),
            reserved=np.uint32(0),
        )
        kernels.launch(name, grid, 256, [tables], schedule=schedule)
        return [self.row(k) for k in range(len(self.staging))]

    def row(self, k):
        """Decoded bytes of row `k`, around which nothing was written."""
        array = self.decoded[k]
        assert (array[: self.start] == POISON).all()
        assert (array[self.start + self.nbytes :] == POISON).all()
        return array[self.start : self.start + self.nbytes].tobytes()


def shuffled(data, filter_, typesize, block_nbytes):
    """What c-blosc's shuffles make of `data`, by NumPy."""
    return b"".join(
        shuffled_block(data[start : start + block_nbytes], filter_, typesize)
        for start in range(0, len(data), block_nbytes)
    )


def shuffled_block(block, filter_, typesize):
    n_items = len(block) // typesize
    whole = n_items * typesize
    items = np.frombuffer(block[:whole], np.uint8).reshape(n_items, typesize)
    if filter_ == BYTES:
        return items.T.tobytes() + block[whole:]
    if n_items % 8:
        return block
    bits = np.unpackbits(items, axis=1, bitorder="little")
    return np.packbits(bits.T, axis=1, bitorder="little").tobytes() + block[whole:]


TYPESIZES = [1, 2, 3, 4, 7, 8, 16, 20, 255]


@schedules
@pytest.mark.parametrize("nbytes", [1, 63, 1024, 4080, 20_008])
def test_every_item_size_and_block_size_comes_back(kernels, nbytes, schedule):
    data = np.random.default_rng(nbytes).bytes(nbytes)
    cases = list(product([BYTES, BITS], TYPESIZES, [128, 500, 1024, 30_000]))
    if in_sanitized_process():
        cases = cases[schedule :: len(SCHEDULES)]
    batch = Batch([shuffled(data, *case) for case in cases], *zip(*cases, strict=True))
    for case, decoded in zip(cases, batch.run(kernels, schedule), strict=True):
        assert decoded == data, case


@pytest.mark.parametrize("misalignment", [*product([0, 1, 4, 8], [0, 2, 8])], ids=str)
def test_rows_may_begin_anywhere(kernels, misalignment):
    data = np.random.default_rng(0).bytes(4096)
    cases = list(product([BYTES, BITS], [1, 2, 4, 8, 12], [1024, 1028]))
    rows = [shuffled(data, *case) for case in cases]
    batch = Batch(rows, *zip(*cases, strict=True), misalignment)
    for case, decoded in zip(cases, batch.run(kernels), strict=True):
        assert decoded == data, case


@pytest.mark.parametrize("grid", [(1, 1), (3, 5)])
def test_pieces_of_a_long_block_meet(kernels, grid):
    # More items than a piece has, in blocks of one, two and a half, and all pieces.
    data = np.random.default_rng(1).bytes(2048 * 4 * 5 + 4 * 8)
    cases = [
        (filter_, typesize, pieces)
        for filter_ in (BYTES, BITS)
        for typesize in (1, 2, 4, 8, 16, 3)
        for pieces in (2048 * typesize, 5120 * typesize, len(data))
    ]
    rows = [shuffled(data, *case) for case in cases]
    batch = Batch(rows, *zip(*cases, strict=True))
    for case, decoded in zip(cases, batch.run(kernels, grid=grid), strict=True):
        assert decoded == data, case


@schedules
def test_blocks_of_real_frames_come_back(kernels, schedule):
    arrays, headers, rows = [], [], []
    cases = product(["<i2", "<f4", "<f8", "V12"], [1, 2], [0, 520, 4096])
    for dtype, shuffle, blocksize in cases:
        array = elements("smooth", "u1", 24_024).view(dtype)
        encoded = encode(array, "zstd", shuffle, blocksize)
        frame = blosc_frames.parse(encoded)
        assert not frame.header.flags & blosc_frame.MEMCPYED
        arrays.append(array.tobytes())
        headers.append(frame.header)
        rows.append(decoded_streams(encoded, frame))
    filters = [BYTES if h.flags & blosc_frame.BYTE_SHUFFLE else BITS for h in headers]
    batch = Batch(
        rows, filters, [h.typesize for h in headers], [h.block_nbytes for h in headers]
    )
    assert batch.run(kernels, schedule) == arrays


def decoded_streams(encoded, frame):
    """Bytes of a zstd frame with the filter still on."""
    columns = (frame.source_offset, frame.source_nbytes, frame.decoded_nbytes)
    return b"".join(
        encoded[offset : offset + nbytes]
        if is_raw
        else decode_stream(blosc_frame.ZSTD, encoded[offset : offset + nbytes], size)
        for offset, nbytes, size, is_raw in zip(
            *(column.tolist() for column in columns), frame.is_raw, strict=True
        )
    )


@schedules
@pytest.mark.parametrize("element_nbytes", [2, 4, 8, 12, 300])
def test_rows_of_numcodecs_shuffle_are_one_block(kernels, element_nbytes, schedule):
    data = np.random.default_rng(2).bytes(3000 * element_nbytes)
    row = bytes(numcodecs.Shuffle(elementsize=element_nbytes).encode(data))
    batch = Batch([row] * 2, [BYTES] * 2, [element_nbytes] * 2, [len(data)] * 2)
    assert batch.run(kernels, schedule) == [data, data]


@schedules
def test_unshuffling_bytes_alone_leaves_the_other_rows(kernels, schedule):
    data = np.random.default_rng(3).bytes(4096)
    cases = list(product([BYTES, BITS], TYPESIZES, [500, 1024]))
    rows = [shuffled(data, *case) for case in cases]
    batch = Batch([*rows, data], *zip(*cases, (NONE, 4, 1024), strict=True))
    untouched = bytes([POISON]) * len(data)
    decoded = batch.run(kernels, schedule, name="gs_unshuffle")
    assert decoded == [data if case[0] == BYTES else untouched for case in cases] + [
        untouched
    ]


both = pytest.mark.parametrize("name", ["gs_unshuffle", "gs_unfilter"])


@both
@schedules
def test_rows_with_a_status_are_not_touched(kernels, schedule, name):
    rows = [bytes(range(64))] * 3
    batch = Batch(rows, [NONE, BYTES, BITS], [4] * 3, [64] * 3)
    batch.status[:] = [Status.HOST, Status.SHORT, Status.CHECKSUM]
    assert batch.run(kernels, schedule, name=name) == [bytes([POISON]) * 64] * 3


@both
@schedules
def test_rows_without_a_filter_are_not_touched(kernels, schedule, name):
    batch = Batch([bytes(range(64))] * 2, [NONE] * 2, [4] * 2, [64] * 2)
    assert batch.run(kernels, schedule, name=name) == [bytes([POISON]) * 64] * 2
