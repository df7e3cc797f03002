"""Blosc frames: every compressor and filter; headers that lie are refused."""

from __future__ import annotations

import struct
import threading
import tracemalloc
from itertools import product
from typing import Any

import numpy as np
import pytest

import blosc_frames
from blosc_frames import as_snappy, decode_streams, elements, encode
from gpushard import codecs
from gpushard.codecs import blosc_blocks, blosc_frame
from gpushard.codecs.base import BytesCodec
from gpushard.errors import CorruptShardError
from gpushard.layout import CodecSpec

CNAMES = ["blosclz", "lz4", "lz4hc", "zlib", "zstd"]
WALKED = ["lz4", "lz4hc", "zlib", "zstd"]


@pytest.fixture
def blosc() -> BytesCodec:
    return codecs.bytes_codec(CodecSpec("blosc", {"cname": "zstd"}))


def smooth_frame(cname: str = "lz4", blocksize: int = 16384) -> tuple[bytes, bytes]:
    array = elements("smooth", "<f4", 40_003)  # blocks 64 + 64 + 28 KiB
    return array.tobytes(), encode(array, cname, 1, blocksize)


CASES = list(
    product(
        ["u1", "<i2", "<f4", "<f8", "S20"],
        [1, 7, 64, 100, 1000, 40_003],
        ["smooth", "noise", "zeros"],
        [0, 1, 2],
        [0, 256, 16384],
    )
)


@pytest.mark.parametrize("cname", CNAMES)
def test_frames_of_numcodecs_are_read(blosc: BytesCodec, cname: str) -> None:
    for dtype, n_elements, kind, shuffle, blocksize in CASES[::5]:
        array = elements(kind, dtype, n_elements)
        encoded = encode(array, cname, shuffle, blocksize)
        decoded = blosc.decode(encoded, array.nbytes, exact=True)
        assert bytes(decoded) == array.tobytes(), (dtype, n_elements, kind, shuffle)


@pytest.mark.parametrize("cname", WALKED)
def test_walk_over_the_streams_gives_the_same(cname: str) -> None:
    n_multi = n_split = 0
    for dtype, n_elements, kind, shuffle, blocksize in CASES[2::5]:
        array = elements(kind, dtype, n_elements)
        encoded = encode(array, cname, shuffle, blocksize)
        frame = blosc_frames.parse(encoded)
        n_multi += frame.header.nbytes > frame.header.block_nbytes
        n_split += frame.header.n_splits > 1 and not frame.is_raw.all()
        decoded = decode_streams(encoded, frame)
        assert decoded == array.tobytes(), (dtype, n_elements, kind, shuffle)
    assert n_multi > 20
    assert n_split > 10 or cname == "zstd"


@pytest.mark.parametrize("cname", CNAMES)
def test_both_checks_agree_on_frames_of_numcodecs(cname: str) -> None:
    for dtype, n_elements, kind, shuffle, blocksize in CASES[::7]:
        encoded = encode(elements(kind, dtype, n_elements), cname, shuffle, blocksize)
        frame = blosc_frames.parse(encoded)
        assert frame.decoded_nbytes.sum() == frame.header.nbytes
        if not frame.header.flags & blosc_frame.MEMCPYED:
            blosc_frame.check_streams(encoded, frame.header, "blosc")


def test_snappy_frames_are_read(blosc: BytesCodec) -> None:
    n_read = 0
    for dtype, n_elements, kind, shuffle, blocksize in CASES[::3]:
        array = elements(kind, dtype, n_elements)
        encoded = encode(array, "lz4", shuffle, blocksize)
        if blosc_frame.parse_header(encoded, "blosc").flags & blosc_frame.MEMCPYED:
            continue
        n_read += 1
        decoded = blosc.decode(as_snappy(encoded), array.nbytes, exact=True)
        assert bytes(decoded) == array.tobytes()
    assert n_read > 20


@pytest.mark.parametrize("cname", [*CNAMES, "snappy"])
@pytest.mark.parametrize("shuffle", [0, 1, 2])
def test_single_blocks_decode_to_their_part(cname: str, shuffle: int) -> None:
    array = elements("smooth", "<f4", 80_003)  # five blocks, the last one shorter
    raw = array.tobytes()
    encoded = encode(array, "lz4" if cname == "snappy" else cname, shuffle, 16384)
    if cname == "snappy":
        encoded = as_snappy(encoded)
    frame = blosc_frames.parse(encoded)
    size, n_blocks = frame.header.block_nbytes, frame.header.n_blocks
    assert n_blocks > 3
    assert frame.header.nbytes % size
    for first in range(n_blocks):
        for stop in range(first + 1, n_blocks + 1):
            decoded = blosc_blocks.decode_blocks(
                encoded, frame.header, first, stop, "blosc"
            )
            assert bytes(decoded) == raw[first * size : stop * size]


