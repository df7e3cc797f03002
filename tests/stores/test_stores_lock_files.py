"""A lock file becomes the content of what it locks, and other files never do."""

from __future__ import annotations

import errno
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Event, Timer

import numpy as np
import pytest

from gpushard.errors import StoreError
from gpushard.options import DEFAULT
from gpushard.stores.local import file_locks, lock_files
from gpushard.stores.local.directories import Directory
from gpushard.stores.local.files import FileWriter
from gpushard.stores.local.store import LocalStore

OLD, NEW = (np.full(9, value, np.uint8) for value in (1, 2))


@pytest.fixture
def files(tmp_path) -> FileWriter:
    return FileWriter(LocalStore(str(tmp_path), DEFAULT))


def inode(path: Path) -> int:
    return path.stat().st_ino


def test_a_file_is_replaced_by_its_lock_file_alone(files, tmp_path, monkeypatch):
    opening, made = os.open, []

    def open_and_tell(path, flags, *args, **place):
        made.extend([path] if flags & os.O_CREAT else [])
        return opening(path, flags, *args, **place)

    monkeypatch.setattr(os, "open", open_and_tell)
    for data in (OLD, NEW):
        files.put("shard", [data])
        assert (tmp_path / "shard").read_bytes() == data.tobytes()
    assert made == 2 * [".shard.lock"]
    assert os.listdir(tmp_path) == ["shard"]


def test_who_waited_for_a_lock_that_became_the_content_locks_a_new_file(
    files, tmp_path, monkeypatch
):
    """To it the content would look like a lock that nobody else has."""
    flock, waits, may_end = fcntl.flock, Event(), Event()

    def tell_of_waiting(file, operation):
        if operation == fcntl.LOCK_EX:
            waits.set()
        flock(file, operation)

    def write() -> tuple[int, int]:
        with files.locked("shard") as file:
            may_end.wait(10)
            return inode(tmp_path / ".shard.lock"), os.fstat(file.lock.fileno()).st_ino

    monkeypatch.setattr(fcntl, "flock", tell_of_waiting)
    with ThreadPoolExecutor(1) as pool:
        with files.locked("shard") as file:
            other = pool.submit(write)
            assert waits.wait(10)
            file.replace([OLD])
            content = inode(tmp_path / "shard")
        may_end.set()
        named, locked = other.result()
    assert named == locked != content
    assert os.listdir(tmp_path) == ["shard"]


def write_twice(files: FileWriter, waits: Event) -> None:
    """Write OLD, and NEW by a writer that waits for the lock when `waits` is set."""
    with ThreadPoolExecutor(1) as pool:
        with files.locked("shard") as file:
            other = pool.submit(files.put, "shard", [NEW])
            assert waits.wait(10)
            file.replace([OLD])
        other.result()


