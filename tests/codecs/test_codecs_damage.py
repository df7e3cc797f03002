"""Every cut and many flipped bits of small streams: an error of ours, or right."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import cramjam
import google_crc32c
import numcodecs
import numpy as np
import pytest
import zstandard
from numcodecs.blosc import Blosc

from gpushard.errors import CorruptShardError
from gpushard.layout import CodecChain, CodecSpec, Elements
from gpushard.pipeline import HostPipeline

SHAPE = (16, 25)
ARRAY = np.cumsum(np.arange(400) % 5).astype("<i4").reshape(SHAPE)
RAW = ARRAY.tobytes()


def blosc(cname: str, shuffle: int, blocksize: int = 0) -> bytes:
    return bytes(Blosc(cname, 5, shuffle, blocksize).encode(ARRAY))


def snappy_blosc() -> bytes:
    stream = bytes(cramjam.snappy.compress_raw(RAW))
    head = np.array([1600, 1600, 24 + len(stream)], "<u4").tobytes()
    lengths = np.array([20, len(stream)], "<i4").tobytes()
    return bytes([2, 1, 0x50, 4]) + head + lengths + stream


def zstd_without_size() -> bytes:
    stream = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    return stream.compress(RAW) + stream.flush()


STREAMS: dict[str, tuple[tuple[str, ...], bytes]] = {
    "bytes": ((), RAW),
    "crc32c": (("crc32c",), RAW + google_crc32c.value(RAW).to_bytes(4, "little")),
    "zstd": (("zstd",), zstandard.ZstdCompressor().compress(RAW)),
    "zstd without size": (("zstd",), zstd_without_size()),
    "zstd, two frames": (
        ("zstd",),
        zstandard.ZstdCompressor().compress(RAW[:800])
        + zstandard.ZstdCompressor(write_checksum=True).compress(RAW[800:]),
    ),
    "gzip": (("gzip",), gzip.compress(RAW)),
    "gzip, two members": (("gzip",), gzip.compress(RAW[:8]) + gzip.compress(RAW[8:])),
    "zlib": (("numcodecs.zlib",), zlib.compress(RAW)),
    "lz4": (("numcodecs.lz4",), bytes(numcodecs.LZ4().encode(RAW))),
    "blosc lz4": (("blosc",), blosc("lz4", 1)),
    "blosc lz4, blocks": (("blosc",), blosc("lz4", 2, 256)),
    "blosc zstd": (("blosc",), blosc("zstd", 1, 256)),
    "blosc zlib": (("blosc",), blosc("zlib", 0)),
    "blosc blosclz": (("blosc",), blosc("blosclz", 1)),
    "blosc snappy": (("blosc",), snappy_blosc()),
    "gzip, zstd": (
        ("gzip", "zstd"),
        zstandard.ZstdCompressor().compress(gzip.compress(RAW)),
    ),
}
# Formats that cover every decoded bit with a checksum.
CHECKED = {"crc32c", "zstd without size", "gzip", "gzip, two members", "zlib"}


def compiled(names: tuple[str, ...]) -> HostPipeline:
    chain = CodecChain(
        (), CodecSpec("bytes", {"endian": "little"}), tuple(map(CodecSpec, names))
    )
    elements = Elements(ARRAY.dtype, "int32", 0, np.zeros((), ARRAY.dtype))
    return HostPipeline.compile(chain, elements)


def decode_or_refuse(pipeline: HostPipeline, data: Any) -> bool | None:
    """Whether the elements are right; None where the bytes are refused."""
    refused: CorruptShardError | None = None
    try:
        decoded = pipeline.decode(data, SHAPE)
    except CorruptShardError as error:
        refused = error
    if refused is not None:
        assert refused.codec is not None
        assert str(refused).endswith(".")
        return None
    assert decoded.shape == SHAPE
    assert decoded.dtype == ARRAY.dtype
    return bool(np.array_equal(decoded, ARRAY))


@pytest.mark.parametrize("name", STREAMS)
def test_undamaged_stream_is_read(name: str) -> None:
    names, stream = STREAMS[name]
    assert decode_or_refuse(compiled(names), stream) is True


@pytest.mark.parametrize("name", STREAMS)
def test_every_cut_is_refused(name: str) -> None:
    names, stream = STREAMS[name]
    pipeline = compiled(names)
    for nbytes in range(len(stream)):
        # A copy of its own, so that a read past the end leaves the allocation.
        cut = np.frombuffer(stream, np.uint8, nbytes).copy()
        assert decode_or_refuse(pipeline, cut) is None, nbytes


@pytest.mark.parametrize("name", STREAMS)
def test_appended_bytes_are_refused(name: str) -> None:
    names, stream = STREAMS[name]
    for junk in (b"\x01", b"junk", stream):
        assert decode_or_refuse(compiled(names), stream + junk) is None


@pytest.mark.parametrize("name", STREAMS)
def test_flipped_bits_are_refused_or_harmless(name: str) -> None:
    names, stream = STREAMS[name]
    pipeline = compiled(names)
    rng = np.random.default_rng(11)
    outcomes = set[bool | None]()
    for _ in range(500):
        damaged = np.frombuffer(stream, np.uint8).copy()
        for _ in range(rng.integers(1, 4)):
            damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        outcomes.add(decode_or_refuse(pipeline, damaged))
    if name in CHECKED:
        assert False not in outcomes
    assert None in outcomes or name == "bytes"


@pytest.mark.parametrize("name", STREAMS)
def test_random_words_in_the_head_are_refused_or_harmless(name: str) -> None:
    names, stream = STREAMS[name]
    pipeline = compiled(names)
    rng = np.random.default_rng(12)
    for _ in range(500):
        damaged = np.frombuffer(stream, np.uint8).copy()
        position = int(rng.integers(min(32, len(damaged) - 4)))
        damaged[position : position + 4] = rng.integers(0, 256, 4)
        decode_or_refuse(pipeline, damaged)


@pytest.mark.parametrize("name", STREAMS)
def test_noise_is_refused(name: str) -> None:
    names, _ = STREAMS[name]
    rng = np.random.default_rng(13)
    for nbytes in (0, 1, 15, 16, 17, 1599, 2000):
        noise = rng.integers(0, 256, nbytes, dtype=np.uint8)
        assert decode_or_refuse(compiled(names), noise) is None
