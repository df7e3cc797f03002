"""Damaged streams: gates read within bounds and refuse only what the host refuses."""

from __future__ import annotations

import ctypes
import zlib

import numcodecs
import pytest

from cuda_host.launch import in_sanitized_process
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
    ZLIB,
    ZSTD_CASES,
)
from gpushard import codecs
from gpushard.errors import CorruptShardError
from gpushard.layout import CodecSpec
from kernel_fuzz import damaged, found_by_fuzzing, native
from kernel_rows import held

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
def parsers():
    return native("gate_formats", NATIVE)


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
    codec = codecs.bytes_codec(CodecSpec(CODEC_OF[kind], {}))
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