def test_a_long_wait_for_a_lock_is_logged_with_the_place_of_its_file(
    files, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(file_locks, "LONG_WAIT_S", 0.01)
    seen, told = [], Event()

    def emit(record):
        seen.append(record)
        told.set()

    monkeypatch.setattr(caplog.handler, "emit", emit)
    write_twice(files, told)
    assert str(tmp_path / ".shard.lock") in seen[0].getMessage()
    assert (tmp_path / "shard").read_bytes() == NEW.tobytes()


def test_once_a_wait_for_a_lock_is_over_it_is_not_logged_any_more(files, monkeypatch):
    flock, waits, timers = fcntl.flock, Event(), []

    class Seen(Timer):
        def start(self):
            timers.append(self)
            super().start()

    def tell_of_waiting(file, operation):
        if operation == fcntl.LOCK_EX:
            waits.set()
        flock(file, operation)

    monkeypatch.setattr(file_locks, "Timer", Seen)
    monkeypatch.setattr(fcntl, "flock", tell_of_waiting)
    write_twice(files, waits)
    (timer,) = timers
    assert timer.finished.is_set()


def test_who_waited_for_a_lock_that_became_the_content_leaves_the_next_lock_alone(
    files, tmp_path, monkeypatch
):
    flock, rename = fcntl.flock, Directory.rename
    waits, waits_again, place = Event(), Event(), tmp_path / ".shard.lock"
    others = []

    def tell_of_waiting(file, operation):
        if operation == fcntl.LOCK_EX:
            (waits_again if waits.is_set() else waits).set()
        flock(file, operation)

    def be_followed_by_another_writer(directory, old, new):
        rename(directory, old, new)
        others.append(place.open("x"))
        flock(others[0], fcntl.LOCK_EX)

    monkeypatch.setattr(lock_files, "_MOST_LOOKS", 1)
    monkeypatch.setattr(fcntl, "flock", tell_of_waiting)
    with ThreadPoolExecutor(1) as pool:
        with files.locked("shard") as file:
            waiting = pool.submit(files.put, "shard", None)
            assert waits.wait(10)
            with monkeypatch.context() as patch:
                patch.setattr(Directory, "rename", be_followed_by_another_writer)
                file.replace([OLD])
        with others[0] as other:
            assert waits_again.wait(10)
            assert inode(place) == os.fstat(other.fileno()).st_ino
            place.unlink()
        waiting.result()
    assert os.listdir(tmp_path) == []


def test_a_lock_is_left_alone_that_another_machine_made_since_a_status_was_known(
    files, tmp_path, monkeypatch
):
    """NFS may tell for seconds of the file that had the name before."""
    place, status, flock = tmp_path / ".shard.lock", Directory.status, fcntl.flock
    place.touch()
    last, made, looks = place.stat(), [], count(1)

    def make_another(file, operation):
        flock(file, operation)
        if not made:
            place.rename(tmp_path / "shard")
            made.append(place.open("x"))

    def remembered(directory, name, **how):
        n_look = next(looks) if name == place.name else 0
        if n_look == 1:
            return last
        if n_look == 2:
            assert os.fstat(made[0].fileno()).st_nlink == 1
            place.unlink()  # the other machine's write ends
        return status(directory, name, **how)

    monkeypatch.setattr(fcntl, "flock", make_another)
    monkeypatch.setattr(Directory, "status", remembered)
    files.put("shard", [NEW])
    made[0].close()
    assert (tmp_path / "shard").read_bytes() == NEW.tobytes()


def test_the_lock_of_the_next_writer_outlives_an_interrupt_of_the_last(
    files, tmp_path, monkeypatch
):
    rename = Directory.rename

    def interrupted(directory, old, new):
        rename(directory, old, new)
        (tmp_path / ".shard.lock").touch()  # the next writer's
        raise KeyboardInterrupt

    monkeypatch.setattr(Directory, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.put("shard", [NEW])
    assert sorted(os.listdir(tmp_path)) == [".shard.lock", "shard"]


@pytest.mark.parametrize("way", [os.link, os.symlink])
def test_a_file_that_lies_in_the_place_of_a_lock_is_not_written_to(
    way, files, tmp_path
):
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    way(precious, tmp_path / ".shard.lock")
    if way is os.link:
        files.put("shard", [NEW])
        assert (tmp_path / "shard").read_bytes() == NEW.tobytes()
    else:
        with pytest.raises(StoreError, match="symbolic links"):
            files.put("shard", [NEW])
    assert precious.read_bytes() == b"precious"


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("other")])
def test_what_is_in_the_way_of_a_lock_is_named(make, files, tmp_path):
    make(tmp_path / ".shard.lock")
    with pytest.raises(StoreError, match=r"move away .* '\.shard\.lock'"):
        files.put("shard", [NEW])
    assert os.listdir(tmp_path) == [".shard.lock"]


def test_what_a_killed_writer_left_half_written_is_no_part_of_the_next_content(
    files, tmp_path
):
    for ending in ("lock", "new"):
        (tmp_path / f".shard.{ending}").write_bytes(b"half of something longer")
    files.put("shard", [NEW])
    assert (tmp_path / "shard").read_bytes() == NEW.tobytes()
    assert os.listdir(tmp_path) == ["shard"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EBUSY])
def test_where_open_files_are_not_renamed_another_file_is_written(
    number, files, tmp_path, monkeypatch
):
    replace = os.replace

    def refuse(old, new, **places):
        if old.endswith(".lock"):
            raise OSError(number, os.strerror(number))
        replace(old, new, **places)

    monkeypatch.setattr(os, "replace", refuse)
    files.put("shard", [NEW])
    assert (tmp_path / "shard").read_bytes() == NEW.tobytes()
    assert os.listdir(tmp_path) == ["shard"]


def test_a_second_replacement_under_one_lock_replaces_the_first(files, tmp_path):
    with files.locked("shard") as file:
        file.replace([OLD])
        file.replace([NEW[:3]])
    assert (tmp_path / "shard").read_bytes() == NEW[:3].tobytes()


def test_a_disk_that_is_full_leaves_the_old_content_alone(files, tmp_path, monkeypatch):
    files.put("shard", [OLD])
    writev = os.writev

    def full(fd, buffers):
        writev(fd, [buffers[0][:4]])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(StoreError, match="No space left"):
        files.put("shard", [NEW])
    assert (tmp_path / "shard").read_bytes() == OLD.tobytes()
    assert os.listdir(tmp_path) == ["shard"]
