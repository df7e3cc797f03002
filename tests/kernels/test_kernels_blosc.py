"""Blosc frames become the tables that the host's parser finds, or are refused."""

from __future__ import annotations

import zlib
from itertools import product

import numpy as np
import pytest
import zstandard

import blosc_frames
from blosc_batch import CLASSES, Batch
from blosc_cases import (
    CASES,
    HOST,
    NBYTES,
    OK,
    SPLIT,
    ZSTD,
    changed,
    frames_of,
    needs_host,
    one_stream,
    parsed,
)
from blosc_frames import elements, encode, undo_filter
from cuda_host.launch import (
    SCHEDULES,
    Kernels,
)
from cuda_host.statuses import Status
from gpushard.codecs import blosc_frame
from gpushard.devices.structs import fast_divisor
from kernel_rows import bytes_at

NONE, BYTES, BITS = range(3)

schedules = pytest.mark.parametrize("schedule", SCHEDULES)


@pytest.fixture(scope="module")
def kernels():
    return Kernels()


@schedules
@pytest.mark.parametrize("nbytes", [1, 40, 700, 4096, 5000, 16_380, 65_540])
def test_tables_are_those_of_the_hosts_parser(kernels, nbytes, schedule):
    frames = frames_of(nbytes)
    assert len(frames) > 25
    batch = Batch(frames, nbytes)
    got = batch.run(kernels, schedule)
    assert got == [HOST if needs_host(data) else OK for data in frames]
    for stream_class in range(len(CLASSES)):
        wanted = batch.wanted_streams_of(stream_class)
        assert batch.streams_of(stream_class) == wanted, CLASSES[stream_class]
        decoded = [stream[-1] for stream in wanted]
        totals = [len(decoded), sum(decoded), max(decoded, default=0)]
        if stream_class:  # of stored streams the largest is not looked for
            assert batch.totals[:, stream_class].tolist() == totals
        else:
            assert batch.totals[:2, 0].tolist() == totals[:2]


def test_the_cases_hold_streams_of_every_class():
    frames = list(map(parsed, frames_of(65_540) + frames_of(4096)))
    found = {
        (0 if is_raw else frame.header.compressor)
        for frame in frames
        for is_raw in frame.is_raw
        if frame.header.n_splits > 1 or frame.header.compressor == blosc_frame.ZSTD
    }
    assert found >= {0, 1, 2, 3, 4}
    assert any(frame.header.flags & blosc_frame.MEMCPYED for frame in frames)
    assert any(frame.header.n_blocks > 32 for frame in frames)


@schedules
def test_the_largest_stream_counts_wherever_it_stands(kernels, schedule):
    noise = np.random.default_rng(5).integers(0, 256, 40 * 512, np.uint8)
    for block in (0, 1, 31, 32, 39):
        array = noise.copy()
        array[block * 512 : (block + 1) * 512] = 7
        batch = Batch([encode(array, "zstd", 0, 512)], array.nbytes)
        assert batch.run(kernels, schedule) == [OK]
        assert batch.totals[:, CLASSES.index("zstd")].tolist() == [1, 512, 512]
        assert batch.totals[:2, 0].tolist() == [39, 39 * 512]


