"""Local files: what is read, what is refused, and what happens when they change."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpushard.errors import ObjectChangedError, StoreError
from gpushard.stores.base import ByteRequest, Fetched, Store
from gpushard.stores.local import store as local
from gpushard.stores.local.root import StoreRoot
from gpushard.stores.local.store import LocalStore
from gpushard.threads import workers
from gpushard.threads.pools import Future
from stored_object import BODY, RANGES, read_one, replace_file, write_object


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_object(tmp_path / "data.zarr")


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)


def test_local_store_fulfils_the_contract(store: LocalStore) -> None:
    assert isinstance(store, Store)


@pytest.mark.parametrize(("asked", "expected"), RANGES)
def test_every_kind_of_range_is_answered_with_the_bytes_there_are(
    store: LocalStore, asked: tuple[int | None, ...], expected: bytes
) -> None:
    fetched = read_one(store, *asked)
    assert fetched.data.tobytes() == expected
    assert fetched.data.dtype == np.uint8
    assert fetched.object_nbytes == len(BODY)
    assert read_one(store, *asked, version=fetched.version).data.tobytes() == expected


def test_missing_files_are_none(store: LocalStore) -> None:
    requests = [ByteRequest("c/1"), ByteRequest("c/0/below/a/file"), ByteRequest("d/0")]
    assert store.read(requests) == [None, None, None]
    assert store.get("zarr.json") is None
    assert store.current_version("c/1") == (True, None)
    assert LocalStore("/no/such/root").get("zarr.json") is None


def test_whole_small_objects_are_read_as_bytes(store: LocalStore) -> None:
    assert store.get("c/0") == BODY


def test_short_reads_are_continued(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv = os.preadv

    def read_a_little(fd: int, buffers: Any, offset: int) -> int:
        return preadv(fd, [buffers[0][:100]], offset)

    monkeypatch.setattr(os, "preadv", read_a_little)
    assert read_one(store, 3).data.tobytes() == BODY[3:]


def test_children_are_listed(store: LocalStore, root: Path) -> None:
    (root / "zarr.json").write_text("{}")
    assert store.list_children("") == ["c", "zarr.json"]
    assert store.list_children("c") == store.list_children("c/") == ["0"]
    assert store.list_children("none") == []
    assert store.list_children("zarr.json") == []


# ------------------------------------------------------------------ files that change


def test_replaced_file_is_read_anew_without_a_version(
    store: LocalStore, root: Path
) -> None:
    old = read_one(store)
    replace_file(root / "c" / "0", b"new")
    new = read_one(store)
    assert new.data.tobytes() == b"new"
    assert new.version != old.version
    assert store.current_version("c/0") == (True, new.version)


def test_replaced_file_of_equal_size_is_another_version(
    store: LocalStore, root: Path
) -> None:
    version = read_one(store).version
    replace_file(root / "c" / "0", BODY[::-1])
    assert store.current_version("c/0") != (True, version)
    assert read_one(store).data.tobytes() == BODY[::-1]


def test_open_file_is_a_snapshot_of_its_version(store: LocalStore, root: Path) -> None:
    version = read_one(store, -16).version
    replace_file(root / "c" / "0", b"new")
    assert read_one(store, 0, 9, version=version).data.tobytes() == BODY[:9]
    (root / "c" / "0").unlink()
    assert read_one(store, 0, 9, version=version).data.tobytes() == BODY[:9]


def test_version_that_no_open_file_has_is_an_error(root: Path) -> None:
    version = read_one(LocalStore(root)).version
    replace_file(root / "c" / "0", b"new")
    with pytest.raises(ObjectChangedError, match="replaced") as caught:
        read_one(LocalStore(root), 0, 9, version=version)
    assert caught.value.shard_key == "c/0"
    (root / "c" / "0").unlink()
    with pytest.raises(ObjectChangedError, match="no file"):
        read_one(LocalStore(root), 0, 9, version=version)


def test_version_can_be_read_by_a_store_that_just_started(root: Path) -> None:
    version = read_one(LocalStore(root)).version
    again = read_one(LocalStore(root), 0, 9, version=version)
    assert again.data.tobytes() == BODY[:9]


def test_newer_version_than_the_open_file_has_is_read_anew(
    store: LocalStore, root: Path
) -> None:
    read_one(store)
    replace_file(root / "c" / "0", b"new")
    version = read_one(LocalStore(root)).version
    assert read_one(store, version=version).data.tobytes() == b"new"


def test_removed_file_is_none_without_a_version(store: LocalStore, root: Path) -> None:
    read_one(store)
    (root / "c" / "0").unlink()
    assert store.read([ByteRequest("c/0")]) == [None]


@pytest.mark.parametrize("body", [b"short", b"x" * len(BODY)])
def test_file_overwritten_in_place_is_noticed(
    store: LocalStore, root: Path, body: bytes
) -> None:
    version = read_one(store).version
    time.sleep(0.02)  # file systems stamp changes with the kernel's clock tick
    (root / "c" / "0").write_bytes(body)
    with pytest.raises(ObjectChangedError):
        read_one(store, 0, 9, version=version)
    assert read_one(store).data.tobytes() == body


def test_file_overwritten_in_place_and_dated_back_is_noticed(
    store: LocalStore, root: Path
) -> None:
    """As rsync, tar and cp -p do."""
    path = root / "c" / "0"
    fetched, dates = read_one(store), path.stat()
    time.sleep(0.02)  # see above
    path.write_bytes(BODY[::-1])
    os.utime(path, ns=(dates.st_atime_ns, dates.st_mtime_ns))
    assert store.current_version("c/0") != (True, fetched.version)
    with pytest.raises(ObjectChangedError):
        read_one(store, 0, 9, version=fetched.version)
    assert read_one(store).data.tobytes() == BODY[::-1]


def test_file_overwritten_during_the_read_is_noticed(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_one(store)
    time.sleep(0.02)  # see above
    preadv = os.preadv

    def overwrite_then_read(fd: int, buffers: Any, offset: int) -> int:
        (root / "c" / "0").write_bytes(BODY[::-1])
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", overwrite_then_read)
    with pytest.raises(ObjectChangedError, match="overwritten"):
        read_one(store)


def versioned(store: LocalStore, n: int) -> list[ByteRequest]:
    """Requests for the first `n` pairs of bytes of the version that there is."""
    version = read_one(store).version
    return [ByteRequest("c/0", i, i + 2, version=version) for i in range(n)]


def test_many_ranges_of_a_version_are_read_with_few_looks_at_the_file(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_SLOW_REQUEST_S", 1)
    requests = versioned(store, 100)
    rooms = [np.zeros(2, np.uint8) for _ in requests]
    looks: list[int] = []
    fstat = os.fstat
    monkeypatch.setattr(os, "fstat", lambda fd: looks.append(fd) or fstat(fd))
    answers = store.read(
        [r._replace(into=room) for r, room in zip(requests, rooms, strict=True)]
    )
    assert len(looks) == 4  # one for 32 ranges
    for i, (answer, room) in enumerate(zip(answers, rooms, strict=True)):
        assert answer is not None
        assert answer.data.tobytes() == room.tobytes() == BODY[i : i + 2]
        assert answer.object_nbytes == len(BODY)
        assert answer.version == requests[0].version


@pytest.mark.parametrize("changed", [BODY[::-1], BODY[:1]], ids=["same size", "cut"])
def test_file_overwritten_between_two_of_many_ranges_is_noticed(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, changed: bytes
) -> None:
    requests = versioned(store, 5)
    time.sleep(0.02)  # see above
    preadv, offsets = os.preadv, []

    def read_then_overwrite(fd: int, buffers: Any, offset: int) -> int:
        n_bytes = preadv(fd, buffers, offset)
        offsets.append(offset)
        if len(offsets) == 2:
            (root / "c" / "0").write_bytes(changed)
        return n_bytes

    monkeypatch.setattr(os, "preadv", read_then_overwrite)
    monkeypatch.setattr(local, "is_in_memory", lambda *_: True)
    with pytest.raises(ObjectChangedError, match="overwritten"):
        store.read(requests)


# ----------------------------------------------------------------------- side by side


@pytest.fixture
def thread_names(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    names: set[str] = set()
    read = LocalStore._read_range

    def read_and_tell(self: LocalStore, *args: Any) -> Fetched:
        names.add(threading.current_thread().name)
        time.sleep(1e-5)  # the threads of a busy machine get a turn, too
        return read(self, *args)

    monkeypatch.setattr(LocalStore, "_read_range", read_and_tell)
    return names


def test_quick_requests_stay_in_the_calling_thread(
    store: LocalStore, thread_names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_SLOW_REQUEST_S", 1)
    store.read([ByteRequest("c/0", i, i + 1) for i in range(1000)])
    assert thread_names == {threading.current_thread().name}


@pytest.mark.parametrize("is_cold", [True, False])
def test_a_disk_is_asked_for_all_ranges_before_the_first_is_waited_for(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, is_cold: bool
) -> None:
    (root / "c" / "1").write_bytes(BODY)
    (root / "c" / "2").mkdir()
    told: list[tuple[int, int]] = []
    probed: list[int] = []

    def is_in_memory(fd: int, offset: int) -> bool:
        probed.append(offset)
        return not is_cold

    def read_ahead(fd: int, offset: int, nbytes: int) -> None:
        told.append((offset, nbytes))

    monkeypatch.setattr(local, "is_in_memory", is_in_memory)
    monkeypatch.setattr(local, "read_ahead", read_ahead)
    monkeypatch.setattr(local, "_ASKED_AHEAD_NBYTES", 5)
    requests = [ByteRequest("c/0", 1, 3), ByteRequest("c/9"), ByteRequest("c/1", 2, 9)]
    first, missing, last = store.read(requests)
    assert (first.data.tobytes(), last.data.tobytes()) == (BODY[1:3], BODY[2:9])
    assert missing is None
    assert probed == [1]
    assert told == ([(1, 2), (2, 5)] if is_cold else [])
    with pytest.raises(StoreError, match="c/2"):
        store.read([ByteRequest("c/2"), ByteRequest("c/0")])


def test_a_missing_file_is_looked_for_once_in_a_read(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_for: list[str] = []
    plain = StoreRoot.open

    def noting(root: StoreRoot, key: str, *rest: Any) -> Any:
        looked_for.append(key)
        return plain(root, key, *rest)

    monkeypatch.setattr(StoreRoot, "open", noting)
    keys = [f"c/{i}" for i in range(1, 50)]
    assert store.read([ByteRequest(key) for key in keys]) == [None] * 49
    assert sorted(looked_for) == sorted(keys)


def test_slow_requests_are_spread_over_threads_in_order(
    store: LocalStore, thread_names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_SLOW_REQUEST_S", 0)
    monkeypatch.setattr(local, "_PATIENCE_S", 0)
    requests = [ByteRequest("c/0", i, i + 3) for i in range(1000)]
    version = read_one(store).version
    requests[700:] = [r._replace(version=version) for r in requests[700:]]
    requests.insert(500, ByteRequest("none"))
    answers = store.read(requests)
    assert any(name.startswith("gpushard-store") for name in thread_names)
    assert answers.pop(500) is None
    assert [a.data.tobytes() for a in answers if a] == [
        BODY[i : i + 3] for i in range(1000)
    ]


def test_large_ranges_are_read_side_by_side_from_the_first_on(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_out: list[int] = []

    def noting(function: Any, items: Any, n_workers: int) -> list[Any]:
        shared_out.append(len(items))
        return workers.run_side_by_side(function, items, n_workers)

    requests = versioned(store, 100)
    monkeypatch.setattr(local, "run_side_by_side", noting)
    monkeypatch.setattr(local, "_SLOW_REQUEST_S", 1)
    store.read(requests)
    assert shared_out == []
    monkeypatch.setattr(local, "_LARGE_REQUEST_NBYTES", 2)
    answers = store.read(requests)
    assert shared_out == [100]
    assert [a and a.data.tobytes() for a in answers] == [
        BODY[i : i + 2] for i in range(100)
    ]


def test_error_of_one_worker_reaches_the_caller() -> None:
    def fail_on_seven(item: int) -> int:
        if item == 7:
            raise StoreError("seven")
        return item

    with pytest.raises(StoreError, match="seven"):
        workers.run_side_by_side(fail_on_seven, range(20), 4)
    assert workers.run_side_by_side(fail_on_seven, range(7), 4) == list(range(7))
    assert workers.run_side_by_side(fail_on_seven, [], 4) == []


def test_nothing_more_is_begun_once_a_worker_has_failed() -> None:
    begun: list[int] = []
    both = threading.Barrier(2, timeout=10)

    def fail_on_none(item: int) -> None:
        begun.append(item)
        if item < 2:
            both.wait()
        if item == 0:
            raise StoreError("none")
        time.sleep(0.02)  # until the other one has failed

    with pytest.raises(StoreError, match="none"):
        workers.run_side_by_side(fail_on_none, range(100), 2)
    assert len(begun) < 10


def test_nothing_more_is_begun_once_the_wait_was_interrupted(monkeypatch) -> None:
    begun: list[int] = []
    caller = threading.current_thread()

    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    def work(item: int) -> None:
        begun.append(item)
        if threading.current_thread() is caller:
            interrupted(item)
        time.sleep(0.02)

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        workers.run_side_by_side(work, range(100), 2)
    assert len(begun) < 10