@pytest.mark.parametrize(("dtype", "n_streams"), [("<c16", 16), ("S17", 1)])
def test_blocks_of_items_of_up_to_16_bytes_have_a_stream_for_each_byte(
    blosc: Any, dtype: str, n_streams: int
) -> None:
    array = np.arange(80_000).astype(dtype)
    encoded = encode(array, "lz4", 1, array.itemsize * 1024)
    size = blosc_frame.parse_header(encoded, "blosc").block_nbytes
    assert blosc_frame.parse_header(encoded, "blosc").n_splits == n_streams
    part = blosc.decode_range(encoded, array.nbytes, 3 * size, 4 * size)
    assert part[3 * size : 4 * size].tobytes() == array.tobytes()[3 * size : 4 * size]


@pytest.mark.parametrize(("dtype", "block_nbytes"), [("S17", 17 * 1024), ("<c16", 512)])
def test_items_that_are_never_split_need_no_flag_that_says_so(
    blosc: Any, dtype: str, block_nbytes: int
) -> None:
    """The oldest writers had no such flag."""
    array = np.arange(4000).astype(dtype)
    encoded = bytearray(encode(array, "lz4", 1, block_nbytes))
    assert encoded[2] & blosc_frame.DONT_SPLIT
    encoded[2] &= ~blosc_frame.DONT_SPLIT
    assert bytes(blosc.decode(encoded, array.nbytes, exact=True)) == array.tobytes()


def test_blocks_that_share_a_large_stream_are_refused(blosc: Any) -> None:
    n_blocks, block_nbytes, stream = 4096, 64, bytes(100_000)
    flags, start = 0x31, 16 + 4 * n_blocks  # lz4, never split
    sizes = n_blocks * block_nbytes, block_nbytes, start + 4 + len(stream)
    frame = struct.pack("<4B3I", 2, 1, flags, 1, *sizes)
    frame += struct.pack("<i", start) * n_blocks
    frame += struct.pack("<i", len(stream)) + stream
    tracemalloc.start()
    try:
        with pytest.raises(CorruptShardError, match="share"):
            blosc.decode_range(frame, sizes[0], 0, 1000 * block_nbytes)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_header_wins_over_the_metadata(blosc: BytesCodec) -> None:
    array = elements("smooth", "<f8", 500)
    encoded = encode(array, "lz4", 2)  # the fixture's metadata says zstd
    assert bytes(blosc.decode(encoded, array.nbytes, exact=True)) == array.tobytes()


@pytest.mark.parametrize("block_nbytes", [0, 1, 4096])
def test_frame_of_nothing_decodes_to_nothing(
    blosc: BytesCodec, block_nbytes: int
) -> None:
    frame = struct.pack("<4B3I", 2, 1, 0x21, 4, 0, block_nbytes, 16)
    assert bytes(blosc.decode(frame, 0, exact=True)) == b""
    assert bytes(blosc.decode(frame, 10, exact=False)) == b""
    assert blosc_frames.parse(frame).source_offset.shape == (0,)


@pytest.mark.parametrize("block_nbytes", [0, 4096])
def test_a_frame_of_nothing_in_place_of_elements_has_no_part(
    blosc: Any, block_nbytes: int
) -> None:
    frame = struct.pack("<4B3I", 2, 1, 0x21, 4, 0, block_nbytes, 16)
    assert blosc.range_nbytes(frame, 0, 100) is None
    assert blosc.decode_range(frame, 8192, 0, 100) is None


def test_buffers_of_any_kind_are_read_on_any_thread(blosc: BytesCodec) -> None:
    raw, encoded = smooth_frame()
    results: list[bytes] = []

    def decode() -> None:
        buffers = (
            encoded,
            bytearray(encoded),
            memoryview(encoded),
            np.frombuffer(encoded, np.uint8),
        )
        results.extend(
            bytes(blosc.decode(data, len(raw), exact=True)) for data in buffers
        )

    decode()
    worker = threading.Thread(target=decode)
    worker.start()
    worker.join()
    assert results == [raw] * 8


HEADER_LIES = {
    "version": (0, "<B", 3),
    "reserved flag": (2, "<B", 0x21 | 8),
    "unknown compressor": (2, "<B", 7 << 5),
    "compressor 5": (2, "<B", 5 << 5),
    "no item size": (3, "<B", 0),
    "no block size": (8, "<I", 0),
    "block larger than all": (8, "<I", 160_013),
    "block of the size -1": (8, "<I", 0xFFFFFFFF),
    "more blocks than bytes": (8, "<I", 1),
    "block no multiple of the splits": (8, "<I", 65_537),
    "longer than the bytes": (12, "<I", 1 << 20),
    "shorter than the bytes": (12, "<I", 100),
    "first block before the streams": (16, "<i", 4),
    "first block below zero": (16, "<i", -5),
    "first block behind the end": (16, "<i", 1 << 30),
    "memcpyed though shorter": (2, "<B", 0x23),
}


