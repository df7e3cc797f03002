"""Any zarr store: memory, zip, fsspec, obstore and wrappers, from any thread."""

from __future__ import annotations

import asyncio
import gc
import pickle
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LoggingStore, MemoryStore, ZipStore

from gpushard.errors import StoreError
from gpushard.stores.base import ByteRequest, Store
from gpushard.stores.event_loops import result_in
from gpushard.stores.zarr import loop as zarr_loop
from gpushard.stores.zarr.store import ZarrStore
from range_server import RangeServer
from stored_object import BODY, RANGES

OBJECTS = {"zarr.json": b"{}", "a/c/0": BODY, "a/c/1": b"one"}


async def fill(store: Any) -> None:
    for key, body in OBJECTS.items():
        await store.set(key, cpu.Buffer.from_bytes(body))


def make_memory(tmp_path: Path) -> Any:
    store = MemoryStore()
    sync(fill(store))
    return store


def make_zip(tmp_path: Path) -> Any:
    async def make() -> None:
        store = await ZipStore.open(tmp_path / "a.zip", mode="w")
        await fill(store)
        store.close()

    sync(make())
    # Not opened: zarr 3.1 does not do that by itself.
    return ZipStore(tmp_path / "a.zip", mode="r", read_only=True)


def make_fsspec(tmp_path: Path) -> Any:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    store = FsspecStore.from_url(f"memory://{tmp_path}")
    sync(fill(store))
    return store


def make_obstore(tmp_path: Path) -> Any:
    pytest.importorskip("obstore", reason="obstore is not installed")
    from obstore.store import MemoryStore as ObstoreMemory
    from zarr.storage import ObjectStore

    store = ObjectStore(ObstoreMemory())
    sync(fill(store))
    return store


def make_logging(tmp_path: Path) -> Any:
    return LoggingStore(make_memory(tmp_path), log_level="ERROR")


