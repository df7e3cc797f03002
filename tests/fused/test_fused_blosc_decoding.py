"""The compiled loops decode Blosc frames as c-blosc does, in bounds."""

from __future__ import annotations

import ctypes
import itertools
import json
import struct
import zlib
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs.blosc import Blosc

from lz4_blocks import GuardedRoom, sequence

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

import gpushard
from fused_cases import FUSED, VALUES, blosc, stored
from gpushard.codecs import blosc_frame, libdeflate
from gpushard.codecs.blosc import BloscCodec
from gpushard.fused.columns import BLOSC, BLOSC_ZLIB
from gpushard.fused.compiled import blosc_frames
from gpushard.fused.libraries import find_library
from gpushard.fused.words import TILE_NBYTES
from gpushard.placing.place import HostSink
from zarr_oracle import assert_same_bits, held

CANARY = b"\xa5" * 64
HAS_ZLIB = libdeflate.find() is not None
COMPRESSORS = ("lz4", "lz4hc", "zstd", "blosclz", *(("zlib",) * HAS_ZLIB))
MOST = 1 << 18


class Decoding:
    """The compiled decoder between pages that kill who touches them."""

    def __init__(self) -> None:
        from numba import njit

        called = blosc_frames.decode_frame

        @njit
        def run(library, source, nbytes, target, expected, how):
            return called(library, source, nbytes, target, expected, how)

        self._used = np.zeros(1, np.int64)
        used = {BLOSC: 0, BLOSC_ZLIB: self._used.ctypes.data}
        found = {kind: find_library(kind) for kind in used}
        self._contexts = {
            kind: library.make_context() for kind, library in found.items() if library
        }
        self.libraries = {
            kind: (found[kind].decode, context, used[kind])
            for kind, (context, _) in self._contexts.items()
        }
        self._run = run
        self._rooms = [GuardedRoom(2 * MOST) for _ in range(3)]

    def __call__(self, frame: bytes, nbytes: int, wanted=None) -> bytes | None:
        """The wanted bytes of a frame that should decode to so many; None if refused.

        Both ends of all memory are tried: bytes on the near side are readable, but
        nobody's business.
        """
        first, stop = wanted or (0, nbytes)
        is_zlib = len(frame) > 2 and frame[2] >> 5 == blosc_frame.ZLIB
        library = self.libraries.get(BLOSC_ZLIB if is_zlib else BLOSC, (0, 0, 0))
        found = set()
        for at_end in (False, True):
            source = self._rooms[0].place(frame, at_end=at_end)
            padded = CANARY + bytes(nbytes) if at_end else bytes(nbytes) + CANARY
            target = self._rooms[1].place(padded, at_end=at_end)
            target += len(CANARY) if at_end else 0
            block = bytes(TILE_NBYTES + min(nbytes, 1 << 20))
            how = (first, stop), self._rooms[2].place(block, at_end=at_end)
            at = self._run(library, source, len(frame), target, nbytes, how)
            beside = target - len(CANARY) if at_end else target + nbytes
            assert ctypes.string_at(beside, len(CANARY)) == CANARY
            assert ctypes.string_at(source, len(frame)) == frame
            found.add(ctypes.string_at(at + first, stop - first) if at else None)
        assert len(found) == 1
        return found.pop()


@pytest.fixture(scope="module")
def decode():
    return Decoding()


