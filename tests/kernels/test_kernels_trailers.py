"""Checksums behind streams are held against decoded bytes as the libraries do it."""

from __future__ import annotations

import gzip
import zlib

import numpy as np
import pytest
import zstandard

from cuda_host.launch import (
    SCHEDULES,
    Kernels,
)
from cuda_host.statuses import Status
from gpushard.devices.structs import TRAILERS
from kernel_rows import addresses, held

# None, about a unit of 16, a stripe of 32, a round of 1,024, and several of each.
LENGTHS = [*range(40), 63, 64, 65, 255, 1023, 1024, 1027, 2048, 2065, 4096, 5003]
OK, CHECKSUM = Status.OK, Status.CHECKSUM


def zlib_stream(data):
    """A zlib stream, and where the deflate stream in it lies."""
    return zlib.compress(data, 1), 2, 4


def gzip_member(data):
    return gzip.compress(data, 1, mtime=0), 0, 0


def zstd_frame(data):
    return zstandard.ZstdCompressor(write_checksum=True).compress(data), 0, 0


FORMATS = {
    "gs_verify_zlib": zlib_stream,
    "gs_verify_gzip": gzip_member,
    "gs_verify_zstd": zstd_frame,
}
each_format = pytest.mark.parametrize("kernel", FORMATS)
schedules = pytest.mark.parametrize("schedule", SCHEDULES)


@pytest.fixture(scope="module")
def kernels():
    return Kernels()


class Streams:
    """Decoded bytes and the encoded streams that they are said to come from."""

    def __init__(self, kernel, messages, misalignment=0):
        self.kernel = kernel
        messages = list(messages)
        self.decoded = [held(m, misalignment * k % 16) for k, m in enumerate(messages)]
        made = [FORMATS[kernel](message) for message in messages]
        self.encoded = [held(stream, k % 5) for k, (stream, _, _) in enumerate(made)]
        self.before = np.array([before for _, before, _ in made], np.uint64)
        self.around = np.array([before + after for _, before, after in made], np.uint64)

    def verify(
        self,
        kernels,
        *,
        rows=None,
        status=None,
        failures=(),
        short=(),
        verified=None,
        **launched,
    ):
        """Statuses of the rows; streams that a decoder refused, or cut short."""
        n = len(self.decoded)
        src = addresses(self.encoded) + self.before
        nbytes = np.array([len(e) for e in self.encoded], np.uint64) - self.around
        dst = addresses(self.decoded)
        capacity = np.array([len(d) for d in self.decoded], np.uint64)
        row = None if rows is None else np.array(rows, np.uint32)
        status = np.zeros(n, np.uint32) if status is None else status
        decoder_status, actual = np.zeros(n, np.int32), capacity.copy()
        decoder_status[list(failures)] = 12
        actual[list(short)] -= np.uint64(1)
        record = np.zeros((), TRAILERS)
        columns = (src, nbytes, dst, capacity, row, status, decoder_status, actual)
        for name, column in zip(TRAILERS.names, columns, strict=False):
            record[name] = 0 if column is None else column.ctypes.data
        record["n_streams"] = n
        verified = range(n) if verified is None else verified
        record["first"], record["stop"] = verified.start, verified.stop
        self._launch(kernels, record[()], **launched)
        return status.tolist()

    def _launch(self, kernels, record, *, schedule=0, grid=2):
        threads = kernels.threads(self.kernel)
        kernels.launch(self.kernel, grid, threads, [record], schedule=schedule)


def message(nbytes, seed=0):
    return np.random.default_rng(nbytes + seed).bytes(nbytes)


@schedules
@each_format
def test_right_checksums_pass_at_every_length_and_alignment(kernels, kernel, schedule):
    for misalignment in (0, 5, 8):
        streams = Streams(kernel, map(message, LENGTHS), misalignment)
        status = streams.verify(kernels, schedule=schedule)
        assert status == [OK] * len(LENGTHS)


@each_format
def test_bytes_of_the_largest_value_do_not_overflow_a_sum(kernels, kernel):
    messages = [b"\xff" * n for n in (5552, 65_521, 300_000)]
    assert Streams(kernel, messages).verify(kernels) == [OK] * 3


