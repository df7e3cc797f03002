"""zarr's arrays, read by gpushard: which requests are made, and shards that vanish."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.abc.store import RangeByteRequest, Store, SuffixByteRequest
from zarr.codecs import ZstdCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore, ObjectStore, WrapperStore

import gpushard
from gpushard.integrations.zarr import FallbackWarning, reading
from gpushard.stores.remote import RemoteStore
from gpushard.stores.zarr import store as zarr_stores
from zarr_oracle import assert_same_bits

has_ranges = pytest.mark.skipif(
    not hasattr(Store, "get_ranges"), reason="zarr has get_ranges since 3.3"
)
GAP = "array.sharding_coalesce_max_gap_bytes"
MOST = "array.sharding_coalesce_max_bytes"
N_CHUNKS, CHUNK = 16, 64  # of a shard; bytes of an inner chunk
# zarr fetches shards whole of which all is wanted.
NOT_FIRST = [i for i in range(4 * N_CHUNKS) if i % N_CHUNKS]
VALUES = np.random.default_rng(3).integers(1, 99, 4 * N_CHUNKS * CHUNK, "u1")
VALUES.reshape(-1, CHUNK)[5::7] = 7  # compressed well, others not


def using(pipeline, **more):
    """Settings of zarr, one of its pipelines or ours for what is opened with them."""
    path = {
        "ours": "gpushard.GpushardCodecPipeline",
        "zarr's": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    }[pipeline]
    return zarr.config.set({"codec_pipeline.path": path, **more})


class Noting(WrapperStore):
    """A store that notes the ranges that are got from it, however that is asked."""

    def __init__(self, store):
        super().__init__(store)
        self.got = []

    async def get(self, key, prototype, byte_range=None):
        self.got.append((key, byte_range))
        return await self._store.get(key, prototype, byte_range)

    def get_ranges(self, *asked, **how):
        return Store.get_ranges(self, *asked, **how)


class NotingNear(MemoryStore):
    """So too, in this process, which has other costs."""

    def __init__(self, objects):
        super().__init__(objects)
        self.got = []

    async def get(self, key, prototype=None, byte_range=None):
        self.got.append((key, byte_range))
        return await super().get(key, prototype, byte_range)


@pytest.fixture(scope="module")
def objects():
    """Objects of an array of four shards, of whose inner chunks some are missing."""
    objects = {}
    with using("zarr's"):
        z = zarr.create_array(
            MemoryStore(objects),
            shape=VALUES.shape,
            chunks=(CHUNK,),
            shards=(N_CHUNKS * CHUNK,),
            dtype="u1",
            compressors=ZstdCodec(),
            fill_value=0,
        )
        VALUES.reshape(-1, CHUNK)[3::9] = 0
        z[...] = VALUES
    return objects


def got(objects, pipeline, index, is_near=False, config=None, **more):
    """Elements at `index`, and the sorted ranges that were got for them."""
    store = NotingNear(objects) if is_near else Noting(MemoryStore(objects))
    with using(pipeline, **more, **{"gpushard.strict": True}):
        a = zarr.open_array(store, mode="r+")
        a = a if config is None else a.with_config(config)
        store.got.clear()
        read = a.oindex[index]
    return read, sorted(store.got, key=str)


@has_ranges
@given(
    st.sets(st.sampled_from(NOT_FIRST), min_size=1),
    st.integers(0, 400),
    st.integers(1, 900),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=30)
def test_ranges_are_joined_as_zarrs_own_pipeline_joins_them(
    objects, chunks, gap_nbytes, most_nbytes, for_array, is_near
):
    index = [i * CHUNK + 1 for i in sorted(chunks)]
    if for_array:
        names = (name.removeprefix("array.") for name in (GAP, MOST))
        how = {"config": dict(zip(names, (gap_nbytes, most_nbytes), strict=True))}
    else:
        how = {GAP: gap_nbytes, MOST: most_nbytes}
    ours, ranges = got(objects, "ours", index, is_near, **how)
    theirs, expected = got(objects, "zarr's", index, is_near, **how)
    assert_same_bits(ours, theirs)
    assert ranges == expected


@has_ranges
@pytest.mark.parametrize(
    ("setting", "n_expected"),
    [
        ({}, 1),
        ({GAP: 0}, 3),
        ({GAP: 2**20 - 1}, 2),
        ({MOST: 1}, 14),
        ({MOST: 2**24 - 1}, 2),
        ({GAP: 2**20, MOST: 2**24}, 1),
    ],
    ids=str,
)
def test_shards_are_fetched_whole_only_where_their_gaps_may_be(
    objects, setting, n_expected
):
    # All but one inner chunk of a shard of 14; the two others are missing.
    index = [i * CHUNK for i in range(N_CHUNKS) if i != 1]
    read, ranges = got(objects, "ours", index, **setting)
    assert_same_bits(read, VALUES[index])
    assert len(ranges) == n_expected, ranges


# ------------------------------------------------------------ shards that are deleted


class Deleting(WrapperStore):
    """A store in which somebody does something to a shard once its index was read."""

    def __init__(self, store, key, then=None):
        super().__init__(store)
        self.key, self.then = key, then

    async def get(self, key, prototype, byte_range=None):
        found = await self._store.get(key, prototype, byte_range)
        if key == self.key and isinstance(byte_range, SuffixByteRequest):
            if self.then is None:
                await self._store.delete(key)
            else:
                await self._store.set(key, self.then)
        return found

    async def get_ranges(self, key, byte_ranges, *, prototype, **_):
        for i, byte_range in enumerate(byte_ranges):
            found = await self._store.get(key, prototype, byte_range)
            if found is None:
                raise ExceptionGroup("gone", [FileNotFoundError(key)])
            yield [(i, found)]


FEW = slice(N_CHUNKS * CHUNK - CHUNK, N_CHUNKS * CHUNK + CHUNK)
FILLED = np.where(np.arange(2 * CHUNK) < CHUNK, 0, VALUES[FEW])


def deleting(objects, then=None, **config):
    """Array whose first shard is deleted once its index was read."""
    store = Deleting(MemoryStore(dict(objects)), "c/0", then)
    with using("ours", **config):
        return zarr.open_array(store, mode="r+")


def deleting_remotely(objects, monkeypatch):
    """So too, in a store of obstore's, which is read without zarr."""
    obstore = pytest.importorskip("obstore", reason="the extra `remote` is missing")
    store = ObjectStore(obstore.store.MemoryStore())
    for key, value in objects.items():
        store.store.put(key, value.to_bytes())
    with using("ours"):
        a = zarr.open_array(store, mode="r+")
    read = RemoteStore.read

    def then_delete(self, requests):
        answers = read(self, requests)
        if any(r.key == "c/0" and r.start < 0 for r in requests):
            store.store.delete("c/0")
        return answers

    monkeypatch.setattr(RemoteStore, "read", then_delete)
    return a


