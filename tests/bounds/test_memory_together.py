"""Threads that are inside decoders at the same time hold no more than the limit."""

from __future__ import annotations

import struct
import threading
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asked_store import AskedStore, put
from asked_store import opened as asked
from gpushard.codecs.zstd import ZstdCodec
from gpushard.fused.thread_memory import ThreadMemory
from gpushard.memory import chunk_room, freed
from gpushard.memory.chunk_room import usual_stored
from gpushard.options import KIB, MIB
from gpushard.placing import place
from hostile_shards import ZSTD
from lone_chunks import let_little_count, zstd
from spec_shards import LITTLE, document, sharding

N = 256 * KIB
LIMIT = 2 * MIB
NOISE = np.random.default_rng(5).integers(0, 256, N, "u1").tobytes()
HALVES = zstd(bytes(N // 2)) * 2
PADDED = zstd(bytes(N)) + struct.pack("<II", 0x184D2A50, 2 * N) + bytes(2 * N)


class Meeting:
    """Counts who is inside at a time; each waits a while for one more than may be."""

    def __init__(self, n_allowed: int) -> None:
        self._n_allowed = n_allowed
        self._changed = threading.Condition()
        self._n_inside = 0
        self.most = 0

    def __enter__(self) -> None:
        with self._changed:
            self._n_inside += 1
            self.most = max(self.most, self._n_inside)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most > self._n_allowed, timeout=0.05)

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._n_inside -= 1


@pytest.fixture(autouse=True)
def _nothing_is_little(monkeypatch):
    let_little_count(monkeypatch)


def array_of(tmp_path: Any, data: bytes, *codecs: Any) -> Any:
    """Four objects of the same bytes, read by up to eight threads."""
    meta = document((4 * N,), (N,), LITTLE, *codecs)
    where = put(tmp_path, meta, **{f"c_{k}": data for k in range(4)})
    plainly: Any = {"small_read_chunks": 0, "compile_nbytes": 2**40}
    return asked(where, threads=8, memory_limit=LIMIT, **plainly)[0]


def let_decoders_meet(monkeypatch: Any, meeting: Meeting) -> None:
    decode = ZstdCodec.decode

    def met(self: Any, *given: Any, **named: Any) -> Any:
        with meeting:
            return decode(self, *given, **named)

    monkeypatch.setattr(ZstdCodec, "decode", met)


def test_threads_that_decode_at_a_time_leave_room_for_three_more(tmp_path, monkeypatch):
    meeting = Meeting(2)
    let_decoders_meet(monkeypatch, meeting)
    a = array_of(tmp_path, zstd(NOISE), ZSTD)
    assert a.read().tobytes() == 4 * NOISE
    each = usual_stored(N) + N
    assert meeting.most == 2
    assert meeting.most * each + 3 * N <= LIMIT


def test_streams_that_take_more_than_others_are_decoded_one_at_a_time(
    tmp_path, monkeypatch
):
    meeting = Meeting(1)
    let_decoders_meet(monkeypatch, meeting)
    a = array_of(tmp_path, HALVES, ZSTD)
    assert a.source.room.most_workers == 2
    assert not a.read().any()
    assert meeting.most == 1


def test_where_all_have_room_for_it_such_streams_are_decoded_side_by_side(
    tmp_path, monkeypatch
):
    meeting = Meeting(1)
    let_decoders_meet(monkeypatch, meeting)
    assert not array_of(tmp_path, HALVES, ZSTD).read(memory_limit=64 * LIMIT).any()
    assert meeting.most > 1


def test_objects_that_are_padded_are_held_one_at_a_time(tmp_path, monkeypatch):
    meeting = Meeting(1)
    read = AskedStore.read

    def met(self: Any, requests: Any) -> Any:
        if all((r.max_nbytes or 0) <= usual_stored(N) + 1 for r in requests):
            return read(self, requests)
        with meeting:
            return read(self, requests)

    a = array_of(tmp_path, PADDED, ZSTD)
    assert a.source.room.most_workers == 2
    monkeypatch.setattr(AskedStore, "read", met)
    assert not a.read().any()
    assert meeting.most == 1


def test_what_is_fetched_fits_beside_what_all_threads_decode(tmp_path):
    room = array_of(tmp_path, HALVES, ZSTD).source.room
    n = room.most_workers
    assert room.most_fetched_nbytes + (3 + n) * N <= LIMIT
    window = room.most_window_nbytes - (usual_stored(N) - N)
    assert n * (window + N) + 3 * N <= LIMIT


def test_an_inner_chunk_is_let_go_before_the_next_one_is_decoded(tmp_path, monkeypatch):
    decoded: list[weakref.ref[Any]] = []
    n_held: list[int] = []
    decode_row = place.decode_row

    def noted(*given: Any) -> Any:
        n_held.append(sum(one() is not None for one in decoded))
        chunk = decode_row(*given)
        decoded.append(weakref.ref(chunk))
        return chunk

    monkeypatch.setattr(place, "decode_row", noted)
    streams = [zstd(NOISE[k : k + N // 4]) for k in range(0, N, N // 4)]
    sizes = np.array([len(one) for one in streams])
    entries = np.stack([np.cumsum(sizes) - sizes, sizes], 1).astype("<u8")
    shard = sharding((N // 4,), codecs=[LITTLE, ZSTD], index_codecs=[LITTLE])
    data = b"".join(streams) + entries.tobytes()
    where = put(tmp_path, document((N,), (N,), shard), c_0=data)
    plainly: Any = {"small_read_chunks": 0, "compile_nbytes": 2**40, "threads": 1}
    assert asked(where, **plainly)[0].read().tobytes() == NOISE
    assert n_held == [0] * 4


# What a C library keeps


def test_freed_memory_is_given_back_once_so_much_was_taken(monkeypatch):
    given: list[int] = []
    monkeypatch.setattr(freed, "give_back", lambda: given.append(1))
    noted = freed.Freed()
    for n, times in ((3, 0), (2, 0), (1, 1), (4, 1), (1, 2)):
        noted.note(n, 4)
        assert len(given) == times


def test_without_glibc_nothing_is_given_back(monkeypatch):
    freed._trim.cache_clear()
    monkeypatch.setattr(freed.ctypes, "CDLL", lambda _: object())
    trim = freed._trim()
    freed._trim.cache_clear()
    assert trim is freed._keep


@pytest.mark.parametrize(("limit", "is_crowded"), [(LIMIT, True), (64 * LIMIT, False)])
def test_memory_is_given_back_only_where_there_is_little(
    tmp_path, monkeypatch, limit, is_crowded
):
    noted: list[int] = []
    monkeypatch.setattr(chunk_room.freed, "note", lambda n, _: noted.append(n))
    array_of(tmp_path, zstd(NOISE), ZSTD).read(memory_limit=limit)
    assert bool(noted) is is_crowded
    assert all(n == N + len(zstd(NOISE)) for n in noted)


def test_by_default_nothing_is_given_back(tmp_path):
    source = array_of(tmp_path, HALVES, ZSTD).source
    wide = replace(source.options, memory_limit=256 * MIB, bound_nbytes=256 * MIB)
    options = replace(wide, alone_nbytes=2048 * MIB, threads=16)
    room = replace(source.room, options=options, whole_nbytes=8 * MIB)
    assert not replace(room, work_nbytes=32 * MIB).is_crowded


def test_threads_keep_no_large_room_where_there_is_little_memory():
    kept, room = ThreadMemory(), ThreadMemory()
    assert kept.buffer("scratch", MIB).address == kept.buffer("scratch", MIB).address
    room.buffer("scratch", MIB, keeps=False)
    assert room.buffer("scratch", 64, keeps=False).nbytes < MIB


@pytest.mark.parametrize(("limit", "is_crowded"), [(LIMIT, True), (64 * LIMIT, False)])
def test_what_is_fetched_of_plain_elements_counts_as_taken(
    tmp_path, monkeypatch, limit, is_crowded
):
    noted: list[int] = []
    monkeypatch.setattr(chunk_room.freed, "note", lambda n, _: noted.append(n))
    plain = array_of(tmp_path, bytes(N))
    plain.read(np.s_[::100], memory_limit=limit)
    # Fetched, and as a part of its inner chunk.
    assert len(noted) == 8 * is_crowded