@schedules
@each_format
def test_every_wrong_byte_is_found(kernels, kernel, schedule):
    nbytes = 141
    streams = Streams(kernel, [message(nbytes)] * nbytes)
    for k, decoded in enumerate(streams.decoded):
        decoded[k] ^= 1 << k % 8
    assert streams.verify(kernels, schedule=schedule) == [CHECKSUM] * nbytes


@each_format
def test_every_wrong_bit_of_a_checksum_is_found(kernels, kernel):
    streams = Streams(kernel, [message(50)] * 32)
    # gzip's size follows its checksum.
    end = 8 if kernel == "gs_verify_gzip" else 4
    for bit, encoded in enumerate(streams.encoded):
        encoded[len(encoded) - end + bit // 8] ^= 1 << bit % 8
    assert streams.verify(kernels) == [CHECKSUM] * 32


@each_format
def test_rows_with_a_status_are_left_alone(kernels, kernel):
    streams = Streams(kernel, [message(n) for n in (40, 50, 60)])
    for decoded in streams.decoded:
        decoded[3] ^= 1
    status = np.array([Status.SHORT, OK, Status.HOST], np.uint32)
    got = streams.verify(kernels, status=status)
    assert got == [Status.SHORT, CHECKSUM, Status.HOST]


@schedules
@each_format
def test_of_many_streams_in_a_row_one_wrong_one_marks_it(kernels, kernel, schedule):
    streams = Streams(kernel, [message(n, 1) for n in range(30, 130)])
    rows = np.arange(100) // 10
    for wrong in (0, 55, 99):
        streams.decoded[wrong][7] ^= 4
    status = np.zeros(10, np.uint32)
    got = streams.verify(kernels, rows=rows, status=status, schedule=schedule, grid=7)
    assert got == [CHECKSUM, *[OK] * 4, CHECKSUM, *[OK] * 3, CHECKSUM]


@schedules
@each_format
def test_failed_and_short_streams_mark_their_rows(kernels, kernel, schedule):
    streams = Streams(kernel, [message(n) for n in range(40, 46)])
    status = np.array([OK, OK, OK, CHECKSUM, CHECKSUM, OK], np.uint32)
    got = streams.verify(
        kernels, status=status, failures=[1, 3], short=[1, 2, 4], schedule=schedule
    )
    assert got == [OK, Status.DECODER, Status.SHORT, CHECKSUM, CHECKSUM, OK]


@schedules
@pytest.mark.parametrize("kernel", ["gs_verify_zlib", "gs_verify_gzip"])
def test_what_did_not_come_out_marks_a_row_of_many_streams(kernels, kernel, schedule):
    streams = Streams(kernel, [message(50, k) for k in range(6)])
    rows = [1, 1, 1, 0, 0, 0]
    for failures, short, wanted in (
        ([1], [0, 2], Status.DECODER),
        ([2], [1], Status.DECODER),
        ([], [2], Status.SHORT),
    ):
        got = streams.verify(
            kernels, rows=rows, status=np.zeros(2, np.uint32), failures=failures,
            short=short, schedule=schedule,
        )  # fmt: skip
        assert got == [OK, wanted]


@schedules
def test_streams_of_other_compressors_are_folded_and_not_judged(kernels, schedule):
    streams = Streams("gs_verify_zlib", [message(50, k) for k in range(7)])
    for decoded in streams.decoded:
        decoded[3] ^= 1
    got = streams.verify(
        kernels, verified=range(2, 5), failures=[0, 3], short=[6], schedule=schedule
    )
    refused, short = Status.DECODER, Status.SHORT
    assert got == [refused, OK, CHECKSUM, refused, CHECKSUM, OK, short]


def test_a_zstd_frame_without_checksum_is_not_judged(kernels):
    streams = Streams("gs_verify_zstd", [message(50)] * 2)
    plain = zstandard.ZstdCompressor(write_checksum=False).compress(message(50))
    streams.encoded[1] = held(plain)
    for decoded in streams.decoded:
        decoded[3] ^= 1
    assert streams.verify(kernels) == [CHECKSUM, OK]
