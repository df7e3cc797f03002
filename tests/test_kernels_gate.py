"""Gates let one whole stream of the right size through, and nothing else."""

from __future__ import annotations

import ctypes
import gzip
import struct as c
import zlib
from itertools import pairwise

import numcodecs
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
from gpushard.devices.statuses import Status
from gpushard.errors import CorruptShardError
from gpushard.layout import CodecSpec
from kernel_fuzz import damaged, found_by_fuzzing, native
from kernel_rows import POISON, addresses, bytes_at, held, outputs, sizes, struct

OK, FORMAT, SIZE, HOST = Status.OK, Status.FORMAT, Status.SIZE, Status.HOST
CHECKSUM, DECODER, SHORT = Status.CHECKSUM, Status.DECODER, Status.SHORT

NBYTES = 5000
DATA = (np.arange(NBYTES) // 7 % 251).astype(np.uint8).tobytes()
NOISE = np.random.default_rng(1).integers(0, 256, NBYTES, np.uint8).tobytes()

schedules = pytest.mark.parametrize("schedule", SCHEDULES)

NATIVE = """
#include "deflate_format.cuh"
#include "kernel_fuzz.h"
#include "lz_format.cuh"
#include "zstd_format.cuh"

static Status check(
    uint32_t kind, ByteSpan bytes, uint64_t decoded_nbytes, uint32_t accept_unsized) {
    switch (kind) {
        case 0: return check_zstd(bytes, {decoded_nbytes, accept_unsized != 0});
        case 1: return check_lz4(bytes, decoded_nbytes);
        case 2: return check_gzip(bytes, decoded_nbytes);
        case 3: return check_zlib(bytes);
        default: return check_snappy(bytes, decoded_nbytes);
    }
}

EXPORT uint32_t check_one(
    const uint8_t* data, uint64_t nbytes, uint32_t kind, uint64_t decoded_nbytes) {
    return check(kind, {data, nbytes}, decoded_nbytes, 1);
}

EXPORT void fuzz(
    const uint8_t* seeds, const uint64_t* bounds, uint64_t n_seeds, uint64_t n,
    uint64_t* found, uint32_t kind, uint64_t decoded_nbytes) {
    fuzz_seeds(seeds, bounds, n_seeds, n, found, [&](const uint8_t* data, uint64_t k) {
        return check(kind, {data, k}, decoded_nbytes, 1);
    });
}
"""


@pytest.fixture(scope="module")
def kernels():
    return Kernels()


@pytest.fixture(scope="module")
def parsers():
    return native("gate_formats", NATIVE)


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


# ---- zstd


def zstd(data=DATA, **options):
    return zstandard.ZstdCompressor(**options).compress(data)


def frame(*blocks, size=NBYTES, flags=0, window=0x50, tail=b""):
    """Frame of (type, size field, bytes) blocks, by hand; `size` None: untold."""
    out = c.pack("<IB", 0xFD2FB528, flags | (0 if size is None else 0x80))
    if not flags & 0x20:
        out += bytes([window])
    out += b"" if size is None else c.pack("<I", size)
    for k, (kind, nbytes, data) in enumerate(blocks):
        last = k == len(blocks) - 1
        out += (nbytes << 3 | kind << 1 | last).to_bytes(3, "little") + data
    return out + tail


def raw(data=DATA):
    return 0, len(data), data


SKIPPABLE = c.pack("<II", 0x184D2A55, 3) + b"abc"
UNSIZED = zstd(write_content_size=False)

ZSTD_CASES = {
    "plain": (zstd(), OK),
    "with checksum": (zstd(write_checksum=True), OK),
    "not compressible": (zstd(NOISE), OK),
    "no content size": (UNSIZED, OK),
    "one stored block": (frame(raw()), OK),
    "two stored blocks": (frame(raw(DATA[:100]), raw(DATA[100:])), OK),
    "one repeated byte": (frame((1, NBYTES, b"x")), OK),
    "empty block at the end": (frame(raw(), raw(b"")), OK),
    "unused bit set": (frame(raw(), flags=0x10), OK),
    "single segment": (frame(raw(), flags=0x20), OK),
    "two frames": (zstd(DATA[:2000]) + zstd(DATA[2000:]), HOST),
    "skippable frame first": (SKIPPABLE + zstd(), HOST),
    "skippable frame last": (zstd() + SKIPPABLE, HOST),
    "bytes behind": (zstd() + b"\0", HOST),
    "dictionary": (frame(raw(), flags=1), HOST),
    "window of 2 TiB": (frame(raw(), window=0xF8), HOST),
    "block beyond the window": (frame(raw(), window=0, size=NBYTES), HOST),
    "a thousand blocks": (frame(*[raw(b"")] * 1000, raw()), HOST),
    "reserved bit set": (frame(raw(), flags=8), FORMAT),
    "reserved block type": (frame((3, 10, b"0123456789")), FORMAT),
    "compressed block of one byte": (frame((2, 1, b"x")), FORMAT),
    "other magic": (b"\x29" + zstd()[1:], FORMAT),
    "empty": (b"", FORMAT),
    "another content size": (zstd(DATA[:-1]), SIZE),
    "content size of 2**32 more": (
        c.pack("<IBBQ", 0xFD2FB528, 0xC0, 0x50, 2**32 + NBYTES) + frame(raw())[10:],
        SIZE,
    ),
    "stored more than told": (frame(raw(DATA + b"x")), SIZE),
    "stored less than told": (frame(raw(DATA[1:])), SIZE),
    "stored more, untold": (frame(raw(DATA + b"x"), size=None), SIZE),
    "repeated too often": (frame((1, NBYTES + 1, b"x")), SIZE),
}


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


# ---- lz4, gzip, zlib

LZ4 = bytes(numcodecs.LZ4().encode(DATA))


@schedules
def test_lz4_blocks_are_judged_by_their_size(kernels, schedule):
    gated = Gated([LZ4, c.pack("<I", NBYTES - 1) + LZ4[4:], LZ4[:4], LZ4[:3], b""])
    got = gated.run(kernels, "gs_gate_lz4", schedule)
    assert got == [OK, SIZE, FORMAT, FORMAT, FORMAT]
    gated.assert_streams_are(4, 0)


def member(data=DATA, flags=0, fields=b"", **changes):
    deflated = zlib.compressobj(wbits=-15)
    body = deflated.compress(data) + deflated.flush()
    head = b"\x1f\x8b\x08" + bytes([flags]) + bytes(6)
    trailer = c.pack("<II", zlib.crc32(data), changes.get("size", len(data)))
    return head + fields + body + trailer


EXTRA = c.pack("<H", 5) + b"extra"
GZIP_CASES = {
    "plain": (gzip.compress(DATA), OK),
    "with name": (member(flags=8, fields=b"name\0"), OK),
    "with all fields": (member(flags=29, fields=EXTRA + b"name\0comment\0"), OK),
    "header checksum": (member(flags=2, fields=b"\0\0"), HOST),
    "another size": (member(DATA[1:]), HOST),
    "two members": (gzip.compress(DATA[:100]) + gzip.compress(DATA[100:]), HOST),
    "zeros behind": (gzip.compress(DATA) + bytes(4), HOST),
    "name of 5,000 bytes": (member(flags=8, fields=b"n" * 5000 + b"\0"), HOST),
    "reserved flag": (member(flags=32), FORMAT),
    "other method": (b"\x1f\x8b\x07" + member()[3:], FORMAT),
    "name without end": (member(flags=8)[:10] + b"n" * 100, FORMAT),
    "extra field too long": (member(flags=4, fields=b"\xff\xff"), FORMAT),
    "nothing deflated": (member()[:10] + member()[-9:], FORMAT),
    "short": (b"\x1f\x8b\x08", FORMAT),
    "empty": (b"", FORMAT),
}


@schedules
def test_gzip_members_are_judged(kernels, schedule):
    gated = Gated([data for data, _ in GZIP_CASES.values()])
    got = gated.run(kernels, "gs_gate_gzip", schedule)
    wanted = {name: status for name, (_, status) in GZIP_CASES.items()}
    assert dict(zip(GZIP_CASES, got, strict=True)) == wanted
    gated.assert_streams_are(0, 0)


ZLIB = zlib.compress(DATA)
ZLIB_CASES = {
    "plain": (ZLIB, OK),
    "fastest": (zlib.compress(DATA, 1), OK),
    "of no bytes": (zlib.compress(b""), OK),
    "dictionary": (b"\x78\xbb" + ZLIB[2:], HOST),
    "wrong check bits": (b"\x78\x9d" + ZLIB[2:], FORMAT),
    "other method": (b"\x77\x85" + ZLIB[2:], FORMAT),
    "window too large": (b"\x88\x1c" + ZLIB[2:], FORMAT),
    "short": (zlib.compress(b"")[:7], FORMAT),
    "empty": (b"", FORMAT),
}


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


# ---- damaged bytes

SNAPPY = 4
CODEC_OF = ["zstd", "numcodecs.lz4", "gzip", "numcodecs.zlib"]
SEEDS = {
    0: [data for data, _ in ZSTD_CASES.values() if data],
    1: [LZ4, bytes(numcodecs.LZ4().encode(NOISE))],
    2: [data for data, _ in GZIP_CASES.values() if data],
    3: [ZLIB, zlib.compress(NOISE), zlib.compress(DATA, 0)],
    SNAPPY: [b"\x88\x27" + DATA, b"\x05\x10hello", b"\xff\xff\xff\xff\x0f" + b"x" * 9],
}


@pytest.mark.parametrize("kind", SEEDS, ids=[*CODEC_OF, "snappy"])
def test_no_damage_makes_a_parser_read_beyond_the_bytes(parsers, kind):
    rules = (ctypes.c_uint32(kind), ctypes.c_uint64(NBYTES))
    found = found_by_fuzzing(parsers.fuzz, SEEDS[kind], 100_000, *rules)
    assert found[OK] > 100
    assert found[FORMAT] > 10
    assert found[FORMAT] + found[SIZE] + found[HOST] > 1000


def judge(parsers, kind, data):
    exact = held(data)
    address = ctypes.c_void_p(exact.ctypes.data)
    rules = (ctypes.c_uint32(kind), ctypes.c_uint64(NBYTES))
    return Status(parsers.check_one(address, ctypes.c_uint64(len(data)), *rules))


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x88\x27x", OK),
        (b"\x88\xa7\x00x", OK),
        (b"\x89\x27x", SIZE),
        (b"\x88\xa7\x80\x80\x10x", SIZE),  # 2**32 more
        (b"\x88\x27", FORMAT),
        (b"\x88", FORMAT),
        (b"\x88\xa7\x80\x80\x80\x00x", FORMAT),
        (b"", FORMAT),
    ],
)
def test_snappy_blocks_are_judged_by_their_size(parsers, data, status):
    assert judge(parsers, SNAPPY, data) is status


