"""Damaged Blosc frames are judged as the host judges them, and read within bounds."""

from __future__ import annotations

import ctypes

import pytest

import blosc_frames
from blosc_batch import CLASSES, Batch
from blosc_cases import CASES, FORMAT, HOST, NBYTES, OK, SIZE, frames_of
from cuda_host.launch import (
    SCHEDULES,
    Kernels,
    in_sanitized_process,
)
from cuda_host.statuses import Status
from gpushard import codecs
from gpushard.codecs import blosc_frame
from gpushard.errors import CorruptShardError
from gpushard.layout import CodecSpec
from kernel_fuzz import damaged, found_by_fuzzing, native
from kernel_rows import held

schedules = pytest.mark.parametrize("schedule", SCHEDULES)


@pytest.fixture(scope="module")
def kernels():
    return Kernels()


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
def parser():
    return native("blosc_format", NATIVE)


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
    is_of_other_version = data[1] != 1
    if is_of_other_version or (header.block_nbytes < 128 and header.n_blocks > 1):
        return {HOST}
    return allowed_by_streams(data, codec)


def allowed_by_streams(data, codec):
    try:
        frame = blosc_frames.parse(data)
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
    codec = codecs.bytes_codec(CodecSpec("blosc", {}))
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
