"""Gates let one whole stream of the right size through, and nothing else."""

from __future__ import annotations

import gzip
import struct as c
import zlib

import numpy as np
import pytest

from cuda_host.launch import (
    SCHEDULES,
    Kernels,
)
from cuda_host.statuses import Status
from gate_cases import (
    DATA,
    FORMAT,
    GZIP_CASES,
    HOST,
    LZ4,
    NBYTES,
    NOISE,
    OK,
    SIZE,
    UNSIZED,
    ZLIB,
    ZLIB_CASES,
    ZSTD_CASES,
    frame,
    raw,
    zstd,
)
from kernel_rows import addresses, bytes_at, held, outputs, sizes, struct

CHECKSUM = Status.CHECKSUM

schedules = pytest.mark.parametrize("schedule", SCHEDULES)


@pytest.fixture(scope="module")
def kernels():
    return Kernels()


class Gated:
    """Rows before and after a gate kernel."""

    def __init__(self, encoded, decoded_nbytes=NBYTES, *, accept_unsized=True):
        self.rows = [held(data, k % 5) for k, data in enumerate(encoded)]
        self.src, self.src_nbytes = addresses(self.rows), sizes(self.rows)
        self.status = np.zeros(len(encoded), np.uint32)
        self.decoded = outputs(len(encoded), 1)
        self.dst = addresses(self.decoded)
        self.stream_src, self.stream_nbytes, self.stream_dst, self.stream_capacity = (
            np.zeros(len(encoded), np.uint64) for _ in range(4)
        )
        self.dummy, self.dummy_out = held(b"dummy"), outputs(1, 256)[0]
        self.decoded_nbytes = decoded_nbytes
        self.accept_unsized = accept_unsized

    def run(self, kernels, name, schedule=0, grid=1):
        tables = struct(
            src=self.src,
            src_nbytes=self.src_nbytes,
            dst=self.dst,
            status=self.status,
            stream_src=self.stream_src,
            stream_nbytes=self.stream_nbytes,
            stream_dst=self.stream_dst,
            stream_capacity=self.stream_capacity,
            decoded_nbytes=np.uint64(self.decoded_nbytes),
            dummy_src=self.dummy,
            dummy_nbytes=np.uint64(5),
            dummy_dst=self.dummy_out,
            dummy_capacity=np.uint64(256),
            canary_seed=np.uint64(0),
            n_rows=np.uint32(len(self.rows)),
            accept_unsized=np.uint32(self.accept_unsized),
        )
        kernels.launch(name, grid, kernels.threads(name), [tables], schedule=schedule)
        return self.status.tolist()

    def assert_streams_are(self, header_nbytes, trailer_nbytes):
        """Fine rows without their wrapper, others the dummy."""
        fine = self.status == OK
        dummy = np.uint64(self.dummy.ctypes.data)
        wrapper = np.uint64(header_nbytes + trailer_nbytes)
        np.testing.assert_array_equal(
            self.stream_src,
            np.where(fine, self.src + np.uint64(header_nbytes), dummy),
        )
        np.testing.assert_array_equal(
            self.stream_nbytes, np.where(fine, self.src_nbytes - wrapper, 5)
        )
        np.testing.assert_array_equal(
            self.stream_dst, np.where(fine, self.dst, addresses([self.dummy_out])[0])
        )
        np.testing.assert_array_equal(
            self.stream_capacity, np.where(fine, self.decoded_nbytes, 256)
        )


@schedules
def test_zstd_frames_are_judged(kernels, schedule):
    gated = Gated([data for data, _ in ZSTD_CASES.values()])
    got = gated.run(kernels, "gs_gate_zstd", schedule)
    wanted = [status for _, status in ZSTD_CASES.values()]
    assert dict(zip(ZSTD_CASES, got, strict=True)) == dict(
        zip(ZSTD_CASES, wanted, strict=True)
    )
    gated.assert_streams_are(0, 0)


def test_content_sizes_of_every_width_are_read(kernels):
    for nbytes in (1, 255, 256, 65_535 + 256, 65_536 + 256):
        data = zstd(bytes(nbytes))
        assert Gated([data], nbytes).run(kernels, "gs_gate_zstd") == [OK], nbytes
        assert Gated([data], nbytes + 1).run(kernels, "gs_gate_zstd") == [SIZE]


def test_blocks_are_as_large_as_the_window_at_most(kernels):
    for window, nbytes in ((0, 1024), (1, 1152), (7, 1920), (8, 2048)):
        fits, more = (
            frame(raw(DATA[:n]), window=window, size=n) for n in (nbytes, nbytes + 1)
        )
        assert Gated([fits], nbytes).run(kernels, "gs_gate_zstd") == [OK], window
        assert Gated([more], nbytes + 1).run(kernels, "gs_gate_zstd") == [HOST], window


def test_frames_without_content_size_may_be_left_to_the_host(kernels):
    gated = Gated([zstd(), UNSIZED], accept_unsized=False)
    assert gated.run(kernels, "gs_gate_zstd") == [OK, HOST]
    gated.assert_streams_are(0, 0)


@schedules
def test_zstd_frames_cut_anywhere_contradict_themselves(kernels, schedule):
    whole = zstd(NOISE[:300], write_checksum=True)
    gated = Gated([whole[:n] for n in range(len(whole))], 300)
    assert set(gated.run(kernels, "gs_gate_zstd", schedule)) == {FORMAT}


@schedules
def test_lz4_blocks_are_judged_by_their_size(kernels, schedule):
    gated = Gated([LZ4, c.pack("<I", NBYTES - 1) + LZ4[4:], LZ4[:4], LZ4[:3], b""])
    got = gated.run(kernels, "gs_gate_lz4", schedule)
    assert got == [OK, SIZE, FORMAT, FORMAT, FORMAT]
    gated.assert_streams_are(4, 0)


@schedules
def test_gzip_members_are_judged(kernels, schedule):
    gated = Gated([data for data, _ in GZIP_CASES.values()])
    got = gated.run(kernels, "gs_gate_gzip", schedule)
    wanted = {name: status for name, (_, status) in GZIP_CASES.items()}
    assert dict(zip(GZIP_CASES, got, strict=True)) == wanted
    gated.assert_streams_are(0, 0)


@schedules
def test_zlib_streams_lose_their_wrapper(kernels, schedule):
    gated = Gated([data for data, _ in ZLIB_CASES.values()])
    got = gated.run(kernels, "gs_gate_zlib", schedule)
    wanted = {name: status for name, (_, status) in ZLIB_CASES.items()}
    assert dict(zip(ZLIB_CASES, got, strict=True)) == wanted
    gated.assert_streams_are(2, 4)
    bare = bytes_at(gated.stream_src[0], gated.stream_nbytes[0])
    assert zlib.decompress(bare, wbits=-15) == DATA


@schedules
@pytest.mark.parametrize("name", ["zstd", "lz4", "gzip", "zlib"])
def test_rows_that_failed_before_become_the_dummy(kernels, name, schedule):
    gated = Gated([zstd(), LZ4, gzip.compress(DATA), ZLIB])
    gated.status[:] = CHECKSUM
    got = gated.run(kernels, f"gs_gate_{name}", schedule)
    assert got == [CHECKSUM] * 4
    gated.assert_streams_are(0, 0)


def test_more_rows_than_threads_are_all_judged(kernels):
    gated = Gated([LZ4] * 300)
    gated.run(kernels, "gs_gate_lz4", schedule=2, grid=2)
    gated.assert_streams_are(4, 0)
