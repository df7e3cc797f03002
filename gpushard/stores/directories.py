"""Open directories of a local store: what is done to names in them stays in them.

A path is followed anew by each call, so that between a check and what it was made for
a link may take the place of a directory. A directory that is open stays the one that
was checked, whatever lies at its path by then; where the system tells no path of an
open file (no ``/proc``), the path that was opened is looked at.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Self

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW

Refuse = Callable[[str], None]
"""Raises where a path, free of symbolic links, leads out of the store."""


def path_of(fd: int, path: str) -> str:
    """Path of the open file, free of symbolic links."""
    try:
        # One call instead of one a path component, and of the very file that is open.
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return os.path.realpath(path)


def is_below_itself(root: str, prefix: str, real: str) -> bool:
    """Whether `prefix`, in truth at `real`, lies below the very same directory."""
    names = (f"{name}/" for name in prefix.split("/"))
    ways = [*accumulate(names, initial=root)]
    return any(os.path.realpath(way) == real for way in ways[:-1])


@dataclass(frozen=True, slots=True)
class Directory:
    """An open directory inside the store; a context closes it.

    Attributes
    ----------
    fd
        The open directory.
    path
        Where it was.
    refuse
        What refuses a file that a link in it leads to.
    """

    fd: int
    path: Path
    refuse: Refuse

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it."""
        os.close(self.fd)

    def open(self, name: str, flags: int) -> int:
        """Open file of that name, which is no link."""
        return os.open(name, flags | _FLAGS, 0o666, dir_fd=self.fd)

    def open_to_read(self, name: str) -> int:
        """Open file of that name, or one inside the store that it is a link to."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(name, flags, dir_fd=self.fd)
        try:
            self.refuse(path_of(fd, str(self.path / name)))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def status(self, name: str, *, follows: bool = True) -> os.stat_result | None:
        """Status of what has that name, or of what it is a link to; None if nothing."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=follows)
        except FileNotFoundError:
            return None

    def unlink(self, name: str) -> None:
        """Remove a file, unless it is gone."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)

    def rename(self, old: str, new: str) -> None:
        """Let a file have another's name, in one step."""
        os.replace(old, new, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def sync(self) -> None:
        """Make the names in it durable."""
        os.fsync(self.fd)

    def clear(self) -> None:
        """Remove all that lies in it, but nothing that a link in it leads to."""
        with os.scandir(self.fd) as entries:
            found = [(e.name, e.is_dir(follow_symlinks=False)) for e in entries]
        for name, is_directory in sorted(found):
            if is_directory:
                shutil.rmtree(name, dir_fd=self.fd)
            else:
                os.unlink(name, dir_fd=self.fd)

    def locked(self, name: str) -> int | None:
        """Open file of a lock, held; None if another file has its name by then."""
        fd = self.open(name, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            # Its last holder unlinked it, and may have removed the directory too.
            status = self.status(name)
            if status is not None and os.path.samestat(os.fstat(fd), status):
                return fd
        except BaseException:
            let_go(fd)
            raise
        let_go(fd)
        return None

    def is_in_place(self) -> bool:
        """Whether it still is what lies at its path."""
        try:
            return os.path.samestat(os.fstat(self.fd), os.stat(self.path))
        except FileNotFoundError:
            return False


def let_go(fd: int) -> None:
    """Let go of a lock."""
    # A process forked meanwhile has the file open too: closing it here would leave the
    # lock to that one.
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def open_directory(path: Path, refuse: Refuse) -> Directory:
    """Directory at `path`.

    Raises
    ------
    OSError
        There is none.
    StoreError
        It does not lie in the store, says `refuse`.
    """
    fd = os.open(path, _DIRECTORY)
    try:
        refuse(path_of(fd, str(path)))
    except BaseException:
        os.close(fd)
        raise
    return Directory(fd, path, refuse)


def names_in(path: str, refuse: Refuse) -> list[str]:
    """Names in a directory, in any order; raises as `open_directory`."""
    with open_directory(Path(path), refuse) as directory:
        return os.listdir(directory.fd)


def make_directory(path: Path, root: Path, refuse: Refuse) -> Directory:
    """Directory at `path`; it and those above, up to `root`, are made durably."""
    try:
        return open_directory(path, refuse)
    except FileNotFoundError:
        if path == root:
            raise
    with make_directory(path.parent, root, refuse) as above:
        with suppress(FileExistsError):
            os.mkdir(path.name, dir_fd=above.fd)
        above.sync()
        return open_directory(path, refuse)
