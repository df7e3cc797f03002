"""Bytes that are fetched lie in pages of their own, where little memory is left."""

from __future__ import annotations

import mmap
import os
import tracemalloc
from typing import Any

import numpy as np
import pytest

from asked_store import IN_REQUESTS, asked_nbytes, opened, put
from damaged_arrays import WAYS
from damaged_arrays import opened as opened_in_a_way
from gpushard import pages
from gpushard.fetching import fetch, nested
from gpushard.fetching.fetch import fetch_payload
from gpushard.fused import choice
from gpushard.memory import chunk_room
from gpushard.options import KIB, MIB
from gpushard.pages import in_huge_pages, in_pages
from lone_chunks import let_little_count
from memory_probe import status_nbytes
from spec_shards import LITTLE, document, sharding

INDEXED = {"index_codecs": [LITTLE]}
N = 512 * KIB


@pytest.mark.skipif(
    not os.access("/proc/self/status", os.R_OK), reason="only Linux tells so"
)
def test_pages_go_back_as_soon_as_nobody_has_them():
    held = in_pages(16 * MIB)
    held[:] = 1
    part = held[5:9]
    before = status_nbytes("VmRSS")
    del held
    assert status_nbytes("VmRSS") > before - 8 * MIB
    del part
    assert status_nbytes("VmRSS") < before - 15 * MIB


def test_a_little_room_is_had_from_the_c_library():
    for nbytes, is_mapped in ((0, False), (KIB, False), (MIB, True)):
        made = in_pages(nbytes)
        assert (len(made), made.dtype) == (nbytes, np.uint8)
        made[:] = 7
        mapped = made.base is not None and made.base.obj  # type: ignore[union-attr]
        assert isinstance(mapped, mmap.mmap) is is_mapped


@pytest.mark.parametrize(
    ("nbytes", "mapped_nbytes", "is_huge"),
    [
        (2 * MIB, 2 * MIB, True),
        (2 * MIB - 256 * KIB, 2 * MIB, True),
        (2 * MIB - 257 * KIB, 2 * MIB - 257 * KIB, False),
        (MIB, MIB, False),
        (4 * MIB + 64, 4 * MIB + 64, False),
        (16 * MIB - KIB, 16 * MIB, True),
    ],
)
def test_huge_pages_are_had_where_they_are_filled(
    nbytes, mapped_nbytes, is_huge, monkeypatch
):
    asked: list[Any] = []

    class Pages(mmap.mmap):
        def __new__(cls, _: int, length: int, **how: Any) -> Any:
            asked.append(length)
            return super().__new__(cls, _, length, **how)

        def madvise(self, *advice: Any) -> None:
            asked.append(advice)
            raise OSError(22, "Invalid argument")  # no kernel needs to have them

    monkeypatch.setattr(pages.mmap, "mmap", Pages)
    made = in_huge_pages(nbytes)
    assert (len(made), made.dtype) == (nbytes, np.uint8)
    made[:] = 7
    has_any = hasattr(mmap, "MADV_HUGEPAGE")
    assert asked[0] == (mapped_nbytes if has_any else nbytes)
    assert asked[1:] == ([(mmap.MADV_HUGEPAGE,)] if has_any and is_huge else [])


