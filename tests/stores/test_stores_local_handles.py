"""Open files: how many there are, and what pickles, forks and threads do to them."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gpushard.errors import StoreError
from gpushard.options import KIB, Options
from gpushard.stores.base import ByteRequest
from gpushard.stores.local import handles
from gpushard.stores.local import store as local
from gpushard.stores.local.files import FileWriter
from gpushard.stores.local.handles import FileHandle
from gpushard.stores.local.store import LocalStore
from interrupts import is_cut_off
from open_files import open_files_below
from stored_object import BODY, read_one, write_object

needs_proc = pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="counts open files through /proc"
)


# Python looks for signals after calls, so before these lines it finds none.
UNREACHED = ("try:", "return FileHandle(fd, key, status)")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_object(tmp_path / "data.zarr")


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)


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
def test_an_interrupted_look_at_the_directory_leaves_no_handle_behind(
    root: Path, store: LocalStore
) -> None:
    n_line = 1
    while is_cut_off(store.open_root, n_line, ["stores/local/root.py"], UNREACHED):
        assert open_files_below(root) == []
        n_line += 1
    assert n_line > 5


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


def run_beside_files(script: str, folder: Path, n_files: int) -> None:
    """Run a script, with a folder of files as its argument."""
    for i in range(n_files):
        (folder / str(i)).write_bytes(b"x")
    subprocess.run([sys.executable, "-c", script, str(folder)], check=True)


@needs_proc
def test_process_out_of_descriptors_lets_go_of_its_own(tmp_path: Path) -> None:
    script = """
import resource, sys
from gpushard.stores.local.store import LocalStore
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
store = LocalStore(sys.argv[1])
assert [store.get(str(i)) for i in range(40)] == [b"x"] * 40
"""
    run_beside_files(script, tmp_path, 40)


@needs_proc
def test_files_of_many_stores_leave_room_for_those_of_other_code(tmp_path: Path):
    script = """
import os, resource, sys
from gpushard.stores.local.store import LocalStore
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
stores = [LocalStore(sys.argv[1]) for _ in range(8)]
for store in stores:
    for i in range(16):
        assert store.get(str(i)) == b"x"
        opened = [os.dup(0) for _ in range(14)]
        for fd in opened:
            os.close(fd)
assert len(stores[-1]._handles) > 1, "they are kept again"
"""
    run_beside_files(script, tmp_path, 16)


@needs_proc
def test_handles_are_kept_beside_very_many_files_of_other_code(tmp_path: Path):
    script = """
import os, resource, sys
from gpushard.stores.local.store import LocalStore
resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
store = LocalStore(sys.argv[1])
others = [os.dup(0) for _ in range(130)]
n_kept = []
for i in range(40):
    assert store.get(str(i)) == b"x"
    n_kept.append(len(store._handles))
assert 8 <= max(n_kept) <= 12 and n_kept.count(1) > 2, n_kept
"""
    run_beside_files(script, tmp_path, 40)


@needs_proc
def test_the_last_descriptors_are_left_to_other_code(tmp_path: Path):
    script = """
import os, resource, sys
from gpushard.stores.local.store import LocalStore
resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
store = LocalStore(sys.argv[1])
others = [os.dup(0) for _ in range(142)]
for i in range(40):
    assert store.get(str(i)) == b"x"
    for fd in [os.dup(0) for _ in range(7)]:
        os.close(fd)
