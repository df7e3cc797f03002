"""Which Blosc frames the compiled loops take, and how: nothing else is read of any."""

from __future__ import annotations

import struct

import pytest

from lz4_blocks import GuardedRoom

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

from gpushard.fused.compiled import blosc_frames

REFUSED, STORED, OF_LZ4, OF_ZSTD, OF_BLOSCLZ, OF_ZLIB = range(6)
SHUFFLE, MEMCPYED, BITSHUFFLE, UNSPLIT = 1, 2, 4, 16
BLOSCLZ, LZ4, SNAPPY, ZLIB, ZSTD = (k << 5 for k in range(5))
NBYTES, BLOCK_NBYTES = 1280, 512  # two blocks of four streams, and a short one


def frame(flags, typesize, nbytes, block_nbytes, *n_streams) -> bytes:
    """Frame whose blocks have so many streams of three bytes each."""
    first = 16 + 4 * len(n_streams)
    offsets = [first + 7 * sum(n_streams[:k]) for k in range(len(n_streams))]
    body = struct.pack(f"<{len(offsets)}I", *offsets)
    body += struct.pack("<I3s", 3, b"abc") * sum(n_streams)
    sizes = nbytes, block_nbytes, 16 + len(body)
    return struct.pack("<4B3I", 2, 1, flags, typesize, *sizes) + body


SPLIT = frame(LZ4 | SHUFFLE, 4, NBYTES, BLOCK_NBYTES, 4, 4, 1)
MEMCPY = struct.pack("<4B3I", 2, 1, LZ4 | MEMCPYED, 4, 5, 4, 21) + b"abcde"


@pytest.fixture(scope="module")
def check():
    """How a frame is decoded that ends at a page that kills who touches it."""
    from numba import njit

    called = blosc_frames._check_frame  # by compiled code alone
    run = njit(lambda address, nbytes, expected: called(address, nbytes, expected))
    room = GuardedRoom(9 << 20)

    def check(data: bytes, expected: int | None = None) -> int:
        if expected is None:
            (expected,) = struct.unpack_from("<I", data, 4)
        return run(room.place(data, at_end=True), len(data), expected)

    return check


@pytest.mark.parametrize(
    ("data", "how"),
    [
        (SPLIT, OF_LZ4),
        (MEMCPY, STORED),
        (frame(LZ4, 4, NBYTES, BLOCK_NBYTES, 4, 4, 1), OF_LZ4),
        (frame(LZ4 | UNSPLIT, 4, NBYTES, BLOCK_NBYTES, 1, 1, 1), OF_LZ4),
        (frame(LZ4 | UNSPLIT | BITSHUFFLE, 4, 512, 512, 1), OF_LZ4),
        (frame(LZ4, 16, 2048, 2048, 16), OF_LZ4),
        (frame(ZSTD | UNSPLIT, 4, 512, 512, 1), OF_ZSTD),
        (frame(BLOSCLZ | UNSPLIT, 4, 512, 512, 1), OF_BLOSCLZ),
        (frame(ZLIB, 4, NBYTES, BLOCK_NBYTES, 4, 4, 1), OF_ZLIB),
        (frame(ZSTD | SHUFFLE, 4, NBYTES, BLOCK_NBYTES, 4, 4, 1), OF_ZSTD),
        (frame(ZSTD | SHUFFLE | UNSPLIT, 4, 1 << 20, 1 << 20, 1), OF_ZSTD),
        # Without a filter, streams are decoded to their places.
        (frame(ZSTD | UNSPLIT, 4, 1 << 21, 1 << 21, 1), OF_ZSTD),
        (frame(LZ4 | SHUFFLE, 1, 1 << 21, 1 << 21, 1), OF_LZ4),
    ],
)
def test_a_frame_is_taken_in_the_way_that_its_header_allows(data, how, check):
    assert check(data) == how
    for nbytes in range(len(data)):
        assert check(data[:nbytes], 512) == REFUSED


def changed(data: bytes, at: int, form: str, value: int) -> bytes:
    damaged = bytearray(data)
    struct.pack_into(form, damaged, at, value)
    return bytes(damaged)


N, LAST = len(SPLIT), len(SPLIT) - 7  # the last block is the last stream


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(changed(SPLIT, at, form, value), id=name)
        for name, at, form, value in [
            ("another version", 0, "B", 3),
            ("another version of streams", 1, "B", 2),
            ("a reserved flag", 2, "B", LZ4 | SHUFFLE | 8),
            ("an unknown compressor", 2, "B", 5 << 5),
            ("snappy", 2, "B", SNAPPY | SHUFFLE),
            ("both filters", 2, "B", LZ4 | SHUFFLE | BITSHUFFLE),
            ("memcpyed", 2, "B", LZ4 | MEMCPYED),
            ("no item size", 3, "B", 0),
            ("no block size", 8, "<I", 0),
            ("a block larger than all", 8, "<I", NBYTES + 4),
            ("a block that the splits do not divide", 8, "<I", BLOCK_NBYTES + 2),
            ("longer than its bytes", 12, "<I", N + 1),
            ("shorter than its bytes", 12, "<I", N - 1),
            ("a block among the offsets", 24, "<I", 16),
            ("a block of three bytes", 24, "<I", N - 3),
            ("a block behind all", 24, "<I", 1 << 31),
            ("an empty stream", LAST, "<I", 0),
            ("a stream that ends a byte too late", LAST, "<I", 4),
            ("a stream of the second block that does", LAST - 7, "<I", 11),
        ]
    ]
    + [
        pytest.param(changed(SPLIT[:16], 12, "<I", 16), id="a header alone"),
        pytest.param(MEMCPY + b"f", id="memcpyed, other than its bytes"),
        pytest.param(
            changed(MEMCPY + b"f", 12, "<I", 22), id="memcpyed, too many bytes"
        ),
        pytest.param(changed(MEMCPY[:-1], 12, "<I", 20), id="memcpyed, too few bytes"),
        pytest.param(
            frame(LZ4 | UNSPLIT, 4, 512, 0, 1), id="no block size, and no splits"
        ),
        pytest.param(frame(LZ4, 32, 4096, 4096, 32), id="too many splits"),
        pytest.param(frame(LZ4, 4, 508, 508, 4), id="splits too small"),
        pytest.param(
            frame(LZ4 | UNSPLIT | BITSHUFFLE, 4, 510, 510, 1), id="items cut short"
        ),
        pytest.param(
            frame(LZ4 | UNSPLIT | BITSHUFFLE, 4, 1022, 512, 1, 1),
            id="items cut short in the last block",
        ),
        pytest.param(
            frame(ZSTD | SHUFFLE | UNSPLIT, 4, 1 << 21, (1 << 20) + 4, 1, 1),
            id="a huge block of shuffled bytes",
        ),
        pytest.param(
            frame(LZ4 | BITSHUFFLE, 1, 1 << 21, (1 << 20) + 8, 1, 1),
            id="a huge block of shuffled bits",
        ),
    ],
)
def test_a_frame_that_lies_or_is_read_differently_is_left_to_others(data, check):
    assert check(data) == REFUSED


def test_a_frame_of_another_size_than_the_inner_chunk_is_left_to_others(check):
    for data, nbytes in ((SPLIT, NBYTES), (MEMCPY, 5)):
        for expected in (nbytes - 1, nbytes + 1):
            assert check(data, expected) == REFUSED
