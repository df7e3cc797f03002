"""zarr stores that refuse ranges which others answer: by a panic, or by an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr
from zarr.abc.store import RangeByteRequest
from zarr.core.sync import sync
from zarr.storage import MemoryStore, WrapperStore

import gpushard
from gpushard.errors import CorruptShardError, StoreError
from gpushard.fetching import fetch
from gpushard.inspection.verify import verify_array
from gpushard.stores.base import ByteRequest
from gpushard.stores.zarr.store import ZarrStore, refuses_beyond
from stored_object import BODY, RANGES
from zarr_oracle import assert_same_bits


class Strict(WrapperStore):
    """A store that answers ranges within an object only, like Icechunk's."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.n_failed = 0

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        if byte_range is not None and await self._store.exists(key):
            nbytes = await self._store.getsize(key)
            if (
                not isinstance(byte_range, RangeByteRequest)
                or not byte_range.start < byte_range.end <= nbytes
            ):
                self.n_failed += 1
                raise ValueError(f"byte range out of bounds of length {nbytes}")
        return await self._store.get(key, prototype, byte_range)

    async def getsize(self, key: str) -> int:
        # Icechunk's gives 0 to a chunk that does not exist.
        return await self._store.getsize(key) if await self._store.exists(key) else 0


class Panicking(Strict):
    """So too, and known to."""


Panicking.__module__ = "icechunk.store"


def filled(kind: type[Strict]) -> Strict:
    inside = MemoryStore()
    z = zarr.create_group(inside).create_array(
        "sharded", shape=(20, 6), chunks=(2, 3), shards=(10, 6), dtype="i2"
    )
    z[:10] = np.arange(60).reshape(10, 6)  # the other shard is missing
    z = zarr.open_group(inside).create_array(
        "plain", shape=(7,), chunks=(4,), dtype="u1"
    )
    z[:4] = 5
    sync(inside.set("c/0", zarr.core.buffer.cpu.Buffer.from_bytes(BODY)))
    return kind(inside)


@pytest.mark.parametrize(("asked", "expected"), RANGES)
@pytest.mark.parametrize("kind", [Strict, Panicking])
def test_refused_ranges_are_asked_for_within_the_object(kind, asked, expected):
    store = ZarrStore(filled(kind))
    for _ in range(2):  # the second time the store is known
        (fetched,) = store.read([ByteRequest("c/0", *asked)])
        assert fetched is not None
        assert fetched.data.tobytes() == expected
    limited = ByteRequest("c/0", max_nbytes=10)
    absent = ByteRequest("c/1", max_nbytes=10)
    found, missing = store.read([limited, absent])
    assert found is not None
    assert found.data.tobytes() == BODY[:10]
    assert missing is None
    assert store.read([ByteRequest("c/1", -4)]) == [None]


@pytest.mark.parametrize("kind", [Strict, Panicking])
def test_arrays_in_stores_that_refuse_are_read(kind):
    refusing = filled(kind)
    group = gpushard.open_group(refusing)
    assert sorted(group) == ["plain", "sharded"]
    for name in group:
        z = zarr.open_array(refusing._store, path=name, mode="r")
        assert_same_bits(group[name][...], z[...])
        assert_same_bits(group[name][3:7], z[3:7])


def test_a_store_that_is_known_to_panic_is_never_made_to():
    panicking = filled(Panicking)
    assert not refuses_beyond(filled(Strict))
    assert refuses_beyond(panicking)
    assert refuses_beyond(WrapperStore(panicking))
    gpushard.open_group(panicking)["sharded"][...]
    assert panicking.n_failed == 0


