"""Blosc frames become the tables that the host's parser finds, or are refused."""

from __future__ import annotations

import ctypes
import struct as c
import zlib
from itertools import product

import numpy as np
import pytest
import zstandard

from cuda_host.launch import (
    SCHEDULES,
    Kernels,
    assert_sanitized_run_passes,
    in_sanitized_process,
)
from gpushard import codecs
from gpushard.codecs import blosc_blocks, blosc_frame
from gpushard.devices.statuses import Status
from gpushard.errors import CorruptShardError
from gpushard.layout import CodecSpec
from kernel_fuzz import damaged, found_by_fuzzing, native
from kernel_rows import POISON, addresses, bytes_at, held, outputs, sizes, struct
from test_codecs_blosc import as_snappy, elements, encode

OK, FORMAT, SIZE, HOST = Status.OK, Status.FORMAT, Status.SIZE, Status.HOST
CLASSES = ("raw", "lz4", "snappy", "zlib", "zstd")
NBYTES = 4096
ZLIB_HEADER, ZLIB_WRAPPER = 2, 6

schedules = pytest.mark.parametrize("schedule", SCHEDULES)

NATIVE = """
#include "blosc_format.cuh"
#include "kernel_fuzz.h"

// One lane in the place of the warp of gs_blosc_count.
static Status check(const ByteSpan& frame, uint64_t decoded_nbytes) {
    BloscHeader header;
    const Status status = read_blosc_header(frame, decoded_nbytes, header);
    if (status != STATUS_OK) return status;
    if (is_unusual(header, frame)) return STATUS_HOST;
    BloscTally tally = {STATUS_OK, 0, 0, 0, 0, 0};
    for (uint32_t block = 0; block < header.n_blocks; block++) {
        tally_blosc_block(frame, header, block, true, tally);
    }
    const Status shared = has_shared_streams(tally, frame) ? STATUS_HOST : STATUS_OK;
    return worse_of(tally.status, shared);
}

EXPORT uint32_t check_one(
    const uint8_t* data, uint64_t nbytes, uint64_t decoded_nbytes) {
    return check({data, nbytes}, decoded_nbytes);
}

EXPORT void fuzz(
    const uint8_t* seeds, const uint64_t* bounds, uint64_t n_seeds, uint64_t n,
    uint64_t* found, uint64_t decoded_nbytes) {
    fuzz_seeds(seeds, bounds, n_seeds, n, found, [&](const uint8_t* data, uint64_t k) {
        return check({data, k}, decoded_nbytes);
    });
}
"""


@pytest.fixture(scope="module")
def kernels():
    return Kernels()


@pytest.fixture(scope="module")
def parser():
    return native("blosc_format", NATIVE)


class Batch:
    """Rows of Blosc frames on their way through the kernels."""

    def __init__(self, frames, decoded_nbytes=NBYTES):
        self.frames = frames
        self.n_rows = n_rows = len(frames)
        self.rows = [held(data, k % 7) for k, data in enumerate(frames)]
        self.src, self.src_nbytes = addresses(self.rows), sizes(self.rows)
        self.status, self.filter, self.typesize, self.block_nbytes = (
            np.zeros(n_rows, np.uint32) for _ in range(4)
        )
        self.count = np.full((len(CLASSES), n_rows), POISON, np.uint32)
        self.first = np.full_like(self.count, POISON)
        self.totals = np.zeros((3, len(CLASSES)), np.uint64)
        self.staging = outputs(n_rows, decoded_nbytes)
        self.dst = addresses(self.staging)
        self.decoded_nbytes = decoded_nbytes
        self.accept_unsized = True

    def run(self, kernels, schedule=0, grid=2):
        """Count, scan, fill; the stream tables are as long as the totals say."""
        rows = self._rows()
        kernels.launch("gs_blosc_count", grid, 128, [rows], schedule=schedule)
        n_counts = np.uint32(self.count.size)
        args = [self.count, self.first, n_counts]
        kernels.launch("gs_scan", 1, 512, args, schedule=schedule)
        n_streams = int(self.totals[0].sum())
        self.stream_src, self.stream_nbytes, self.stream_dst, self.stream_capacity = (
            np.zeros(n_streams, np.uint64) for _ in range(4)
        )
        self.stream_row = np.full(n_streams, 2**32 - 1, np.uint32)
        streams = struct(
            first=self.first,
            dst=self.dst,
            stream_src=self.stream_src,
            stream_nbytes=self.stream_nbytes,
            stream_dst=self.stream_dst,
            stream_capacity=self.stream_capacity,
            stream_row=self.stream_row,
        )
        kernels.launch("gs_blosc_fill", grid, 128, [rows, streams], schedule=schedule)
        return self.status.tolist()

    def _rows(self):
        return struct(
            src=self.src,
            src_nbytes=self.src_nbytes,
            status=self.status,
            filter=self.filter,
            typesize=self.typesize,
            block_nbytes=self.block_nbytes,
            count=self.count,
            totals=self.totals,
            decoded_nbytes=np.uint64(self.decoded_nbytes),
            n_rows=np.uint32(self.n_rows),
            accept_unsized=np.uint32(self.accept_unsized),
        )

    def streams_of(self, stream_class):
        """Rows of (row, source offset, source size, decoded offset, decoded size)."""
        start = int(self.totals[0, :stream_class].sum())
        part = slice(start, start + int(self.totals[0, stream_class]))
        row = self.stream_row[part]
        return np.column_stack(
            [
                row,
                self.stream_src[part] - self.src[row],
                self.stream_nbytes[part],
                self.stream_dst[part] - self.dst[row],
                self.stream_capacity[part],
            ]
        ).tolist()

    def wanted_streams_of(self, stream_class):
        """The same as `blosc_frame` finds it."""
        wanted = []
        for row, data in enumerate(self.frames):
            if self.status[row] != OK:
                continue
            frame = blosc_frame.parse(data)
            for k, is_raw in enumerate(frame.is_raw):
                if stream_class == (0 if is_raw else frame.header.compressor):
                    wanted.append([row, *stream_of(frame, k)])
        return wanted


