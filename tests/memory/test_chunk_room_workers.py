"""Inner chunks that threads decode side by side have room together."""

from __future__ import annotations

import bz2
import json
import mmap
import struct
import sys
import tracemalloc
import zlib
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import zstandard

import gpushard
from asked_store import BY_PRICE, put
from asked_store import opened as asked
from gpushard import codecs, pages
from gpushard.codecs import base
from gpushard.fused import choice, placer
from gpushard.fused.short.ways import short_ways
from gpushard.layout import CodecSpec
from gpushard.memory import chunk_room
from gpushard.memory.chunk_room import usual_stored
from gpushard.options import GIB, KIB, MIB
from gpushard.reading import rounds
from gpushard.reading.results import host_job
from gpushard.report import Tally
from gpushard.selecting.expressions import basic, orthogonal
from hostile_shards import ZSTD
from spec_shards import LITTLE, document, sharding
from zarr_oracle import held

N = 256 * KIB
LEAST = 64 * MIB


def source_of(n: int, **given: Any) -> Any:
    """Source of an array of eight chunks of `n` compressed bytes."""
    layout = document((8 * n,), (n,), LITTLE, ZSTD)
    store = held({"zarr.json": json.dumps(layout).encode()})
    return gpushard.open_array(store, options=gpushard.Options(**given)).source


def test_threads_leave_room_for_three_inner_chunks_more():
    source = source_of(10 * MIB, memory_limit=100 * MIB)
    assert source.room.most_workers == (100 - 30) // 20
    assert source_of(MIB, memory_limit=2 * MIB).room.most_workers == 1
    assert source_of(MIB, memory_limit=8 * MIB).room.most_workers == 4


@pytest.mark.parametrize("n_threads", [1, 2, 7, 64])
@pytest.mark.parametrize("n", [3 * MIB, 20 * MIB, 64 * MIB])
def test_a_bound_for_some_threads_is_the_least_in_which_they_fit(n, n_threads):
    least = source_of(n).room.bound_for(n_threads)
    assert source_of(n, memory_limit=least).room.most_workers >= n_threads
    less = least - least // 100
    if n_threads > 1 and less > LEAST:  # a lower limit bounds less than the whole
        assert source_of(n, memory_limit=less).room.most_workers < n_threads


def test_a_limit_that_is_left_open_lets_all_threads_decode(monkeypatch):
    """Of inner chunks of 64 MiB, the default of 256 MiB has room for one."""
    monkeypatch.setattr("gpushard.options.usable_memory_nbytes", lambda: 24 * GIB)
    source = source_of(64 * MIB, threads=8)
    assert source.room.most_workers == 8
    assert GIB < source.options.memory_limit == source.options.bound_nbytes < 2 * GIB
    assert source.limited(256 * MIB).room.most_workers == 1
    assert source_of(64 * MIB, threads=8, memory_limit=256 * MIB).most_workers == 1
    assert source_of(2 * MIB, threads=8).options.memory_limit == 256 * MIB


def test_threads_take_an_eighth_of_the_memory_if_the_limit_is_left_open(monkeypatch):
    monkeypatch.setattr("gpushard.options.usable_memory_nbytes", lambda: 8 * GIB)
    source = source_of(64 * MIB, threads=64)
    assert source.options.memory_limit == GIB
    assert 1 < source.room.most_workers < 8
    monkeypatch.setattr("gpushard.options.usable_memory_nbytes", lambda: GIB)
    assert source_of(64 * MIB, threads=64).options.memory_limit == 256 * MIB


