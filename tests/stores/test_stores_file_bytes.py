"""Bytes that go from file to file without being held."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from gpushard.stores.local import file_bytes
from gpushard.stores.local.file_bytes import FileBytes, FileSlice, bytes_of, write_all

NOISE = np.random.default_rng(0).integers(0, 256, 300_000).astype(np.uint8)


@pytest.fixture
def files(tmp_path):
    """Noise in a file that is open to be read, and an empty one to be written."""
    NOISE.tofile(tmp_path / "old")
    old = os.open(tmp_path / "old", os.O_RDONLY)
    new = os.open(tmp_path / "new", os.O_RDWR | os.O_CREAT)
    yield FileBytes(old, len(NOISE)), new
    os.close(old)
    os.close(new)


def written(fd: int) -> bytes:
    return os.pread(fd, 1 << 24, 0)


def refused(number: int):
    def call(*_):
        raise OSError(number, os.strerror(number))

    return call


PIECES = {
    "neighbours": [slice(0, 100), slice(100, 100_000), slice(100_000, 300_000)],
    "turned around": [slice(200_000, 300_000), slice(0, 200_000)],
    "small ones": [slice(7 * i, 7 * i + 5) for i in range(3000, 0, -1)],
    "empty ones": [slice(5, 5), slice(0, 70_000), slice(70_000, 70_000)],
    "among bytes": [slice(0, 90_000), b"abc", slice(3, 9), b"", b"d", slice(9, 99_999)],
}
HOW = {
    "copied": lambda _: None,
    "a few bytes at a time": lambda patch: patch.setattr(
        file_bytes, "_STEP_NBYTES", 999
    ),
    "no such call": lambda patch: patch.delattr(os, "copy_file_range", raising=False),
    "refused": lambda patch: patch.setattr(
        os, "copy_file_range", refused(errno.EXDEV), raising=False
    ),
    "nothing copied": lambda patch: patch.setattr(
        os, "copy_file_range", lambda *_: 0, raising=False
    ),
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", PIECES)
def test_what_is_written_is_the_pieces_one_after_the_other(
    name, how, files, monkeypatch
):
    HOW[how](monkeypatch)
    old, new = files
    pieces = [
        old.unread_slice(p) if isinstance(p, slice) else np.frombuffer(p, np.uint8)
        for p in PIECES[name]
    ]
    os.write(new, b"ahead")
    write_all(new, pieces)
    assert written(new) == b"ahead" + b"".join(bytes_of(p).tobytes() for p in pieces)
    assert sum(map(len, pieces)) == len(written(new)) - 5


@pytest.mark.parametrize("how", HOW)
def test_a_slice_is_copied_to_a_place(how, files, monkeypatch):
    HOW[how](monkeypatch)
    old, new = files
    old.unread_slice(slice(1000, 250_000)).copy_to(new, 0)
    old.unread_slice(slice(0, 1000)).copy_to(new, 77)
    want = NOISE[1000:250_000].copy()
    want[77:1077] = NOISE[:1000]
    assert written(new) == want.tobytes()


@pytest.mark.parametrize("how", ["copied", "no such call"])
def test_a_file_that_became_shorter_is_an_error(how, files, monkeypatch):
    HOW[how](monkeypatch)
    old, new = files
    beyond = FileSlice(old.fd, 290_000, 310_000)
    with pytest.raises(OSError, match="shorter"):
        beyond.copy_to(new)
    with pytest.raises(OSError, match="shorter"):
        beyond.read()


def test_a_disk_that_is_full_is_not_taken_for_one_that_cannot_copy(files, monkeypatch):
    monkeypatch.setattr(os, "copy_file_range", refused(errno.ENOSPC), raising=False)
    old, new = files
    with pytest.raises(OSError, match="space"):
        write_all(new, [old.unread_slice(slice(0, 100_000))])
    assert written(new) == b""


def test_neighbours_are_copied_in_one_call(files, monkeypatch):
    pytest.importorskip("fcntl", reason="only POSIX systems have it")
    calls: list[int] = []
    copy = os.copy_file_range

    def told(*given):
        calls.append(given[2])
        return copy(*given)

    monkeypatch.setattr(os, "copy_file_range", told)
    old, new = files
    write_all(
        new, [old.unread_slice(slice(i, i + 100)) for i in range(0, 300_000, 100)]
    )
    assert calls == [300_000]
    assert written(new) == NOISE.tobytes()


def test_small_slices_that_lie_close_are_read_at_once(files, monkeypatch):
    calls: list[int] = []
    read = os.preadv

    def told(fd, buffers, at):
        calls.append(len(buffers[0]))
        return read(fd, buffers, at)

    monkeypatch.setattr(os, "preadv", told)
    old, new = files
    spans = [slice(i, i + 500) for i in range(0, 300_000, 1000)]
    write_all(new, [old.unread_slice(span) for span in spans])
    assert calls == [299_500]
    assert written(new) == b"".join(NOISE[span].tobytes() for span in spans)
    calls.clear()
    monkeypatch.setattr(file_bytes, "_HELD_NBYTES", 100)
    write_all(new, [old.unread_slice(span) for span in spans])
    assert set(calls) == {500}


def test_bytes_within_others_are_read_from_their_start(files):
    old, _ = files
    inside = old.within(slice(1000, 5000)).within(slice(10, 20_000))
    assert len(inside) == 3990
    assert np.array_equal(inside[5:9], NOISE[1015:1019])
    part = inside.unread_slice(slice(3980, 9999))
    assert (part.start, part.stop) == (4990, 5000)
