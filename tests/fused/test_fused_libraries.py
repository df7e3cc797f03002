"""Deflate through libz and libdeflate, and contexts that end with their thread."""

from __future__ import annotations

import gc
import gzip
import json
import os
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest

import gpushard
from array_strategies import codec
from fused_cases import (
    CHAINS,
    FUSED,
    VALUES,
    assert_all_fused,
    assert_same_outcome,
    blosc,
    kind_of_sink,
    need_fast_packages,
    stored,
)
from gpushard.fused import choice, libraries, placer
from gpushard.fused.columns import GZIP, INFLATE, LIBDEFLATE
from gpushard.fused.thread_memory import ThreadMemory
from gpushard.fused.words import Decoder
from gpushard.placing.place import HostSink
from spec_shards import document, shard_of, sharding
from zarr_oracle import StoredArray, assert_same_bits, held

need_fast_packages()

# zarr 3.1 says so wherever one of numcodecs' codecs is made.
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in")

LIBRARIES = {"libz": INFLATE, "libdeflate": LIBDEFLATE}
BYTES = codec("bytes")
BOTH = pytest.mark.parametrize("name", ["gzip", "zlib"])


@pytest.fixture
def without(monkeypatch):
    """Makes libraries "not installed"; threads start without contexts."""

    def remove(*names: str) -> None:
        for name in names:
            monkeypatch.setattr(libraries, f"_{name}", lambda _: None)
        libraries.find_library.cache_clear()

    monkeypatch.setattr(placer, "_memory", ThreadMemory())
    yield remove
    monkeypatch.undo()
    libraries.find_library.cache_clear()


@pytest.fixture(params=LIBRARIES)
def library(request, without):
    without(*LIBRARIES.keys() - {request.param})
    found = libraries.find_library(GZIP)
    if found is None:
        pytest.skip(f"{request.param} is not installed on this system")
    assert found.kind == LIBRARIES[request.param]
    return request.param


@BOTH
def test_each_library_reads_all(name, library, seen, tmp_path):
    array = stored(CHAINS[name])
    for kind in ("local", "memory"):
        a = gpushard.open_array(array.placed(kind, tmp_path), options=FUSED)
        assert_same_bits(a[...], VALUES)
        assert_same_bits(a[::-3, 5:80:2], VALUES[::-3, 5:80:2])
    assert_all_fused(seen)


@BOTH
def test_without_any_library_the_plain_way_is_taken(name, without, seen):
    without(*LIBRARIES)
    a = gpushard.open_array(held(stored(CHAINS[name]).objects), options=FUSED)
    assert_same_bits(a[...], VALUES)
    assert [type(sink) for sink in seen.sinks] == [HostSink]


@BOTH
def test_on_a_system_that_has_no_libz_the_plain_way_is_taken(
    name, without, seen, monkeypatch
):
    without("libdeflate")
    monkeypatch.setattr(libraries, "_LIBZ", "libz.so.none")
    a = gpushard.open_array(held(stored(CHAINS[name]).objects), options=FUSED)
    assert_same_bits(a[...], VALUES)
    assert kind_of_sink(seen) is HostSink


@BOTH
def test_damage_is_read_or_refused_alike(name, library):
    objects = stored(CHAINS[name]).objects
    key = "c/0/0"
    rng = np.random.default_rng(list(name.encode()))
    outcomes = set()
    for i in range(30):
        damaged = bytearray(objects[key])
        # Every other time in the header of the first stream, which few bytes make up.
        at = int(rng.integers(12 if i % 2 else len(damaged)))
        damaged[at] ^= 1 << rng.integers(8)
        outcomes.add(assert_same_outcome(held({**objects, key: bytes(damaged)})))
    assert False in outcomes


# Four inner chunks, the second of which is a stream made by hand.

ELEMENTS = np.random.default_rng(4).integers(0, 5, (4, 16, 32), np.uint8)
RAW = ELEMENTS[1].tobytes()