def stream_of(frame, k):
    is_zlib = frame.header.compressor == blosc_frame.ZLIB and not frame.is_raw[k]
    return [
        int(frame.source_offset[k]) + (ZLIB_HEADER if is_zlib else 0),
        int(frame.source_nbytes[k]) - (ZLIB_WRAPPER if is_zlib else 0),
        int(frame.decoded_offset[k]),
        int(frame.decoded_nbytes[k]),
    ]


def frames_of(nbytes, kinds=("smooth", "noise", "zeros")):
    """Frames of `nbytes` decoded bytes: compressors, filters, item and block sizes."""
    frames = []
    cases = product(
        ["u1", "<i2", "<f4", "<f8", "S20"], kinds, [0, 1, 2], [0, 256, 1024]
    )
    for k, (dtype, kind, shuffle, blocksize) in enumerate(cases):
        itemsize = np.dtype(dtype).itemsize
        array = elements(kind, dtype, nbytes // itemsize)
        if array.nbytes != nbytes:
            continue
        cname = ["lz4", "zlib", "zstd", "lz4hc", "blosclz", "lz4"][k % 6]
        encoded = encode(array, cname, shuffle, blocksize)
        is_stored = encoded[2] & blosc_frame.MEMCPYED
        frames.append(as_snappy(encoded) if k % 6 == 5 and not is_stored else encoded)
    return frames


def needs_host(data):
    frame = blosc_frame.parse(data)
    return frame.header.compressor == blosc_frame.BLOSCLZ and not frame.is_raw.all()


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
    frames = [blosc_frame.parse(data) for data in frames_of(65_540) + frames_of(4096)]
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
        batch.staging[row][start : start + int(capacity)] = np.frombuffer(stream, "u1")
    for row, data in enumerate(frames):
        header = blosc_frame.parse_header(data, "blosc")
        decoded = blosc_blocks._undo_filter(batch.staging[row], header)
        assert decoded.tobytes() == arrays[row]


def decode_stream(frame, stream, nbytes):
    compressor = frame[2] >> 5
    if compressor == blosc_frame.ZLIB:
        return zlib.decompress(stream, wbits=-15)
    return blosc_blocks._STREAM_DECODERS[compressor](memoryview(stream), nbytes)


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


# ---- frames that lie

SPLIT = encode(elements("smooth", "<f4", NBYTES // 4), "lz4", 1, 1024)
ZSTD = encode(elements("smooth", "<f4", NBYTES // 4), "zstd", 1, 1024)
SNAPPY = as_snappy(SPLIT)
STORED = encode(elements("noise", "<f4", NBYTES // 4), "lz4", 1, 1024)
BLOSCLZ = encode(elements("smooth", "<f4", NBYTES // 4), "blosclz", 1, 1024)


def changed(data, offset, layout, *values):
    out = bytearray(data)
    c.pack_into(layout, out, offset, *values)
    return bytes(out)


def first_stream(data):
    """Offset of the size of the first stream, and the size."""
    (offset,) = c.unpack_from("<i", data, 16)
    return offset, c.unpack_from("<i", data, offset)[0]


def with_stream_byte(data, at, value):
    """The same frame with one byte of its first compressed stream changed."""
    frame = blosc_frame.parse(data)
    offset = int(frame.source_offset[~frame.is_raw][0])
    return changed(data, offset + at, "<B", value)


def one_stream(compressor, stream):
    """A frame of one block that is one stream."""
    flags = compressor << 5 | blosc_frame.DONT_SPLIT
    head = c.pack("<4B3I", 2, 1, flags, 1, NBYTES, NBYTES, 24 + len(stream))
    return head + c.pack("<ii", 20, len(stream)) + stream


def tiny_blocks():
    """A frame of one-byte blocks, all stored."""
    starts = [16 + 4 * NBYTES + 5 * k for k in range(NBYTES)]
    body = b"".join(c.pack("<iB", 1, k % 256) for k in range(NBYTES))
    nbytes = 16 + 9 * NBYTES
    head = c.pack("<4B3I", 2, 1, 1 << 5, 1, NBYTES, 1, nbytes)
    return head + c.pack(f"<{NBYTES}i", *starts) + body


CASES = {
    "split": (SPLIT, OK),
    "snappy": (SNAPPY, OK),
    "memcpyed": (STORED, OK),
    "memcpyed blosclz": (changed(STORED, 2, "<B", STORED[2] & 0x1F), OK),
    "two blocks at one place": (changed(ZSTD, 20, "<4s", ZSTD[16:20]), HOST),
    "blosclz": (BLOSCLZ, HOST),
    "blocks of one byte": (tiny_blocks(), HOST),
    "zstd stream with dictionary": (with_stream_byte(ZSTD, 4, 0x21), HOST),
    "zstd stream with other magic": (with_stream_byte(ZSTD, 0, 0), FORMAT),
    "snappy stream of another size": (with_stream_byte(SNAPPY, 0, 1), FORMAT),
    "zlib": (one_stream(blosc_frame.ZLIB, zlib.compress(bytes(NBYTES))), OK),
    "zlib without check bits": (one_stream(blosc_frame.ZLIB, bytes(20)), FORMAT),
    "zlib dictionary": (one_stream(blosc_frame.ZLIB, b"\x78\xbb" + bytes(9)), HOST),
    "lz4 stream of no bytes": (one_stream(blosc_frame.LZ4, b""), FORMAT),
    "cut header": (SPLIT[:15], FORMAT),
    "empty": (b"", FORMAT),
    "version 3": (changed(SPLIT, 0, "<B", 3), FORMAT),
    "compressor 5": (changed(SPLIT, 2, "<B", SPLIT[2] & 31 | 5 << 5), FORMAT),
    "reserved flag": (changed(SPLIT, 2, "<B", SPLIT[2] | 8), FORMAT),
    "item size 0": (changed(SPLIT, 3, "<B", 0), FORMAT),
    "block size 0": (changed(SPLIT, 8, "<I", 0), FORMAT),
    "block size not split evenly": (changed(SPLIT, 8, "<I", 1022), FORMAT),
    "block beyond the bytes": (changed(SPLIT, 8, "<I", NBYTES + 4), FORMAT),
    "frame size too large": (changed(SPLIT, 12, "<I", len(SPLIT) + 1), FORMAT),
    "one byte less": (SPLIT[:-1], FORMAT),
    "start before the streams": (changed(SPLIT, 16, "<i", 31), FORMAT),
    "start below zero": (changed(SPLIT, 16, "<i", -4), FORMAT),
    "start at the end": (changed(SPLIT, 16, "<i", len(SPLIT) - 3), FORMAT),
    "stream below zero": (changed(SPLIT, first_stream(SPLIT)[0], "<i", -1), FORMAT),
    "stream beyond": (changed(SPLIT, first_stream(SPLIT)[0], "<i", 10**6), FORMAT),
    "memcpyed, cut": (changed(STORED[:-1], 12, "<I", len(STORED) - 1), FORMAT),
    "of no bytes": (changed(STORED[:16], 4, "<3I", 0, 0, 16), SIZE),
    "of more bytes": (encode(np.zeros(NBYTES + 1, "u1"), "lz4", 1), SIZE),
    "huge": (changed(SPLIT, 4, "<II", 2**32 - 4, 2**32 - 4), SIZE),
}


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
    assert not batch.count[:, batch.status != OK].any()


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
    assert not batch.count[:, [0, 2]].any()


def test_zstd_streams_without_content_size_may_be_left_to_the_host(kernels):
    stream = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(NBYTES))
    frame = one_stream(blosc_frame.ZSTD, stream)
    for accept_unsized, wanted in ((True, OK), (False, HOST)):
        batch = Batch([frame])
        batch.accept_unsized = accept_unsized
        assert batch.run(kernels) == [wanted]


# ---- damaged frames

SEEDS = [data for data in frames_of(NBYTES, ("smooth", "noise")) if len(data) < 5000]


def test_no_damage_makes_the_parser_read_beyond_the_bytes(parser):
    seeds = SEEDS + [data for data, _ in CASES.values() if 16 < len(data) < 5000]
    rules = (ctypes.c_uint64(NBYTES),)
    found = found_by_fuzzing(parser.fuzz, seeds, 100_000, *rules)
    assert found[OK] > 1000
    assert found[FORMAT] > 10_000
    assert found[SIZE] > 1000
    assert found[HOST] > 1000


def judge(parser, data):
    exact = held(data)
    address = ctypes.c_void_p(exact.ctypes.data)
    return Status(
        parser.check_one(address, ctypes.c_uint64(len(data)), ctypes.c_uint64(NBYTES))
    )


def header_of(data):
    try:
        return blosc_frame.parse_header(data, "blosc")
    except CorruptShardError:
        return None


def allowed(data, codec):
    """Statuses that agree with the host's parser and decoder."""
    header = header_of(data)
    if header is None:
        return {FORMAT}
    if header.nbytes != NBYTES:
        return {SIZE}
    if header.flags & blosc_frame.MEMCPYED:
        return {OK}
    if header.block_nbytes < 128 and header.n_blocks > 1:
        return {HOST}
    return allowed_by_streams(data, codec)


def allowed_by_streams(data, codec):
    try:
        frame = blosc_frame.parse(data)
    except CorruptShardError:
        return {FORMAT}
    is_shared = (frame.source_nbytes + 4).sum() > len(data)
    if frame.is_raw.all():
        return {HOST} if is_shared else {OK}
    if is_shared or frame.header.compressor == blosc_frame.BLOSCLZ:
        return {HOST} | refused(data, codec)
    zstd = {HOST} if frame.header.compressor == blosc_frame.ZSTD else set()
    return {OK} | zstd | refused(data, codec)


def refused(data, codec):
    """FORMAT where the host cannot decode the frame."""
    try:
        codec.decode(data, NBYTES, exact=True)
    except CorruptShardError:
        return {FORMAT}
    return set()


def test_damaged_frames_are_judged_as_the_host_does(parser):
    codec = codecs.bytes_codec(CodecSpec("blosc", {}), np.dtype(np.uint8))
    seen = dict.fromkeys(Status, 0)
    for data in damaged(parser, SEEDS, 2000 if in_sanitized_process() else 20_000):
        status = judge(parser, data)
        seen[status] += 1
        assert status in allowed(data, codec), (status, data[:64].hex())
    assert min(seen[s] for s in (OK, FORMAT, SIZE, HOST)) > 20


@schedules
def test_damaged_frames_give_tables_within_them(kernels, parser, schedule):
    frames = list(damaged(parser, SEEDS, 300))
    batch = Batch(frames)
    got = batch.run(kernels, schedule, grid=3)
    assert got == [judge(parser, data) for data in frames]
    for stream_class in range(len(CLASSES)):
        wanted = batch.wanted_streams_of(stream_class)
        assert batch.streams_of(stream_class) == wanted
    assert min(got.count(status) for status in (OK, FORMAT, SIZE, HOST)) > 2


# ---- scan and copy


@schedules
@pytest.mark.parametrize("n", [0, 1, 3, 2047, 2048, 2049, 9001])
def test_scan_gives_the_sum_of_what_comes_before(kernels, n, schedule):
    count = np.random.default_rng(n).integers(0, 1000, n).astype(np.uint32)
    first = np.full(n, POISON, np.uint32)
    kernels.launch("gs_scan", 1, 512, [count, first, np.uint32(n)], schedule=schedule)
    np.testing.assert_array_equal(first, np.cumsum([0, *count])[:n])


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


@pytest.mark.skipif(in_sanitized_process(), reason="is the sanitized run")
def test_kernels_are_clean_under_sanitizers():
    assert_sanitized_run_passes(__file__)
