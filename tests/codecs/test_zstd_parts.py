"""Large zstd frames are decoded as far as they are needed, and no further."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from array_strategies import codec
from fused_cases import FUSED, PLAIN, take_way, watch_sinks
from gpushard.codecs import libzstd, zstd
from gpushard.fused import libraries, placer
from gpushard.fused.thread_memory import ThreadMemory
from spec_shards import CRC, LITTLE, document, shard_of, sharding
from zarr_oracle import assert_same_bits, held

if libzstd.find() is None or libzstd.of_parts(libzstd.find()) is None:
    pytest.skip("no libzstd of this system decodes parts", allow_module_level=True)

# An inner chunk has four blocks of 128 KiB, a row of it 1 KiB.
N_ROWS, ROW_NBYTES, N_BLOCKS = 512, 1024, 4
NBYTES, BLOCK_NBYTES = N_ROWS * ROW_NBYTES, libzstd.BLOCK_NBYTES
ZSTD = codec("zstd", level=1, checksum=False)
MAGIC = (0xFD2FB528).to_bytes(4, "little")
WAYS = ["whole", "requests", "short", "small"]


@cache
def values() -> np.ndarray:
    """Two inner chunks, compressible."""
    rng = np.random.default_rng(4)
    return rng.integers(0, 7, (2 * N_ROWS, ROW_NBYTES), np.uint8)


@cache
def frames(*, tells: bool = True, checked: bool = False) -> tuple[bytes, bytes]:
    made = zstandard.ZstdCompressor(
        level=1, write_content_size=tells, write_checksum=checked
    )
    first, second = np.split(values(), 2)
    return made.compress(first.tobytes()), made.compress(second.tobytes())


def ends_of(frame: bytes) -> list[int]:
    first = zstandard.frame_header_size(memoryview(frame))
    return zstd._ends_of_blocks(memoryview(frame), first) or []


def damaged(frame: bytes, block: int) -> bytes:
    """The frame with one of its blocks overwritten, behind its header."""
    first, stop = ends_of(frame)[block - 1 : block + 1]
    return frame[: first + 3] + b"\xff" * (stop - first - 3) + frame[stop:]


def placed(directory, *chunks: bytes, codecs=(ZSTD,)):
    """Where an array of one shard of these inner chunks lies."""
    inner = sharding((N_ROWS, ROW_NBYTES), codecs=[LITTLE, *codecs])
    wanted = document(values().shape, values().shape, inner)
    (directory / "c/0").mkdir(parents=True)
    (directory / "zarr.json").write_text(json.dumps(wanted))
    (directory / "c/0/0").write_bytes(shard_of(*chunks))
    return directory


def opened(place, way: str) -> gpushard.Array:
    options = PLAIN.but(small_read_chunks=9) if way == "small" else FUSED
    # What is kept is decoded whole.
    return gpushard.open_array(place, options=options.but(chunk_cache_nbytes=0))


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    if request.param != "small":
        pytest.importorskip("numba", reason="the compiled loops need numba")
        take_way(monkeypatch, request.param)
    return request.param


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return placed(tmp_path_factory.mktemp("zstd") / "a", *frames())


def test_blocks_behind_what_is_wanted_are_not_decoded(way, tmp_path):
    first, second = frames()
    assert len(ends_of(first)) == N_BLOCKS
    a = opened(placed(tmp_path / "a", damaged(first, 2), damaged(second, 3)), way)
    assert_same_bits(a[5], values()[5])
    assert_same_bits(a[3:256:50, 7:], values()[3:256:50, 7:])
    for damaged_row in (256, 300, 511, slice(250, 260)):
        with pytest.raises(gpushard.CorruptShardError):
            a[damaged_row]
    assert_same_bits(a[N_ROWS + 383], values()[N_ROWS + 383])
    with pytest.raises(gpushard.CorruptShardError):
        a[N_ROWS + 384]


def test_rows_of_one_inner_chunk_are_decoded_as_far_as_the_last_of_them(way, tmp_path):
    a = opened(placed(tmp_path / "a", damaged(frames()[0], 2), frames()[1]), way)
    rows = [200, 3, 255, 90]
    assert_same_bits(a.oindex[rows], values()[rows])
    with pytest.raises(gpushard.CorruptShardError):
        a.oindex[[*rows, 256]]


def test_each_shard_is_decoded_as_far_as_its_own_rows_are_wanted(monkeypatch, tmp_path):
    """In the same place of both files lies another inner chunk."""
    pytest.importorskip("numba", reason="the compiled loops need numba")
    take_way(monkeypatch, "short")
    seen = watch_sinks(monkeypatch)
    first, second = frames()
    inner = sharding((N_ROWS, ROW_NBYTES), codecs=[LITTLE, ZSTD])
    wanted = document(values().shape, (N_ROWS, ROW_NBYTES), inner)
    for i, frame in enumerate([damaged(first, 2), second]):
        (tmp_path / f"c/{i}").mkdir(parents=True)
        (tmp_path / f"c/{i}/0").write_bytes(shard_of(frame))
    (tmp_path / "zarr.json").write_text(json.dumps(wanted))
    rows = [5, N_ROWS + 400]
    assert_same_bits(opened(tmp_path, "short").oindex[rows], values()[rows])
    assert seen.n_short == 1  # what is damaged, the short way declines


def test_a_frame_with_a_checksum_is_decoded_whole(way, tmp_path):
    chunks = frames(checked=True)
    a = opened(placed(tmp_path / "a", damaged(chunks[0], 2), chunks[1]), way)
    with pytest.raises(gpushard.CorruptShardError):
        a[5]
    assert_same_bits(a[N_ROWS + 5], values()[N_ROWS + 5])


def test_a_frame_whose_checksum_is_cut_off_is_refused(way, tmp_path):
    first, second = frames(checked=True)
    a = opened(placed(tmp_path / "a", first[:-4], second), way)
    with pytest.raises(gpushard.CorruptShardError):
        a[5]


def test_a_frame_that_is_cut_off_between_two_blocks_is_refused(way, tmp_path):
    first, second = frames()
    cut = first[: ends_of(first)[2]]
    a = opened(placed(tmp_path, cut, second), way)
    with pytest.raises(gpushard.CorruptShardError):
        a[:9]


def test_what_follows_a_frame_is_not_left_out_of_a_part(way, tmp_path):
    first, second = frames()
    nothing = (0x184D2A50).to_bytes(4, "little") + bytes(4)  # a skippable frame
    a = opened(placed(tmp_path / "a", first + b"x", second + nothing), way)
    with pytest.raises(gpushard.CorruptShardError):
        a[5]
    assert_same_bits(a[N_ROWS + 5], values()[N_ROWS + 5])


def blocks_of(*sizes: int) -> bytes:
    """Stored zeros in blocks of these sizes, the last of which is damaged."""
    frame = b"".join((n << 3).to_bytes(3, "little") + bytes(n) for n in sizes[:-1])
    return frame + (sizes[-1] << 3 | 7).to_bytes(3, "little") + bytes(sizes[-1])


def test_a_small_last_block_is_checked_with_what_lies_before_it(way, tmp_path):
    blocks = blocks_of(*[BLOCK_NBYTES] * 3, BLOCK_NBYTES - ROW_NBYTES, ROW_NBYTES)
    frame = MAGIC + b"\xa0" + NBYTES.to_bytes(4, "little") + blocks
    a = opened(placed(tmp_path / "a", frame, frames()[1]), way)
    assert not a[383].any()
    for row in (384, 510):
        with pytest.raises(gpushard.CorruptShardError):
            a[row]


def test_a_size_of_eight_bytes_is_one(way, tmp_path):
    first, second = frames()
    told = MAGIC + b"\xe0" + NBYTES.to_bytes(8, "little") + damaged(first, 2)[9:]
    lies = MAGIC + b"\xe0" + (NBYTES - 1).to_bytes(8, "little") + second[9:]
    a = opened(placed(tmp_path / "a", told, lies), way)
    assert_same_bits(a[5], values()[5])
    for row in (256, N_ROWS + 5):
        with pytest.raises(gpushard.CorruptShardError):
            a[row]


def test_a_block_that_looks_like_a_size_is_none(way, tmp_path):
    blocks = blocks_of(NBYTES >> 3, *[BLOCK_NBYTES] * 3, NBYTES >> 3)
    assert blocks.startswith(NBYTES.to_bytes(8, "little"))
    frame = MAGIC + b"\x00\x50" + blocks  # a window of 1 MiB, and no size
    with pytest.raises(gpushard.CorruptShardError):
        opened(placed(tmp_path / "a", frame, frames()[1]), way)[5]


def test_parts_are_decoded_in_memory_that_is_zero(way, monkeypatch, tmp_path):
    def buffer(*arguments, **keywords):
        found = plain(*arguments, **keywords)
        found.memory[:] = 0
        return found

    plain = ThreadMemory.buffer
    monkeypatch.setattr(ThreadMemory, "buffer", buffer)
    monkeypatch.setattr(placer, "_memory", ThreadMemory())
    a = opened(placed(tmp_path / "a", damaged(frames()[0], 2), frames()[1]), way)
    assert_same_bits(a[255], values()[255])


def test_the_first_byte_alone_is_decoded(way, sound):
    a, rows = opened(sound, way), [N_ROWS, 0, N_ROWS]
    assert [a[row, 0] for row in rows] == values()[rows, 0].tolist() == [6, 2, 6]


def test_a_frame_that_tells_no_size_is_decoded_whole(way, tmp_path):
    chunks = frames(tells=False)
    a = opened(placed(tmp_path / "a", damaged(chunks[0], 2), chunks[1]), way)
    with pytest.raises(gpushard.CorruptShardError):
        a[5]
    assert_same_bits(a[N_ROWS + 5], values()[N_ROWS + 5])


@pytest.mark.parametrize("told", [NBYTES - 1, NBYTES + 1, 2 * NBYTES])
def test_a_frame_that_tells_another_size_is_refused(way, told, tmp_path):
    frame = frames()[0]
    size = NBYTES.to_bytes(4, "little")
    assert frame[5:9] == size  # a single segment: its size follows the flags
    lies = frame.replace(size, told.to_bytes(4, "little"), 1)
    with pytest.raises(gpushard.CorruptShardError):
        opened(placed(tmp_path / "a", lies, frame), way)[5]


def test_a_checksum_around_a_frame_is_compared_all_the_same(way, tmp_path):
    import crc32c

    def checked(frame: bytes, data: bytes) -> bytes:
        return data + crc32c.crc32c(frame).to_bytes(4, "little")

    first, second = frames()
    chunks = checked(first, damaged(first, 2)), checked(second, second)
    a = opened(placed(tmp_path / "a", *chunks, codecs=(ZSTD, CRC)), way)
    with pytest.raises(gpushard.ChecksumError):
        a[5]
    assert_same_bits(a[N_ROWS + 5], values()[N_ROWS + 5])


@st.composite
def blocks(draw) -> bytes:
    """Frame of stored and repeated blocks of any sizes, which tells its size."""
    frame, left = MAGIC + b"\xa0" + NBYTES.to_bytes(4, "little"), NBYTES
    data = values()[:N_ROWS].tobytes()
    while left:
        n = min(draw(st.sampled_from([1, 5000, 70_000, BLOCK_NBYTES])), left)
        if left > 40 * n:
            n = min(BLOCK_NBYTES, left)
        is_repeated = draw(st.booleans())
        header = (n == left) | is_repeated << 1 | n << 3
        at = NBYTES - left
        frame += header.to_bytes(3, "little")
        frame += b"r" if is_repeated else data[at : at + n]
        left -= n
    return frame


@given(frame=blocks(), data=st.data())
def test_blocks_of_any_size_are_decoded_as_far_as_needed(frame, data):
    whole = zstandard.ZstdDecompressor().decompress(frame)
    stop = data.draw(st.integers(1, NBYTES))
    got = zstd.ZstdCodec("zstd", "").decode_range(frame, NBYTES, 0, stop)
    if stop > NBYTES - BLOCK_NBYTES:
        assert got is None
    else:
        assert got is not None
        assert bytes(got[:stop]) == whole[:stop]


@given(first=st.integers(0, 2 * N_ROWS - 1), n=st.integers(1, 600), data=st.data())
def test_any_rows_read_as_they_were_written(sound, first, n, data):
    key = slice(first, first + n), slice(data.draw(st.integers(0, 1000)), None, 3)
    for way in ("whole", "small"):
        assert_same_bits(opened(sound, way)[key], values()[key])


def test_damage_has_one_outcome_with_and_without_the_loops(tmp_path):
    pytest.importorskip("numba", reason="the compiled loops need numba")
    rng = np.random.default_rng(6)
    outcomes = set()
    for k in range(25):
        frame = bytearray(frames()[0])
        frame[int(rng.integers(len(frame) if k % 2 else 20))] ^= 1 << rng.integers(8)
        place = placed(tmp_path / str(k), bytes(frame), frames()[1])
        found = [outcome(place, way) for way in ("whole", "small")]
        assert found[0] == found[1]
        outcomes.add(found[0] == values()[200].tobytes())
    assert outcomes == {True, False}


def outcome(place, way: str) -> object:
    try:
        return opened(place, way)[200].tobytes()
    except gpushard.GpushardError as error:
        return str(error)


@pytest.fixture
def without_parts(monkeypatch):
    """A release of libzstd that decodes no parts."""
    monkeypatch.setattr(libzstd, "of_parts", lambda _: None)
    monkeypatch.setattr(placer, "_memory", ThreadMemory())
    libraries.find_library.cache_clear()
    yield
    libraries.find_library.cache_clear()


@pytest.mark.usefixtures("without_parts")
def test_a_libzstd_that_decodes_no_parts_decodes_whole_frames(way, sound, tmp_path):
    assert_same_bits(opened(sound, way)[5], values()[5])
    bad = placed(tmp_path / "a", damaged(frames()[0], 2), frames()[1])
    with pytest.raises(gpushard.CorruptShardError):
        opened(bad, way)[5]


def test_a_context_decodes_whole_frames_after_parts(sound):
    codec = zstd.ZstdCodec("zstd", "")
    frame, want = frames()[0], values()[:N_ROWS].tobytes()
    for stop in (1, 200_000, 300_000):
        part = codec.decode_range(frame, NBYTES, 0, stop)
        assert part is not None
        assert bytes(part[:stop]) == want[:stop]
        assert bytes(codec.decode(frame, NBYTES, exact=True)) == want


def test_frames_in_memory_are_decoded_in_part_too():
    first, second = frames()
    inner = sharding((N_ROWS, ROW_NBYTES), codecs=[LITTLE, ZSTD])
    wanted = document(values().shape, values().shape, inner)
    store = held(
        {
            "zarr.json": json.dumps(wanted).encode(),
            "c/0/0": shard_of(damaged(first, 2), second),
        }
    )
    a = gpushard.open_array(store, options=PLAIN.but(small_read_chunks=9))
    assert_same_bits(a[5], values()[5])
