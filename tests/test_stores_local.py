"""Local files: what is read, what is refused, and what happens when they change."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpushard import workers
from gpushard.errors import ObjectChangedError, StoreError
from gpushard.options import Options
from gpushard.stores import local
from gpushard.stores.base import ByteRequest, Fetched, Store
from gpushard.stores.local import LocalStore

BODY = bytes(range(256)) * 4

needs_proc = pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="counts open files through /proc"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "data.zarr"
    (root / "c").mkdir(parents=True)
    (root / "c" / "0").write_bytes(BODY)
    return root


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)


def read_one(store: LocalStore, *args: Any, **kwargs: Any) -> Fetched:
    (fetched,) = store.read([ByteRequest("c/0", *args, **kwargs)])
    assert fetched is not None
    return fetched


def replace_file(path: Path, body: bytes) -> None:
    fresh = path.with_suffix(".tmp")
    fresh.write_bytes(body)
    os.replace(fresh, path)


def open_files_below(directory: Path) -> list[str]:
    gc.collect()
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:  # the listing's own descriptor
            continue
    return [path for path in found if path.startswith(str(directory))]


def test_local_store_fulfils_the_contract(store: LocalStore) -> None:
    assert isinstance(store, Store)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((), BODY),
        ((5, 9), BODY[5:9]),
        ((1000,), BODY[1000:]),
        ((-20,), BODY[-20:]),
        ((-5000,), BODY),
        ((1000, 5000), BODY[1000:]),
        ((1024, 1030), b""),
        ((2000, 2010), b""),
        ((2000,), b""),
        ((7, 7), b""),
    ],
)
def test_every_kind_of_range_is_answered_with_the_bytes_there_are(
    store: LocalStore, asked: tuple[int, ...], expected: bytes
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


# ------------------------------------------------------------------------- open files


@needs_proc
def test_open_files_are_bounded_and_closed_with_the_store(tmp_path: Path) -> None:
    for i in range(300):
        (tmp_path / str(i)).write_bytes(bytes([i % 256]))
    store = LocalStore(tmp_path, Options(file_handles=16))
    for i in range(300):
        assert store.get(str(i)) == bytes([i % 256])
    assert len(open_files_below(tmp_path)) == 16
    del store
    assert open_files_below(tmp_path) == []


def test_handle_in_use_outlives_the_ones_that_are_not(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).write_bytes(BODY)
    store = LocalStore(tmp_path, Options(file_handles=3))
    (first,) = store.read([ByteRequest("a")])
    assert first is not None
    for name in "bcd":
        store.get(name)
        (tmp_path / "a").unlink(missing_ok=True)
        # Only an open handle can still answer.
        store.read([ByteRequest("a", version=first.version)])
    assert len(store._handles) == 3


@needs_proc
def test_refused_files_leave_no_handle_behind(root: Path, store: LocalStore) -> None:
    (root / "out").symlink_to("/etc/hostname")
    for key in ("c", "out", "../x"):
        with pytest.raises(StoreError):
            store.get(key)
    assert open_files_below(root) == []


@needs_proc
def test_threads_share_a_table_that_is_too_small(tmp_path: Path) -> None:
    for i in range(32):
        (tmp_path / str(i)).write_bytes(bytes([i]) * 4096)
    store = LocalStore(tmp_path, Options(file_handles=2))

    def read_many(seed: int) -> bool:
        order = np.random.default_rng(seed).integers(0, 32, 300)
        answers = [store.get(str(i)) for i in order]
        return answers == [bytes([i]) * 4096 for i in order.tolist()]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read_many, range(8)))
    assert len(open_files_below(tmp_path)) <= 2


@needs_proc
def test_process_out_of_descriptors_lets_go_of_its_own(tmp_path: Path) -> None:
    script = """
import resource, sys
from gpushard.stores.local import LocalStore
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
store = LocalStore(sys.argv[1])
assert [store.get(str(i)) for i in range(40)] == [b"x"] * 40
"""
    for i in range(40):
        (tmp_path / str(i)).write_bytes(b"x")
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)


def test_pickle_carries_the_address_only(store: LocalStore) -> None:
    read_one(store)
    pickled = pickle.dumps(store)
    assert BODY not in pickled
    again = pickle.loads(pickled)
    assert (again.url, again.options) == (store.url, store.options)
    assert len(again._handles) == 0
    assert again.get("c/0") == BODY


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_forked_child_reads_on_while_the_parent_holds_locks(root: Path) -> None:
    # In a process of its own: forking one with threads warns since Python 3.12.
    script = """
import os, sys, time, warnings
from gpushard.options import Options
from gpushard import workers
from gpushard.stores import local
from gpushard.stores.base import ByteRequest
warnings.simplefilter("ignore")
local._PATIENCE_S = local._SLOW_REQUEST_S = 0
store = local.LocalStore(sys.argv[1], Options(file_handles=2))
many = [ByteRequest("c/0", i, i + 1) for i in range(64)]
store.read(many)
# Every thread of the pool is started: a child that took it over would wait for them.
workers.run_side_by_side(time.sleep, [0.05] * 8, 8)
store._handles._lock.acquire()
pid = os.fork()
if pid == 0:
    os._exit(0 if len(store.read(many + [ByteRequest("c/1")])) == 65 else 1)