@pytest.mark.parametrize("where", ["zarr store", "obstore"])
def test_a_shard_deleted_within_a_read_is_left_to_zarr_with_a_warning_that_names_it(
    objects, where, monkeypatch
):
    remotely = where == "obstore"
    a = deleting_remotely(objects, monkeypatch) if remotely else deleting(objects)
    said = r"^gpushard leaves this to zarr.*fills what is gone.*deleted.*c/0"
    with pytest.warns(FallbackWarning, match=said):
        assert_same_bits(a[FEW], FILLED)


def test_where_strict_it_is_an_error_that_names_the_shard(objects):
    a = deleting(objects)
    strict = zarr.config.set({"gpushard.strict": True})
    with strict, pytest.raises(gpushard.ObjectDeletedError, match="c/0"):
        a[FEW]


def test_each_deletion_is_told_of(objects):
    a = deleting(objects)
    inside = a.store._store
    for _ in range(2):
        inside._store_dict["c/0"] = objects["c/0"]
        with pytest.warns(FallbackWarning, match="c/0"):
            a[FEW]


def test_chunks_that_must_not_be_missing_are_an_error_when_they_are_deleted(objects):
    a = deleting(objects)
    if not hasattr(getattr(a, "config", None), "read_missing_chunks"):
        pytest.skip("this zarr has no read_missing_chunks")
    with using("ours"):
        a = a.with_config({"read_missing_chunks": False})
    with (
        pytest.warns(FallbackWarning, match="c/0"),
        pytest.raises(zarr.errors.ChunkNotFoundError, match="c/0"),
    ):
        a[FEW]


