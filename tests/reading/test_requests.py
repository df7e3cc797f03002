"""How many requests a read makes, and for which bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, ZstdCodec
from zarr.storage import MemoryStore, WrapperStore

import gpushard
from gpushard.options import DEFAULT, KIB
from gpushard.stores.base import ByteRequest, FetchCosts, Fetched
from gpushard.stores.local.store import LocalStore
from range_server import RangeServer
from spec_shards import LITTLE, document, index_of, sharding
from zarr_oracle import assert_same_bits, held

# What a second read asks for tells whether indexes are kept.
pytestmark = pytest.mark.usefixtures("settled")


class CountingStore:
    """Store of gpushard's own that notes what it is asked."""

    def __init__(self, store, costs=None):
        self.store = store
        self.costs: FetchCosts = costs or store.costs
        self.asked: list[ByteRequest] = []

    @property
    def url(self) -> str:
        return self.store.url

    def read(self, requests: Sequence[ByteRequest]) -> list[Fetched | None]:
        self.asked += requests
        return self.store.read(requests)

    def current_version(self, key):
        return self.store.current_version(key)

    def get(self, key):
        return self.store.get(key)

    def list_children(self, prefix):
        return self.store.list_children(prefix)

    def take(self) -> list[tuple[str, int, int | None]]:
        """What was asked since the last call."""
        taken = [(r.key, r.start, r.stop) for r in self.asked]
        self.asked = []
        return taken


class CountingZarrStore(WrapperStore):
    """zarr store that notes the keys it is asked for; like a network to gpushard."""

    asked: list[tuple[str, object]]

    def __init__(self, store):
        super().__init__(store)
        self.asked = []

    async def get(self, key, prototype, byte_range=None):
        self.asked.append((key, byte_range))
        return await super().get(key, prototype, byte_range)

    def take(self) -> list[tuple[str, object]]:
        taken, self.asked = self.asked, []
        return taken


NEVER_JOIN = FetchCosts(
    gap_nbytes=0, max_request_nbytes=2**30, concurrency=4, prefers_whole_objects=False
)


def stored(
    place, shape=(64, 64), chunks=(8, 8), shards=(32, 32), *, raw=False, dtype="i4"
):
    """Array of distinct numbers, written by zarr-python."""
    values = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    z = zarr.create_array(
        place,
        shape=shape,
        chunks=chunks,
        shards=shards,
        dtype=dtype,
        compressors=None if raw else ZstdCodec(),
        fill_value=-1,
    )
    z[...] = values
    return values


def counted(place: Path, costs=None) -> tuple[gpushard.Array, CountingStore]:
    store = CountingStore(LocalStore(place, DEFAULT), costs)
    a = gpushard.open_array(store)
    store.take()
    return a, store


def test_an_attribute_of_a_foreign_store_is_not_taken_for_a_writer(tmp_path):
    values = stored(tmp_path / "a")
    store = CountingStore(LocalStore(tmp_path / "a", DEFAULT))
    store.writer = open  # whatever it means there
    with pytest.raises(gpushard.UnsupportedError, match="cannot be written to"):
        gpushard.open_array(store)[:8] = 7
    assert_same_bits(gpushard.open_array(store)[:8], values[:8])


def test_a_first_contiguous_read_of_a_shard_makes_two_requests_and_the_next_one(
    tmp_path,
):
    values = stored(tmp_path / "a")
    a, store = counted(tmp_path / "a")
    assert_same_bits(a[0:32, 0:32], values[0:32, 0:32])
    assert len(store.take()) <= 2
    assert_same_bits(a[8:16, 0:32], values[8:16, 0:32])
    taken = store.take()
    assert [key for key, _, _ in taken] == ["c/0/0"]
    assert taken[0][2] is not None


def test_report_counts_what_the_store_counts(tmp_path):
    stored(tmp_path / "a")
    a, store = counted(tmp_path / "a")
    report = a.explain()
    taken = store.take()
    assert report.n_index_requests + report.n_payload_requests == len(taken) == 8
    assert report.n_index_requests == 4
    payload = [
        stop - start for _, start, stop in taken if stop is not None and start >= 0
    ]
    assert report.payload_nbytes == sum(payload)
    report = a.explain()
    assert (report.n_index_requests, report.n_payload_requests) == (0, 4)
    assert len(store.take()) == 4


def test_of_shards_fetched_whole_those_of_mostly_gaps_are_read_by_range():
    meta = document((4,), (2,), sharding((1,), codecs=[LITTLE]))
    gap = 256 * KIB
    objects = {
        "zarr.json": json.dumps(meta).encode(),
        "c/0": bytes([1, 2]) + index_of([(0, 1), (1, 1)]),
        "c/1": bytes(gap) + bytes([3, 4]) + index_of([(gap, 1), (gap + 1, 1)]),
    }
    options = gpushard.Options(small_read_chunks=0)
    store = CountingZarrStore(held(objects))
    a = gpushard.open_array(store, options=options)
    assert a[...].tolist() == [1, 2, 3, 4]
    asked = [key for key, _ in store.take()]
    assert (asked.count("c/0"), asked.count("c/1")) == (1, 3)