@pytest.mark.parametrize("kind", range(4), ids=CODEC_OF)
def test_what_a_gate_refuses_the_host_refuses_too(parsers, kind):
    codec = codecs.bytes_codec(CodecSpec(CODEC_OF[kind], {}), np.dtype(np.uint8))
    n_refused = n_decoded = 0
    for data in damaged(parsers, SEEDS[kind], 2000 if in_sanitized_process() else 5000):
        status = judge(parsers, kind, data)
        try:
            codec.decode(data, NBYTES, exact=True)
        except CorruptShardError:
            n_refused += status in (FORMAT, SIZE)
        else:
            n_decoded += 1
            assert status in (OK, HOST), data[:64].hex()
    assert n_refused > 100
    assert n_decoded > 20


# ---- realignment


@schedules
def test_streams_move_to_multiples_of_four(kernels, schedule):
    rng = np.random.default_rng(schedule)
    lengths = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 40, 255, 1000] * 4
    streams = [
        held(rng.integers(0, 256, n, np.uint8).tobytes(), int(rng.integers(16)))
        for n in lengths
    ]
    src, nbytes = addresses(streams), sizes(streams)
    offset = np.full(len(streams) + 1, 99, np.uint64)
    n_streams = np.uint32(len(streams))
    kernels.launch(
        "gs_align_offsets", 1, 512, [nbytes, offset, n_streams], schedule=schedule
    )
    padded = np.cumsum([0, *(-(-n // 4) * 4 for n in lengths)])
    np.testing.assert_array_equal(offset, padded)
    arena = np.full(int(offset[-1]), POISON, np.uint8)
    base = addresses([arena])[0]
    kernels.launch(
        "gs_realign", 3, 128, [src, nbytes, offset, base, n_streams], schedule=schedule
    )
    np.testing.assert_array_equal(src, base + offset[:-1])
    for stream, (start, stop) in zip(streams, pairwise(offset.tolist()), strict=True):
        moved = arena[start:stop]
        np.testing.assert_array_equal(moved[: stream.nbytes], stream)
        assert (moved[stream.nbytes :] == POISON).all()


@schedules
def test_offsets_of_more_streams_than_threads_add_up(kernels, schedule):
    nbytes = np.random.default_rng(7).integers(0, 2**33, 1300).astype(np.uint64)
    offset = np.zeros(len(nbytes) + 1, np.uint64)
    args = [nbytes, offset, np.uint32(len(nbytes))]
    kernels.launch("gs_align_offsets", 1, 512, args, schedule=schedule)
    wanted = np.cumsum((nbytes + np.uint64(3)) // np.uint64(4) * np.uint64(4))
    np.testing.assert_array_equal(offset, [0, *wanted.tolist()])


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


@schedules
def test_the_verdict_counts_rows_and_names_the_first_bad_one(kernels, schedule):
    status = np.random.default_rng(schedule).integers(0, 7, 1000).astype(np.uint32)
    status[:5] = OK
    verdict = np.full(16, POISON, np.uint32)
    args = [status, np.uint32(len(status)), verdict]
    kernels.launch("gs_verdict", 1, 256, args, schedule=schedule)
    bad = np.flatnonzero(status)
    counts = np.bincount(status, minlength=14)
    assert verdict.tolist() == [len(bad), bad[0], *counts.tolist()]


@pytest.mark.parametrize("n_rows", [0, 3])
def test_the_verdict_of_fine_rows_names_none(kernels, n_rows):
    verdict = np.full(16, POISON, np.uint32)
    status = np.zeros(n_rows, np.uint32)
    kernels.launch("gs_verdict", 1, 256, [status, np.uint32(n_rows), verdict])
    assert verdict.tolist() == [0, 2**32 - 1, n_rows, *[0] * 13]


@pytest.mark.skipif(in_sanitized_process(), reason="is the sanitized run")
def test_kernels_are_clean_under_sanitizers():
    assert_sanitized_run_passes(__file__)
