"""What fuzzing found: each input that once ended in something else than it should."""

from __future__ import annotations

import json
import lzma
import struct

import numpy as np
import pytest
import zstandard

import gpushard
from array_strategies import codec
from gpushard.codecs.zstd import from_spec
from gpushard.errors import (
    ChecksumError,
    CorruptShardError,
    MetadataError,
    UnsupportedError,
)
from gpushard.layout import CodecSpec
from zarr_oracle import held

LITTLE = codec("bytes", endian="little")
ZSTD = from_spec(CodecSpec("zstd", {}))


def opened(codecs, chunk_shape=(8,), **objects: bytes) -> gpushard.Array:
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [8],
        "data_type": "int32",
        "chunk_grid": codec("regular", chunk_shape=list(chunk_shape)),
        "chunk_key_encoding": codec("default", separator="."),
        "fill_value": 7,
        "codecs": [LITTLE, *codecs],
    }
    stored = {"zarr.json": json.dumps(document).encode()}
    stored |= {key.replace("_", "."): data for key, data in objects.items()}
    return gpushard.open_array(held(stored))


# ---- zstd: frames without content were believed what they say about it


def zstd_frame(flags: int, content: bytes, *blocks: bytes, tail: bytes = b"") -> bytes:
    """Frame of stored blocks behind a header whose content size is `content`."""
    out = struct.pack("<IB", 0xFD2FB528, flags) + content
    for k, block in enumerate(blocks):
        is_last = k == len(blocks) - 1
        out += (len(block) << 3 | is_last).to_bytes(3, "little") + block
    return out + tail


@pytest.mark.parametrize("limit", [0, 100])
def test_the_checksum_of_a_zstd_frame_without_content_counts(limit):
    good = zstandard.ZstdCompressor(write_checksum=True).compress(b"")
    assert ZSTD.decode(good, limit, exact=False) == b""
    with pytest.raises(ChecksumError):
        ZSTD.decode(good[:-1] + b"\0", limit, exact=False)


@pytest.mark.parametrize(
    "frame",
    [
        zstd_frame(0x20, b"\0", b"abc"),
        zstd_frame(0x20, b"\5", b""),
        zstd_frame(0x20, b"\5", b"abc"),
    ],
    ids=["none of three", "five of none", "five of three"],
)
def test_a_zstd_frame_that_lies_about_its_size_is_refused(frame):
    with pytest.raises(CorruptShardError):
        ZSTD.decode(frame, 100, exact=False)
    honest = zstd_frame(0x20, b"\3", b"abc")
    assert ZSTD.decode(honest, 100, exact=False) == b"abc"
    with pytest.raises(CorruptShardError):
        ZSTD.decode(honest + frame, 100, exact=False)


# ---- metadata: numbers that a library's C integers do not hold


@pytest.mark.parametrize("number", [2**31, 2**62, -(2**40)])
def test_an_lzma_format_beyond_an_int_is_refused_as_metadata(number):
    with pytest.raises(MetadataError, match="cannot be configured"):
        opened([codec("numcodecs.lzma", format=number)])


@pytest.mark.parametrize(
    "codecs",
    [
        [codec("gzip", level=1)],
        [codec("gzip", level=1), codec("gzip", level=1)],
        [codec("zstd", level=1, checksum=False)],
        [codec("numcodecs.zlib", level=1)],
        [codec("numcodecs.bz2", level=1)],
        [codec("numcodecs.lzma")],
        [codec("numcodecs.lz4", acceleration=1)],
        [codec("blosc", cname="lz4", clevel=1, shuffle="noshuffle", blocksize=0)],
    ],
    ids=lambda codecs: ", ".join(entry["name"] for entry in codecs),
)
def test_an_inner_chunk_beyond_all_memory_is_absent_or_damaged(codecs):
    shape = (2**60,)
    assert opened(codecs, shape)[3] == 7
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(b"abc")
    claiming = zstd_frame(0xE0, struct.pack("<Q", 2**61), b"abc")
    streams = (
        b"abc",
        unsized,
        claiming,
        lzma.compress(b"abc"),
        np.arange(64).tobytes(),
    )
    for stream in streams:
        with pytest.raises(CorruptShardError):
            opened(codecs, shape, c_0=stream)[3]


def test_an_inner_chunk_whose_bytes_cannot_be_counted_is_refused_at_open():
    with pytest.raises(UnsupportedError, match="can be counted"):
        opened([], (2**60 + 1,))


# ---- an uncompressed chunk cut short, in a store that does not tell how long it is


@pytest.mark.parametrize("n_elements", [0, 3, 7])
def test_a_cut_uncompressed_chunk_never_reads_as_what_was_in_memory(n_elements):
    data = np.arange(8, dtype="<i4").tobytes()[: 4 * n_elements + 2]
    a = opened([], c_0=data)
    for key in (..., np.s_[7], np.s_[n_elements:], np.s_[1::3]):
        with pytest.raises(CorruptShardError, match="another size"):
            a[key]
    for key in range(n_elements):
        assert a[key] == key
