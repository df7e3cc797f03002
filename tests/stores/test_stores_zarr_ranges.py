"""Payload of zarr stores comes by their `get_ranges`, whatever they make of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.abc.store import RangeByteRequest
from zarr.abc.store import Store as ZarrAbstractStore
from zarr.codecs import ZstdCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore, WrapperStore

import gpushard
from gpushard.errors import CorruptShardError, ObjectDeletedError, StoreError
from gpushard.options import KIB, MIB, Options
from gpushard.stores.base import ByteRequest
from gpushard.stores.zarr.store import ZarrStore
from stored_object import BODY
from zarr_oracle import assert_same_bits

pytestmark = pytest.mark.skipif(
    not hasattr(ZarrAbstractStore, "get_ranges"), reason="zarr has get_ranges since 3.3"
)


def buffer(data: bytes) -> Any:
    return default_buffer_prototype().buffer.from_bytes(data)


class Ranged(WrapperStore):
    """A store with a way of its own to ranges: one at a time, the last one first."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.asked: list[Any] = []
        self.told: list[dict[str, int]] = []

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        self.asked.append((key, "get"))
        return await super().get(key, prototype, byte_range)

    async def get_ranges(
        self, key: str, byte_ranges: Sequence[Any], *, prototype: Any, **how: int
    ) -> Any:
        self.asked.append((key, len(byte_ranges)))
        self.told.append(how | {"nbytes": sum(r.end - r.start for r in byte_ranges)})
        for i, byte_range in reversed([*enumerate(byte_ranges)]):
            yield [(i, await self._store.get(key, prototype, byte_range))]


class Joining(MemoryStore):
    """A store that joins ranges as zarr would, and says so."""

    def get_ranges(self, *asked: Any, **how: Any) -> Any:
        return ZarrAbstractStore.get_ranges(self, *asked, **how)