def test_a_whole_shard_of_a_remote_store_is_one_request():
    held: dict = {}
    values = stored(MemoryStore(held))
    store = CountingZarrStore(MemoryStore(held))
    a = gpushard.open_array(store)
    store.take()
    assert_same_bits(a[0:32, 32:64], values[0:32, 32:64])
    [(key, asked)] = store.take()
    assert (key, asked.start) == ("c/0/1", 0)
    assert_same_bits(a[...], values)
    assert sorted(key for key, _ in store.take()) == [
        f"c/{i}/{j}" for i in (0, 1) for j in (0, 1)
    ]


def test_a_part_of_a_shard_of_a_remote_store_is_two_requests():
    held: dict = {}
    values = stored(MemoryStore(held))
    store = CountingZarrStore(MemoryStore(held))
    a = gpushard.open_array(store)
    store.take()
    assert_same_bits(a[3:9, 3:9], values[3:9, 3:9])
    taken = store.take()
    assert [key for key, _ in taken] == ["c/0/0", "c/0/0"]
    assert None not in [byte_range for _, byte_range in taken]


@pytest.mark.network
def test_reads_over_http_make_the_promised_requests(tmp_path):
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    values = stored(tmp_path / "a")
    with RangeServer(tmp_path / "a") as server:
        a = gpushard.open_array(server.url)
        server.requests.clear()
        assert_same_bits(a[3:9, 3:9], values[3:9, 3:9])
        assert server.count() == server.count("c/0/0") <= 2
        server.requests.clear()
        assert_same_bits(a[10:20, 3:9], values[10:20, 3:9])  # its index is known
        assert server.count() == server.count("c/0/0") == 1
        server.requests.clear()
        assert_same_bits(a[32:, :32], values[32:, :32])
        assert server.count() == server.count("c/1/0") == 1
        server.requests.clear()
        assert_same_bits(a[...], values)
        assert server.count() <= 4


def test_rows_of_uncompressed_inner_chunks_are_fetched_alone(tmp_path):
    values = stored(tmp_path / "a", (64, 32), (32, 32), (64, 32), raw=True)
    a, store = counted(tmp_path / "a", NEVER_JOIN)
    a[0]  # the index
    store.take()
    row = 32 * 4
    assert_same_bits(a[7], values[7])
    assert store.take() == [("c/0/0", 7 * row, 8 * row)]
    assert_same_bits(a[30:34], values[30:34])
    taken = sorted(store.take())
    assert sum(stop - start for _, start, stop in taken) == 4 * row
    assert a.explain(np.s_[40:42]).payload_nbytes == 2 * row


def test_rows_of_uncompressed_unsharded_chunks_are_fetched_alone(tmp_path):
    values = stored(tmp_path / "a", (64, 32), (32, 32), None, raw=True)
    a, store = counted(tmp_path / "a", NEVER_JOIN)
    row = 32 * 4
    assert_same_bits(a[7:9], values[7:9])
    assert store.take() == [("c/0/0", 7 * row, 9 * row)]


def test_a_checksum_over_an_inner_chunk_needs_all_of_it(tmp_path):
    z = zarr.create_array(
        tmp_path / "a",
        shape=(64,),
        chunks=(32,),
        shards=(64,),
        dtype="u1",
        serializer=BytesCodec(),
        compressors=[zarr.codecs.Crc32cCodec()],
    )
    z[...] = np.arange(64)
    a, _ = counted(tmp_path / "a", NEVER_JOIN)
    assert a.explain(np.s_[3:5]).payload_nbytes == 36


def test_inner_chunks_that_a_stride_jumps_over_are_not_fetched(tmp_path):
    values = stored(tmp_path / "a", (64,), (4,), (64,))
    a, store = counted(tmp_path / "a", NEVER_JOIN)
    whole = a.explain()
    store.take()
    assert_same_bits(a[1::16], values[1::16])
    taken = store.take()
    assert len(taken) == 4  # 1, 17, 33 and 49 lie in inner chunks 0, 4, 8 and 12
    assert a.explain(np.s_[1::16]).n_inner_chunks == 4
    assert sum(stop - start for _, start, stop in taken) < whole.payload_nbytes / 3


def test_shards_that_a_stride_jumps_over_are_not_asked_for(tmp_path):
    values = stored(tmp_path / "a", (64,), (2,), (4,))
    a, store = counted(tmp_path / "a")
    assert_same_bits(a[::32], values[::32])
    assert {key for key, _, _ in store.take()} == {"c/0", "c/8"}
    assert_same_bits(a.oindex[[63, 1]], values[[63, 1]])
    assert {key for key, _, _ in store.take()} == {"c/0", "c/15"}


def test_requests_do_not_grow_with_the_array(tmp_path):
    n_requests = []
    for name, n in (("small", 64), ("large", 640)):
        values = stored(tmp_path / name, (n, 32), (8, 8), (32, 32))
        a, store = counted(tmp_path / name)
        assert_same_bits(a[10:40, 3], values[10:40, 3])
        n_requests.append(len(store.take()))
    assert n_requests[0] == n_requests[1] <= 4


