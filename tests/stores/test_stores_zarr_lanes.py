"""Requests to a zarr store: how many are under way at once, over all threads."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore, WrapperStore

import gpushard
from gpushard.errors import StoreError
from gpushard.stores.base import ByteRequest, Fetched
from gpushard.stores.zarr.lanes import Lanes
from gpushard.stores.zarr.store import ZarrStore

N_SLOTS = 32


class Far(WrapperStore):
    """A store that takes a moment for each answer, and counts.

    Attributes
    ----------
    most, n
        Most `get`s that were under way at once, and how many there were.
    """

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._n_now = self.most = self.n = 0

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        self.n += 1
        self._n_now += 1
        self.most = max(self.most, self._n_now)
        try:
            await asyncio.sleep(0.01)
            return await self.answer(key, prototype, byte_range)
        finally:
            self._n_now -= 1

    async def answer(self, key: str, prototype: Any, byte_range: Any) -> Any:
        return await super().get(key, prototype, byte_range)

    def take(self) -> tuple[int, int]:
        taken = self.n, self.most
        self.n = self.most = 0
        return taken


def objects(n: int) -> MemoryStore:
    buffer = default_buffer_prototype().buffer
    return MemoryStore({f"k/{i}": buffer.from_bytes(bytes([i])) for i in range(n)})


def test_a_column_over_many_shards_has_32_requests_under_way() -> None:
    memory = MemoryStore()
    values = np.arange(300 * 8, dtype="i4").reshape(300, 8)
    z = zarr.create_array(
        memory, shape=(300, 8), shards=(1, 8), chunks=(1, 1), dtype="i4"
    )
    z[...] = values
    store = Far(memory)
    a = gpushard.open_array(store, device="cpu")
    store.take()
    assert a[:, 3].tolist() == values[:, 3].tolist()
    assert store.take() == (600, N_SLOTS)


def test_requests_of_all_threads_count_together() -> None:
    store = Far(objects(200))
    reader, n_threads = ZarrStore(store), 8

    def read(thread: int) -> list[int]:
        keys = range(25 * thread, 25 * thread + 25)
        answers = reader.read([ByteRequest(f"k/{i}") for i in keys])
        return [a.data.tolist()[0] for a in answers if a is not None]

    with ThreadPoolExecutor(n_threads) as pool:
        found = [*pool.map(read, range(n_threads))]
    assert sorted(i for some in found for i in some) == [*range(200)]
    n, most = store.take()
    assert n == 200
    assert N_SLOTS <= most <= N_SLOTS + n_threads


class Held(Far):
    """A store that answers long reads (of ``k/``) only when it is let go."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.is_crowded, self.may_go = threading.Event(), threading.Event()

    async def answer(self, key: str, prototype: Any, byte_range: Any) -> Any:
        if key.startswith("k/"):
            if self._n_now >= N_SLOTS:
                self.is_crowded.set()
            while not self.may_go.is_set():
                await asyncio.sleep(0.001)
        return await super().answer(key, prototype, byte_range)


def test_a_short_read_does_not_wait_for_the_end_of_long_ones() -> None:
    store = Held(objects(50))
    reader = ZarrStore(store)

    def read_long() -> list[Fetched | None]:
        return reader.read([ByteRequest(f"k/{i}") for i in range(50)])

    with ThreadPoolExecutor(2) as pool:
        long = [pool.submit(read_long) for _ in range(2)]
        try:
            assert store.is_crowded.wait(10)
            assert reader.read([ByteRequest("s/0"), ByteRequest("s/1")]) == [None, None]
        finally:
            store.may_go.set()
        assert all(None not in future.result() for future in long)


class Failing(Far):
    async def answer(self, key: str, prototype: Any, byte_range: Any) -> Any:
        if key in ("k/3", "k/5"):
            raise RuntimeError(f"boom {key}")
        return await super().answer(key, prototype, byte_range)

    async def getsize(self, key: str) -> int:
        raise NotImplementedError


def test_after_an_error_no_more_requests_are_made_and_the_next_read_has_all_slots():
    store = Failing(objects(200))
    reader = ZarrStore(store)
    with pytest.raises(StoreError, match="boom k/3"):
        reader.read([ByteRequest(f"k/{i}") for i in range(200)])
    assert store.take()[0] < 2 * N_SLOTS
    reader.read([ByteRequest(f"k/{i}") for i in range(10, 110)])
    assert store.take() == (100, N_SLOTS)


class Leaving(Far):
    """A store that raises for one key what ends coroutines."""

    async def answer(self, key: str, prototype: Any, byte_range: Any) -> Any:
        if key == "k/3":
            raise GeneratorExit
        return await super().answer(key, prototype, byte_range)


def test_a_request_whose_coroutine_ended_is_no_missing_object() -> None:
    reader = ZarrStore(Leaving(objects(40)))
    with pytest.raises(GeneratorExit):
        reader.read([ByteRequest(f"k/{i}") for i in range(40)])


class Way:
    """Answers requests after a moment, and counts them."""

    def __init__(self) -> None:
        self.n_now, self.most = 0, 0

    async def get(self, request: ByteRequest) -> Fetched:
        self.n_now += 1
        self.most = max(self.most, self.n_now)
        await asyncio.sleep(0.005)
        self.n_now -= 1
        return Fetched(np.empty(0, np.uint8), None, None)


# More than the slots below: who waits for one belongs to the loop.
REQUESTS = [ByteRequest(f"k/{k}") for k in range(9)]


def test_lanes_work_in_one_loop_after_another() -> None:
    lanes, way = Lanes(2), Way()
    for _ in range(2):
        found = asyncio.run(lanes.answer(way, REQUESTS))
        assert len(found) == 9
    assert way.most == 2


def test_requests_of_lanes_that_others_cancel_are_no_missing_objects() -> None:
    async def read() -> None:
        reading = asyncio.create_task(Lanes(2).answer(Way(), REQUESTS))
        await asyncio.sleep(0)  # the lanes are there, and have not begun
        for lane in asyncio.all_tasks() - {reading, asyncio.current_task()}:
            lane.cancel()
        await reading

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(read())