class Counting(WrapperStore):
    """A wrapper that tells no sizes; what it fetched, by key and range."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.fetched: list[tuple[str, Any]] = []

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        self.fetched.append((key, byte_range))
        return await self._store.get(key, prototype, byte_range)


@pytest.mark.parametrize(("asked", "expected"), RANGES)
def test_a_wrapper_that_tells_no_sizes_is_asked_once(asked, expected):
    counting = Counting(filled(Panicking))
    request = ByteRequest("c/0", *asked)
    (fetched,) = ZarrStore(counting).read([request])
    assert fetched is not None
    assert fetched.data.tobytes() == expected
    if request.stop is None:
        assert len(counting.fetched) == 1
        assert fetched.object_nbytes == len(BODY)
        assert fetched.data.base is None or fetched.data.nbytes == len(BODY)
    assert ZarrStore(counting).read([ByteRequest("c/1", max_nbytes=10)]) == [None]


def test_the_store_in_a_passing_wrapper_tells_the_size():
    telling = type("Telling", (Counting,), {"getsize": Strict.getsize})
    inside = telling(filled(Panicking))
    (fetched,) = ZarrStore(WrapperStore(inside)).read([ByteRequest("c/0", -4)])
    assert fetched is not None
    assert fetched.data.tobytes() == BODY[-4:]
    ((_, asked),) = inside.fetched
    assert asked == RangeByteRequest(len(BODY) - 4, len(BODY))


def test_a_passing_wrapper_that_tells_sizes_is_asked_for_them():
    async def getsize(store: Any, key: str) -> int:
        return len(BODY)

    inside = Counting(filled(Panicking))
    outside = type("Sized", (WrapperStore,), {"getsize": getsize})(inside)
    (fetched,) = ZarrStore(outside).read([ByteRequest("c/0", -4)])
    assert fetched is not None
    assert fetched.data.tobytes() == BODY[-4:]
    ((_, asked),) = inside.fetched
    assert asked == RangeByteRequest(len(BODY) - 4, len(BODY))


def test_a_store_that_refused_once_is_asked_within_the_object_from_then_on():
    refusing = filled(Strict)
    store = ZarrStore(refusing)
    for _ in range(5):
        store.read([ByteRequest("c/0", -20)])
    assert refusing.n_failed == 1


@pytest.mark.parametrize("asked", [{"start": -20}, {"max_nbytes": 5000}])
def test_a_store_that_failed_for_a_moment_is_asked_as_before(asked):
    class Failing(MemoryStore):
        n_left, n_sizes = 0, 0

        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            if self.n_left:
                self.n_left -= 1
                raise OSError("come back later")
            return await super().get(key, prototype, byte_range)

        async def getsize(self, key: str) -> int:
            self.n_sizes += 1
            return await super().getsize(key)

    inside = Failing()
    sync(inside.set("c/0", zarr.core.buffer.cpu.Buffer.from_bytes(BODY)))
    store = ZarrStore(inside)
    for n_left in (0, 1, 0, 0):
        inside.n_left = n_left
        (fetched,) = store.read([ByteRequest("c/0", **asked)])
        assert fetched is not None
        assert fetched.data.tobytes() == BODY[asked.get("start", 0) :]
    assert inside.n_sizes == 1


@pytest.mark.parametrize("nbytes", [None, "20", 20.0, -1])
@pytest.mark.parametrize("asked", [{"start": -20}, {"stop": 5000}, {}])
def test_the_first_failure_is_told_where_a_store_tells_no_size(asked, nbytes):
    class Mistelling(MemoryStore):
        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            raise OSError("out of order")

        async def getsize(self, key: str) -> Any:
            return nbytes

    with pytest.raises(StoreError, match="out of order"):
        ZarrStore(Mistelling()).read([ByteRequest("c/0", **asked)])


def test_a_failure_that_the_size_does_not_explain_is_told():
    class Failing(Strict):
        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            raise ValueError(f"no power for {byte_range}")

    store = ZarrStore(filled(Failing))
    for asked in ((-4,), (3, 9), (), (1000, 5000)):
        with pytest.raises(StoreError, match="no power") as caught:
            store.read([ByteRequest("c/0", *asked)])
        assert "SuffixByteRequest" in str(caught.value) or asked != (-4,)


class ReadingOn(WrapperStore):
    """A store of chunks within a larger file, like virtualizarr's `ManifestStore`."""

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        found = await self._store.get(key, prototype)
        is_chunk = found is not None and key.startswith("c/")
        if not is_chunk or not isinstance(byte_range, RangeByteRequest):
            return await self._store.get(key, prototype, byte_range)
        file = found.to_bytes() + bytes(10_000)
        return prototype.buffer.from_bytes(file[byte_range.start : byte_range.end])


ReadingOn.__module__ = "virtualizarr.manifests.store"