def test_an_absent_shard_costs_one_request(tmp_path):
    stored(tmp_path / "a")
    (tmp_path / "a/c/0/0").unlink()
    a, store = counted(tmp_path / "a")
    assert (a[0:32, 0:32] == -1).all()
    assert len(store.take()) == 1
    assert a[3, 3] == -1
    assert len(store.take()) == 1


def test_neighbouring_inner_chunks_come_in_one_request(tmp_path):
    values = stored(tmp_path / "a", (64,), (4,), (64,))
    a, store = counted(tmp_path / "a", NEVER_JOIN)
    a[0]
    store.take()
    assert_same_bits(a[0:64], values)
    assert len(store.take()) == 1
    assert a.explain().gap_nbytes == 0


def test_gaps_are_read_over_where_a_request_costs_more(tmp_path):
    stored(tmp_path / "a", (64,), (4,), (64,))
    joins = FetchCosts(2**20, 2**30, 4, prefers_whole_objects=False)
    a, _ = counted(tmp_path / "a", joins)
    report = a.explain(np.s_[::16])
    assert report.n_payload_requests == 1
    assert report.gap_nbytes > 0
    b, _ = counted(tmp_path / "a", NEVER_JOIN)
    assert b.explain(np.s_[::16]).gap_nbytes == 0


def test_selections_of_a_batch_share_what_they_fetch(tmp_path):
    values = stored(tmp_path / "a")
    a, store = counted(tmp_path / "a")
    first, again, other = a.read_many([np.s_[0:8, 0:8], np.s_[2:5], np.s_[4, 4:8]])
    assert_same_bits(first, values[0:8, 0:8])
    assert_same_bits(again, values[2:5])
    assert_same_bits(other, values[4, 4:8])
    payload = [r for r in store.take() if r[1] >= 0]
    # Row 2 to 5 of all columns reach two shards; nothing is fetched twice.
    assert len(payload) == len(set(payload)) <= 4


# Objects that change between reads


def rewritten(place: Path, values: np.ndarray) -> None:
    """Replace the array's shards atomically by those of other values."""
    document = json.loads((place / "zarr.json").read_text())
    fresh = place.with_name("fresh")
    fresh.mkdir()
    (fresh / "zarr.json").write_text(json.dumps(document))
    zarr.open_array(fresh, mode="r+")[...] = values
    for path in fresh.rglob("c/*/*"):
        os.replace(path, place / path.relative_to(fresh))


@pytest.mark.parametrize("raw", [False, True], ids=["zstd", "uncompressed"])
def test_a_replaced_shard_is_noticed_by_the_next_read(tmp_path, raw):
    values = stored(tmp_path / "a", raw=raw)
    a = gpushard.open_array(tmp_path / "a")
    assert_same_bits(a[...], values)
    assert a[5, 5] == values[5, 5]
    rewritten(tmp_path / "a", values[::-1])
    if raw:  # all shards have kept their size
        assert {p.stat().st_size for p in (tmp_path / "a/c").rglob("*/*")} == {
            4096 + 260
        }
    assert a[5, 5] == values[::-1][5, 5]
    assert_same_bits(a[...], values[::-1])


def test_a_shard_that_appears_or_vanishes_is_noticed(tmp_path):
    values = stored(tmp_path / "a")
    shard = tmp_path / "a/c/1/1"
    kept = shard.read_bytes()
    a = gpushard.open_array(tmp_path / "a")
    assert_same_bits(a[...], values)
    shard.unlink()
    assert (a[32:, 32:] == -1).all()
    assert a[40, 40] == -1
    shard.write_bytes(kept)
    assert a[40, 40] == values[40, 40]
    assert_same_bits(a[...], values)


@pytest.mark.network
def test_a_shard_replaced_behind_a_server_is_noticed(tmp_path):
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    values = stored(tmp_path / "a")
    with RangeServer(tmp_path / "a") as server:
        a = gpushard.open_array(server.url)
        assert_same_bits(a[3:9, 3:9], values[3:9, 3:9])
        rewritten(tmp_path / "a", values[::-1])
        assert_same_bits(a[3:9, 3:9], values[::-1][3:9, 3:9])
        assert_same_bits(a[...], values[::-1])


@pytest.mark.network
@pytest.mark.parametrize("key", [np.s_[5, 5], np.s_[...]], ids=["small", "large"])
def test_a_shard_deleted_behind_a_server_between_reads_is_missing(tmp_path, key):
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    wanted = stored(tmp_path / "a")
    with RangeServer(tmp_path / "a") as server:
        a = gpushard.open_array(server.url)
        assert_same_bits(a[...], wanted)
        (tmp_path / "a/c/0/0").unlink()
        wanted[:32, :32] = -1
        assert_same_bits(a[key], wanted[key])


def test_a_replaced_shard_in_memory_is_noticed():
    held: dict = {}
    values = stored(MemoryStore(held))
    a = gpushard.open_array(MemoryStore(held))
    assert_same_bits(a[...], values)
    zarr.open_array(MemoryStore(held), mode="r+")[...] = values[::-1]
    assert_same_bits(a[...], values[::-1])
