"""What a write in place notes, and how it is undone."""

from __future__ import annotations

import errno
import os
import stat
import struct
from itertools import groupby

import numpy as np
import pytest

import gpushard
from gpushard.options import Options
from gpushard.stores.local.directories import Directory
from gpushard.stores.local.locked_file import LockedFile
from gpushard.write_options import WriteOptions
from zarr_oracle import assert_same_bits

N = 512
MAGIC = b"gsundo\x01\n"


def made(place) -> tuple[gpushard.Array, np.ndarray]:
    """A shard of four inner chunks, full of values."""
    write = WriteOptions(strategy="fixed_order", max_unused_fraction=1)
    a = gpushard.create_array(
        place, shape=(4 * N,), dtype="u4", chunks=(N,), compressors=None,
        shards=(4 * N,), options=Options(write=write),
    )  # fmt: skip
    a[...] = want = np.arange(1, 4 * N + 1, dtype="u4")
    return a, want


def note(nbytes: int, *ranges: tuple[int, int], data: bytes = b"", count=None) -> bytes:
    """Note of a write, as its writer would lay it out."""
    head = struct.pack("<8sqq", MAGIC, nbytes, len(ranges) if count is None else count)
    return head + b"".join(struct.pack("<qq", *one) for one in ranges) + data


NOTES = {
    "empty": b"",
    "too short": MAGIC,
    "another magic number": note(4).replace(MAGIC, b"gsundo\x02\n"),
    "no number of ranges": note(4, count=-1),
    "more ranges than inner chunks": note(4, *[(0, 0)] * 6),
    "2^40 ranges": note(4, count=2**40),
    "2^60 ranges": note(4, count=2**60),
    "ranges that are not there": note(4, (0, 1), count=2),
    "ranges that are cut off": note(4, (0, 1), (1, 1))[:-7],
    "bytes that are not there": note(4, (0, 3), data=b"ab"),
    "bytes of no range": note(4, (0, 1), data=b"ab"),
    "a size below -1": note(-2),
    "a size far beyond the file": note(2**40),
    "a range before the file": note(4, (-1, 1), data=b"a"),
    "a negative range": note(4, (0, -1), (0, 1)),
    "a range behind the old file": note(4, (4, 1), data=b"a"),
    "a range that wraps": note(2**62, (2**63 - 1, 2), data=b"ab"),
    "sizes that wrap": note(9, (0, 2**63 - 1), (0, 2**63 - 1), (0, 2)),
    "a gap behind the file": note(2**40 + 1, (2**40, 1), data=b"a"),
    "ranges of no file": note(-1, (0, 1), data=b"a"),
}


@pytest.mark.parametrize("name", NOTES)
def test_a_note_that_no_writer_left_is_told_and_changes_nothing(name, tmp_path):
    a, _ = made(tmp_path)
    shard, noted = tmp_path / "c/0", tmp_path / "c/.0.undo"
    data = shard.read_bytes()
    torn = data[:-1] + bytes([data[-1] ^ 1])
    shard.write_bytes(torn)
    noted.write_bytes(NOTES[name])
    for change in (lambda: gpushard.repair(a), lambda: a.__setitem__(slice(2), 7)):
        with pytest.raises(gpushard.CorruptShardError, match=r"note.*\.0\.undo"):
            change()
        assert (shard.read_bytes(), noted.read_bytes()) == (torn, NOTES[name])


def two_torn(place) -> tuple[gpushard.Array, np.ndarray]:
    """Two shards whose writes were cut off; the note of the first is damaged."""
    a = gpushard.create_array(
        place, "g/a", shape=(2, 8), dtype="u4", chunks=(1, 4), shards=(1, 8),
        compressors=None, write_strategy="fixed_order",
    )  # fmt: skip
    a[...] = want = np.arange(1, 17, dtype="u4").reshape(2, 8)
    for k in range(2):
        shard = place / f"g/a/c/{k}/0"
        data = bytearray(shard.read_bytes())
        last = len(data) - 1
        intact = note(len(data), (last, 1), data=data[last:])
        shard.with_name(".0.undo").write_bytes(intact if k else b"junk")
        data[last] ^= 1
        shard.write_bytes(data)
    return a, want


def test_a_note_that_is_damaged_keeps_no_other_shard_from_being_restored(tmp_path):
    a, want = two_torn(tmp_path)
    with pytest.raises(gpushard.CorruptShardError, match="note") as caught:
        gpushard.repair(a)
    assert caught.value.shard_key == "g/a/c/0/0"
    assert_same_bits(a[1], want[1])
    assert not (tmp_path / "g/a/c/1/.0.undo").exists()


def test_a_whole_shard_is_replaced_beside_a_damaged_note(tmp_path):
    a, want = two_torn(tmp_path)
    with pytest.raises(gpushard.CorruptShardError, match=r"note.*'rewrite'"):
        a[0] = want[0]
    gpushard.open_array(tmp_path, "g/a")[0] = want[0]
    assert gpushard.repair(a) == ["g/a/c/1/0"]
    assert_same_bits(a[...], want)
    assert not list(tmp_path.rglob(".*.undo"))


class _KilledError(BaseException):
    """The process is gone."""