store._handles._lock.release()
store.read(many)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    (root / "c" / "1").write_bytes(b"1")
    subprocess.run([sys.executable, "-c", script, str(root)], check=True, timeout=30)


# ----------------------------------------------------------------------- side by side


@pytest.fixture
def thread_names(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    names: set[str] = set()
    read = LocalStore._read_range

    def read_and_tell(self: LocalStore, *args: Any) -> Fetched:
        names.add(threading.current_thread().name)
        return read(self, *args)

    monkeypatch.setattr(LocalStore, "_read_range", read_and_tell)
    return names


def test_quick_requests_stay_in_the_calling_thread(
    store: LocalStore, thread_names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_SLOW_REQUEST_S", 1)
    store.read([ByteRequest("c/0", i, i + 1) for i in range(1000)])
    assert thread_names == {threading.current_thread().name}


def test_slow_requests_are_spread_over_threads_in_order(
    store: LocalStore, thread_names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_SLOW_REQUEST_S", 0)
    monkeypatch.setattr(local, "_PATIENCE_S", 0)
    requests = [ByteRequest("c/0", i, i + 3) for i in range(1000)]
    requests.insert(500, ByteRequest("none"))
    answers = store.read(requests)
    assert any(name.startswith("gpushard-store") for name in thread_names)
    assert answers.pop(500) is None
    assert [a.data.tobytes() for a in answers if a] == [
        BODY[i : i + 3] for i in range(1000)
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


# ---------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "key",
    [
        "../secret",
        "c/../../secret",
        "/etc/hostname",
        "c//0",
        "c/./0",
        "",
        "c\\0",
        "c\0",
        "\ud800",
    ],
)
def test_keys_that_leave_the_root_are_refused(store: LocalStore, key: str) -> None:
    (Path(store.root).parent / "secret").write_text("secret")
    for ask in (store.get, store.current_version):
        with pytest.raises(StoreError, match="no key below"):
            ask(key)


@pytest.mark.parametrize("prefix", ["..", "c/..", "c\0"])
def test_listing_does_not_leave_the_root(store: LocalStore, prefix: str) -> None:
    with pytest.raises(StoreError):
        store.list_children(prefix)


@pytest.mark.parametrize("is_directory", [False, True])
def test_links_out_of_the_root_are_refused_unless_allowed(
    tmp_path: Path, root: Path, is_directory: bool
) -> None:
    outside = tmp_path / "data.zarr-outside"
    outside.mkdir()
    (outside / "0").write_bytes(b"outside")
    link = root / ("d" if is_directory else "0")
    link.symlink_to(outside if is_directory else outside / "0")
    key = "d/0" if is_directory else "0"
    with pytest.raises(StoreError, match="symbolic link leads out"):
        LocalStore(root).get(key)
    assert LocalStore(root, allow_symlinks_outside=True).get(key) == b"outside"
    if is_directory:
        with pytest.raises(StoreError, match="symbolic link leads out"):
            LocalStore(root).list_children("d")


def test_links_are_checked_without_proc_too(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readlink = os.readlink

    def read_no_proc(path: str, **kwargs: Any) -> str:
        if os.fspath(path).startswith("/proc/"):
            raise FileNotFoundError(path)
        return readlink(path, **kwargs)

    (tmp_path / "secret").write_text("secret")
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "in").symlink_to(root / "c" / "0")
    monkeypatch.setattr(os, "readlink", read_no_proc)
    assert LocalStore(root).get("in") == BODY
    with pytest.raises(StoreError, match="symbolic link leads out"):
        LocalStore(root).get("out")


def test_links_inside_the_root_and_to_the_root_are_followed(
    tmp_path: Path, root: Path
) -> None:
    (root / "1").symlink_to(root / "c" / "0")
    (tmp_path / "alias").symlink_to(root)
    store = LocalStore(tmp_path / "alias")
    assert store.get("1") == BODY
    assert store.get("c/0") == BODY


def test_circle_of_links_is_a_store_error(store: LocalStore, root: Path) -> None:
    (root / "a").symlink_to(root / "b")
    (root / "b").symlink_to(root / "a")
    with pytest.raises(StoreError, match="circle"):
        store.get("a")


def test_directory_in_place_of_a_shard_is_a_store_error(store: LocalStore) -> None:
    with pytest.raises(StoreError, match="expected a regular file, got a directory"):
        store.read([ByteRequest("c")])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no fifos")
def test_fifo_in_place_of_a_shard_does_not_block(store: LocalStore, root: Path) -> None:
    os.mkfifo(root / "c" / "1")
    with pytest.raises(StoreError, match="special file"):
        store.read([ByteRequest("c/1")])


def test_denied_permission_is_one_sentence(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Planted, because a superuser is never denied.
    def deny(path: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "open", deny)
    with pytest.raises(StoreError, match="Permission denied") as caught:
        read_one(store)
    assert str(caught.value) == (
        f"cannot read from {store.url}: Permission denied (shard 'c/0'); "
        "check the permissions of the file and its directories."
    )


def test_failing_disk_is_a_store_error(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int, buffers: Any, offset: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(StoreError, match="Input/output error"):
        read_one(store)


def test_messages_call_only_shards_shards(store: LocalStore, root: Path) -> None:
    (root / "zarr.json").mkdir()
    with pytest.raises(StoreError, match=r"'zarr\.json' in file://") as caught:
        store.get("zarr.json")
    assert caught.value.shard_key is None