def elements(kind: str, nbytes: int) -> bytes:
    rng = np.random.default_rng(nbytes)
    if kind == "noise":
        return rng.bytes(nbytes)
    if kind == "zeros":
        return bytes(nbytes)
    steps = np.cumsum(rng.integers(-3, 4, nbytes // 4 + 1))
    return steps.astype("<i4").tobytes()[:nbytes]


def encoded(data: bytes, cname: str, itemsize: int, shuffle: int, **how) -> bytes:
    items = np.frombuffer(data, "u1")
    return bytes(Blosc(cname, shuffle=shuffle, typesize=itemsize, **how).encode(items))


def combinations(nth: int) -> Iterator[tuple[int, int, str, int, bool]]:
    """Filter, number of items, their kind, size of blocks, and whether one is odd.

    Every filter meets every number of items. The rest turns with these and with `nth`,
    so that other pairs meet too; `./dev explore` takes all.
    """
    sizes = (0, 1024)
    most = itertools.product((0, 1, 2), (8000,), ("steps",), sizes, (False,))
    few = itertools.product((0, 1, 2), (1, 8, 64, 130, 1000))
    rest = [*itertools.product(("steps", "noise", "zeros"), sizes, (False, True))]
    if settings.get_current_profile_name() == "explore":
        yield from itertools.product((0, 1, 2), (8000,), ("steps",), sizes, (True,))
        yield from ((*first, *more) for first in few for more in rest)
    else:
        for k, first in enumerate(few):
            yield *first, *rest[(7 * k + 5 * nth) % len(rest)]
    yield from most


@pytest.mark.parametrize("cname", COMPRESSORS)
@pytest.mark.parametrize("itemsize", range(1, 21))
def test_frames_of_every_item_size_are_decoded_as_by_cblosc(decode, cname, itemsize):
    n_refused = n = 0
    for how in combinations(itemsize + COMPRESSORS.index(cname)):
        shuffle, n_items, kind, blocksize, is_odd = how
        data = elements(kind, n_items * itemsize) + is_odd * b"\7" * (itemsize // 2)
        frame = encoded(data, cname, itemsize, shuffle, blocksize=blocksize)
        got = decode(frame, len(data))
        n, n_refused = n + 1, n_refused + (got is None)
        assert got in (None, data)
    # Frames that some libraries decode differently are for the plain way.
    assert n_refused < n / 2


@pytest.mark.parametrize("cname", COMPRESSORS)
@pytest.mark.parametrize("clevel", range(10))
def test_frames_of_every_level_are_decoded(decode, cname, clevel):
    for k in (clevel, clevel + 2):
        data = elements("steps", MOST)
        frame = encoded(data, cname, 1 << k % 5, k % 3, clevel=clevel)
        assert decode(frame, len(data)) == data


@st.composite
def frames(draw) -> tuple[bytes, bytes]:
    """Elements, and a frame of them."""
    itemsize = draw(st.sampled_from([1, 2, 3, 4, 8, 16]))
    kind = draw(st.sampled_from(["steps", "noise", "zeros"]))
    # c-blosc makes no smaller blocks of split streams than 64 KiB.
    n = draw(st.sampled_from([1, 100, 1000, 1 << 16, 2 * (1 << 16)]))
    n_items = (n + draw(st.integers(0, 5000))) // itemsize
    data = elements(kind, max(n_items // 8 * 8, 1) * itemsize)
    cname, shuffle = draw(st.sampled_from(COMPRESSORS)), draw(st.integers(0, 2))
    blocksize = draw(st.sampled_from([0, 512, 4096, 8192]))
    return data, encoded(data, cname, itemsize, shuffle, blocksize=blocksize)


@given(frames(), st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_of_a_frame_any_part_is_decoded_alone(decode, made, ends):
    data, frame = made
    first, stop = sorted(round(end * len(data)) for end in ends)
    got = decode(frame, len(data), (first, stop))
    assert got in (None, data[first:stop])
    if decode(frame, len(data)) is not None:
        assert got is not None


def test_blocks_without_wanted_bytes_are_not_decoded(decode):
    data = elements("steps", MOST)
    for cname in COMPRESSORS:
        frame = bytearray(encoded(data, cname, 4, 1, blocksize=2048))
        (n,) = struct.unpack_from("<I", frame, 8)
        starts = struct.unpack_from(f"<{MOST // n}I", frame, 16)
        assert len(starts) > 3
        frame[starts[3] - 9 : starts[3]] = b"\xff" * 9
        for first, stop in ((0, MOST), (2 * n - 1, 3 * n), (3 * n - 1, 3 * n)):
            assert decode(bytes(frame), MOST, (first, stop)) is None
        for first, stop in ((0, 2 * n), (3 * n, MOST), (n + 5, n + 6)):
            assert decode(bytes(frame), MOST, (first, stop)) == data[first:stop]


@pytest.mark.parametrize(("itemsize", "shuffle"), [(1, 0), (4, 1), (16, 1)])
@pytest.mark.parametrize("cname", ["lz4", "blosclz"])
def test_streams_are_decoded_as_far_as_they_are_needed(
    decode, cname, itemsize, shuffle
):
    data = np.random.default_rng(0).integers(0, 4, MOST, np.uint8).tobytes()
    if cname == "blosclz":  # which stores what has no long matches
        data = bytes(np.repeat(np.frombuffer(data, "u1")[: MOST // 32], 32))
    frame = bytearray(encoded(data, cname, itemsize, shuffle, blocksize=32768))
    frame[-60:] = b"\xff" * 60
    first, stop = MOST - 32768, MOST - 4096
    assert decode(bytes(frame), MOST, (first, MOST)) is None
    assert decode(bytes(frame), MOST, (first, stop)) == data[first:stop]


@pytest.mark.parametrize("stop", [*range(4001, 4010), 4001 + 4 * 37])
def test_an_item_that_is_wanted_in_part_is_decoded(decode, stop):
    items = np.zeros((1 << 14, 4), np.uint8)
    # Bytes that do not get smaller are stored as they are, and copied exactly.
    items[:, 0] = np.frombuffer(np.random.default_rng(0).bytes(len(items)), np.uint8)
    data = items.tobytes()
    frame = encoded(data, "lz4", 4, 1)
    assert decode(frame, len(data), (3 * stop // 4, stop)) == data[3 * stop // 4 : stop]


def test_blocks_may_share_their_streams_or_have_them_in_any_order(decode):
    block = elements("steps", 512)
    stream = encoded(block, "lz4", 4, 1, blocksize=512)[20:]
    starts = [28, 28, 28]
    sizes = 1536, 512, 28 + len(stream)
    head = struct.pack("<4B6I", 2, 1, 1 << 5 | 1, 4, *sizes, *starts)
    assert decode(head + stream, 1536) == 3 * block


def test_without_libraries_all_other_frames_are_decoded(decode):
    data = elements("steps", 4096)
    found, decode.libraries = decode.libraries, {}
    try:
        got = [decode(encoded(data, name, 4, 1), 4096) for name in COMPRESSORS]
    finally:
        decode.libraries = found
    assert got == [data, data, None, data, *((None,) * HAS_ZLIB)]


@pytest.mark.skipif(not HAS_ZLIB, reason="this system has no libdeflate")
@pytest.mark.parametrize("kind", [BLOSC, BLOSC_ZLIB])
def test_a_library_is_given_no_frames_of_another_compressor(decode, kind):
    data = elements("steps", 4096)
    found = decode.libraries
    decode.libraries = dict.fromkeys(found, found[kind])
    try:
        got = {name: decode(encoded(data, name, 4, 1), 4096) for name in COMPRESSORS}
    finally:
        decode.libraries = found
    refused = "zlib" if kind == BLOSC else "zstd"
    assert [name for name, decoded in got.items() if decoded is None] == [refused]
    assert set(got.values()) == {data, None}


def one_stream(compressor: int, data: bytes, stream: bytes) -> bytes:
    """Frame of one block, which is not filtered."""
    sizes = len(data), len(data), 24 + len(stream), 20, len(stream)
    return struct.pack("<4B5I", 2, 1, compressor << 5 | 16, 1, *sizes) + stream


def test_a_stream_may_be_longer_than_what_it_decodes_to(decode):
    data = elements("noise", 600)
    assert decode(one_stream(blosc_frame.LZ4, data, sequence(data, None)), 600) == data


def blosclz_match(nbytes: int, distance: int) -> bytes:
    """The bytes of a match, whose length and distance are checked by nobody."""
    rest = nbytes - 2
    first, more = (rest, b"") if rest < 7 else (7, b"")
    if rest >= 7:
        more = b"\xff" * ((rest - 7) // 255) + bytes([(rest - 7) % 255])
    near = min(distance - 1, 8191)
    far = struct.pack(">H", distance - 1 - near) if near == 8191 else b""
    return bytes([first << 5 | near >> 8]) + more + bytes([near & 255]) + far


LITERALS = b"\x02abc"


@pytest.mark.parametrize("nbytes", [3, 8, 9, 262, 263, 264, 600])
@pytest.mark.parametrize("distance", [1, 2, 3, 7, 8, 9, 16, 8191, 8192, 8193, 20000])
@pytest.mark.parametrize("n_behind", [1, 7, 8, 32])
def test_matches_of_blosclz_repeat_what_lies_before_them(
    decode, nbytes, distance, n_behind
):
    before = elements("noise", max(distance, 32) // 32 * 32 + 32)
    parts = [b"\x0f" + before[k : k + 16] for k in range(0, len(before), 16)]
    behind = bytes(range(n_behind))
    match = blosclz_match(nbytes, distance)
    stream = b"".join(parts) + match + bytes([n_behind - 1]) + behind
    data = bytearray(before)
    for _ in range(nbytes):
        data.append(data[-distance])
    data += behind
    assert len(stream) != len(data)  # which would be a stored one
    frame = one_stream(blosc_frame.BLOSCLZ, bytes(data), stream)
    assert decode(frame, len(data)) == bytes(data)
    plain = BloscCodec("blosc", "").decode(frame, len(data), exact=True)
    assert bytes(plain) == bytes(data)


@pytest.mark.parametrize(
    ("stream", "nbytes"),
    [
        (LITERALS + blosclz_match(9, 1), 12),  # ends with a match
        (LITERALS + blosclz_match(9, 4) + LITERALS, 15),  # before the first byte
        (LITERALS + blosclz_match(10, 1) + LITERALS, 15),  # one byte too many
        (LITERALS + blosclz_match(8, 1) + LITERALS, 15),  # one byte too few
        (LITERALS + blosclz_match(9, 1) + LITERALS[:-1], 15),
        (LITERALS + b"\xe0\xff\xff", 15),  # a length with no end
        (LITERALS + b"\x3f\xff\x00", 15),  # half of a distance
        (LITERALS + b"\x20", 15),
    ],
)
def test_streams_of_blosclz_that_make_no_sense_are_refused(decode, stream, nbytes):
    good = LITERALS + blosclz_match(9, 1) + LITERALS
    assert decode(one_stream(blosc_frame.BLOSCLZ, bytes(15), good), 15)
    frame = one_stream(blosc_frame.BLOSCLZ, bytes(nbytes), stream)
    assert decode(frame, nbytes) is None


def test_a_stream_of_several_zstd_frames_is_left_to_others(decode):
    data = elements("steps", 600)
    pack = zstandard.ZstdCompressor().compress
    assert decode(one_stream(blosc_frame.ZSTD, data, pack(data)), 600) == data
    two = pack(data[:300]) + pack(data[300:])
    assert decode(one_stream(blosc_frame.ZSTD, data, two), 600) is None


@pytest.mark.skipif(not HAS_ZLIB, reason="this system has no libdeflate")
def test_a_stream_of_zlib_is_decoded_only_to_its_end_and_size(decode):
    data = elements("steps", 600)
    stream = zlib.compress(data)
    assert decode(one_stream(blosc_frame.ZLIB, data, stream), 600) == data
    for other in (stream + b"\0", stream[:-1], zlib.compress(data[:-1])):
        assert decode(one_stream(blosc_frame.ZLIB, data, other), 600) is None
    longer = one_stream(blosc_frame.ZLIB, data[:-1], stream)
    assert decode(longer, 599) is None


@pytest.mark.parametrize("cname", COMPRESSORS)
@pytest.mark.parametrize("shuffle", [0, 1, 2])
def test_damaged_frames_are_decoded_as_on_the_plain_way_or_refused(
    decode, cname, shuffle
):
    rng = np.random.default_rng([shuffle, len(cname)])
    found: Counter[str] = Counter()
    for i in range(600):
        itemsize = int(rng.choice([1, 2, 4, 8]))
        data = elements("steps", int(rng.integers(1, 40)) * 64 * itemsize)
        frame = bytearray(encoded(data, cname, itemsize, shuffle, blocksize=1024))
        for _ in range(rng.integers(1, 4)):
            near = 48 if i % 2 else len(frame)
            frame[int(rng.integers(min(near, len(frame))))] ^= 1 << rng.integers(8)
        got = decode(bytes(frame), len(data))
        found["refused" if got is None else "decoded"] += 1
        if got is not None:
            plain = BloscCodec("blosc", "").decode(bytes(frame), len(data), exact=True)
            assert got == bytes(plain)
    # Streams of zlib have a checksum, so nearly all damage is found.
    assert found["refused"] > 40
    assert found["decoded"] > (0 if cname == "zlib" else 40)


@pytest.mark.parametrize("name", ["snappy", "lz4", "zstd"])
def test_frames_of_zlib_in_an_array_of_another_compressor_are_read(name, seen):
    objects = stored([blosc("zlib", "shuffle")]).objects
    named = json.loads(objects["zarr.json"])
    text = json.dumps(named).replace('"zlib"', f'"{name}"')
    other = {**objects, "zarr.json": text.encode()}
    a = gpushard.open_array(held(other), options=FUSED)
    assert_same_bits(a[...], VALUES)
    if name == "snappy":
        assert type(seen.sinks.pop()) is HostSink
    else:
        assert seen.n_left > 0


@pytest.mark.skipif(not HAS_ZLIB, reason="this system has no libdeflate")
@pytest.mark.parametrize("name", ["lz4", "zstd", "blosclz"])
def test_frames_in_an_array_of_zlib_may_have_another_compressor(name, seen):
    objects = stored([blosc(name, "shuffle")]).objects
    named = json.loads(objects["zarr.json"])
    text = json.dumps(named).replace(f'"{name}"', '"zlib"')
    other = {**objects, "zarr.json": text.encode()}
    a = gpushard.open_array(held(other), options=FUSED)
    assert_same_bits(a[...], VALUES)
    assert (seen.n_left > 0) == (name == "zstd")
