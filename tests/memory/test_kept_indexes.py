"""Indexes that are kept between reads: what they say is missing may have come since."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest

import gpushard
from gpushard.errors import CorruptShardError
from gpushard.memory import known
from gpushard.memory.known import IndexCache, KnownIndex
from gpushard.options import Options
from gpushard.planning.index import ShardIndex
from gpushard.stores.local.store import LocalStore
from gpushard.stores.remote import RemoteStore
from range_server import RangeServer
from spec_shards import document, index_of, shard_of, sharding

obstore = pytest.importorskip("obstore", reason="the extra `remote` is not installed")

pytestmark = pytest.mark.network

PLAIN = Options(small_read_chunks=0, compile_nbytes=2**62)
COMPILED = PLAIN.but(compile_nbytes=0)
ABSENT = np.s_[6:9]


def made(place, **named: Any) -> gpushard.Array:
    """Three shards, of which the second half of the second one is missing."""
    arguments = {"shape": (12,), "dtype": "i4", "chunks": (2,), "shards": (4,)}
    a = gpushard.create_array(place, **arguments | named, device="cpu")
    a[:6] = a[8:] = 1
    return a


@pytest.mark.parametrize("options", [PLAIN, COMPILED], ids=["plain", "compiled"])
def test_an_inner_chunk_that_comes_behind_a_server_is_noticed(options, tmp_path):
    a = made(tmp_path / "a")
    with RangeServer(tmp_path / "a") as server:
        b = gpushard.open_array(server.url, options=options)
        assert b[ABSENT].tolist() == [0, 0, 1]
        a[6:8] = 7
        n_before = server.count()
        assert b[6:8].tolist() == [7, 7]
        assert server.count() == n_before + 3, "a byte, the index, the inner chunk"
        a[6:8] = 0
        assert b[ABSENT].tolist() == [0, 0, 1]
        assert b[ABSENT].tolist() == [0, 0, 1]


def test_a_missing_inner_chunk_of_a_known_shard_is_asked_for_by_a_byte(tmp_path):
    made(tmp_path / "a")
    with RangeServer(tmp_path / "a") as server:
        b = gpushard.open_array(server.url, options=PLAIN)
        server.requests.clear()
        b[6:8]
        assert server.count() == 1  # the index, which is current as it was just read
        server.requests.clear()
        assert b[6:8].tolist() == [0, 0]
        assert [r.range_header for r in server.requests] == ["bytes=0-0"]
        server.requests.clear()
        b[4:8]  # beside one that is fetched, which tells as well
        assert server.count() == 1
        (tmp_path / "a/c/1").unlink()
        assert b[6:8].tolist() == [0, 0]


def test_an_inner_chunk_that_comes_to_an_object_store_is_noticed_by_small_reads():
    objects = obstore.store.MemoryStore()
    a = made(RemoteStore(objects))
    b = gpushard.open_array(RemoteStore(objects), device="cpu")
    assert b[6:8].tolist() == [0, 0]
    a[6:8] = 7
    assert b[6:8].tolist() == [7, 7]
    a[4:8] = 0
    assert b[6:8].tolist() == [0, 0]


def test_an_index_that_contradicts_a_size_told_once_is_read_again(monkeypatch):
    store = RemoteStore(obstore.store.MemoryStore())
    a = made(store, shape=(1200,), chunks=(200,), shards=(400,), compressors=None)
    a[...] = 1
    b = gpushard.open_array(store, options=PLAIN, device="cpu")
    truthful = RemoteStore.read

    def lying(self: RemoteStore, requests: Any) -> Any:
        return [f._replace(object_nbytes=100) for f in truthful(self, requests) if f]

    with monkeypatch.context() as patch:
        patch.setattr(RemoteStore, "read", lying)
        with pytest.raises(CorruptShardError):
            b[:2]
    assert b[:2].tolist() == [1, 1]


def test_an_inner_chunk_that_comes_to_a_nested_shard_is_noticed(tmp_path):
    import zarr
    from zarr.codecs import ShardingCodec

    inner = ShardingCodec(chunk_shape=(1,))
    zarr.create_array(
        tmp_path, shape=(12,), dtype="i4", chunks=(2,), shards=(4,), serializer=inner,
        compressors=None,
    )  # fmt: skip
    a = gpushard.open_array(tmp_path, device="cpu")
    a[4] = a[6] = 1
    with RangeServer(tmp_path) as server:
        b = gpushard.open_array(server.url, options=PLAIN)
        assert b[5:8].tolist() == [0, 1, 0]
        a[7] = 7
        assert b[7] == 7


@pytest.mark.parametrize("few", [0, 8], ids=["plain", "small"])
def test_a_shard_that_was_deleted_before_is_missing_for_two_reads_at_once(
    few, tmp_path
):
    made(tmp_path / "a")
    with RangeServer(tmp_path) as server, ThreadPoolExecutor(2) as pool:
        options = PLAIN.but(small_read_chunks=few, chunk_cache_nbytes=0)
        b = gpushard.open_array(f"{server.url}/a", device="cpu", options=options)
        assert b[4:6].tolist() == [1, 1]
        (tmp_path / "a/c/1").unlink()
        turns, both = iter(range(2)), Barrier(2)

        def meet(*_: str) -> None:
            """Let both ask by the kept index before either is told that it is gone."""
            if next(turns, None) is not None:
                both.wait(10)

        server.before_answer = meet
        for got in pool.map(lambda _: b[4:8].tolist(), range(2)):
            assert got == [0, 0, 0, 0]


def test_a_shard_that_was_deleted_before_is_missing_for_an_array_joined_to_itself(
    tmp_path,
):
    a = made(tmp_path / "a")
    with RangeServer(tmp_path) as server:
        b = gpushard.open_array(f"{server.url}/a", device="cpu", options=PLAIN)
        twice = gpushard.concat([b, b])
        assert twice[...].tolist() == 2 * a[...].tolist()
        (tmp_path / "a/c/1").unlink()
        assert twice[...].tolist() == 2 * a[...].tolist()


@pytest.mark.usefixtures("settled")
def test_the_index_of_a_nested_shard_is_kept_until_the_file_changes(tmp_path):
    meta = document((2,), (2,), sharding((2,), codecs=[sharding((1,))]))
    (tmp_path / "zarr.json").write_text(json.dumps(meta))
    (tmp_path / "c").mkdir()
    b = gpushard.open_array(tmp_path, device="cpu", options=PLAIN)
    for seconds, entries in enumerate([[(0, 1), (1, 1)], [(1, 1), (0, 1)]]):
        path = tmp_path / "c/0"
        path.write_bytes(shard_of(bytes([5, 6]) + index_of(entries)))
        os.utime(path, (seconds, seconds))
        assert b[...].tolist() == [5 + first for first, _ in entries]
        assert b.explain(...).n_index_requests == 0


def test_indexes_that_are_kept_fit_the_memory_for_them_and_the_latest_stay():
    def kept(n: int) -> Any:
        empty = np.zeros(n, np.int64)
        return KnownIndex(ShardIndex(empty, empty, np.zeros(n, np.uint8), None), 0)

    one = kept(100)
    cache = IndexCache(3 * one.index.held_nbytes)
    for key in [(0,), (1,), (1,), (1,), (2,)]:
        cache.put(key, one)
    assert cache.get((0,)) is one  # used, so not the first to go
    cache.put((3,), one)
    assert [key for key in range(4) if cache.get((key,))] == [0, 2, 3]
    cache.put((2,), kept(1000))  # has no room, and what was there is of the past
    assert [key for key in range(4) if cache.get((key,))] == [0, 3]
    cache.drop_shard((0,))
    cache.put((4,), one)
    cache.put((5,), one)
    assert [key for key in range(6) if cache.get((key,))] == [3, 4, 5]
    cache.drop_shard((4,))
    assert cache.read_at_s((4,)) == cache.read_at_s((5,)) == one.read_at_s
    cache.put((4,), kept(1000))  # read anew, so when it was read before does not count
    assert cache.read_at_s((4,)) is None


def test_of_the_indexes_that_were_dropped_only_the_latest_are_remembered(monkeypatch):
    monkeypatch.setattr(known, "_MOST_DROPPED", 2)
    empty = ShardIndex(*np.zeros((2, 0), np.int64), np.zeros(0, np.uint8), None)
    cache = IndexCache(1000)
    for key in [(0,), (1,), (2,), (3,)]:
        cache.put(key, KnownIndex(empty, 0))
        cache.drop_shard(key)
    remembered = [key for key in range(4) if cache.read_at_s((key,)) is not None]
    assert remembered == [2, 3]


def test_an_index_that_is_dropped_while_it_is_looked_for_is_found_all_the_same():
    class Late(OrderedDict[Any, Any]):
        """As another thread leaves it after the first look."""

        def move_to_end(self, key: Any, last: bool = True) -> None:
            raise KeyError(key)

    empty = np.zeros(1, np.int64)
    index = ShardIndex(empty, empty, np.zeros(1, np.uint8), None)
    cache, known = IndexCache(1 << 20), KnownIndex(index, 0)
    cache._known = Late({(0,): known})
    assert cache.get((0,)) is known


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("few", [0, 8], ids=["plain", "small"])
def test_a_file_deleted_when_its_kept_index_was_found_current_is_not_filled(
    few, tmp_path, monkeypatch
):
    options = Options(small_read_chunks=few, compile_nbytes=2**62, file_handles=1)
    made(tmp_path)
    b = gpushard.open_array(tmp_path, device="cpu", options=options)
    assert b[4:5].tolist() == b[0:1].tolist() == [1]  # the file of the first is closed
    telling = LocalStore.current_version

    def told(store: LocalStore, key: str) -> Any:
        found = telling(store, key)
        monkeypatch.undo()
        (tmp_path / key).unlink()
        return found

    monkeypatch.setattr(LocalStore, "current_version", told)
    with pytest.raises(gpushard.ObjectDeletedError):
        b[4:5]
    assert b[4:5].tolist() == [0]
