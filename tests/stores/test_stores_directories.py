"""Links that take the place of directories and files in the middle of an operation."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpushard
from gpushard.errors import StoreError
from gpushard.stores.local.directories import make_directory
from gpushard.stores.local.files import FileWriter
from gpushard.stores.local.locked_file import LockedFile
from gpushard.stores.local.store import LocalStore

SECRET = b"what lies outside"
NEW = [np.frombuffer(b"new bytes", np.uint8)]

pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/fd"),
    reason="elsewhere no call tells the path of an open file",
)


class Swap:
    """A store's root, and a directory outside that can take a place in it."""

    def __init__(self, place: Path) -> None:
        self.root, self.outside = place / "root", place / "outside"
        for directory in ("root/c/0", "root/c/1", "outside/0", "outside/1"):
            (place / directory).mkdir(parents=True)
        (self.root / "c" / "0" / "5").write_bytes(b"inside")
        (self.outside / "0" / "5").write_bytes(SECRET)
        (self.outside / "0" / ".5.undo").write_bytes(SECRET)
        self.store = LocalStore(self.root)
        self.files = FileWriter(self.store)

    def lead_out(self) -> None:
        """Let ``c`` lead to the directory outside, unless it does."""
        if not (self.root / "c").is_symlink():
            (self.root / "c").rename(self.root / "was c")
            (self.root / "c").symlink_to(self.outside)

    def before(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        """Lead out before the next call of this function of `os`."""
        real = getattr(os, name)

        def led_out(*given: Any, **named: Any) -> Any:
            self.lead_out()
            return real(*given, **named)

        monkeypatch.setattr(os, name, led_out)

    def assert_untouched(self) -> None:
        found = {
            p.relative_to(self.outside).as_posix() for p in self.outside.rglob("*")
        }
        assert found == {"0", "0/5", "0/.5.undo", "1"}
        assert (self.outside / "0" / "5").read_bytes() == SECRET


def n_open() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def swap(tmp_path):
    made, n_before = Swap(tmp_path), n_open()
    yield made
    made.assert_untouched()
    assert n_open() <= n_before


def change_in_place(file: LockedFile) -> None:
    with file.opened_to_change() as fd:
        os.pwrite(fd, b"changed", 0)


def read(file: LockedFile) -> None:
    with file.opened() as data, file.opened_note() as note:
        assert data is not None
        assert data[:].tobytes() == b"inside"
        assert note is None


OPERATIONS: dict[str, Callable[[LockedFile], Any]] = {
    "replace": lambda file: file.replace(NEW),
    "delete": lambda file: file.replace(None),
    "note": lambda file: file.note(NEW),
    "forget": lambda file: file.forget_note(),
    "change": change_in_place,
    "read": read,
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_directory_that_is_swapped_for_a_link_is_written_to_where_it_was(
    swap, operation
):
    def swapped_and_done() -> None:
        with swap.files.locked("c/0/5") as file:
            swap.lead_out()
            OPERATIONS[operation](file)

    with pytest.raises(StoreError, match="moved while it was written"):
        swapped_and_done()
    assert not list((swap.root / "was c" / "0").glob(".5.lock"))


def test_a_write_to_a_directory_that_is_gone_says_so(swap):
    def moved_and_written() -> None:
        with swap.files.locked("c/0/5") as file:
            (swap.root / "c").rename(swap.root / "was c")
            file.replace(NEW)

    with pytest.raises(StoreError, match="moved while it was written"):
        moved_and_written()


def test_no_directory_takes_the_place_of_a_store_that_is_gone(tmp_path):
    with pytest.raises(FileNotFoundError):
        make_directory(f"{tmp_path}/a/c/0", f"{tmp_path}/a", lambda _: None)
    assert not (tmp_path / "a").exists()


def test_directories_are_made_inside_though_a_link_leads_out(swap, monkeypatch):
    swap.before(monkeypatch, "mkdir")
    with pytest.raises(StoreError, match="leads out"):
        swap.files.put("c/7/8/5", NEW)


@pytest.mark.parametrize("name", ["5", ".5.undo"])
def test_a_file_that_is_swapped_for_a_link_is_neither_read_nor_written(swap, name):
    path = swap.root / "c" / "0" / name

    def swapped() -> None:
        path.unlink(missing_ok=True)
        path.symlink_to(swap.outside / "0" / name)

    with swap.files.locked("c/0/5") as file:
        swapped()
        opens = file.opened if name == "5" else file.opened_note
        with pytest.raises(StoreError, match="leads out"), opens():
            pass
        if name == "5":
            with pytest.raises(OSError, match="symbolic links"):
                change_in_place(file)
        file.replace(NEW)
    assert (swap.root / "c" / "0" / "5").read_bytes() == b"new bytes"


def test_a_link_that_leads_nowhere_is_not_written_through(swap):
    (swap.root / "c" / "0" / "7").symlink_to(swap.root / "c" / "0" / "8")
    with pytest.raises(StoreError, match="no regular file"):
        swap.files.put("c/0/7", NEW)


def test_an_interrupt_during_the_wait_for_a_lock_is_raised(swap, monkeypatch):
    def interrupted(*_: int) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(fcntl, "flock", interrupted)
    with pytest.raises(KeyboardInterrupt):
        swap.files.put("c/0/5", NEW)
    swap.files.put("c/0/5", NEW)


def test_what_is_cleared_is_what_was_opened(swap, monkeypatch):
    (swap.root / "c" / "2").mkdir()
    swap.before(monkeypatch, "scandir")
    swap.files.clear("c")
    assert not list((swap.root / "was c").iterdir())


def test_what_is_listed_is_what_was_opened(swap, monkeypatch):
    (swap.root / "c" / "2").mkdir()
    swap.before(monkeypatch, "listdir")
    assert swap.store.list_children("c") == ["0", "1", "2"]


def test_empty_directories_are_removed_where_they_were_opened(swap, monkeypatch):
    swap.before(monkeypatch, "rmdir")
    swap.files.remove_empty_directories(["c/1/5"], "")
    assert [p.name for p in (swap.root / "was c").iterdir()] == ["0"]


@pytest.mark.parametrize("what", ["read", "list", "tidy", "clear", "write"])
def test_a_link_that_comes_just_before_the_opening_is_seen(swap, monkeypatch, what):
    swap.before(monkeypatch, "open")
    if what == "tidy":
        swap.files.remove_empty_directories(["c/0/5"], "")
        return
    act = {
        "read": lambda: swap.store.get("c/0/5"),
        "list": lambda: swap.store.list_children("c/0"),
        "clear": lambda: swap.files.clear("c"),
        "write": lambda: swap.files.put("c/0/5", NEW),
    }[what]
    with pytest.raises(StoreError, match="leads out"):
        act()


def test_an_array_whose_directory_is_moved_in_mid_write_says_so(tmp_path, monkeypatch):
    a = gpushard.create_array(
        tmp_path / "a", shape=8, dtype="u1", chunks=2, shards=8, fill_value=0
    )
    a[:] = 1
    real = os.replace

    def moved_before(*given: Any, **named: Any) -> None:
        if not (tmp_path / "a" / "was").exists():
            (tmp_path / "a" / "c").rename(tmp_path / "a" / "was")
            (tmp_path / "a" / "c").mkdir()
        real(*given, **named)

    monkeypatch.setattr(os, "replace", moved_before)
    with pytest.raises(StoreError, match="moved while it was written"):
        a[:] = 2
    assert not list((tmp_path / "a" / "c").iterdir())


@pytest.mark.parametrize("name", ["ax", "a-", "b"])
def test_a_link_to_a_directory_beside_the_store_is_not_written_through(name, tmp_path):
    """Also to one whose name begins with that of the store's directory."""
    root, beside = tmp_path / "a", tmp_path / name
    beside.mkdir()
    a = gpushard.create_array(root, shape=(8,), dtype="i4", chunks=(4,), device="cpu")
    (root / "c").symlink_to(beside)
    with pytest.raises(gpushard.StoreError, match="leads out of the store"):
        a[...] = 1
    assert list(beside.iterdir()) == []


def test_a_root_that_became_a_link_to_itself_is_gone(tmp_path):
    root = tmp_path / "a"
    a = gpushard.create_array(root, shape=(8,), dtype="i4", chunks=(4,), device="cpu")
    root.rename(tmp_path / "moved")
    root.symlink_to(root)
    with pytest.raises(gpushard.StoreError, match="directory is gone"):
        a[...] = 1


def test_a_root_that_became_a_link_to_another_directory_is_not_written_through(
    tmp_path,
):
    root, other = tmp_path / "a", tmp_path / "other"
    a = gpushard.create_array(root, shape=(8,), dtype="i4", chunks=(4,), device="cpu")
    root.rename(tmp_path / "moved")
    other.mkdir()
    root.symlink_to(other)
    with pytest.raises(gpushard.StoreError, match="leads out of the store"):
        a[...] = 1
    assert list(other.iterdir()) == []
