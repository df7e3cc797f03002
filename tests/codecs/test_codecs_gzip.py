"""gzip members and zlib streams."""

from __future__ import annotations

import gzip as stdlib_gzip
import struct
import tracemalloc
import zlib

import numcodecs
import numpy as np
import pytest

from gpushard import codecs
from gpushard.codecs import base, libdeflate
from gpushard.codecs import gzip as gzip_module
from gpushard.codecs.base import BytesCodec, GatheredBytes
from gpushard.errors import ChecksumError, CorruptShardError
from gpushard.layout import CodecSpec

RAW = np.arange(3000, dtype="<i4").tobytes()
HALF = len(RAW) // 2


@pytest.fixture(autouse=True, params=["libdeflate", "zlib"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What decodes single streams of a known size."""
    if request.param == "zlib":
        monkeypatch.setattr(libdeflate, "find", lambda: None)
    elif libdeflate.find() is None:
        pytest.skip("libdeflate is not installed on this system")
    return request.param


def codec(name: str) -> BytesCodec:
    return codecs.bytes_codec(CodecSpec(name))


def member_with_every_field() -> bytes:
    head = b"\x1f\x8b\x08\x1e" + bytes(6)  # FHCRC, FEXTRA, FNAME, FCOMMENT
    head += struct.pack("<H", 4) + b"abcd" + b"name\0" + b"comment\0"
    head += struct.pack("<H", zlib.crc32(head) & 0xFFFF)
    deflate = zlib.compressobj(wbits=-15)
    body = deflate.compress(RAW) + deflate.flush()
    return head + body + struct.pack("<II", zlib.crc32(RAW), len(RAW))


def member_with(data: bytes, **kwargs: int) -> bytes:
    deflate = zlib.compressobj(wbits=31, **kwargs)
    return deflate.compress(data) + deflate.flush()


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(stdlib_gzip.compress(RAW), id="one member"),
        pytest.param(
            stdlib_gzip.compress(RAW[:HALF]) + stdlib_gzip.compress(RAW[HALF:]),
            id="two members",
        ),
        pytest.param(
            stdlib_gzip.compress(b"")
            + stdlib_gzip.compress(RAW)
            + stdlib_gzip.compress(b""),
            id="empty members around",
        ),
        pytest.param(stdlib_gzip.compress(RAW) + bytes(512), id="zero padding"),
        pytest.param(
            stdlib_gzip.compress(RAW[:HALF])
            + bytes(3)
            + stdlib_gzip.compress(RAW[HALF:]),
            id="zero padding between",
        ),
        pytest.param(member_with_every_field(), id="every header field"),
        pytest.param(member_with(RAW, level=0), id="stored blocks"),
        pytest.param(member_with(RAW, strategy=zlib.Z_HUFFMAN_ONLY), id="Huffman only"),
        pytest.param(member_with(RAW, strategy=zlib.Z_FIXED), id="fixed Huffman"),
    ],
)
@pytest.mark.parametrize("name", ["gzip", "numcodecs.gzip"])
def test_odd_but_legal_members_are_read(name: str, stream: bytes) -> None:
    assert bytes(codec(name).decode(stream, len(RAW), exact=True)) == RAW
    assert bytes(codec(name).decode(stream, 2 * len(RAW), exact=False)) == RAW


@pytest.mark.parametrize(
    ("name", "stream"),
    [("gzip", stdlib_gzip.compress(RAW)), ("numcodecs.zlib", zlib.compress(RAW))],
)
def test_a_single_large_stream_goes_through_libdeflate_where_it_is(
    name: str, stream: bytes, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[GatheredBytes] = []

    def gathered(name: str, limit: int, *, exact: bool) -> GatheredBytes:
        made.append(GatheredBytes(name, limit, exact=exact))
        return made[-1]

    monkeypatch.setattr(gzip_module, "GatheredBytes", gathered)
    assert bytes(codec(name).decode(stream, len(RAW), exact=True)) == RAW
    assert bool(made) == (library == "zlib")
    assert codec(name).library.startswith(library)


def test_a_wrong_checksum_of_the_header_is_an_error() -> None:
    damaged = bytearray(member_with_every_field())
    damaged[4] ^= 1  # of the time of writing, which nobody looks at
    with pytest.raises(CorruptShardError, match="valid stream"):
        codec("gzip").decode(damaged, len(RAW), exact=True)


@pytest.mark.parametrize("level", [0, 1, 9])
def test_zlib_stream_of_numcodecs_is_read(level: int) -> None:
    stream = numcodecs.Zlib(level).encode(RAW)
    decoded = codec("numcodecs.zlib").decode(stream, len(RAW), exact=True)
    assert bytes(decoded) == RAW


@pytest.mark.parametrize(
    ("name", "stream"),
    [
        pytest.param("gzip", b"", id="empty"),
        pytest.param("gzip", stdlib_gzip.compress(RAW) + b"junk", id="junk"),
        pytest.param("gzip", stdlib_gzip.compress(RAW) + b"\0\0junk", id="padded junk"),
        pytest.param("gzip", stdlib_gzip.compress(RAW)[:-1], id="cut trailer"),
        pytest.param("gzip", zlib.compress(RAW), id="zlib for gzip"),
        pytest.param("numcodecs.zlib", stdlib_gzip.compress(RAW), id="gzip for zlib"),
        pytest.param("numcodecs.zlib", zlib.compress(RAW) + b"\0", id="zlib, junk"),
        pytest.param("numcodecs.zlib", b"", id="empty zlib"),
    ],
)
def test_damaged_streams_are_named_as_such(name: str, stream: bytes) -> None:
    with pytest.raises(CorruptShardError, match="valid stream") as caught:
        codec(name).decode(stream, len(RAW), exact=True)
    assert caught.value.codec == name


@pytest.mark.parametrize(
    ("name", "stream", "position"),
    [
        ("gzip", stdlib_gzip.compress(RAW), -8),
        ("numcodecs.zlib", zlib.compress(RAW), -1),
    ],
)
def test_wrong_checksum_is_a_checksum_error(
    name: str, stream: bytes, position: int
) -> None:
    damaged = bytearray(stream)
    damaged[position] ^= 1
    with pytest.raises(ChecksumError):
        codec(name).decode(damaged, len(RAW), exact=True)


def test_wrong_length_field_is_an_error() -> None:
    damaged = bytearray(stdlib_gzip.compress(RAW))
    damaged[-1] ^= 1
    with pytest.raises(CorruptShardError):
        codec("gzip").decode(damaged, len(RAW), exact=True)


@pytest.mark.parametrize("off", [-1, 1])
@pytest.mark.parametrize(
    "stream",
    [
        stdlib_gzip.compress(RAW),
        stdlib_gzip.compress(RAW[:HALF]) + stdlib_gzip.compress(RAW[HALF:]),
    ],
)
def test_other_size_than_the_inner_chunks_is_an_error(stream: bytes, off: int) -> None:
    with pytest.raises(CorruptShardError, match="wrong size"):
        codec("gzip").decode(stream, len(RAW) + off, exact=True)


@pytest.mark.parametrize("exact", [True, False])
def test_bombs_cost_no_memory(exact: bool) -> None:
    deflate = zlib.compressobj(wbits=31)
    pieces = [deflate.compress(bytes(1 << 20)) for _ in range(64)]
    one = b"".join(pieces) + deflate.flush()
    many = stdlib_gzip.compress(bytes(1 << 20)) * 64
    tracemalloc.start()
    try:
        for stream in (one, many):
            with pytest.raises(CorruptShardError, match="wrong size"):
                codec("gzip").decode(stream, 1 << 16, exact=exact)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_members_are_put_together_where_they_stay() -> None:
    stream = stdlib_gzip.compress(RAW[:9]) + stdlib_gzip.compress(RAW[9:])
    decoded = codec("gzip").decode(stream, len(RAW), exact=True)
    assert isinstance(decoded, np.ndarray)
    assert isinstance(decoded.base, np.ndarray)
    assert decoded.base.nbytes == len(RAW)


def test_bytes_of_untold_size_may_be_more_than_were_thought_of(monkeypatch) -> None:
    monkeypatch.setattr(base, "_UNTOLD_NBYTES", 4)
    gathered = GatheredBytes("gzip", len(RAW) + 1, exact=False)
    for start in range(0, len(RAW), 1000):
        gathered.add(RAW[start : start + 1000])
    assert gathered.all().tobytes() == RAW


def test_for_a_stream_that_cannot_decode_to_so_much_no_memory_is_taken() -> None:
    # Nothing that is given so few bytes is asked for the memory, which no host has.
    assert libdeflate.decode_stream(stdlib_gzip.compress(RAW), 1 << 60, "gzip") is None
