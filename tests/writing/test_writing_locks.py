"""A lock that a write has taken ends with the write, whatever happens at its end."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from itertools import count

import numpy as np
import pytest

import gpushard
from gpushard.options import DEFAULT
from gpushard.stores.local.files import FileWriter
from gpushard.stores.local.store import LocalStore
from interrupts import is_cut_off_at_call

FAILURES = [
    OSError(errno.EROFS, "Read-only file system"),
    PermissionError(errno.EACCES, "Permission denied"),
    KeyboardInterrupt(),
]


@pytest.fixture
def array(tmp_path, monkeypatch) -> gpushard.Array:
    """Array of one shard; writes to it do not wait for a lock, but fail."""
    lock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda fd, op: lock(fd, op | fcntl.LOCK_NB))
    return gpushard.create_array(
        tmp_path / "a", shape=(16,), dtype="u4", chunks=(4,), shards=(16,)
    )


@pytest.mark.parametrize("failure", FAILURES, ids=lambda f: type(f).__name__)
def test_a_lock_whose_file_cannot_be_removed_does_not_keep_the_next_writer_waiting(
    failure, array, monkeypatch
):
    """As when the kernel makes a failing disk read-only in the middle of a write."""
    unlink = os.unlink

    def refuse(name, **place):
        if name.endswith(".lock"):
            raise failure
        unlink(name, **place)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        with pytest.raises((gpushard.StoreError, KeyboardInterrupt)):
            array[...] = 0  # the fill value: there is no content to rename it to
    array[...] = np.arange(16)
    assert array[...].tolist() == list(range(16))


def refuse_locks(monkeypatch: pytest.MonkeyPatch, flag: int) -> None:
    """Let nobody open lock files with a flag, as if they were another user's."""
    opening = os.open

    def refuse(path, flags, *args, **place):
        if str(path).endswith(".lock") and flags & (os.O_CREAT | os.O_RDWR) == flag:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opening(path, flags, *args, **place)

    monkeypatch.setattr(os, "open", refuse)


def test_the_lock_file_of_another_users_killed_writer_stops_no_write(
    array, tmp_path, monkeypatch
):
    array[...] = 1
    left = tmp_path / "a" / "c" / ".0.lock"
    left.touch()
    refuse_locks(monkeypatch, os.O_RDWR)
    array[3] = 7
    assert array[2:5].tolist() == [1, 7, 1]
    assert not left.exists()


def test_a_lock_file_that_nobody_else_may_open_is_told_with_its_owner(
    array, tmp_path, monkeypatch
):
    array[...] = 1
    left = tmp_path / "a" / "c" / ".0.lock"
    left.touch()
    left.chmod(0o600)
    for flag in (os.O_RDWR, os.O_RDONLY):
        refuse_locks(monkeypatch, flag)
    with pytest.raises(gpushard.StoreError) as caught:
        array[3] = 7
    told = str(caught.value)
    assert f"it belongs to user {left.stat().st_uid} and has the mode 0600" in told
    assert caught.value.got == str(left)
    assert caught.value.shard_key == "c/0"
    assert "umask" in told


def test_a_lock_file_that_is_gone_once_it_was_denied_stops_no_write(
    array, tmp_path, monkeypatch
):
    array[...] = 1
    left, opening = tmp_path / "a" / "c" / ".0.lock", os.open
    left.touch()

    def refuse(path, flags, *args, **place):
        if path == ".0.lock" and not flags & os.O_CREAT and left.exists():
            if not flags & os.O_RDWR:
                left.unlink()  # its writer has ended
            raise PermissionError(errno.EACCES, "Permission denied")
        return opening(path, flags, *args, **place)

    monkeypatch.setattr(os, "open", refuse)
    array[3] = 7
    assert array[2:5].tolist() == [1, 7, 1]


