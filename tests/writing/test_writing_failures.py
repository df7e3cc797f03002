"""Writes that fail lose nothing: full disks, rights taken away, directories gone."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from zarr.storage import MemoryStore

import gpushard
from forked import answers_in_a_fork, forked
from gpushard.options import Options
from gpushard.stores.local import file_bytes
from gpushard.write_options import WriteOptions
from zarr_oracle import assert_same_bits

STRATEGIES = {
    "rewrite": "end",
    "fixed_order": "end",
    "append_only": "end",
    "random_write": "start",
}
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
N = 512


def made(place, strategy) -> tuple[gpushard.Array, np.ndarray]:
    """Two shards of four inner chunks, full of values."""
    write = WriteOptions(strategy=strategy, max_unused_fraction=1)
    a = gpushard.create_array(
        place, shape=(8 * N,), dtype="u4", chunks=(N,), compressors=None,
        shards={"shape": (4 * N,), "index_location": STRATEGIES[strategy]},
        options=Options(write=write),
    )  # fmt: skip
    a[...] = want = np.arange(1, 8 * N + 1, dtype="u4")
    return a, want


def files_of(place) -> dict[str, bytes]:
    return {
        str(file.relative_to(place)): file.read_bytes()
        for file in sorted(Path(place).rglob("*"))
        if file.is_file()
    }


_WRITING = ("pwrite", "writev", "fsync", "copy_file_range")


@pytest.fixture(params=[False, True], ids=["read", "copied"])
def is_copied(request, monkeypatch):
    """Whether unchanged bytes are copied by the kernel, as large ones are."""
    if request.param:
        monkeypatch.setattr(file_bytes, "_COPIED_NBYTES", 1)


class _FullDisk:
    """The disk has room for so many calls that write, and for half of one more."""

    def __init__(self, n_calls, monkeypatch):
        self.left, self.is_hit = n_calls, False
        for name in _WRITING:
            monkeypatch.setattr(os, name, self._limited(getattr(os, name)))

    def _limited(self, call):
        def limited(fd, *given):
            self.left -= 1
            if self.left == 0:
                self.is_hit = True
                if call.__name__ == "pwrite":
                    call(fd, bytes(given[0])[: len(given[0]) // 2], given[1])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(fd, *given)

        return limited


@each_strategy
@pytest.mark.parametrize("n_calls", range(1, 12))
@pytest.mark.usefixtures("is_copied")
def test_a_full_disk_leaves_what_was_there(n_calls, strategy, tmp_path, monkeypatch):
    a, want = made(tmp_path / "a", strategy)
    before = files_of(tmp_path)
    with monkeypatch.context() as patch:
        disk = _FullDisk(n_calls, patch)
        failed = None
        try:
            a[10 : 2 * N] = 7
        except gpushard.StoreError as error:
            failed = error
    new = want.copy()
    new[10 : 2 * N] = 7
    fresh = gpushard.open_array(tmp_path / "a")
    got = fresh[...]
    # The last thing that may fail is to make what is there already durable.
    assert_same_bits(got, new if failed is None or got[10] == 7 else want)
    after = files_of(tmp_path)
    assert after.keys() == before.keys()
    if failed is not None:
        assert "No space left" in str(failed)
        assert failed.shard_key == "c/0"
        assert disk.is_hit
        assert got[10] == 7 or after == before
    a[10 : 2 * N] = 9  # there is room again
    assert (fresh[10 : 2 * N] == 9).all()


@each_strategy
@pytest.mark.parametrize("n_calls", range(1, 9))
@pytest.mark.usefixtures("is_copied")
def test_an_interrupt_leaves_old_or_new(n_calls, strategy, tmp_path, monkeypatch):
    a, want = made(tmp_path / "a", strategy)
    left, before = [n_calls], files_of(tmp_path).keys()
    # The last is any error that a handler of signals may raise.
    error = (KeyboardInterrupt, SystemExit, RuntimeError)[n_calls % 3]

    def interrupted(call):
        def limited(*given):
            left[0] -= 1
            if left[0] == 0:
                raise error
            return call(*given)

        return limited

    with monkeypatch.context() as patch, suppress(error):
        for name in _WRITING:
            patch.setattr(os, name, interrupted(getattr(os, name)))
        a[10 : 2 * N] = 7
    got = gpushard.open_array(tmp_path / "a")[...]
    if got[10] == 7:
        want[10 : 2 * N] = 7
    assert_same_bits(got, want)
    assert files_of(tmp_path).keys() == before


@each_strategy
@pytest.mark.parametrize("keeps", [1, -1], ids=["cut short", "other checksum"])
def test_a_damaged_shard_can_be_written_whole(keeps, strategy, tmp_path):
    a, want = made(tmp_path / "a", strategy)
    file = tmp_path / "a" / "c" / "0"
    data = bytearray(file.read_bytes())
    place = 4 * 16 if STRATEGIES[strategy] == "start" else -1
    data[place] ^= 1
    file.write_bytes(data[:keeps] if keeps > 0 else data)
    with pytest.raises(gpushard.CorruptShardError):
        a[0] = 7
    a[: 4 * N] = want[: 4 * N] = want[: 4 * N][::-1].copy()
    assert_same_bits(gpushard.open_array(tmp_path / "a")[...], want)
    a[0] = want[0] = 7
    assert_same_bits(a[...], want)


@pytest.mark.parametrize("strategy", ["fixed_order", "append_only", "random_write"])
def test_what_undoes_a_write_is_durable_before_the_shard_changes(
    strategy, tmp_path, monkeypatch
):
    a, _ = made(tmp_path / "a", strategy)
    calls = []

    def noted(name, call):
        def called(fd, *given, **named):
            place = given[0] if name == "replace" else f"/proc/self/fd/{fd}"
            calls.append((name, Path(place).resolve().name))
            return call(fd, *given, **named)

        return called

    for name in ("fsync", "replace", "pwrite"):
        monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
    a[0] = 7
    note, rest = calls[:3], calls[3:]
    assert note == [("fsync", ".0.undo.new"), ("replace", ".0.undo"), ("fsync", "c")]
    assert set(rest) == {("pwrite", "0"), ("fsync", "0")}
    assert rest[-2:] == [("pwrite", "0"), ("fsync", "0")]


@each_strategy
def test_a_system_that_writes_little_at_a_time_loses_nothing(
    strategy, tmp_path, monkeypatch
):
    writev, pwrite = os.writev, os.pwrite
    monkeypatch.setattr(os, "writev", lambda fd, given: writev(fd, [given[0][:999]]))
    monkeypatch.setattr(os, "pwrite", lambda fd, given, at: pwrite(fd, given[:999], at))
    a, want = made(tmp_path / "a", strategy)
    a[10 : 2 * N] = want[10 : 2 * N] = 7
    assert_same_bits(gpushard.open_array(tmp_path / "a")[...], want)


def write_cramped(root: Path, limits: dict[str, int]) -> bool:
    """Whether files that may not become so large are told of as such."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    told = []
    for strategy, limit in limits.items():
        write = WriteOptions(strategy=strategy, max_unused_fraction=1)
        a = gpushard.open_array(root / strategy, options=Options(write=write))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            a[:] = np.arange(len(a), dtype="u4")[::-1] * 3
        except gpushard.StoreError as error:
            told.append((error.shard_key, "File too large" in str(error)))
        unlimited = resource.RLIM_INFINITY, resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    return told == [("c/0", True)] * len(limits)