def torn(a, place, monkeypatch) -> bytes:
    """Shard before a write in place that is cut off before its index is whole."""
    before = (place / "c/0").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(LockedFile, "forget_note", lambda _: None)
        a[N // 2 : 3 * N] = 7
    with (place / "c/0").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(bytes([before[-1] ^ 0xFF]))
    return before


def test_a_write_is_undone_as_its_note_says(tmp_path, monkeypatch):
    a, want = made(tmp_path)
    before = torn(a, tmp_path, monkeypatch)
    assert (tmp_path / "c/0").read_bytes() != before
    assert gpushard.repair(a) == ["c/0"]
    assert (tmp_path / "c/0").read_bytes() == before
    assert_same_bits(gpushard.open_array(tmp_path)[...], want)
    assert gpushard.repair(a) == []


@pytest.fixture
def calls(monkeypatch):
    """What is done to files; equal calls that follow one another are one."""
    found: list[str] = []

    def told(name, call):
        def telling(fd, *given):
            is_directory = stat.S_ISDIR(os.fstat(fd).st_mode)
            found.append("sync directory" if is_directory else name)
            return call(fd, *given)

        return telling

    for name in ("pwrite", "copy_file_range", "ftruncate", "fsync"):
        monkeypatch.setattr(os, name, told(name, getattr(os, name)), raising=False)
    return lambda: [name for name, _ in groupby(found)]


IN_STEPS = ["pwrite", "fsync"] * 3
"""The index is spoiled, inner chunks are written, and then the new index."""


def test_each_step_of_a_write_is_durable_before_the_next(tmp_path, calls):
    a, _ = made(tmp_path)
    n_before = len(calls())
    a[N // 2 : 3 * N] = 7
    noted = calls()[n_before:]
    noted = noted[noted.index("fsync") :]
    assert noted == ["fsync", "sync directory", *IN_STEPS]


def test_a_new_file_has_its_name_before_anything_is_written_to_it(tmp_path, calls):
    write = WriteOptions(strategy="random_write")
    a = gpushard.create_array(
        tmp_path, shape=(4,), dtype="u4", chunks=(2,), options=Options(write=write),
        shards={"shape": (4,), "index_location": "start"},
    )  # fmt: skip
    (tmp_path / "c").mkdir()
    synced = []
    sync = Directory.sync
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Directory,
            "sync",
            lambda self: synced.append(os.listdir(self.fd)) or sync(self),
        )
        a[...] = 7
    assert calls()[-len(IN_STEPS) :] == IN_STEPS
    assert "0" in synced[-1]


def test_the_index_is_undone_when_all_else_is_durable(tmp_path, monkeypatch, calls):
    a, _ = made(tmp_path)
    torn(a, tmp_path, monkeypatch)
    n_before = len(calls())
    gpushard.repair(a)
    steps = ["copy_file_range", "ftruncate", "fsync", "copy_file_range", "fsync"]
    assert calls()[n_before:] == steps


@pytest.mark.parametrize("n_calls", range(1, 6))
def test_a_write_that_fails_is_undone_until_its_index_is_written(
    n_calls, tmp_path, monkeypatch
):
    a, want = made(tmp_path)
    left, fsync = [n_calls], os.fsync

    def failing(fd):
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.EIO, "the disk is gone")
        fsync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(gpushard.StoreError):
            a[N // 2 : 3 * N] = 7
    if n_calls == 5:
        want[N // 2 : 3 * N] = 7
    assert_same_bits(gpushard.open_array(tmp_path)[...], want)
    assert gpushard.repair(a) == []


def test_a_write_that_finds_no_descriptor_for_the_shard_leaves_no_note(
    tmp_path, monkeypatch
):
    a, _ = made(tmp_path)
    shard, noted = tmp_path / "c/0", tmp_path / "c/.0.undo"
    before = shard.read_bytes()
    real, asked = os.open, []

    def opened(path, *given, **more):
        if noted.exists():
            asked.append(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opened)
        with pytest.raises(gpushard.StoreError, match="ulimit"):
            a[:2] = 7
    assert "0" in asked
    assert not noted.exists()
    assert shard.read_bytes() == before


@pytest.mark.parametrize("n_calls", range(1, 8))
def test_an_undoing_that_is_cut_off_is_begun_again(n_calls, tmp_path, monkeypatch):
    """A shard whose index verifies is never taken for whole before it is."""
    a, want = made(tmp_path)
    before = torn(a, tmp_path, monkeypatch)
    left = [n_calls]

    def killed(call):
        def limited(*given):
            left[0] -= 1
            if left[0] < 1:
                raise _KilledError
            return call(*given)

        return limited

    with monkeypatch.context() as patch:
        for name in ("copy_file_range", "ftruncate", "fsync"):
            patch.setattr(os, name, killed(getattr(os, name)), raising=False)
        try:
            gpushard.repair(a)
        except _KilledError:
            pass
        else:
            assert n_calls == 7  # a copy a range, and three more
    gpushard.repair(a)
    assert (tmp_path / "c/0").read_bytes() == before
    assert_same_bits(gpushard.open_array(tmp_path)[...], want)


@pytest.mark.parametrize("maintain", [gpushard.compact, gpushard.repair])
def test_a_directory_that_may_not_be_searched_is_an_error_of_the_store(
    maintain, tmp_path, monkeypatch
):
    a, _ = made(tmp_path)
    plain = os.stat

    def refused(path, *args, **named):
        if str(path).startswith(f"{tmp_path}/c/"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return plain(path, *args, **named)

    monkeypatch.setattr(os, "stat", refused)
    with pytest.raises(gpushard.StoreError, match="'c/0': Permission denied"):
        maintain(a)