def stored(raw: bool = False, n: int = 64) -> tuple[Ranged, np.ndarray]:
    """Array of `n` times `n` distinct numbers in four shards; every second row is 0."""
    values = np.arange(n * n, dtype="i4").reshape(n, n)
    values.reshape(n // 8, 8, n)[::2] = 0
    objects: dict[str, Any] = {}
    z = zarr.create_array(
        MemoryStore(objects),
        shape=(n, n),
        chunks=(8, n // 8),
        shards=(n // 2, n // 2),
        dtype="i4",
        compressors=None if raw else ZstdCodec(),
        fill_value=0,
    )
    z[...] = values
    return Ranged(MemoryStore(objects)), values


def payload_of(asked: list[Any]) -> Counter[str]:
    return Counter(key for key, what in asked if what != "get")


@pytest.mark.parametrize("raw", [False, True], ids=["encoded", "raw"])
def test_payload_of_a_shard_is_one_call_and_its_index_one_get(raw: bool) -> None:
    store, values = stored(raw)
    a = gpushard.open_array(store)
    store.asked.clear()
    assert_same_bits(a[3:60, 20:44:3], values[3:60, 20:44:3])
    shards = ["c/0/0", "c/0/1", "c/1/0", "c/1/1"]
    assert Counter(key for key, what in store.asked if what == "get") == Counter(shards)
    assert payload_of(store.asked) == Counter(shards)


def test_ranges_that_are_not_joined_are_one_call_too_and_come_in_any_order() -> None:
    store = Ranged(MemoryStore({"k": buffer(BODY), "l": buffer(BODY[::-1])}))
    starts = [9, 400, 3, 200, 0]
    requests = [
        ByteRequest(key, start, start + 5, is_indexed=True)
        for start in starts
        for key in "kl"
    ]
    answers = ZarrStore(store).read([*requests, ByteRequest("k", -4)])
    assert [a.data.tobytes() for a in answers if a] == [
        *[body[s : s + 5] for s in starts for body in (BODY, BODY[::-1])],
        BODY[-4:],
    ]
    assert sorted(store.asked, key=str) == [("k", "get"), ("k", 5), ("l", 5)]


def test_stores_are_told_how_far_to_join() -> None:
    store, _ = stored()
    a = gpushard.open_array(store)
    a[3:60, 20:44:3]
    costs = ZarrStore(store).costs
    for told in store.told:
        assert told["max_gap_bytes"] == costs.gap_nbytes
        assert told["max_coalesced_bytes"] == costs.max_request_nbytes


def test_wrappers_that_change_only_get_are_asked_by_it() -> None:
    class Changed(WrapperStore):
        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            found = await super().get(key, prototype, byte_range)
            return buffer(bytes(255 - n for n in found.to_bytes()))

    store = ZarrStore(Changed(MemoryStore({"k": buffer(BODY)})))
    (answer,) = store.read([ByteRequest("k", 2, 9, is_indexed=True)])
    assert answer is not None
    assert answer.data.tobytes() == bytes(255 - n for n in BODY[2:9])


def test_wrappers_that_change_nothing_are_asked_as_what_they_wrap() -> None:
    store, values = stored()
    a = gpushard.open_array(WrapperStore(WrapperStore(store)))
    assert_same_bits(a[3:60, 20:44:3], values[3:60, 20:44:3])
    assert len(payload_of(store.asked)) == 4


def test_where_zarr_has_no_get_ranges_payload_comes_by_get(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(ZarrAbstractStore, "get_ranges")
    store, values = stored()
    a = gpushard.open_array(store)
    assert_same_bits(a[3:60, 20:44:3], values[3:60, 20:44:3])
    assert not payload_of(store.asked)


def test_large_payload_is_read_piece_by_piece() -> None:
    store, values = stored(raw=True, n=1024)
    limit = 512 * KIB
    a = gpushard.open_array(store, options=Options(memory_limit=limit, threads=2))
    assert_same_bits(a[1:, 256:768], values[1:, 256:768])
    assert sum(told["nbytes"] for told in store.told) > MIB
    assert max(told["nbytes"] for told in store.told) <= limit // 2


def test_no_more_ranges_are_under_way_at_once_than_requests_may_be() -> None:
    n_now, most = 0, 0

    class Slow(Joining):
        async def get(self, *_: Any) -> Any:
            nonlocal n_now, most
            n_now += 1
            most = max(most, n_now)
            await asyncio.sleep(0.001)
            n_now -= 1
            return buffer(b"1")

    store = ZarrStore(Slow())
    for n_objects in (1, 3, 30):
        most = 0
        store.read(
            [
                ByteRequest(f"k/{k}", 2**25 * i, 2**25 * i + 1, is_indexed=True)
                for k in range(n_objects)
                for i in range(60)
            ]
        )
        assert 0.9 * store.costs.concurrency <= most <= store.costs.concurrency


# ------------------------------------------------------------------- stores that fail


class Planted(MemoryStore):
    """A store whose ranges are what a test plants: groups, and an error behind them."""

    def __init__(self, groups: Sequence[Any], error: BaseException | None) -> None:
        super().__init__({"k": buffer(BODY)})
        self.groups, self.error = groups, error

    async def get_ranges(self, *_: Any, **__: Any) -> Any:
        for group in self.groups:
            yield group
        if self.error is not None:
            raise self.error


ASKED = [
    ByteRequest("k", 2, 9, is_indexed=True),
    ByteRequest("k", 12, 19, is_indexed=True),
]
FIRST = (0, buffer(BODY[2:9]))


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("k"),
        KeyError("k"),
        ExceptionGroup("failed", [FileNotFoundError("k")]),
        ExceptionGroup("failed", [ExceptionGroup("inside", [KeyError("k")])]),
        BaseExceptionGroup("failed", [asyncio.CancelledError(), FileNotFoundError()]),
    ],
    ids=repr,
)
@pytest.mark.parametrize("groups", [[], [[FIRST]]], ids=["at once", "later"])
def test_an_object_that_is_gone_gives_no_range(
    groups: Sequence[Any], error: BaseException
) -> None:
    assert ZarrStore(Planted(groups, error)).read(ASKED) == [None, None]


def test_a_range_that_the_store_says_is_not_there_is_none() -> None:
    first, second = ZarrStore(Planted([[(1, None), FIRST]], None)).read(ASKED)
    assert first is not None
    assert (first.data.tobytes(), second) == (BODY[2:9], None)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("boom"),
        ExceptionGroup("failed", [FileNotFoundError("k"), OSError("boom")]),
        BaseExceptionGroup("failed", [asyncio.CancelledError(), OSError("boom")]),
        BaseExceptionGroup("failed", [asyncio.CancelledError("boom")]),
    ],
    ids=repr,
)
def test_any_other_failure_is_one_store_error_that_tells_the_first_cause(
    error: BaseException,
) -> None:
    with pytest.raises(StoreError, match="boom") as caught:
        ZarrStore(Planted([[FIRST]], error)).read(ASKED)
    assert caught.value.shard_key == "k"
    assert caught.value.__cause__ is error
    assert "failed" not in str(caught.value)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([[FIRST]], "no answer"),
        ([[FIRST], [(1, buffer(BODY[12:20]))]], "8 bytes"),
        ([[FIRST], [(2, buffer(BODY[12:19]))]], "no answer"),
        ([7], "TypeError"),
        ([[(0, b"2345678")]], "AttributeError"),
    ],
    ids=["left out", "too long", "misnumbered", "no ranges", "no buffers"],
)
def test_other_answers_than_asked_for_are_an_error(
    groups: Sequence[Any], said: str
) -> None:
    with pytest.raises(StoreError, match=said):
        ZarrStore(Planted(groups, None)).read(ASKED)