def test_eight_workers_of_a_network_fit_a_limit_that_is_left_open(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("gpushard.options.usable_memory_nbytes", lambda: 24 * GIB)
    place = put(tmp_path, document((512 * MIB,), (64 * MIB,), LITTLE, ZSTD))
    a, _ = asked(place, BY_PRICE, threads=1)
    assert a.source.most_workers == 8


def test_threads_leave_room_for_what_their_libraries_keep(monkeypatch):
    kept, n = "gpushard.memory.chunk_room._CONTEXTS_NBYTES", 64 * KIB

    def room_for(kept_nbytes: int) -> Any:
        monkeypatch.setattr(kept, kept_nbytes)
        found = source_of(n, memory_limit=LEAST, threads=64).room
        # Computed when they are asked for first.
        return found.most_workers, found.most_window_nbytes, found.most_fetched_nbytes

    most, window, _ = room_for(0)
    assert most > 64
    assert room_for(64 * KIB)[:2] == (pytest.approx(most, abs=most / 2), window - n)
    fewer, _, fetched = room_for(3 * MIB)
    assert fewer * (3 * MIB + 2 * n) <= LEAST
    assert fetched <= LEAST - fewer * 3 * MIB - (3 + fewer) * n


def test_memory_is_crowded_by_what_threads_keep_and_by_what_was_fetched():
    room = source_of(MIB, memory_limit=8 * MIB).room
    for keeps_fetched, fetched in ((False, 4 * MIB), (True, 8 * MIB)):
        room = replace(room, keeps_fetched=keeps_fetched)
        # Twice, as the C library keeps about as much as is in use.
        each = (room.alone_nbytes - fetched) // (2 * room._n_threads)
        more = each - room.whole_nbytes - room.work_nbytes
        assert more > 0
        assert not room.is_crowded_by(more)
        assert room.is_crowded_by(more + 1)
    assert not replace(room, is_raw=True).is_crowded_by(64 * MIB)


def test_beside_an_inner_chunk_that_takes_most_no_more_is_fetched():
    n = 60 * MIB
    source = source_of(n, memory_limit=LEAST)
    out = np.empty(0, np.uint8)
    selection = basic(slice(0), source.layout.shape)
    job = host_job(source, [selection], [out], Tally())
    assert source.room.is_tight
    left = LEAST - 2 * MIB - n
    assert job.max_request_nbytes == job.batch_nbytes(8 * n, 1) == left
    wide = host_job(source.limited(16 * n), [selection], [out], Tally())
    assert wide.max_request_nbytes > left


@pytest.fixture
def padded(tmp_path):
    """Four inner chunks that are stored in twice their size."""
    pad = struct.pack("<II", 0x184D2A50, 2 * N) + bytes(2 * N)
    data = zstandard.ZstdCompressor().compress(bytes(N))
    data += pad
    shard = sharding((N,), codecs=[LITTLE, ZSTD], index_codecs=[LITTLE])
    entries = np.array([[k * len(data), len(data)] for k in range(4)], "<u8")
    meta = document((4 * N,), (4 * N,), shard)
    return put(tmp_path, meta, c_0=data * 4 + entries.tobytes())


@pytest.mark.parametrize("n_small", [0, 8])
@pytest.mark.parametrize("n_selections", [1, 2])
def test_what_threads_read_from_files_fits_the_limit(
    padded, monkeypatch, n_small, n_selections
):
    pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")
    choice._load()
    monkeypatch.setattr("gpushard.options.LEAST_MEMORY_NBYTES", 1)
    windows: list[int] = []
    run = placer.BoxPlacer.run

    def noted(self: Any, columns: Any, window_nbytes: int = 0, *shares: Any) -> Any:
        windows.append(window_nbytes)
        return run(self, columns, window_nbytes, *shares)

    monkeypatch.setattr(placer.BoxPlacer, "run", noted)
    options = gpushard.Options(
        compile_nbytes=0,
        threads=2,
        memory_limit=5 * N + N // 2,
        small_read_chunks=n_small,
    )
    a = gpushard.open_array(padded, device="cpu", options=options)
    monkeypatch.setattr("gpushard.memory.chunk_room._FIXED_NBYTES", 0)
    monkeypatch.setattr("gpushard.memory.chunk_room._CONTEXTS_NBYTES", 0)
    bounds = np.linspace(0, 4 * N, n_selections + 1).astype(int).tolist()
    for got in a.read_many([slice(*cut) for cut in pairwise(bounds)]):
        assert not got.any()
    assert all(w <= a.source.room.most_window_nbytes for w in windows)


def test_windows_leave_room_for_an_inner_chunk_of_fill_values(monkeypatch):
    monkeypatch.setattr("gpushard.memory.chunk_room._FIXED_NBYTES", 0)
    layout = document((8 * N,), (N,), sharding((N,), codecs=[LITTLE]))
    store = held({"zarr.json": json.dumps(layout).encode()})
    options = gpushard.Options(threads=4, memory_limit=LEAST)
    room = gpushard.open_array(store, options=options).source.room
    assert room.most_filling_nbytes == LEAST // 8
    assert room.most_window_nbytes == (LEAST - LEAST // 8) // 4
    packed = source_of(N, memory_limit=LEAST).room
    assert packed.most_filling_nbytes == LEAST // 5  # as it counts one decoded


@pytest.mark.parametrize("threads", [1, 3])
def test_windows_fill_the_bound_beside_what_else_is_held(threads):
    room = source_of(N, memory_limit=LEAST, threads=threads).room
    # A frame may grow beyond what it decodes to: `whole_nbytes` counts no growth.
    window = room.most_window_nbytes - (usual_stored(N) - N)
    each = window + room.work_nbytes + chunk_room._CONTEXTS_NBYTES
    held = threads * each + chunk_room._SPARE * room.work_nbytes
    held += chunk_room._FIXED_NBYTES + LEAST // chunk_room._FREED_SHARE
    assert LEAST - threads < held <= LEAST


def test_the_short_way_leaves_tight_reads_to_others(padded, monkeypatch):
    pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")
    choice._load()
    monkeypatch.setattr("gpushard.options.LEAST_MEMORY_NBYTES", 1)
    options = gpushard.Options(compile_nbytes=0)
    source = gpushard.open_array(padded, device="cpu", options=options).source
    assert short_ways(source.limited(5 * N)).short is not None
    assert short_ways(source.limited(5 * N - 1)).short is None


def test_a_read_in_one_call_is_for_limits_with_room_for_what_threads_keep(padded):
    pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")
    choice._load()
    options = gpushard.Options(compile_nbytes=0)
    for fact in ({}, {"is_crowded": True}, {"most_window_nbytes": 1}):
        source = gpushard.open_array(padded, device="cpu", options=options).source
        vars(source.room).update({"is_crowded": False, **fact})
        assert (short_ways(source).single is None) == bool(fact)
        assert short_ways(source).short is not None


def test_columns_of_index_arrays_are_held_beside_the_rest(tmp_path):
    meta = document((1000,), (10,), LITTLE)
    a, _ = asked(put(tmp_path, meta), memory_limit=LEAST)
    wanted = [orthogonal((np.arange(700),), a.shape) for _ in range(2)]
    left: list[int] = []
    rounds.read_in_rounds(
        a.source,
        wanted,
        [None] * 2,
        lambda source, *_: left.append(source.options.bound_nbytes),
    )
    assert left == [LEAST - 2 * 700 * 96]


@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize("name", ["gzip", "numcodecs.zlib", "numcodecs.bz2"])
def test_streams_are_held_once_while_they_are_decoded(name, is_exact):
    n = 8 * MIB
    encoded = STREAMS[name](bytes(n))
    codec = codecs.bytes_codec(CodecSpec(name, {}))
    tracemalloc.start()
    try:
        assert len(codec.decode(encoded, n, exact=is_exact)) == n
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < n * 5 // 4 + MIB


@pytest.mark.parametrize("name", ["gzip", "numcodecs.zlib", "numcodecs.bz2"])
def test_so_are_larger_ones_than_were_thought_of(name, monkeypatch):
    made: list[int] = []
    mapped = pages.mapped_pages
    monkeypatch.setattr(base, "_UNTOLD_NBYTES", MIB)
    for module in (base, pages):
        monkeypatch.setattr(
            module, "mapped_pages", lambda n: made.append(n) or mapped(n)
        )
    items = np.random.default_rng(2).integers(0, 4, 5 * MIB // 64, "u1")
    data = np.repeat(items, 64).tobytes()
    codec = codecs.bytes_codec(CodecSpec(name, {}))
    encoded = STREAMS[name](data)
    tracemalloc.start()
    try:
        decoded = codec.decode(encoded, 16 * MIB, exact=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert bytes(decoded) == data
    if sys.platform == "linux":  # which moves pages
        assert made == [MIB]
        assert peak < 2 * MIB


def test_where_pages_cannot_be_moved_their_bytes_are_copied():
    class Unmoved(mmap.mmap):
        def resize(self, *_: int) -> None:
            raise SystemError("mmap: resizing not available--no mremap()")

    memory = Unmoved(-1, 4)
    memory[:] = b"abcd"
    larger = pages.enlarged(memory, 9)
    assert larger[:] == b"abcd" + bytes(5)


def gzipped(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(data) + packer.flush()


STREAMS: dict[str, Any] = {
    "gzip": gzipped,
    "numcodecs.zlib": zlib.compress,
    "numcodecs.bz2": bz2.compress,
}


def test_codecs_tell_how_often_they_hold_what_they_decode():
    copies = {"zstd": 1, "gzip": 1, "numcodecs.lzma": 2, "crc32c": 0, "blosc": 1}
    for name, n_copies in copies.items():
        spec = CodecSpec(name, {})
        assert codecs.bytes_codec(spec).n_copies == n_copies