def objects_with(name: str, stream: bytes) -> dict[str, bytes]:
    pack = gzip.compress if name == "gzip" else zlib.compress
    streams = [pack(chunk.tobytes()) for chunk in ELEMENTS]
    streams[1] = stream
    here = document(
        (64, 32), (64, 32), sharding((16, 32), codecs=[BYTES, *CHAINS[name]])
    )
    return {"zarr.json": json.dumps(here).encode(), "c/0/0": shard_of(*streams)}


def array_with(name: str, stream: bytes):
    return held(objects_with(name, stream))


def deflated(data: bytes, wbits: int, level: int = 6, strategy: int = 0) -> bytes:
    deflate = zlib.compressobj(level, wbits=wbits, strategy=strategy)
    return deflate.compress(data) + deflate.flush()


def member(flags: int = 0, fields: bytes = b"", *, sum_: int | None = None) -> bytes:
    """One gzip member; `sum_` is added to the checksum of its header."""
    head = b"\x1f\x8b\x08" + bytes([flags]) + bytes(6) + fields
    if sum_ is not None:
        head += struct.pack("<H", (zlib.crc32(head) + sum_) & 0xFFFF)
    return head + deflated(RAW, -15) + struct.pack("<II", zlib.crc32(RAW), len(RAW))


EXTRA, NAME = struct.pack("<H", 4) + b"abcd", b"name\0comment\0"
WHOLE = deflated(RAW, 31)
GZIP_STREAMS = {
    "every field": member(0x1C, EXTRA + NAME),
    "stored": deflated(RAW, 31, 0),
    "fixed codes": deflated(RAW, 31, 9, zlib.Z_FIXED),
    "no matches": deflated(RAW, 31, 9, zlib.Z_HUFFMAN_ONLY),
    "text": member(1),
}
# Legal and rare: both libraries leave them, or some, to the plain way.
RARE_GZIP_STREAMS = {
    "header checksum": member(2, sum_=0),
    "every field, header checksum": member(0x1E, EXTRA + NAME, sum_=0),
    "two members": gzip.compress(RAW[:100]) + gzip.compress(RAW[100:]),
    "empty members": gzip.compress(b"") + WHOLE + gzip.compress(b""),
    "one zero": WHOLE + b"\0",
    "many zeros": WHOLE + bytes(512),
    "zeros between": gzip.compress(RAW[:9]) + bytes(3) + gzip.compress(RAW[9:]),
}
DAMAGED_GZIP_STREAMS = {
    "nothing": b"",
    "one byte": b"\x1f",
    "three bytes": b"\x1f\x8b\x08",
    "wrong header checksum": member(2, sum_=1),
    "wrong header checksum behind fields": member(0x1E, EXTRA + NAME, sum_=1),
    "reserved flag": member(0x20),
    "one byte less": deflated(RAW[:-1], 31),
    "one byte more": deflated(RAW + b"a", 31),
    "truncated": WHOLE[:-1],
    "no checksum": WHOLE[:-8],
    "wrong checksum": WHOLE[:-8] + b"\0\0\0\0" + WHOLE[-4:],
    "wrong size": WHOLE[:-4] + b"\0\0\0\0",
    "rubbish behind": WHOLE + b"a",
    "zlib": zlib.compress(RAW),
    "plain": RAW,
}
ZLIB_WHOLE = zlib.compress(RAW)
ZLIB_STREAMS = {
    "stored": zlib.compress(RAW, 0),
    "best": zlib.compress(RAW, 9),
    "small window": deflated(RAW, 9),
    "fixed codes": deflated(RAW, 15, 9, zlib.Z_FIXED),
}
DAMAGED_ZLIB_STREAMS = {
    "nothing": b"",
    "truncated": ZLIB_WHOLE[:-1],
    "wrong checksum": ZLIB_WHOLE[:-1] + bytes([ZLIB_WHOLE[-1] ^ 1]),
    "zero behind": ZLIB_WHOLE + b"\0",
    "two": zlib.compress(RAW[:100]) + zlib.compress(RAW[100:]),
    "one byte less": zlib.compress(RAW[:-1]),
    "one byte more": zlib.compress(RAW + b"a"),
    "dictionary": b"\x78\xbb" + bytes(4) + ZLIB_WHOLE[2:],
    "gzip": WHOLE,
}


