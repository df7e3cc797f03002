"""What other systems than a usual Linux lack or refuse, and what is done without it."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gpushard
from gpushard.cli.npy import NpyFile
from gpushard.stores.local import file_bytes, handles, lock_files
from gpushard.stores.local import store as local
from gpushard.write_options import WriteOptions
from gpushard.writing import in_place

VALUES = np.random.default_rng(0).integers(0, 1 << 30, (64, 96)).astype("u4")
MOST_NBYTES = 1000


@pytest.fixture
def array(tmp_path) -> gpushard.Array:
    return gpushard.create_array(
        tmp_path / "a",
        shape=VALUES.shape,
        dtype="u4",
        chunks=(16, 24),
        shards={"shape": (32, 48), "index_location": "start"},
        compressors=None,
    )


def refusing(number: int, call, refuses):
    def called(*given, **named):
        if refuses(*given, **named):
            raise OSError(number, os.strerror(number))
        return call(*given, **named)

    return called


@pytest.fixture
def macos_calls(monkeypatch):
    """Calls that refuse to read or write much at once, and no `copy_file_range`."""
    monkeypatch.delattr(os, "copy_file_range", raising=False)
    for module in (local, handles, file_bytes, in_place):
        monkeypatch.setattr(module, "MOST_AT_ONCE_NBYTES", MOST_NBYTES)

    def of_many(_, buffers, *__) -> bool:
        return sum(memoryview(one).nbytes for one in buffers) > MOST_NBYTES

    def of_one(_, data, *__) -> bool:
        return memoryview(data).nbytes > MOST_NBYTES

    for name, refuses in (("preadv", of_many), ("writev", of_many), ("pwrite", of_one)):
        call = refusing(errno.EINVAL, getattr(os, name), refuses)
        monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("strategy", ["rewrite", "random_write"])
def test_much_is_read_and_written_in_calls_of_a_bounded_size(
    strategy, array, tmp_path, macos_calls
):
    """As macOS demands for 2 GiB."""
    options = gpushard.Options(write=WriteOptions(strategy=strategy))
    a = gpushard.open_array(tmp_path / "a", device="cpu", options=options)
    want = VALUES.copy()
    a[...] = want
    assert np.array_equal(a[...], want)
    for key in (np.s_[3:40, 5], np.s_[:32, :48], np.s_[10:20, 30:90]):
        a[key] = want[key] = want[key] + 1
        assert np.array_equal(a[...], want)
    assert np.array_equal(a[17:19, 3:80:7], want[17:19, 3:80:7])


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_write_does_without_syncing_directories_that_cannot_be_synced(
    number, array, monkeypatch
):
    def is_directory(fd: int) -> bool:
        return os.path.isdir(f"/proc/self/fd/{fd}")

    monkeypatch.setattr(os, "fsync", refusing(number, os.fsync, is_directory))
    array[...] = VALUES
    array[5] = 1
    assert np.array_equal(array[6:], VALUES[6:])


def test_a_directory_that_fails_to_be_synced_is_an_error(array, monkeypatch):
    fsync = refusing(
        errno.EIO, os.fsync, lambda fd: os.path.isdir(f"/proc/self/fd/{fd}")
    )
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(gpushard.StoreError, match=os.strerror(errno.EIO)):
        array[...] = VALUES


def test_a_write_ends_where_a_file_has_another_inode_at_each_look(
    array, tmp_path, monkeypatch
):
    stat, n_looks = os.stat, iter(range(1_000_000))

    def renumbered(path, **how):
        found = stat(path, **how)
        if not str(path).endswith(".lock"):
            return found
        return SimpleNamespace(st_ino=-next(n_looks), st_dev=found.st_dev)

    monkeypatch.setattr(os, "stat", renumbered)
    with pytest.raises(gpushard.StoreError, match="numbers a file anew"):
        array[...] = VALUES
    assert next(n_looks) <= 4 * lock_files._MOST_LOOKS  # one for each shard


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_write_to_a_file_system_without_locks_says_that_it_needs_them(
    number, array, monkeypatch
):
    """As NFS without its daemon, Lustre by default, and some FUSE servers."""
    array[...] = VALUES
    refused = refusing(number, fcntl.flock, lambda *_: True)
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refused)
        with pytest.raises(gpushard.StoreError, match="has locks \\(flock\\)"):
            array[3] = 1
    assert np.array_equal(array[...], VALUES)


@pytest.fixture
def other_spelling(array, tmp_path, monkeypatch) -> Path:
    """The array by a name that the system spells differently, as on FAT."""
    array[...] = VALUES
    (tmp_path / "A").symlink_to(tmp_path / "a")
    readlink = os.readlink

    def spelled(path, **how) -> str:
        found = readlink(path, **how)
        if str(path).startswith("/proc/"):
            return str(found).replace(f"{tmp_path}/a", f"{tmp_path}/A", 1)
        return found

    monkeypatch.setattr(os, "readlink", spelled)
    return tmp_path / "a"


def test_a_directory_that_the_system_spells_differently_is_read_and_written(
    other_spelling,
):
    a = gpushard.open_array(other_spelling, device="cpu")
    assert np.array_equal(a[...], VALUES)
    a[3] = 7
    assert np.array_equal(a[3], [7] * 96)
    assert sorted(local.LocalStore(other_spelling).list_children("c")) == ["0", "1"]


def test_another_directory_of_the_same_depth_is_outside(other_spelling, tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "1").write_bytes(b"secret")
    shard = other_spelling / "c" / "1" / "1"
    shard.unlink()
    shard.symlink_to(tmp_path / "b" / "1")
    a = gpushard.open_array(other_spelling, device="cpu")
    with pytest.raises(gpushard.StoreError, match="leads out of the store"):
        a[...]
    with pytest.raises(gpushard.StoreError, match="leads out of the store"):
        a[40, 50] = 1


@pytest.mark.parametrize("refusal", [None, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM])
def test_room_is_made_on_the_disk_where_the_system_reserves_none(
    refusal, tmp_path, monkeypatch
):
    """macOS has no call for it, and some file systems and sandboxes refuse it."""

    def refuse(*_):
        raise OSError(refusal, "refused")

    if refusal is None:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    else:
        monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    values = np.arange(400_000, dtype="f8").reshape(800, 500)
    with NpyFile(tmp_path / "x.npy", values.shape, values.dtype) as file:
        part = next(tmp_path.glob("*.part")).stat()
        assert part.st_blocks * 512 >= part.st_size > values.nbytes
        file.array[...] = values
        file.keep()
    assert np.array_equal(np.load(tmp_path / "x.npy"), values)