@schedules
def test_streams_of_the_tables_decode_to_the_bytes(kernels, schedule):
    arrays, frames = [], []
    for cname, shuffle in product(["lz4", "zlib", "zstd"], [0, 1, 2]):
        array = elements("smooth", "<f4", NBYTES // 4)
        arrays.append(array.tobytes())
        frames.append(encode(array, cname, shuffle, 1024))
    batch = Batch(frames)
    batch.run(kernels, schedule)
    for row, src, nbytes, dst, capacity in zip(
        *(batch.stream_row, batch.stream_src, batch.stream_nbytes),
        *(batch.stream_dst, batch.stream_capacity),
        strict=True,
    ):
        stream = bytes_at(src, nbytes)
        if nbytes != capacity:
            stream = decode_stream(frames[row], stream, int(capacity))
        start = int(dst - batch.dst[row])
        place = batch.row_at(int(batch.dst[row]))
        place[start : start + int(capacity)] = np.frombuffer(stream, "u1")
    for row, data in enumerate(frames):
        header = blosc_frame.parse_header(data, "blosc")
        place = batch.row_at(int(batch.dst[row]))
        is_stored = header.flags & blosc_frame.MEMCPYED
        decoded = place.tobytes() if is_stored else undo_filter(place, header)
        assert decoded == arrays[row]


@schedules
@pytest.mark.parametrize("fused_typesize", [0, 4, 8])
def test_rows_are_routed_by_their_filter(kernels, schedule, fused_typesize):
    cases = [
        (elements("smooth", dtype, NBYTES // np.dtype(dtype).itemsize), shuffle, size)
        for dtype, shuffle, size in product(["<f4", "<f8"], [0, 1, 2], [256, 1024])
    ]
    frames = [encode(array, "lz4", shuffle, size) for array, shuffle, size in cases]
    frames.append(changed(frames[0], 0, "<B", 3))
    batch = Batch(frames)
    batch.fused_typesize = fused_typesize
    batch.run(kernels, schedule)
    n_left = [0, 0]
    for row, data in enumerate(frames[:-1]):
        header = blosc_frame.parse_header(data, "blosc")
        filter_ = cases[row][1]
        is_fused = filter_ == BYTES and header.typesize == fused_typesize
        assert batch.filter[row] == (NONE if is_fused else filter_)
        assert batch.row_at(int(batch.dst[row])) is (
            batch.staging[row] if filter_ else batch.decoded[row]
        )
        assert batch.row_at(int(batch.next[row])) is (
            batch.staging[row] if is_fused else batch.decoded[row]
        )
        if fused_typesize:
            block_nbytes = header.block_nbytes if is_fused else 0
            assert batch.planes[row]["divisor"] == block_nbytes
        if is_fused:
            assert batch.planes[row] == fast_divisor(block_nbytes)
        elif filter_:
            n_left[filter_ == BITS] += 1
    assert batch.n_shuffled.tolist() == n_left
    assert batch.row_at(int(batch.next[-1])) is batch.decoded[-1]
    assert fused_typesize == 0 or batch.planes[-1]["divisor"] == 0


def decode_stream(frame, stream, nbytes):
    compressor = frame[2] >> 5
    if compressor == blosc_frame.ZLIB:
        return zlib.decompress(stream, wbits=-15)
    return blosc_frames.decode_stream(compressor, stream, nbytes)


@schedules
def test_filters_are_told_for_every_row(kernels, schedule):
    frames = [
        encode(elements(kind, dtype, NBYTES // np.dtype(dtype).itemsize), "lz4", s, 512)
        for kind, dtype, s in product(["smooth", "noise"], ["u1", "<f4"], [0, 1, 2])
    ]
    batch = Batch(frames)
    batch.run(kernels, schedule)
    for row, data in enumerate(frames):
        header = blosc_frame.parse_header(data, "blosc")
        is_stored = header.flags & blosc_frame.MEMCPYED
        shuffle = header.flags & blosc_frame.BYTE_SHUFFLE and header.typesize > 1
        bits = 2 if header.flags & blosc_frame.BIT_SHUFFLE else 0
        wanted = 0 if is_stored else 1 if shuffle else bits
        assert batch.filter[row] == wanted, row
        assert batch.typesize[row] == header.typesize
        assert batch.block_nbytes[row] == header.block_nbytes
    assert set(batch.filter.tolist()) == {0, 1, 2}


@schedules
@pytest.mark.parametrize("grid", [1, 3])
def test_frames_are_judged(kernels, grid, schedule):
    batch = Batch([data for data, _ in CASES.values()])
    got = batch.run(kernels, schedule, grid)
    wanted = {name: status for name, (_, status) in CASES.items()}
    assert dict(zip(CASES, got, strict=True)) == wanted
    for stream_class in range(len(CLASSES)):
        wanted_streams = batch.wanted_streams_of(stream_class)
        assert batch.streams_of(stream_class) == wanted_streams
    assert (batch.status[batch.stream_row] == OK).all()


def test_frames_of_no_bytes_have_no_streams(kernels):
    batch = Batch([encode(np.zeros(0, "u1"), "lz4", 1)], 0)
    assert batch.run(kernels) == [OK]
    assert not batch.totals.any()


@schedules
def test_rows_that_failed_before_have_no_streams(kernels, schedule):
    batch = Batch([SPLIT, ZSTD, b""])
    batch.status[:] = [Status.CHECKSUM, OK, Status.CHECKSUM]
    assert batch.run(kernels, schedule) == [Status.CHECKSUM, OK, Status.CHECKSUM]
    assert set(batch.stream_row.tolist()) == {1}


def test_zstd_streams_without_content_size_may_be_left_to_the_host(kernels):
    stream = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(NBYTES))
    frame = one_stream(blosc_frame.ZSTD, stream)
    for accept_unsized, wanted in ((True, OK), (False, HOST)):
        batch = Batch([frame])
        batch.accept_unsized = accept_unsized
        assert batch.run(kernels) == [wanted]