@pytest.mark.parametrize(("n_before", "n_behind"), [(0, 5), (3, 5), (7, -7)])
def test_a_range_behind_the_end_or_without_bytes_may_be_refused(
    n_before: int, n_behind: int
) -> None:
    store = ZarrStore(Planted([], ValueError("not satisfiable")))
    start, stop = len(BODY) - n_before, len(BODY) + n_behind
    inside, other = store.read(
        [ASKED[0], ByteRequest("k", start, stop, is_indexed=True)]
    )
    assert inside is not None
    assert other is not None
    assert inside.data.tobytes() == BODY[2:9]
    assert other.data.tobytes() == BODY[start:stop]


def test_nothing_is_left_under_way_when_one_object_fails() -> None:
    under_way: list[str] = []

    class Failing(MemoryStore):
        async def get_ranges(self, key: str, *_: Any, **__: Any) -> Any:
            under_way.append(key)
            await asyncio.sleep(0 if key == "a" else 0.02)
            under_way.remove(key)
            raise OSError(key)
            yield

    requests = [ByteRequest(key, 0, 1, is_indexed=True) for key in "abc"]
    with pytest.raises(StoreError, match="OSError: a"):
        ZarrStore(Failing()).read(requests)
    assert not under_way


@pytest.mark.parametrize(
    ("answer", "error"),
    [(None, ObjectDeletedError), (b"", CorruptShardError)],
    ids=["deleted", "torn"],
)
@pytest.mark.parametrize("rows", [slice(8, 9), slice(8, 48)], ids=["few", "many"])
def test_payload_that_is_gone_or_cut_off_names_its_shard(
    answer: bytes | None, error: type[Exception], rows: slice
) -> None:
    class Cut(Ranged):
        async def get_ranges(self, key: str, byte_ranges: Any, **_: Any) -> Any:
            given = None if answer is None else buffer(answer)
            yield [(i, given) for i in range(len(byte_ranges))]

    store, _ = stored()
    a = gpushard.open_array(Cut(store._store))
    with pytest.raises(error, match="c/0/0"):
        a[rows, :8]


def test_range_requests_are_spelled_as_zarr_spells_them() -> None:
    spelled: list[Any] = []

    class Spelled(MemoryStore):
        async def get_ranges(self, key: str, byte_ranges: Any, **_: Any) -> Any:
            spelled.extend(byte_ranges)
            yield [(i, buffer(BODY[:7])) for i in range(len(byte_ranges))]

    ZarrStore(Spelled()).read(ASKED)
    assert spelled == [RangeByteRequest(2, 9), RangeByteRequest(12, 19)]


def test_ranges_that_come_in_pieces_are_asked_for_one_by_one():
    class Telling(Ranged):
        async def getsize(self, key: str) -> int:
            return len(BODY)

    store = Telling(MemoryStore({"k": buffer(BODY)}))
    costs = replace(ZarrStore(store).costs, prefers_whole_objects=True)
    ranges = [ByteRequest("k", n, n + 300, is_indexed=True) for n in (600, 10)]
    for requests in ([r._replace(piece_nbytes=50) for r in ranges], ranges):
        answers = ZarrStore(store, costs=costs).read(requests)
        assert [a.data.tobytes() for a in answers if a] == [BODY[600:900], BODY[10:310]]
    assert [how for _, how in store.asked if how != "get"] == [2]