def test_where_the_system_has_no_pages_there_is_no_memory(monkeypatch):
    def refused(*_: Any, **__: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(pages.mmap, "mmap", refused)
    with pytest.raises(MemoryError, match="no room for 1048576 bytes"):
        in_pages(MIB)


@pytest.mark.parametrize("way", ["plain", "small", "compiled"])
@pytest.mark.parametrize(("limit", "is_little"), [(4 * MIB, True), (MIB << 10, False)])
def test_parts_of_plain_elements_are_fetched_to_pages_where_there_is_little_room(
    tmp_path, monkeypatch, way, limit, is_little
):
    if way == "compiled":
        pytest.importorskip("numba", reason="the compiled loops need numba")
    if way == "small":  # as in a process without the loops, which read large ones
        monkeypatch.setattr(choice, "_loaded", [None])
    let_little_count(monkeypatch)
    values = np.random.default_rng(3).integers(0, 256, 4 * N, "u1")
    shard = sharding((N,), **INDEXED)
    entries = np.array([[k * N, N] for k in range(4)], "<u8").tobytes()
    put(tmp_path, document((4 * N,), (4 * N,), shard), c_0=values.tobytes() + entries)
    made: list[int] = []

    def noted(nbytes: int) -> Any:
        made.append(nbytes)
        return in_pages(nbytes)

    monkeypatch.setattr(chunk_room, "in_pages", noted)
    a = opened_in_a_way(tmp_path, way, memory_limit=limit, threads=4)
    for key in (np.s_[5::1000], np.s_[7:99]):
        assert np.array_equal(a[key], values[key])
    assert bool(made) is (is_little and way != "compiled")


# Nested indexes, and what lies between them


def put_nested(place: Any, n: int, n_nested: int) -> Any:
    """Nested shards of two inner chunks of `n` bytes, their indexes behind them."""
    inner = sharding((n,), **INDEXED)
    outer = sharding((2 * n,), codecs=[inner], **INDEXED)
    one = bytes(2 * n) + np.array([[0, n], [n, n]], "<u8").tobytes()
    entries = np.array([[k * len(one), len(one)] for k in range(n_nested)], "<u8")
    meta = document((2 * n * n_nested,), (2 * n * n_nested,), outer)
    return put(place, meta, c_0=one * n_nested + entries.tobytes())


def test_what_lies_between_nested_indexes_is_fetched_a_part_at_a_time(
    tmp_path, monkeypatch
):
    put_nested(tmp_path, 8 * KIB, 256)
    asked: list[int] = []

    def noted(source: Any, requests: Any) -> Any:
        asked.append(asked_nbytes(requests))
        return fetch_payload(source, requests)

    monkeypatch.setattr(nested, "fetch_payload", noted)
    limit = MIB
    a, _ = opened(tmp_path, IN_REQUESTS, memory_limit=limit, small_read_chunks=0)
    assert not a[:: 8 * KIB].any()
    assert sum(asked) > limit
    assert max(asked) <= limit // 8


@pytest.mark.parametrize("way", [way for way in WAYS if way != "device"])
def test_what_lies_between_nested_indexes_is_not_held_with_them(
    tmp_path, monkeypatch, way
):
    put_nested(tmp_path, 8 * KIB, 256)
    # As pages are not traced.
    monkeypatch.setattr(nested, "pages_if_any", lambda n: np.empty(n, np.uint8))
    a = opened_in_a_way(tmp_path, way, memory_limit=4 * MIB, index_cache_nbytes=0)
    key = np.s_[:: 32 * KIB]
    a[key]  # what is loaded once
    tracemalloc.start()
    try:
        assert not a[key].any()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * MIB


@pytest.mark.parametrize("way", [way for way in WAYS if way != "device"])
def test_each_nested_index_is_its_own_however_many_are_fetched(tmp_path, way):
    n, n_nested = 8 * KIB, 256
    inner = sharding((n,), **INDEXED)
    outer = sharding((2 * n,), codecs=[inner], **INDEXED)
    orders = [[(0, n), (n, n)], [(n, n), (0, n)]]  # every third is stored backwards
    both = [bytes([1]) * n + bytes([2]) * n, bytes([2]) * n + bytes([1]) * n]
    shards = [
        both[k % 3 == 0] + np.array(orders[k % 3 == 0], "<u8").tobytes()
        for k in range(n_nested)
    ]
    nbytes = len(shards[0])
    entries = np.array([[k * nbytes, nbytes] for k in range(n_nested)], "<u8")
    meta = document((2 * n * n_nested,), (2 * n * n_nested,), outer)
    put(tmp_path, meta, c_0=b"".join(shards) + entries.tobytes())
    a = opened_in_a_way(tmp_path, way, memory_limit=MIB, index_cache_nbytes=0)
    assert np.array_equal(a[::n], np.tile([1, 2], n_nested))


def is_in_pages(array: Any) -> bool:
    """Whether an array, or what it is a view of, lies in pages of its own."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, memoryview | mmap.mmap)


@pytest.mark.parametrize("place", ["start", "end"])
@pytest.mark.parametrize("threads", [1, 16])
def test_large_indexes_lie_in_pages_if_threads_are_many(
    place, threads, tmp_path, monkeypatch
):
    """Each thread would keep the memory of the index that it has parsed."""
    n = 16 * KIB
    chain = {"index_codecs": [LITTLE], "index_location": place}
    meta = document((2 * n,), (n,), sharding((1,), **chain))
    entries = np.tile(np.array([[7, 1]], "<u8"), (n, 1)).tobytes()
    kept = {"small_read_chunks": 0, "memory_limit": 64 * MIB, "threads": threads}
    a, _ = opened(put(tmp_path, meta, c_0=entries, c_1=entries), **kept)
    seen: list[tuple[bool, bool]] = []
    real = fetch.decode_index

    def decoded(source: Any, level: int, encoded: Any, *more: Any) -> Any:
        index = real(source, level, encoded, *more)
        seen.append((is_in_pages(encoded), is_in_pages(index.offset)))
        return index

    monkeypatch.setattr(fetch, "decode_index", decoded)
    a[:: n // 2]
    assert seen == [(threads > 1, threads > 1)] * 2