@pytest.mark.parametrize("compressors", [None, "auto"])
def test_a_store_that_reads_on_behind_a_chunk_is_read(compressors):
    z = zarr.create_array(
        MemoryStore(),
        shape=(7, 4),
        chunks=(4, 2),
        dtype="i2",
        compressors=compressors,
    )
    z[...] = np.arange(28).reshape(7, 4)
    a = gpushard.open_array(ReadingOn(z.store))
    for key in (..., 3, np.s_[2:5, 1:3], np.s_[::3, ::-1]):
        assert_same_bits(a[key], z[...][key])
    cut = zarr.core.buffer.cpu.Buffer.from_bytes(bytes(14))
    sync(z.store.set("c/0/0", cut))
    if compressors is None:
        with pytest.raises(CorruptShardError, match="expected 16 bytes, got 14"):
            a[...]


def test_the_end_of_a_chunk_is_not_measured_in_a_store_that_reads_on(monkeypatch):
    monkeypatch.setattr(fetch, "_MEASURED_NBYTES", 8)  # as if the chunk were large
    z = zarr.create_array(
        MemoryStore(), shape=(64,), chunks=(32,), dtype="i2", compressors=None
    )
    z[:] = np.arange(64)
    a = gpushard.open_array(ReadingOn(z.store))
    for key in (np.s_[-5:], np.s_[20:40], np.s_[31::-7], ...):
        assert_same_bits(a[key], z[...][key])


def test_a_store_that_reads_on_gives_only_the_wanted_inner_chunks_of_a_shard():
    asked = []

    class Noting(ReadingOn):
        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            asked.append(byte_range)
            return await super().get(key, prototype, byte_range)

    Noting.__module__ = ReadingOn.__module__
    z = zarr.create_array(
        MemoryStore(), shape=(64,), chunks=(2,), shards=(64,), dtype="i2"
    )
    z[:] = np.arange(64)
    a = gpushard.open_array(Noting(z.store))
    asked.clear()
    assert a[0] == 0
    assert verify_array(a.source, decodes=True).status == "whole"
    assert None not in asked
    asked.clear()
    indexed = ByteRequest("c/0", 0, 100, is_indexed=True, piece_nbytes=40)
    for request in (indexed, ByteRequest("c/0", 0, 1)):
        ZarrStore(Noting(z.store)).read([request])
    # Pieces of such a store might have bytes of what follows, so there are none.
    assert [byte_range.end for byte_range in asked] == [100, 1]


def test_a_store_whose_name_has_lines_is_named_in_one():
    class Lines(MemoryStore):
        def __str__(self) -> str:
            return "<a store>\nread_only: True\nbranch: None\n"

    assert ZarrStore(Lines()).url == "<a store> read_only: True branch: None"


def test_icechunk_stores_are_read_and_written():
    icechunk = pytest.importorskip(
        "icechunk",
        reason="icechunk is not installed; it is large, and `Strict` is like it",
    )
    repo = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repo.writable_session("main")
    values = np.arange(400, dtype="i4").reshape(20, 20)
    group = zarr.create_group(session.store)
    group.create_array("z", shape=(20, 20), chunks=(2, 5), shards=(10, 20), dtype="i4")
    group["z"][:10] = values[:10]
    session.commit("written")
    read_only = repo.readonly_session("main").store
    opened = gpushard.open_group(read_only)["z"]
    assert_same_bits(opened[...], zarr.open_array(read_only, path="z", mode="r")[...])
    session = repo.writable_session("main")
    gpushard.open_array(session.store, "z")[10:] = values[10:]
    session.commit("the rest")
    after = repo.readonly_session("main").store
    assert_same_bits(gpushard.open_array(after, "z")[...], values)


class MutedError(OSError):
    """Its message cannot be made: a defect, as a class may have that formats it."""

    def __str__(self) -> str:
        raise AttributeError("no such field")


class MutedExit(SystemExit):
    __str__ = MutedError.__str__


@pytest.mark.parametrize("kind", [MutedError, MutedExit, TimeoutError])
def test_a_failure_without_a_message_is_told_by_its_name(kind, monkeypatch):
    async def fail(*_: Any) -> Any:
        raise kind

    store = filled(Strict)
    a = gpushard.open_array(store, path="sharded")
    monkeypatch.setattr(Strict, "get", fail)
    with pytest.raises(StoreError, match=rf": {kind.__name__} \("):
        a[...]
    monkeypatch.setattr("gpushard.loader.reading._PAUSES", ())
    with pytest.raises(StoreError, match=rf": {kind.__name__} \("):
        list(gpushard.Loader(a, batch_size=4, on_error="skip"))