def test_a_shard_torn_or_replaced_within_a_read_stays_an_error(objects):
    torn = default_buffer_prototype().buffer.from_bytes(
        objects["c/0"].to_bytes()[-300:]
    )
    with pytest.raises((gpushard.CorruptShardError, gpushard.StoreError), match="c/0"):
        deleting(objects, then=torn)[FEW]


def test_an_index_at_the_front_is_asked_for_by_get_too():
    store = Noting(MemoryStore())
    with using("zarr's"):
        z = zarr.create_array(
            store,
            shape=64,
            chunks=(8,),
            shards={"shape": (32,), "index_location": "start"},
            dtype="u1",
        )
        z[...] = np.arange(64)
    with using("ours", **{"gpushard.strict": True}):
        a = zarr.open_array(store, mode="r+")
    store.got.clear()
    assert a[9:11].tolist() == [9, 10]
    (key, index), (_, payload) = store.got
    assert (key, index) == ("c/0", RangeByteRequest(0, 4 * 16 + 4))
    assert payload.start >= index.end


class Hanging(MemoryStore):
    """A store whose answers never come while `hangs`."""

    hangs = False
    n_begun = n_cancelled = 0

    async def get(self, key, prototype=None, byte_range=None):
        if self.hangs:
            self.n_begun += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.n_cancelled += 1
        return await super().get(key, prototype, byte_range)


def test_cancelled_reads_break_off_their_requests_and_leave_room_for_others(objects):
    async def reads():
        array = await zarr.api.asynchronous.open_array(store=Hanging(objects), mode="r")
        store = array.store  # another one, for reading only
        store.hangs = True
        given_up = [asyncio.wait_for(array.getitem(i), 0.2) for i in range(40)]
        told = await asyncio.gather(*given_up, return_exceptions=True)
        assert {type(error) for error in told} == {TimeoutError}
        store.hangs = False
        element = await asyncio.wait_for(array.getitem(5), 10)
        assert store.n_cancelled == store.n_begun > 0
        return element, len(asyncio.all_tasks())

    with using("ours"):
        element, n_tasks = asyncio.run(reads())
    assert (element, n_tasks) == (VALUES[5], 1)


def opened(objects):
    with using("ours", **{"gpushard.strict": True}):
        return zarr.open_array(MemoryStore(objects), mode="r")


def test_what_readers_found_out_is_kept_for_reads_in_the_same_loop(
    objects, monkeypatch
):
    """They keep it with the array that they are given."""
    given = []

    def read(source, request):
        given.append(source)
        return read_on_host(source, request)

    read_on_host = reading.read_on_host
    monkeypatch.setattr(reading, "read_on_host", read)
    a = opened(objects)
    for _ in range(3):
        assert a[70] == VALUES[70]
    assert given[0] is given[1] is given[2]

    async def read_here():
        return await a._async_array.getitem((70,))

    assert asyncio.run(read_here()) == VALUES[70]
    assert given[3] is not given[0], "another loop, so another store"


def test_stores_in_memory_are_read_without_the_event_loop(objects, monkeypatch):
    a = opened(objects)
    assert a[70] == VALUES[70]  # the store is open
    monkeypatch.setattr(zarr_stores, "run_in_loop", None)
    assert_same_bits(a[3:200:2], VALUES[3:200:2])