def test_a_limit_that_the_kernel_sets_leaves_what_was_there(tmp_path):
    want, limits = {}, {}
    for strategy in STRATEGIES:
        _, want[strategy] = made(tmp_path / strategy, strategy)
        shard_nbytes = (tmp_path / strategy / "c/0").stat().st_size
        beyond = -900 if strategy in ("rewrite", "fixed_order") else 900
        limits[strategy] = shard_nbytes + beyond
    assert answers_in_a_fork(partial(write_cramped, tmp_path, limits))
    for strategy in STRATEGIES:
        assert_same_bits(gpushard.open_array(tmp_path / strategy)[...], want[strategy])
    assert not list(tmp_path.rglob(".*"))


NOBODY = 65534


@pytest.fixture
def open_directory():
    """A directory that any user may use; pytest's own are closed to others."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


def as_nobody(work) -> str:
    """What `work` says, run in a forked process without the rights of root."""
    heard, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            os.write(told, work().encode())
        except BaseException as error:  # noqa: BLE001 - told to the parent
            os.write(told, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(told)
    with os.fdopen(heard, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@each_strategy
def test_rights_taken_away_leave_what_was_there(strategy, open_directory):
    place = open_directory / "a"
    a, want = made(place, strategy)
    a[0] = want[0]  # all that is loaded lazily is loaded
    before = files_of(place)
    for directory in [place, *place.rglob("*")]:
        directory.chmod(0o555 if directory.is_dir() else 0o444)

    def write():
        try:
            a[: 2 * N] = 7
        except gpushard.StoreError as error:
            return str(error)
        return "written"

    said = as_nobody(write)
    assert "Permission denied" in said
    assert "rights" in said
    assert files_of(place) == before
    for directory in [place, *place.rglob("*")]:
        directory.chmod(0o755 if directory.is_dir() else 0o644)


@each_strategy
def test_a_directory_that_is_gone_is_not_made_anew(strategy, tmp_path):
    a, want = made(tmp_path / "a", strategy)
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(gpushard.StoreError, match="is gone") as caught:
        a[:N] = 7
    assert caught.value.shard_key == "c/0"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert_same_bits(gpushard.open_array(tmp_path / "b")[...], want)


def read_until_0(place: Path, begun: Path, told: Path) -> bool:
    """Read one value at a time; tells how many there were, and how often none."""
    a = gpushard.open_array(place)
    begun.touch()
    n_torn, n_values = 0, set()
    while 0 not in n_values:
        try:
            found = np.unique(a[4:-4])
        except (gpushard.CorruptShardError, gpushard.ObjectChangedError):
            n_torn += 1
            continue
        assert len(found) == 1, found
        n_values.add(int(found[0]))
    told.write_text(f"{len(n_values)} {n_torn}")
    return True


@pytest.mark.parametrize("strategy", ["rewrite", "append_only", "random_write"])
def test_a_reader_beside_a_writer_sees_old_or_new_or_an_error(strategy, tmp_path):
    write = WriteOptions(strategy=strategy, max_unused_fraction=0.9)
    one = gpushard.create_array(
        tmp_path / "one", shape=(4 * N,), dtype="u4", chunks=(N,),
        shards={"shape": (4 * N,), "index_location": STRATEGIES[strategy]},
        compressors=None, options=Options(write=write),
    )  # fmt: skip
    one[...] = 1
    begun, told = tmp_path / "begun", tmp_path / "told"
    reader = forked(partial(read_until_0, tmp_path / "one", begun, told))
    value, n_beside = 1, 0
    while reader.is_alive() and value < 20_000:
        value += 1
        n_beside += begun.exists()
        one[4:-4] = 0 if n_beside > 40 else value
        if value % 50 == 0:
            gpushard.compact(one)
    reader.join(60)
    assert reader.exitcode == 0
    n_values, n_torn = map(int, told.read_text().split())
    assert n_values >= 2
    assert strategy != "rewrite" or n_torn == 0


@each_strategy
@pytest.mark.parametrize("place", ["c/0", "c/.0.undo"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_nothing_but_files_of_the_store_is_read_to_be_merged(
    kind, place, strategy, tmp_path
):
    a, _ = made(tmp_path / "a", strategy)
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    target = tmp_path / "a" / place
    target.unlink(missing_ok=True)
    if kind == "link":
        target.symlink_to(secret)
    else:
        os.mkfifo(target)
    words = "leads out" if kind == "link" else "no regular file"
    with pytest.raises(gpushard.StoreError, match=words):
        a[:2] = 7
    assert secret.read_bytes() == b"secret"


def test_a_zarr_store_that_finds_no_place_for_a_shard_has_not_written_it():
    class Placeless(MemoryStore):
        async def set(self, key, value, byte_range=None):
            if key.startswith("c/"):
                raise FileNotFoundError(key)
            await super().set(key, value)

    a = gpushard.create_array(
        Placeless(), shape=8, dtype="i4", chunks=2, shards=4, device="cpu"
    )
    with pytest.raises(gpushard.StoreError, match="cannot write 'c/0'"):
        a[...] = 1
    a[...] = 0  # nothing to store, and nothing there to delete
