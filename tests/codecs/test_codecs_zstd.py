"""Zstandard streams: odd but legal ones read, false claims cost no memory."""

from __future__ import annotations

import struct
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import zstandard

from gpushard import codecs
from gpushard.codecs import libzstd
from gpushard.codecs import zstd as zstd_module
from gpushard.codecs.base import BytesCodec
from gpushard.errors import ChecksumError, CorruptShardError
from gpushard.layout import CodecSpec

RAW = np.arange(1000, dtype="<i4").tobytes()


@pytest.fixture(autouse=True, params=["libzstd", "zstandard"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What decodes single frames of a known size, here small ones too."""
    if request.param == "zstandard":
        monkeypatch.setattr(libzstd, "find", lambda: None)
    elif libzstd.find() is None:
        pytest.skip("libzstd is not installed on this system")
    monkeypatch.setattr(libzstd, "LARGE_NBYTES", 0)
    return request.param


@pytest.fixture
def zstd() -> BytesCodec:
    return codecs.bytes_codec(CodecSpec("zstd"))


def frame(data: bytes = RAW, *, size: bool = True, checksum: bool = False) -> bytes:
    compressor = zstandard.ZstdCompressor(
        write_content_size=size, write_checksum=checksum
    )
    if size:
        return compressor.compress(data)
    stream = compressor.compressobj()
    return stream.compress(data) + stream.flush()


def skippable(data: bytes = b"anything", kind: int = 0) -> bytes:
    return struct.pack("<II", 0x184D2A50 + kind, len(data)) + data


def handmade(content_nbytes: int | None, *blocks: bytes) -> bytes:
    """A frame with a window of 128 KiB, or with an 8-byte content size."""
    magic = struct.pack("<I", 0xFD2FB528)
    if content_nbytes is None:
        return magic + b"\x00\x38" + b"".join(blocks)
    return magic + b"\xe0" + struct.pack("<Q", content_nbytes) + b"".join(blocks)


def block(kind: int, size: int, data: bytes, *, last: bool = True) -> bytes:
    return ((size << 3) | (kind << 1) | last).to_bytes(3, "little") + data


HALF = len(RAW) // 2


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(frame(), id="one frame"),
        pytest.param(frame(checksum=True), id="checksum"),
        pytest.param(frame(size=False), id="no content size"),
        pytest.param(frame(size=False, checksum=True), id="no size, checksum"),
        pytest.param(frame(RAW[:HALF]) + frame(RAW[HALF:]), id="two frames"),
        pytest.param(
            frame(RAW[:HALF], size=False) + frame(RAW[HALF:], checksum=True),
            id="two frames, one without size",
        ),
        pytest.param(skippable() + frame(), id="skippable first"),
        pytest.param(frame() + skippable(b"", 15), id="skippable last"),
        pytest.param(
            frame(RAW[:HALF]) + skippable(kind=7) + frame(RAW[HALF:], size=False),
            id="skippable between",
        ),
        pytest.param(frame(b"") + frame(), id="empty frame first"),
        pytest.param(frame() + frame(b"", size=False), id="empty frame last"),
        pytest.param(
            handmade(None, block(0, len(RAW), RAW)), id="raw block, no content size"
        ),
        pytest.param(
            handmade(
                len(RAW),
                block(0, HALF, RAW[:HALF], last=False),
                block(0, 0, b"", last=False),
                block(0, len(RAW) - HALF, RAW[HALF:]),
            ),
            id="raw blocks, 8-byte content size",
        ),
    ],
)
@pytest.mark.parametrize("exact", [True, False])
def test_odd_but_legal_streams_are_read(
    zstd: BytesCodec, stream: bytes, exact: bool
) -> None:
    limit = len(RAW) if exact else 2 * len(RAW)
    for data in (stream, memoryview(stream), np.frombuffer(stream, np.uint8)):
        assert bytes(zstd.decode(data, limit, exact=exact)) == RAW


def test_a_single_frame_goes_through_libzstd_where_it_is(
    zstd: BytesCodec, library: str
) -> None:
    for stream in (frame(), frame(size=False, checksum=True)):
        decoded = zstd.decode(stream, len(RAW), exact=True)
        assert isinstance(decoded, np.ndarray) == (library == "libzstd")
        assert isinstance(zstd.decode(stream, len(RAW), exact=False), bytes)
    assert ("libzstd" in zstd.library) == (library == "libzstd")


def test_a_window_of_2_gib_is_refused_where_no_size_is_told(zstd: BytesCodec) -> None:
    windowed = struct.pack("<IBB", 0xFD2FB528, 0, 21 << 3) + block(0, 4, b"abcd")
    for stream, nbytes in ((windowed, 4), (frame(b"ab") + windowed, 6)):
        with pytest.raises(CorruptShardError, match="memory"):
            zstd.decode(stream, nbytes, exact=True)


def test_rle_block_without_content_size_is_read(zstd: BytesCodec) -> None:
    stream = handmade(None, block(1, 777, b"x"))
    assert bytes(zstd.decode(stream, 777, exact=True)) == b"x" * 777


def test_empty_stream_of_one_frame_decodes_to_nothing(zstd: BytesCodec) -> None:
    for stream in (frame(b""), frame(b"", size=False), skippable()):
        assert bytes(zstd.decode(stream, 0, exact=True)) == b""


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        pytest.param(b"", "no bytes", id="empty"),
        pytest.param(frame() + b"junk", "header", id="junk after"),
        pytest.param(frame() + b"more junk", "begins no frame", id="long junk after"),
        pytest.param(frame()[:-1], "ends inside", id="cut"),
        pytest.param(skippable()[:-1], "ends inside", id="cut skippable"),
        pytest.param(b"\0" * 64, "begins no frame", id="zeros"),
        pytest.param(
            handmade(None, block(3, 5, b"12345")), "reserved", id="reserved block"
        ),
        pytest.param(
            struct.pack("<IBB", 0xFD2FB528, 0x21, 9) + b"\x05" + block(0, 5, b"12345"),
            "dictionary 9",
            id="dictionary",
        ),
    ],
)
def test_damaged_streams_are_named_as_such(
    zstd: BytesCodec, stream: bytes, reason: str
) -> None:
    with pytest.raises(CorruptShardError, match=reason) as caught:
        zstd.decode(stream, len(RAW), exact=True)
    assert caught.value.codec == "zstd"


@pytest.mark.parametrize(
    "sound",
    [
        pytest.param(frame(checksum=True), id="size"),
        pytest.param(frame(size=False, checksum=True), id="no size"),
        pytest.param(frame() + frame(b"", checksum=True), id="of no bytes"),
    ],
)
def test_wrong_checksum_is_a_checksum_error(zstd: BytesCodec, sound: bytes) -> None:
    assert bytes(zstd.decode(sound, len(RAW), exact=True)) == RAW
    stream = bytearray(sound)
    stream[-1] ^= 1
    with pytest.raises(ChecksumError):
        zstd.decode(stream, len(RAW), exact=True)


@pytest.mark.parametrize("parts", [[RAW], [RAW[:HALF], RAW[HALF:]]])
@pytest.mark.parametrize("size", [True, False])
@pytest.mark.parametrize("off", [-1, 1])
def test_other_size_than_the_inner_chunks_is_an_error(
    zstd: BytesCodec, parts: list[bytes], size: bool, off: int
) -> None:
    stream = b"".join(frame(part, size=size) for part in parts)
    with pytest.raises(CorruptShardError):
        zstd.decode(stream, len(RAW) + off, exact=True)


def test_shorter_content_is_fine_below_a_limit_that_is_not_exact(
    zstd: BytesCodec,
) -> None:
    assert bytes(zstd.decode(frame(), len(RAW) + 1, exact=False)) == RAW
    with pytest.raises(CorruptShardError, match="at most"):
        zstd.decode(frame(), len(RAW) - 1, exact=False)


def bombs() -> dict[str, bytes]:
    rle = [block(1, 128 * 1024, b"\0", last=False)] * 8192
    end = block(0, 0, b"")
    return {
        "honest 1 GiB": handmade(1 << 30, *rle, end),
        "1 GiB without size": handmade(None, *rle, end),
        "1 GiB in many frames": handmade(1 << 20, *rle[:8], end) * 1024,
        "claim of 8 GiB": handmade(1 << 33, block(0, 4, b"abcd")),
        "claim of 16 EiB": handmade((1 << 64) - 3, block(0, 4, b"abcd")),
        "claim that means error": handmade((1 << 64) - 2, block(0, 4, b"abcd")),
        "claim that means unknown": handmade((1 << 64) - 1, block(0, 4, b"abcd")),
        "window of 2 GiB": struct.pack("<IBB", 0xFD2FB528, 0, 21 << 3)
        + block(0, 4, b"abcd"),
    }


@pytest.mark.parametrize("name", bombs())
@pytest.mark.parametrize("exact", [True, False])
def test_false_claims_and_bombs_cost_no_memory(
    zstd: BytesCodec, name: str, exact: bool
) -> None:
    stream = bombs()[name]
    tracemalloc.start()
    try:
        with pytest.raises(CorruptShardError):
            zstd.decode(stream, 4096, exact=exact)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_empty_frames_behind_the_only_full_one_cost_no_copy(zstd: BytesCodec) -> None:
    n = 4 << 20
    stream = frame(bytes(n)) + frame(b"") * 2
    tracemalloc.start()
    try:
        assert len(zstd.decode(stream, n, exact=True)) == n
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < n * 3 // 2


def test_each_thread_has_a_context_of_its_own() -> None:
    together = Barrier(4)

    def context(_: int) -> object:
        together.wait()
        return zstd_module._decompressors.one

    with ThreadPoolExecutor(4) as pool:
        contexts = list(pool.map(context, range(4)))
    assert len({id(one) for one in contexts}) == 4


def test_threads_decode_side_by_side(zstd: BytesCodec) -> None:
    rng = np.random.default_rng(7)
    nbytes = 100_000
    raws = [rng.integers(0, 9, nbytes, dtype=np.uint8).tobytes() for _ in range(8)]
    streams = [frame(raw, checksum=True) for raw in raws]

    def decode_all(shift: int) -> bool:
        return all(
            bytes(zstd.decode(streams[(k + shift) % 8], nbytes, exact=True))
            == raws[(k + shift) % 8]
            for k in range(40)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(decode_all, range(4)))
