"""Open directories of a local store, so that operations on names stay inside of them.

Each call follows a path again. So a link may replace a directory between a check and
the operation that was checked. An open directory stays the checked one, whatever is at
its path by then. If the system does not tell the path of an open file (no ``/proc``),
the path that was opened is checked.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Self

from gpushard.stores.local.handles import HandleTable

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# A fifo in the place of a file is refused. To open it could take for ever.
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

# Errors of a file system whose directories cannot be synced (CIFS, some FUSE servers).
_CANNOT_SYNC = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)

PathCheck = Callable[[str], None]
"""Raises if a path without symbolic links leads out of the store."""


def path_of(fd: int, path: str) -> str:
    """Path of an open file, without symbolic links."""
    try:
        # One call instead of one for each path component, and certain to be this file.
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return os.path.realpath(path)


def is_in_directory(real: str, real_root: str) -> bool:
    """Whether a path without symbolic links is that of a directory, or below it.

    Some file systems take several spellings of a name (FAT, CIFS, ext4 with casefold).
    Then `real` may begin with another spelling of that directory's path.
    """
    root = real_root.rstrip("/")
    if real == root or real.startswith(f"{root}/"):
        return True
    above = "/".join(real.split("/")[: root.count("/") + 1])
    if above.casefold() != root.casefold():
        return False
    try:
        # Not where a link leads that has taken the directory's place.
        return os.path.samestat(os.stat(above), os.lstat(root))
    except (OSError, ValueError):
        return False


def is_below_itself(root: str, prefix: str, real: str) -> bool:
    """Whether `prefix`, whose real path is `real`, lies below that same directory."""
    names = (f"{name}/" for name in prefix.split("/"))
    ways = [*accumulate(names, initial=root)]
    return any(os.path.realpath(way) == real for way in ways[:-1])


@dataclass(frozen=True, slots=True)
class Directory:
    """An open directory inside the store; usable as a context that closes it.

    `path` is that at which it was opened. `refuse_outside` refuses files outside the
    store that links in the directory lead to.
    """

    fd: int
    path: str
    refuse_outside: PathCheck

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the directory."""
        os.close(self.fd)

    def open(self, name: str, flags: int) -> int:
        """Open the file `name`, which must not be a link."""
        return _open(name, flags | _FLAGS, self.fd)

    def open_to_read(self, name: str) -> int:
        """Open the file `name`, or the file inside the store that it is a link to."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        fd = _open(name, flags, self.fd)
        try:
            self.refuse_outside(path_of(fd, f"{self.path}/{name}"))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def status(self, name: str, *, follows: bool = True) -> os.stat_result | None:
        """Status of the entry `name`, or of the target of a link; None if missing."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=follows)
        except FileNotFoundError:
            return None

    def unlink(self, name: str) -> None:
        """Remove a file; do nothing if it is gone."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)

    def rename(self, old: str, new: str) -> None:
        """Rename a file in one step, replacing the file `new`."""
        os.replace(old, new, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def sync(self) -> None:
        """Make the names in the directory durable, if the file system can."""
        try:
            os.fsync(self.fd)
        except OSError as error:
            if error.errno not in _CANNOT_SYNC:
                raise

    def clear(self) -> None:
        """Remove everything in the directory, but nothing that links in it lead to."""
        with os.scandir(self.fd) as entries:
            found = [(e.name, e.is_dir(follow_symlinks=False)) for e in entries]
        for name, is_directory in sorted(found):
            if is_directory:
                shutil.rmtree(name, dir_fd=self.fd)
            else:
                os.unlink(name, dir_fd=self.fd)

    def is_in_place(self) -> bool:
        """Whether the directory is still the one at its path."""
        try:
            return os.path.samestat(os.fstat(self.fd), os.stat(self.path))
        except FileNotFoundError:
            return False


def open_directory(path: str, refuse_outside: PathCheck) -> Directory:
    """Open the directory at `path`.

    Raises
    ------
    OSError
        There is no directory.
    StoreError
        `refuse_outside` says that it is not in the store.
    """
    fd = _open(path, _DIRECTORY)
    try:
        refuse_outside(path_of(fd, path))
    except BaseException:
        os.close(fd)
        raise
    return Directory(fd, path, refuse_outside)


def duplicate(fd: int) -> int:
    """Another descriptor of an open file."""
    return _with_room(partial(os.dup, fd))


def _open(path: str, flags: int, dir_fd: int | None = None) -> int:
    return _with_room(partial(os.open, path, flags, 0o666, dir_fd=dir_fd))


def _with_room(opening: Callable[[], int]) -> int:
    """Descriptor of a file; files that reads keep open make room for it."""
    try:
        return opening()
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        HandleTable.clear_all()
        return opening()


def listed_names(path: str, refuse_outside: PathCheck) -> list[str]:
    """Names in a directory, in any order; raises like `open_directory`."""
    with open_directory(path, refuse_outside) as directory:
        return os.listdir(directory.fd)


def entries_in(
    path: str, refuse_outside: PathCheck
) -> Iterator[tuple[str, bool | None]]:
    """Names in a directory, and whether each is a directory, too.

    That is None for a link that leads nowhere. Raises like `open_directory`.
    """
    with (
        open_directory(path, refuse_outside) as directory,
        os.scandir(directory.fd) as entries,
    ):
        for entry in entries:
            is_lost = entry.is_symlink() and directory.status(entry.name) is None
            yield entry.name, None if is_lost else entry.is_dir()


def make_directory(
    path: str, root: str, refuse_outside: PathCheck, *, is_durable: bool = True
) -> Directory:
    """Open the directory at `path`; create it and its parents below `root`, durably."""
    try:
        return open_directory(path, refuse_outside)
    except FileNotFoundError:
        if path == root:
            raise
    parent, name = os.path.split(path)
    with make_directory(parent, root, refuse_outside, is_durable=is_durable) as above:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=above.fd)
        if is_durable:
            above.sync()
        return open_directory(path, refuse_outside)
