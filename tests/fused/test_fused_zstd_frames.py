"""Which zstd frames the compiled loops take: single ones that all decode alike."""

from __future__ import annotations

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from asked_store import put
from hostile_shards import all_rows
from lz4_blocks import GuardedRoom

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

MAGIC = (0xFD2FB528).to_bytes(4, "little")
SKIPPABLE = (0x184D2A50).to_bytes(4, "little") + (3).to_bytes(4, "little") + b"abc"
# The last block of a frame: one byte, repeated 5 times; and one that holds "hello".
REPEATED = (1 | 1 << 1 | 5 << 3).to_bytes(3, "little") + b"x"
RAW = (1 | 0 << 1 | 5 << 3).to_bytes(3, "little") + b"hello"
SINGLE, CHECKED = 0x20, 0x04
UNTOLD = b"\xff" * 8


@pytest.fixture(scope="module")
def is_one_frame():
    from numba import njit

    from gpushard.fused.compiled import zstd_frames

    called = zstd_frames.is_one_frame  # by compiled code alone
    is_one = njit(lambda address, nbytes: called(address, nbytes))
    room = GuardedRoom(1 << 19)

    def asked(data: bytes) -> bool:
        return bool(is_one(room.place(data, at_end=True), len(data)))

    return asked


def window(exponent: int, mantissa: int = 0) -> bytes:
    return bytes([exponent - 10 << 3 | mantissa])


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("no size", MAGIC + b"\x00" + window(20) + RAW),
        ("no size, largest window", MAGIC + b"\x00" + window(27) + RAW),
        ("a size of 1 byte", MAGIC + bytes([SINGLE]) + b"\x05" + RAW),
        ("a size of 2 bytes", MAGIC + b"\x40" + window(31, 7) + bytes(2) + RAW),
        ("a size of 4 bytes", MAGIC + b"\x80" + window(31) + bytes(4) + RAW),
        ("a size of 8 bytes", MAGIC + b"\xc0" + window(31) + bytes(8) + RAW),
        ("8 bytes of no size", MAGIC + b"\xc0" + window(20) + UNTOLD + RAW),
        ("a dictionary's number", MAGIC + b"\x03" + window(20) + bytes(4) + RAW),
        ("a repeated byte", MAGIC + bytes([SINGLE]) + b"\x05" + REPEATED),
        ("a checksum", MAGIC + bytes([SINGLE | CHECKED]) + b"\x05" + RAW + bytes(4)),
        ("two blocks", MAGIC + b"\x00" + window(20) + b"\x28" + RAW[1:] + RAW),
    ],
)
def test_a_single_frame_is_taken_and_no_part_of_it(what, data, is_one_frame):
    assert is_one_frame(data), what
    for nbytes in range(len(data)):
        assert not is_one_frame(data[:nbytes]), (what, nbytes)
    assert not is_one_frame(data + b"\x00")
    assert not is_one_frame(data + data)
    assert not is_one_frame(SKIPPABLE + data)
    assert not is_one_frame(data + SKIPPABLE)


@pytest.mark.parametrize(
    "header",
    [
        b"\x00" + window(27, 1),
        b"\x00" + window(31),
        b"\xc0" + window(27, 1) + UNTOLD,
        bytes([0xC0 | SINGLE]) + UNTOLD,
        bytes([0xC1 | SINGLE]) + b"\0" + UNTOLD,
    ],
    ids=[
        "just too large",
        "2 GiB",
        "8 bytes of no size",
        "no window and no size",
        "no window and no size, a dictionary's number in place of a window",
    ],
)
def test_a_large_window_of_an_untold_size_is_left_to_the_plain_way(
    header, is_one_frame
):
    assert not is_one_frame(MAGIC + header + RAW)


@given(
    data=st.binary(max_size=300) | st.integers(0, 400_000).map(bytes),
    level=st.integers(1, 9),
    tells=st.booleans(),
    checked=st.booleans(),
)
def test_what_zstd_writes_is_taken(data, level, tells, checked, is_one_frame):
    compressor = zstandard.ZstdCompressor(
        level=level, write_content_size=tells, write_checksum=checked
    )
    assert is_one_frame(compressor.compress(data))


@pytest.mark.parametrize(
    "hostile",
    [row for row in all_rows() if row.row.startswith("zstd")],
    ids=lambda row: row.row,
)
def test_frames_have_one_outcome_with_and_without_the_loops(hostile, tmp_path):
    document = hostile.document()

    def outcome(name, **knobs):
        place = put(tmp_path / name, document, c_0=hostile.shard)
        options = gpushard.Options(small_read_chunks=0, **knobs)
        a = gpushard.open_array(place, device="cpu", options=options)
        try:
            return a[...].tobytes()
        except gpushard.GpushardError as error:
            return str(error).replace(f"{name}'", "'")

    assert outcome("loops", compile_nbytes=0) == outcome("plain", compile_nbytes=2**62)