@pytest.mark.parametrize("lie", HEADER_LIES)
def test_header_that_lies_is_refused(blosc: BytesCodec, lie: str) -> None:
    raw, encoded = smooth_frame()
    assert encoded[2] == 0x21  # lz4, byte shuffle, split
    position, form, value = HEADER_LIES[lie]
    damaged = bytearray(encoded)
    struct.pack_into(form, damaged, position, value)
    with pytest.raises(CorruptShardError) as caught:
        blosc.decode(damaged, len(raw), exact=True)
    assert caught.value.codec == "blosc"
    with pytest.raises(CorruptShardError):
        blosc_frames.parse(damaged)


@pytest.mark.parametrize("value", [-1, -(1 << 31), 1 << 30, (1 << 31) - 1])
def test_stream_that_leaves_the_frame_is_refused(blosc: BytesCodec, value: int) -> None:
    raw, encoded = smooth_frame()
    frame = blosc_frames.parse(encoded)
    for stream in range(len(frame.source_offset)):
        damaged = bytearray(encoded)
        position = int(frame.source_offset[stream]) - 4
        struct.pack_into("<i", damaged, position, value)
        with pytest.raises(CorruptShardError, match="beyond"):
            blosc.decode(damaged, len(raw), exact=True)
        with pytest.raises(CorruptShardError, match="beyond"):
            blosc_frames.parse(damaged)


def test_memcpyed_frame_cut_short_is_refused(blosc: BytesCodec) -> None:
    array = elements("noise", "<f4", 1000)
    encoded = encode(array, "lz4", 1)
    assert encoded[2] & blosc_frame.MEMCPYED
    with pytest.raises(CorruptShardError, match="claims"):
        blosc.decode(encoded[:-4], array.nbytes, exact=True)


@pytest.mark.parametrize("exact", [True, False])
def test_frame_of_more_bytes_than_accepted_is_refused(
    blosc: BytesCodec, exact: bool
) -> None:
    raw, encoded = smooth_frame()
    with pytest.raises(CorruptShardError, match="wrong size"):
        blosc.decode(encoded, len(raw) - 1, exact=exact)


@pytest.mark.parametrize("nbytes", [1 << 30, (1 << 32) - 1])
def test_claimed_size_costs_no_memory(blosc: BytesCodec, nbytes: int) -> None:
    _, encoded = smooth_frame()
    damaged = bytearray(encoded)
    struct.pack_into("<I", damaged, 4, nbytes)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptShardError):
            blosc.decode(damaged, 160_012, exact=True)
        with pytest.raises(CorruptShardError):
            blosc.decode(damaged, 200_000, exact=False)
        with pytest.raises(CorruptShardError):
            blosc_frames.parse(damaged)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_blosclz_match_longer_than_it_can_count_is_refused(blosc: BytesCodec) -> None:
    run = b"\xff" * ((1 << 31) // 255)
    stream = b"\x00" + run + b"\x00"
    nbytes = 1 << 24
    head = struct.pack("<4B3I", 2, 1, 0x10, 1, nbytes, nbytes, 24 + len(stream))
    frame = head + struct.pack("<ii", 20, len(stream)) + stream
    with pytest.raises(CorruptShardError, match="longer than blosclz can count"):
        blosc.decode(frame, nbytes, exact=True)

    sizes = 8 * nbytes, nbytes, 52 + len(stream)  # of eight blocks
    several = struct.pack("<4B3I8i", 2, 1, 0x10, 1, *sizes, *(8 * [48]))
    several += struct.pack("<i", len(stream)) + stream
    with pytest.raises(CorruptShardError, match="longer than blosclz can count"):
        blosc.decode_range(several, 8 * nbytes, 0, 1)


def test_snappy_stream_that_claims_more_is_refused(blosc: BytesCodec) -> None:
    claim = b"\xff\xff\xff\xff\x0f" + bytes(8)  # varint 2**32 - 1
    head = struct.pack("<4B3I", 2, 1, 0x50, 1, 100, 100, 24 + len(claim))
    frame = head + struct.pack("<ii", 20, len(claim)) + claim
    tracemalloc.start()
    try:
        with pytest.raises(CorruptShardError):
            blosc.decode(frame, 100, exact=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_a_short_last_block_of_snappy_is_one_stream_whatever_its_size():
    block, n = 1024 * 3, 1000
    data = np.random.default_rng(0).integers(0, 255, n, "u1")
    filtered = np.concatenate([data[:999].reshape(333, 3).T.ravel(), data[999:]])
    header = blosc_frame.BloscHeader(1 | 2 << 5, 3, block + n, block, 0, 2)
    assert bytes(blosc_blocks.undo_filter(filtered, header)) == data.tobytes()
