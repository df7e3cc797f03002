"""How many requests a contiguous read of one shard makes, by size, store and way.

docs/remote.md says what is promised: one for the index unless it is known, and one for
each `max_request_nbytes` of payload begun.
"""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import zarr
from zarr.codecs import ShardingCodec, ZstdCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

import gpushard
from cuda_host.reads import read_on_device
from device_fetch_cases import emulated
from gpushard.options import DEFAULT, KIB, MIB, Options
from gpushard.selecting.selection import whole
from gpushard.stores.base import ByteRequest, FetchCosts
from gpushard.stores.held import HeldObjects
from gpushard.stores.local.store import LocalStore
from gpushard.stores.remote_url import open_url
from gpushard.stores.resolve import adapt
from range_server import RangeServer
from spec_shards import document, index_of, sharding
from test_requests import CountingStore, CountingZarrStore

# What a second read asks for tells whether indexes are kept.
pytestmark = pytest.mark.usefixtures("settled")

MOST = 4 * MIB
NETWORK_COSTS = FetchCosts(MIB, MOST, 32, prefers_whole_objects=True)
PAYLOADS = [1, 4, 5, 16, 40, 64]
CHUNK_NBYTES = 256 * KIB
PER_MIB = MIB // CHUNK_NBYTES
PLAIN, COMPILED = {"compile_nbytes": 2**40}, {"compile_nbytes": 0}