"""
    run_beside_files(script, tmp_path, 40)


def test_files_that_another_store_keeps_open_make_room_for_more(root, monkeypatch):
    """A process that has many arrays open may have all of its descriptors there."""
    one, other, plain = LocalStore(root), LocalStore(root), os.open
    read_one(one)

    def open_if_there_is_room(*given):
        if len(one._handles):
            raise OSError(errno.EMFILE, "Too many open files")
        return plain(*given)

    monkeypatch.setattr(os, "open", open_if_there_is_room)
    assert read_one(other).data.tobytes() == BODY
    read_one(one)
    assert other.get("c/7") is None, "a file that is missing is no error"


def test_files_that_reads_keep_open_make_room_for_a_write(root, monkeypatch):
    one, plain = LocalStore(root), os.open
    read_one(one)

    def open_if_there_is_room(*given, **place):
        if len(one._handles):
            raise OSError(errno.EMFILE, "Too many open files")
        return plain(*given, **place)

    monkeypatch.setattr(os, "open", open_if_there_is_room)
    FileWriter(one).put("c/1", [np.frombuffer(BODY, np.uint8)])
    assert one.get("c/1") == BODY


def test_a_write_that_can_open_no_file_at_all_is_told_so(root, monkeypatch):
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    files = FileWriter(LocalStore(root))
    monkeypatch.setattr(os, "open", full)
    with pytest.raises(StoreError, match=r"Too many open files.*ulimit"):
        files.put("c/1", None)


def test_a_process_that_can_open_no_file_at_all_is_told_so(root, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    store = LocalStore(root)
    monkeypatch.setattr(os, "open", full)
    with pytest.raises(StoreError, match=r"Too many open files.*ulimit"):
        store.get("c/0")


def test_a_directory_that_is_gone_or_another_one_by_now_is_not_opened(tmp_path):
    (tmp_path / "a").mkdir()
    store = LocalStore(tmp_path / "a")
    assert store.open_root() is not None
    (tmp_path / "a").rename(tmp_path / "b")
    assert store.open_root() is None
    (tmp_path / "a").symlink_to(tmp_path / "b")
    assert store.open_root() is None


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
from gpushard.options import KIB, Options
from gpushard.threads import workers
from gpushard.stores.local import store as local
from gpushard.stores.local import handles, store as local
from gpushard.stores.base import ByteRequest
warnings.simplefilter("ignore")
local._PATIENCE_S = local._SLOW_REQUEST_S = 0
store = local.LocalStore(sys.argv[1], Options(file_handles=2))
many = [ByteRequest("c/0", i, i + 1) for i in range(64)]
store.read(many)
# Every thread of the pool is started: a child that took it over would wait for them.
workers.run_side_by_side(time.sleep, [0.05] * 8, 8)
store._handles._alone._lock.acquire()
pid = os.fork()
if pid == 0:
    os._exit(0 if len(store.read(many + [ByteRequest("c/1")])) == 65 else 1)
store._handles._alone._lock.release()
store.read(many)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    (root / "c" / "1").write_bytes(b"1")
    subprocess.run([sys.executable, "-c", script, str(root)], check=True, timeout=30)


def test_an_interrupt_once_a_file_is_open_closes_it_once(root, monkeypatch):
    """Its number may be another thread's file the second time."""

    def interrupted(*args):
        FileHandle(*args)  # dropped at once, which closes the file
        raise KeyboardInterrupt

    monkeypatch.setattr("gpushard.stores.local.root.FileHandle", interrupted)
    with pytest.raises(KeyboardInterrupt):
        LocalStore(root).get("c/0")


def test_a_file_system_that_fails_to_close_a_file_fails_no_read(root):
    """Python would tell such an error on stderr, with a traceback, each time."""

    def fails(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    handle = LocalStore(root)._open("c/0")
    assert handle is not None
    FileHandle.__del__(handle, fails)


@pytest.mark.parametrize("call", ["preadv", "fstat"])
def test_a_file_that_a_network_file_system_has_forgotten_is_opened_again(
    call, store, monkeypatch
):
    """The descriptor fails for good, while the path is as good as ever."""
    version = read_one(store).version
    forgotten, plain = store._handles.get("c/0"), getattr(os, call)

    def fail_if_forgotten(fd, *given):
        if fd == forgotten.fd:
            raise OSError(errno.ESTALE, "Stale file handle")
        return plain(fd, *given)

    monkeypatch.setattr(os, call, fail_if_forgotten)
    with pytest.raises(StoreError, match="Stale file handle"):
        read_one(store, version=version)
    assert read_one(store, version=version).data.tobytes() == BODY


def test_nothing_is_known_of_the_files_of_stores_that_are_gone(tmp_path):
    before = set(handles._tables)
    store = LocalStore(tmp_path)
    assert set(handles._tables) - before
    del store
    assert not set(handles._tables) - before


def test_a_disk_is_asked_for_no_more_at_a_time_than_it_begins_with(monkeypatch):
    """Of a range above what it reads ahead by itself, Linux begins with a part only."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(handles, "_CAN_ADVISE", True)
    monkeypatch.setattr(os, "POSIX_FADV_WILLNEED", 3, raising=False)
    monkeypatch.setattr(
        os, "posix_fadvise", lambda _, *range_, **__: asked.append(range_[:2]), False
    )
    handles.read_ahead(0, 1000, 300 * KIB)
    assert asked == [
        (1000, 128 * KIB),
        (1000 + 128 * KIB, 128 * KIB),
        (1000 + 256 * KIB, 44 * KIB),
    ]
    handles.read_ahead(0, 1000, 0)
    assert len(asked) == 3


@pytest.mark.parametrize("why", [errno.EIO, errno.EAGAIN, errno.ENOSYS])
def test_a_disk_that_takes_no_advice_is_read(why, root, monkeypatch):
    """As a layered file system, or a sandbox, may answer."""
    refused: list[int] = []

    def refuse(fd: int, *_: int) -> None:
        refused.append(fd)
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr(handles, "_CAN_ADVISE", True)
    monkeypatch.setattr(os, "POSIX_FADV_WILLNEED", 3, raising=False)
    monkeypatch.setattr(os, "posix_fadvise", refuse, raising=False)
    monkeypatch.setattr(local, "is_in_memory", lambda *_: False)
    store = LocalStore(root)
    requests = [ByteRequest("c/0", 0, 4), ByteRequest("c/0", 4, 8)]
    answers = [fetched.data.tobytes() for fetched in store.read(requests) if fetched]
    assert answers == [BODY[:4], BODY[4:8]]
    assert refused