def test_a_write_to_a_directory_of_other_users_is_denied_at_once(array, monkeypatch):
    array[...] = 1
    refuse_locks(monkeypatch, os.O_RDWR | os.O_CREAT)  # and there is none
    with pytest.raises(gpushard.StoreError, match="Permission denied"):
        array[3] = 7


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_lock_ends_with_its_write_wherever_that_is_interrupted(tmp_path, monkeypatch):
    """Also before it is known to be taken, and while it is given back."""
    lock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda fd, op: lock(fd, op | fcntl.LOCK_NB))
    files = FileWriter(LocalStore(str(tmp_path), DEFAULT))

    def write() -> None:
        files.put("c/0", [np.arange(8, dtype=np.uint8)])

    for n_call in count(1):
        if not is_cut_off_at_call(write, n_call, ["gpushard/stores", "contextlib"]):
            break
        assert not (tmp_path / "c" / ".0.new").exists()  # it would take room
        write()
        assert os.listdir(tmp_path / "c") == ["0"]
    assert n_call > 50


def fork_in_a_lock(files: FileWriter, ready: int) -> None:
    """Take a lock, fork a process that tells its number, and wait."""
    with files.locked("shard"):
        if os.fork() == 0:
            os.write(ready, str(os.getpid()).encode())
        signal.pause()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_the_lock_of_a_killed_writer_ends_though_a_process_that_it_forked_lives(
    tmp_path, monkeypatch
):
    files = FileWriter(LocalStore(str(tmp_path), DEFAULT))
    heard, ready = os.pipe()
    writer = os.fork()
    if writer == 0:
        fork_in_a_lock(files, ready)
    child = int(os.read(heard, 20))
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    lock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda fd, op: lock(fd, op | fcntl.LOCK_NB))
    try:
        with files.locked("shard") as file:
            assert file.nbytes() is None
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(heard)
        os.close(ready)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_process_forked_in_a_lock_leaves_the_lock_to_its_parent(tmp_path):
    files = FileWriter(LocalStore(str(tmp_path), DEFAULT))
    child = -1
    with files.locked("shard"):
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            assert (tmp_path / ".shard.lock").exists()
            with (
                open(tmp_path / ".shard.lock") as file,
                pytest.raises(BlockingIOError),
            ):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if child == 0:
        os._exit(0)


def test_the_handler_of_a_signal_that_writes_the_same_shard_is_refused(
    array, monkeypatch
):
    """It would wait for its own thread, for ever."""
    array[...] = 1
    fsync = os.fsync

    def interrupted(fd: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        signal.raise_signal(signal.SIGUSR1)
        fsync(fd)

    before = signal.signal(signal.SIGUSR1, lambda *_: array.__setitem__(3, 7))
    try:
        monkeypatch.setattr(os, "fsync", interrupted)
        with pytest.raises(gpushard.StoreError, match="the handler of a signal"):
            array[:5] = 2
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert array[...].tolist() == [1] * 16
    array[3] = 7
    assert array[3] == 7


def test_a_time_limit_of_the_callers_passes_through_a_write(array, monkeypatch):
    """A `TimeoutError` is an `OSError`, but the disk is not at fault."""

    def raise_timeout(*_: object) -> None:
        raise TimeoutError("the caller's time is over")

    fsync = os.fsync

    def interrupted(fd: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, raise_timeout)
    try:
        monkeypatch.setattr(os, "fsync", interrupted)
        with pytest.raises(TimeoutError, match="the caller's time"):
            array[:5] = 2
    finally:
        signal.signal(signal.SIGUSR1, before)
    array[:5] = 3
    assert array[...].tolist() == [3] * 5 + [0] * 11


def test_a_fifo_in_the_place_of_a_new_file_is_refused_and_not_waited_for(
    array, tmp_path
):
    array[...] = 1
    os.mkfifo(tmp_path / "a" / "c" / ".0.new")
    (tmp_path / "a" / "c" / ".0.undo").touch()  # with it, the lock file is no way

    def give_up(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(10)
    try:
        with pytest.raises(gpushard.StoreError, match="No such device"):
            array[...] = 2
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert gpushard.repair(array) == []
    array[...] = 2
    assert array[...].tolist() == [2] * 16