@pytest.fixture(
    params=[make_memory, make_zip, make_fsspec, make_obstore, make_logging],
    ids=lambda make: make.__name__.removeprefix("make_"),
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ZarrStore:
    return ZarrStore(request.param(tmp_path))


def test_zarr_store_fulfils_the_contract(tmp_path: Path) -> None:
    assert isinstance(ZarrStore(make_memory(tmp_path)), Store)


@pytest.mark.parametrize(("asked", "expected"), RANGES)
def test_every_kind_of_range_is_answered_with_the_bytes_there_are(
    store: ZarrStore, asked: tuple[int | None, ...], expected: bytes
) -> None:
    (fetched,) = store.read([ByteRequest("a/c/0", *asked)])
    assert fetched is not None
    assert fetched.data.tobytes() == expected
    assert (fetched.data.dtype, fetched.data.ndim) == (np.uint8, 1)
    assert fetched.object_nbytes in (None, len(BODY))
    assert fetched.version is None


def test_whole_object_tells_its_size(store: ZarrStore) -> None:
    (fetched,) = store.read([ByteRequest("a/c/0")])
    assert fetched is not None
    assert fetched.object_nbytes == len(BODY)


def test_answers_come_in_the_order_of_the_requests(store: ZarrStore) -> None:
    requests = [ByteRequest("a/c/0", i, i + 3) for i in range(100)]
    requests.insert(50, ByteRequest("a/c/2"))
    answers = store.read(requests)
    assert answers.pop(50) is None
    assert [a.data.tobytes() for a in answers if a] == [
        BODY[i : i + 3] for i in range(100)
    ]
    assert store.read([]) == []


def test_documents_are_read_and_missing_ones_are_none(store: ZarrStore) -> None:
    assert store.get("zarr.json") == b"{}"
    assert store.get("b/zarr.json") is None
    assert store.current_version("zarr.json") == (False, None)


def test_children_are_listed(store: ZarrStore) -> None:
    assert store.list_children("") == ["a", "zarr.json"]
    assert store.list_children("a/c/") == ["0", "1"]
    assert store.list_children("none") == []


@pytest.mark.parametrize("key", ["../x", "/x", "a//c", "a/./c", "", "a\\c", "a\0"])
def test_keys_that_leave_the_root_are_refused(tmp_path: Path, key: str) -> None:
    store = ZarrStore(LoggingStore(zarr.storage.LocalStore(tmp_path)))
    with pytest.raises(StoreError, match="no key below"):
        store.get(key)
    if key:
        with pytest.raises(StoreError):
            store.list_children(f"a/{key}")


@pytest.mark.parametrize("make", [make_memory, make_zip, make_fsspec])
def test_store_survives_pickling(make: Any, tmp_path: Path) -> None:
    again = pickle.loads(pickle.dumps(ZarrStore(make(tmp_path))))
    assert again.get("a/c/1") == b"one"


def test_near_stores_are_not_read_whole(tmp_path: Path) -> None:
    for make, far in ((make_memory, False), (make_zip, False), (make_fsspec, True)):
        assert ZarrStore(make(tmp_path)).costs.prefers_whole_objects is far


# ------------------------------------------------------------- threads and event loops


def test_store_is_read_from_inside_a_running_event_loop(store: ZarrStore) -> None:
    async def read() -> bytes | None:
        return store.get("a/c/1")

    assert asyncio.run(read()) == b"one"


def test_store_is_read_from_several_threads(store: ZarrStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(store.get, ["a/c/0"] * 64)) == {BODY}


def test_waiting_inside_zarrs_own_loop_is_refused_not_a_deadlock(
    tmp_path: Path,
) -> None:
    store = ZarrStore(make_fsspec(tmp_path))

    async def read() -> bytes | None:
        return store.get("a/c/1")

    with pytest.raises(StoreError, match="event loop"):
        sync(read(), timeout=5)


@pytest.mark.network
def test_fsspec_over_http_reads_in_the_loop_of_its_session(tmp_path: Path) -> None:
    for package in ("fsspec", "aiohttp"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "0").write_bytes(BODY)
    with RangeServer(tmp_path) as server:
        store = ZarrStore(FsspecStore.from_url(server.url))
        requests = [ByteRequest("c/0", i, i + 3) for i in range(20)]
        with ThreadPoolExecutor(4) as pool:
            for answers in pool.map(store.read, [requests] * 4):
                assert [a.data.tobytes() for a in answers if a] == [
                    BODY[i : i + 3] for i in range(20)
                ]
        beyond, missing = store.read([ByteRequest("c/0", 2000), ByteRequest("c/1", -4)])
        assert beyond is not None
        assert (len(beyond.data), missing) == (0, None)
        server.answers_ranges = False
        with pytest.raises(StoreError, match="other bytes than asked"):
            store.read([ByteRequest("c/0", 5, 9)])


# ------------------------------------------------------------------- stores that fail


class Planted(MemoryStore):
    """A store that does with each `get` what a test plants."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer
        self.most_at_once = 0
        self._at_once = 0
        self._counting = threading.Lock()

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        with self._counting:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        await asyncio.sleep(0.01)
        with self._counting:
            self._at_once -= 1
        if isinstance(self.answer, BaseException):
            raise self.answer
        return default_buffer_prototype().buffer.from_bytes(self.answer)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        if isinstance(self.answer, BaseException):
            raise self.answer
        yield "x"


@pytest.mark.parametrize("error", [KeyError("k"), FileNotFoundError("k")])
def test_absence_in_other_words_is_none(error: Exception) -> None:
    store = ZarrStore(Planted(error))
    assert store.read([ByteRequest("k"), ByteRequest("k", -4)]) == [None, None]
    assert store.list_children("") == []


@pytest.mark.parametrize(
    "error",
    [RuntimeError("boom"), ValueError("boom"), ExceptionGroup("boom", [OSError()])],
)
def test_any_other_failure_is_one_store_error(error: Exception) -> None:
    store = ZarrStore(Planted(error))
    with pytest.raises(StoreError, match="boom") as caught:
        store.read([ByteRequest("k"), ByteRequest("k", 3, 9), ByteRequest("k", -4)])
    assert caught.value.shard_key == "k"
    assert caught.value.__cause__ is error
    with pytest.raises(StoreError, match="boom"):
        store.list_children("")


def test_a_failure_is_told_in_a_sentence_without_credentials() -> None:
    why = "no route to http://me:secret@host/data\nDebug source:\nGeneric {}"
    with pytest.raises(StoreError, match="no route to http://host/data") as caught:
        ZarrStore(Planted(RuntimeError(why))).read([ByteRequest("k")])
    assert "Debug" not in str(caught.value)


def test_failure_within_the_object_is_not_taken_for_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def tell_size(self: Planted, key: str) -> int:
        return 100

    monkeypatch.setattr(Planted, "getsize", tell_size)
    store = ZarrStore(Planted(RuntimeError("boom")))
    (beyond,) = store.read([ByteRequest("k", 100, 109)])
    assert beyond is not None
    assert (len(beyond.data), beyond.object_nbytes) == (0, 100)
    for asked in ((0, 9), (99, 109), (-4,), (99,), ()):
        with pytest.raises(StoreError, match="boom"):
            store.read([ByteRequest("k", *asked)])


@pytest.mark.parametrize("asked", [(3, 9), (-6,), (5, 5)])
def test_longer_answer_than_asked_is_an_error(asked: tuple[int, ...]) -> None:
    store = ZarrStore(Planted(b"1234567"))
    with pytest.raises(StoreError, match="other bytes than asked"):
        store.read([ByteRequest("k", *asked)])


def test_store_that_cannot_be_opened_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "bad.zip").write_bytes(b"no zip")
    store = ZarrStore(ZipStore(tmp_path / "bad.zip", mode="r", read_only=True))
    with pytest.raises(StoreError, match="cannot open"):
        store.get("zarr.json")


def test_requests_run_side_by_side_up_to_the_stated_number() -> None:
    planted = Planted(b"")
    store = ZarrStore(planted)
    store.read([ByteRequest("k")] * 50)
    assert planted.most_at_once == store.costs.concurrency


class Unanswering(MemoryStore):
    """Interrupts who waits for two answers, does not answer, and takes time to end."""

    n_running = 0

    async def get(
        self, key: str, prototype: Any, byte_range: Any = None
    ) -> Buffer | None:
        self.n_running += 1
        try:
            if self.n_running == 2:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.02)
            self.n_running -= 1
        return None


def test_an_interrupted_read_leaves_no_request_running() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    asked = Unanswering()
    store = ZarrStore(asked)
    try:
        with pytest.raises(KeyboardInterrupt):
            store.read([ByteRequest("c/0"), ByteRequest("c/1")])
    finally:
        signal.signal(signal.SIGINT, before)
    assert asked.n_running == 0


class Interrupted:
    """Its loop takes nothing: an interrupt comes first, or after the first call."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_late: bool) -> None:
        self._loop = loop
        self._is_late = is_late
        self.n_calls = 0

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        self.n_calls += 1
        if self.n_calls == 1 and not self._is_late:
            raise KeyboardInterrupt
        self._loop.call_soon_threadsafe(call)
        if self.n_calls == 1:
            time.sleep(0.05)  # the task ends before the interrupt is seen
            raise KeyboardInterrupt

    def create_task(self, coroutine: Any) -> asyncio.Task[Any]:
        return self._loop.create_task(coroutine)


@pytest.mark.parametrize("is_late", [False, True])
def test_an_interrupt_before_or_after_the_work_of_a_loop_waits_for_none(is_late):
    async def work() -> None:
        raise ValueError

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    interrupted: Any = Interrupted(loop, is_late=is_late)
    try:
        with pytest.raises(KeyboardInterrupt):
            result_in(interrupted, work)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    gc.collect()  # an error of a task that nobody saw, and a coroutine, would be told


def test_a_store_that_fails_before_it_makes_a_coroutine_is_heard(
    store: ZarrStore, monkeypatch
) -> None:
    def broken(_: Any) -> Any:
        raise ValueError("broken")

    monkeypatch.setattr(store, "_list", broken)
    with pytest.raises(ValueError, match="broken"):
        store.list_children("")


class Panic(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize("leave", [KeyboardInterrupt, SystemExit, Panic])
@pytest.mark.parametrize("n_requests", [1, 3])
def test_a_store_that_exits_is_an_error_and_does_not_end_its_loop(leave, n_requests):
    class Leaving(MemoryStore):
        async def get(self, *_: Any, **__: Any) -> Buffer | None:
            raise leave("enough")

    reading = ZarrStore(Leaving())._read_all(
        [ByteRequest(f"a/c/{k}") for k in range(n_requests)]
    )
    # In a loop of its own: if zarr's were ended, all tests after this one would wait.
    with pytest.raises(StoreError, match="gave up"):
        asyncio.run(zarr_loop.without_exits(reading))