def test_gzip_streams_of_every_kind_are_read(library, seen):
    for what, stream in GZIP_STREAMS.items():
        a = gpushard.open_array(array_with("gzip", stream), options=FUSED)
        assert np.array_equal(a[...], ELEMENTS.reshape(64, 32)), what
    assert_all_fused(seen)


def test_several_members_and_zeros_are_left_to_the_plain_way(library, seen):
    for what, stream in RARE_GZIP_STREAMS.items():
        seen.n_left = 0
        a = gpushard.open_array(array_with("gzip", stream), options=FUSED)
        assert np.array_equal(a[...], ELEMENTS.reshape(64, 32)), what
        assert seen.n_left == 1 or "header" in what


def test_zlib_streams_of_every_kind_are_read(library, seen):
    for what, stream in ZLIB_STREAMS.items():
        a = gpushard.open_array(array_with("zlib", stream), options=FUSED)
        assert np.array_equal(a[...], ELEMENTS.reshape(64, 32)), what
    assert_all_fused(seen)


@pytest.mark.parametrize("what", DAMAGED_GZIP_STREAMS)
def test_damaged_gzip_streams_are_refused_alike(what, library):
    assert not assert_same_outcome(array_with("gzip", DAMAGED_GZIP_STREAMS[what]))


@pytest.mark.parametrize("what", DAMAGED_ZLIB_STREAMS)
def test_damaged_zlib_streams_are_refused_alike(what, library):
    assert not assert_same_outcome(array_with("zlib", DAMAGED_ZLIB_STREAMS[what]))


def test_a_stream_of_more_bytes_than_any_encoding_needs_is_refused(way, seen, tmp_path):
    source = gpushard.open_array(array_with("gzip", WHOLE)).source
    most = source.pipeline.encoded_limit((16, 32))
    for nbytes in (most, most + 1):
        name = b"n" * (nbytes - len(member(8, b"\0"))) + b"\0"
        objects = objects_with("gzip", member(8, name))
        place = StoredArray(objects, ELEMENTS).placed("local", tmp_path)
        a = gpushard.open_array(place, options=FUSED)
        if nbytes == most:
            assert np.array_equal(a[...], ELEMENTS.reshape(64, 32))
            assert_all_fused(seen)
        else:
            with pytest.raises(gpushard.CorruptShardError, match="than any encoding"):
                a[...]


def test_of_blosc_frames_only_those_without_lz4_need_a_library(
    without, monkeypatch, seen
):
    for name in ("_system_zstd", "_wheel_zstd"):
        monkeypatch.setattr(libraries, name, lambda: None)
    without()
    for name, leaves in (("lz4", False), ("zstd", True)):
        objects = stored(CHAINS[f"blosc {name} shuffle 0"]).objects
        a = gpushard.open_array(held(objects), options=FUSED)
        seen.n_left = 0
        assert_same_bits(a[...], VALUES)
        assert (seen.n_left > 0) == leaves
        assert type(seen.sinks.pop()) is not HostSink


def test_blosc_frames_of_zlib_go_the_plain_way_without_libdeflate(without, seen):
    without("libdeflate")
    objects = stored([blosc("zlib", "shuffle")]).objects
    a = gpushard.open_array(held(objects), options=FUSED)
    assert_same_bits(a[...], VALUES)
    assert type(seen.sinks.pop()) is HostSink


# What the loops ask of the libraries, as Python runs them.

DECODER = Decoder(*range(1000, 1000 + len(Decoder._fields)))


@pytest.fixture
def asked(monkeypatch):
    """The steps of deflate, and arguments of what they call, which always fails."""
    from gpushard.fused.compiled import decoding

    calls = []

    def call(_, arguments):
        calls.append(arguments)
        return -1

    for name in ("call_reset", "call_inflate", "call_libdeflate"):
        monkeypatch.setattr(decoding.calls, name, call)
    monkeypatch.setattr(decoding.calls, "load_32", None)  # there is nothing to read
    return decoding, calls