def put_shard(place, payload_mib, location="end"):
    """One shard of plain inner chunks, of which `payload_mib` are less than 3/4.

    Sparse: an inner chunk is zeros but for its own number in front.
    """
    n_chunks = (payload_mib + -(-payload_mib // 2)) * PER_MIB
    shape = (n_chunks, CHUNK_NBYTES)
    inner = sharding((1, CHUNK_NBYTES), index_location=location)
    (place / "c/0").mkdir(parents=True)
    (place / "zarr.json").write_text(json.dumps(document(shape, shape, inner)))
    base = 16 * n_chunks + 4 if location == "start" else 0
    entries = [(base + i * CHUNK_NBYTES, CHUNK_NBYTES) for i in range(n_chunks)]
    index = index_of(entries)
    with (place / "c/0/0").open("wb") as file:
        file.truncate(base + n_chunks * CHUNK_NBYTES)
        for i, (offset, _) in enumerate(entries):
            file.seek(offset)
            file.write(bytes([i % 251 + 1]))
        file.seek(0 if location == "start" else n_chunks * CHUNK_NBYTES)
        file.write(index)
    return place


def check(read, first, last):
    """Refuse other elements than inner chunks `first:last` have."""
    assert read.shape == (last - first, CHUNK_NBYTES)
    assert read[:, 0].tolist() == [i % 251 + 1 for i in range(first, last)]
    assert not read[:, 1:].any()


def n_payload(payload_mib, most=MOST):
    return -(-payload_mib * MIB // most)


def n_asked(a, take, payload_mib):
    """Requests of a first read, and of one that knows the index."""
    n_rows = payload_mib * PER_MIB
    counts = []
    # The second one begins elsewhere, aligned to nothing.
    for first in (0, 3):
        take()
        check(a[first : first + n_rows], first, first + n_rows)
        counts.append(len(take()))
    return counts


@pytest.mark.network
@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("payload_mib", PAYLOADS)
def test_over_http_every_4_mib_of_payload_are_one_request(
    tmp_path, payload_mib, location
):
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    with RangeServer(put_shard(tmp_path / "a", payload_mib, location)) as server:

        def take():
            taken, server.requests[:] = list(server.requests), []
            return taken

        a = gpushard.open_array(server.url, options=Options(**PLAIN))
        n = n_payload(payload_mib)
        assert n_asked(a, take, payload_mib) == [1 + n, n]


def held(place):
    """zarr's memory store of what lies in a directory."""
    buffer = default_buffer_prototype().buffer
    objects = {
        path.relative_to(place).as_posix(): buffer.from_bytes(path.read_bytes())
        for path in place.rglob("*")
        if path.is_file()
    }
    return MemoryStore(objects)


@pytest.mark.parametrize("way", [PLAIN, COMPILED], ids=["plain", "compiled"])
@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("payload_mib", [1, 8, 40])
def test_of_a_zarr_store_every_4_mib_of_payload_are_one_request(
    tmp_path, payload_mib, location, way
):
    store = CountingZarrStore(held(put_shard(tmp_path, payload_mib, location)))
    a = gpushard.open_array(store, options=Options(**way))
    # It may be far away. zarr stores tell no versions: an index is read each time.
    n = 1 + n_payload(payload_mib)
    assert n_asked(a, store.take, payload_mib) == [n, n]


class Crowd:
    """Holds requests for objects back until so many are under way."""

    def __init__(self, n_wanted):
        self._n_wanted, self._is_crowded = n_wanted, threading.Event()
        self._lock = threading.Lock()
        self.n = self.n_at_once = 0

    def join(self, _, key):
        if key == "zarr.json":
            return
        with self._lock:
            self.n += 1
            self.n_at_once = max(self.n_at_once, self.n)
            if self.n == self._n_wanted:
                self._is_crowded.set()
        self._is_crowded.wait(2)
        with self._lock:
            self.n -= 1


@pytest.mark.network
def test_small_shards_are_fetched_as_many_at_a_time_as_the_network_bears(tmp_path):
    values = np.arange(128 * 16 * KIB, dtype="f4").reshape(128, -1)
    chunks = {"chunks": (1, 2 * KIB), "shards": (1, 16 * KIB)}
    zarr.create_array(tmp_path / "a", data=values, compressors=None, **chunks)
    crowd = Crowd(64)
    with RangeServer(tmp_path / "a", before_answer=crowd.join) as server:
        a = gpushard.open_array(server.url, options=Options(**PLAIN))
        assert np.array_equal(a[...], values)
        assert server.count(method="GET") == 1 + 128
    assert crowd.n_at_once >= 64


@pytest.mark.network
@pytest.mark.parametrize("n_chunks", [24, 100])
def test_chunks_without_shards_do_not_wait_for_others_to_arrive(tmp_path, n_chunks):
    values = np.zeros((n_chunks, 128 * KIB), "f4")
    values[:, 0] = np.arange(n_chunks)
    zarr.create_array(tmp_path / "a", data=values, chunks=(1, 128 * KIB))
    n_wanted = min(n_chunks, 64)
    crowd = Crowd(n_wanted)
    with RangeServer(tmp_path / "a", before_answer=crowd.join) as server:
        a = gpushard.open_array(server.url, options=Options(**PLAIN))
        assert np.array_equal(a[...], values)
        assert server.count(method="GET") == 1 + n_chunks
    assert crowd.n_at_once >= n_wanted


@pytest.mark.network
def test_connections_that_were_needed_at_once_are_kept_for_the_next_read(tmp_path):
    """A pool of 64 threads sends requests, and the eight readers help them."""
    (tmp_path / "a").write_bytes(bytes(100))
    requests = [ByteRequest("a", i, i + 1) for i in range(10)]
    with RangeServer(tmp_path) as server:
        store = open_url(server.url, {"headers": {"X-Test": "alone in its pool"}})
        for _ in range(8):
            crowd = Crowd(66)
            server.before_answer = crowd.join
            readers = [
                threading.Thread(target=store.read, args=[requests]) for _ in range(8)
            ]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
            assert crowd.n_at_once >= 66
        assert server.count() == 8 * 8 * 10
        assert server.n_connections <= 64 + 8


@pytest.mark.parametrize("threads", [1, 2, 64])
def test_of_a_store_in_memory_too_however_many_threads_there_are(tmp_path, threads):
    store = CountingStore(adapt(held(put_shard(tmp_path, 40)), DEFAULT))
    a = gpushard.open_array(store, options=Options(threads=threads, **PLAIN))
    assert n_asked(a, store.take, 40) == [4, 4]  # it is near: 16 MiB each


def test_the_first_read_of_a_whole_shard_is_one_request_and_the_next_by_size(tmp_path):
    place = put_shard(tmp_path, 5)
    store = CountingStore(LocalStore(place), NETWORK_COSTS)
    a = gpushard.open_array(store)
    for n_expected in (1, n_payload(8)):
        store.take()
        check(a[...], 0, 8 * PER_MIB)
        assert len(store.take()) == n_expected


class Meeting(CountingStore):
    """Answers calls for payload, of which two must be under way at once."""

    def __init__(self, store, costs):
        super().__init__(store, costs)
        self._both = threading.Barrier(2)

    def read(self, requests):
        if all(request.start >= 0 for request in requests):
            self._both.wait(10)
        return super().read(requests)


def test_a_little_of_a_whole_shard_and_of_ranges_is_fetched_side_by_side(tmp_path):
    values = np.arange(2 * 64, dtype="i4").reshape(16, 8)
    zarr.create_array(tmp_path / "a", data=values, chunks=(1, 8), shards=(8, 8))
    a = gpushard.open_array(Meeting(LocalStore(tmp_path / "a"), NETWORK_COSTS))
    assert a[:10].tolist() == values[:10].tolist()


def test_a_larger_shard_is_never_one_request_for_its_parts_come_side_by_side(tmp_path):
    store = CountingStore(LocalStore(put_shard(tmp_path, 20)), NETWORK_COSTS)
    a = gpushard.open_array(store)
    store.take()
    check(a[...], 0, 30 * PER_MIB)
    assert len(store.take()) == 1 + n_payload(30)


def test_requests_are_as_large_as_memory_allows(tmp_path):
    store = CountingStore(LocalStore(put_shard(tmp_path, 8)), NETWORK_COSTS)
    a = gpushard.open_array(store, options=Options(memory_limit=16 * MIB, **PLAIN))
    assert n_asked(a, store.take, 8) == [5, 4]


IDLE_COSTS = replace(NETWORK_COSTS, idle_gap_nbytes=CHUNK_NBYTES // 2)


@pytest.mark.parametrize(
    ("n_wanted", "step", "n_expected"), [(32, 2, 32), (33, 2, 5), (12, 4, 12)]
)
def test_gaps_are_read_over_once_more_requests_would_wait(
    tmp_path, n_wanted, step, n_expected
):
    """Gaps of one inner chunk, 256 KiB; of three, less than `gap_nbytes`."""
    store = CountingStore(LocalStore(put_shard(tmp_path, 20)), IDLE_COSTS)
    a = gpushard.open_array(store, options=Options(**PLAIN))
    a[0]
    store.take()
    rows = np.arange(n_wanted) * step
    read = a.oindex[rows]
    assert read[:, 0].tolist() == [i % 251 + 1 for i in rows.tolist()]
    assert len(store.take()) == n_expected


def test_indexes_of_nested_shards_are_fetched_without_what_lies_between(tmp_path):
    """Eight nested shards, each of eight inner chunks and an index of 132 bytes."""
    values = np.repeat(np.arange(1, 9, dtype="u1")[:, None], CHUNK_NBYTES, 1)
    inner = ShardingCodec(chunk_shape=(1, CHUNK_NBYTES // 8))
    outer = ShardingCodec(chunk_shape=(1, CHUNK_NBYTES), codecs=[inner])
    how = {"chunks": values.shape, "serializer": outer, "compressors": None}
    zarr.create_array(tmp_path / "a", data=values, **how)
    store = CountingStore(LocalStore(tmp_path / "a"), IDLE_COSTS)
    a = gpushard.open_array(store, options=Options(**PLAIN))
    store.take()
    assert np.array_equal(a[:, :1], values[:, :1])
    _, *others = store.take()
    sizes = [stop - start for _, start, stop in others]
    assert sorted(sizes) == [1] * 8 + [8 * 16 + 4] * 8


@pytest.mark.parametrize(
    ("side_kib", "n_indexes"), [(256, 40), (32, 0)], ids=["wide", "narrow"]
)
def test_nested_shards_between_many_indexes_are_not_fetched_twice(
    tmp_path, side_kib, n_indexes
):
    """Of 40 nested shards; one of 32 KiB is less than a wait for another request."""
    side = side_kib * KIB
    values = np.repeat(np.arange(1, 41, dtype="u1")[:, None], side, 1)
    inner = ShardingCodec(chunk_shape=(1, side // 8))
    outer = ShardingCodec(chunk_shape=(1, side), codecs=[inner])
    how = {"chunks": values.shape, "serializer": outer, "compressors": None}
    zarr.create_array(tmp_path / "a", data=values, **how)
    costs = replace(NETWORK_COSTS, gap_nbytes=64 * KIB, idle_gap_nbytes=16 * KIB)
    store = CountingStore(LocalStore(tmp_path / "a"), costs)
    options = Options(whole_object_max_nbytes=0, **PLAIN)
    a = gpushard.open_array(store, options=options)
    store.take()
    assert np.array_equal(a[...], values)
    _, *asked = store.take()
    sizes = [stop - start for _, start, stop in asked]
    indexes = [n for n in sizes if n <= 8 * 16 + 4]
    assert len(indexes) == n_indexes
    twice_nbytes = sum(sizes) - values.nbytes
    assert (twice_nbytes < 64 * KIB) == bool(n_indexes)


@pytest.mark.parametrize("most", [MIB, 3 * MIB, 2**62])
def test_the_largest_request_is_what_a_store_wants(tmp_path, most):
    costs = FetchCosts(64 * KIB, most, 4, prefers_whole_objects=False)
    store = CountingStore(LocalStore(put_shard(tmp_path, 8)), costs)
    a = gpushard.open_array(store, options=Options(threads=4, **PLAIN))
    n = n_payload(8, most)
    assert n_asked(a, store.take, 8) == [1 + n, n]
    assert n_payload(8, most) in (1, 3, 8)


def test_threads_read_their_own_shares_of_local_files(tmp_path):
    store = CountingStore(LocalStore(put_shard(tmp_path, 8)))
    a = gpushard.open_array(store, options=Options(threads=2, **PLAIN))
    a[0]
    store.take()
    check(a[: 8 * PER_MIB], 0, 8 * PER_MIB)
    spans = sorted((start, stop) for _, start, stop in store.take())
    assert len(spans) == 8  # four a thread
    assert all(b == c for (_, b), (c, _) in pairwise(spans))
    assert a.explain(np.s_[: 8 * PER_MIB]).n_payload_requests == 8


def test_a_read_to_a_device_makes_the_same_requests(tmp_path):
    store = CountingStore(LocalStore(put_shard(tmp_path, 20)), NETWORK_COSTS)
    a = gpushard.open_array(store)
    store.take()
    n_rows = 20 * PER_MIB
    selection = whole((n_rows, CHUNK_NBYTES))
    results, job = read_on_device(a, [selection], emulated(seed=0))
    check(results[0], 0, n_rows)
    assert len(store.take()) == 1 + n_payload(20)
    assert job.tally.counts["n_payload_requests"] == n_payload(20)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
def test_parts_of_neighbours_in_a_wrapped_shard_are_cut_out_together(
    tmp_path, monkeypatch, axis
):
    values = np.arange(64 * 64, dtype="i4").reshape(64, 64)
    serializer = ShardingCodec(chunk_shape=(8, 8), codecs=[zarr.codecs.BytesCodec()])
    how = {"chunks": values.shape, "compressors": ZstdCodec(), "serializer": serializer}
    zarr.create_array(tmp_path / "a", data=values, **how)
    read, asked = HeldObjects.read, []

    def counting(self, requests):
        asked.append(len(requests))
        return read(self, requests)

    monkeypatch.setattr(HeldObjects, "read", counting)
    a = gpushard.open_array(tmp_path / "a", options=Options(**PLAIN))
    selection = (slice(None),) * axis + (slice(1, None, 5),)
    assert np.array_equal(a[selection], values[selection])
    assert asked == [1, 1]  # of the index, and of all inner chunks