def test_a_stream_of_more_bytes_than_libz_counts_is_left_to_the_plain_way(asked):
    decoding, calls = asked
    assert not decoding._inflate.py_func(DECODER, 0, 1 << 32, 0)
    assert not calls
    assert not decoding._inflate.py_func(DECODER, 0, (1 << 32) - 1, 0)
    assert calls == [(DECODER.context,)]


def test_nothing_beyond_a_stream_of_a_few_bytes_is_read(asked):
    decoding, calls = asked
    for nbytes in range(4):
        assert not decoding._libdeflate.py_func(DECODER, 0, nbytes, 0)
    assert len(calls) == 4


def test_libdeflate_counts_in_the_bytes_ahead_of_the_scratch(asked):
    decoding, calls = asked
    decoding._libdeflate.py_func(DECODER, 0, 0, 0)
    [(*_, count, _)] = calls
    assert DECODER.scratch - 16 <= count <= DECODER.scratch - 8


# Contexts


@pytest.fixture
def owned(monkeypatch):
    """How many contexts were made, and how many freed."""
    counts = {"made": 0, "freed": 0}
    plain = libraries._owned

    def count(context, free, memory=None):
        def counted(address):
            counts["freed"] += 1
            free(address)

        counts["made"] += 1
        return plain(context, counted, memory)

    monkeypatch.setattr(libraries, "_owned", count)
    return counts


def resident_nbytes() -> int:
    n_pages = Path("/proc/self/statm").read_text().split()[1]
    return int(n_pages) * os.sysconf("SC_PAGESIZE")


def read_in_threads(array: gpushard.Array, n: int) -> None:
    """Read in `n` threads, each of which ends before the next begins."""
    wrong: list[int] = []

    def read(k: int) -> None:
        if not np.array_equal(array[k % 9 :], VALUES[k % 9 :]):
            wrong.append(k)

    for k in range(n):
        thread = threading.Thread(target=read, args=(k,))
        thread.start()
        thread.join()
    assert not wrong


def assert_threads_leave_nothing(array: gpushard.Array, most_nbytes: int) -> int:
    """Number of threads that ran; a leak shows in every round of them."""
    for n_rounds in range(1, 4):
        gc.collect()
        before = resident_nbytes()
        read_in_threads(array, 150)
        if resident_nbytes() - before < most_nbytes:
            return n_rounds * 150
    raise AssertionError("every round of threads takes more memory")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux tells sizes")
@pytest.mark.parametrize("name", ["gzip", "zlib"])
def test_deflate_contexts_end_with_their_threads(name, library, owned):
    a = gpushard.open_array(held(stored(CHAINS[name]).objects), options=FUSED)
    # A context takes 7 KiB and more.
    n = assert_threads_leave_nothing(a, 150 * 5000)
    assert owned == {"made": n, "freed": n}


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux tells sizes")
@pytest.mark.parametrize("name", ["zstd", "blosc zstd shuffle 0"])
def test_other_contexts_end_with_their_threads(name, without, owned):
    without()
    a = gpushard.open_array(held(stored(CHAINS[name]).objects), options=FUSED)
    # zstd's takes 90 KiB and more; it is owned by cffi.
    assert_threads_leave_nothing(a, 150 * 40000)
    assert owned["made"] == owned["freed"] == 0


def test_a_context_that_cannot_be_made_leaves_all_to_the_plain_way(
    library, monkeypatch, seen
):
    found = libraries.find_library(GZIP)
    broken = found._replace(make_context=lambda: (0, None))
    monkeypatch.setattr(choice, "find_library", lambda *_, **__: broken)
    a = gpushard.open_array(held(stored(CHAINS["gzip"]).objects), options=FUSED)
    assert_same_bits(a[...], VALUES)
    assert seen.n_left > 0
