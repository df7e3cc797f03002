"""Lock files beside objects, which become the objects' next content.

While ``c/0/1`` is written, ``c/0/.1.lock`` is beside it. A writer makes it and locks
it. Only who has locked the file with this name may remove it, or rename it to ``1``,
with which the lock ends. What a killed writer leaves may belong to another user, or be
a hard link to another file: it is removed, and never written to. A symbolic link or a
directory in its place is refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO

from gpushard.errors import StoreError
from gpushard.stores.local.directories import Directory
from gpushard.stores.local.file_locks import file_locks
from gpushard.stores.local.names_beside import LOCK, UNFINISHED, name_beside

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
# Looks at a lock file that has another inode each time, until that is an error.
_MOST_LOOKS = 64


def lock_beside(directory: Directory, name: str, taken: list[FileIO]) -> bool:
    """Make an empty lock file beside the file `name`, lock it, and add it to `taken`.

    False if another writer was faster, or has just ended. Once it is in `taken`, the
    caller gives it back, whatever comes in between.

    Raises
    ------
    StoreError
        The file system does not tell whether it is the same file.
    """
    lock_name = name_beside(name, LOCK)
    for _ in range(_MOST_LOOKS):
        file, is_new = _open(directory, lock_name)
        if file is None:
            return False
        try:
            file_locks.take(file, f"{directory.path}/{lock_name}")
            named = directory.status(lock_name, follows=False)
            locked = os.fstat(file.fileno())
            is_named = named is not None and os.path.samestat(locked, named)
            if is_named and is_new:
                taken.append(file)
                return True
            if is_named and _is_opened(directory, lock_name, locked):
                # A killed writer has left it, and perhaps more.
                for ending in (*UNFINISHED, LOCK):
                    directory.unlink(name_beside(name, ending))
            file_locks.release(file)
        except BaseException:
            file_locks.release(file)
            raise
        # Or the last holder has removed it, and perhaps the directory, or renamed it.
        is_gone = named is None or not locked.st_nlink
        if is_named or is_gone or _has_name(directory, name, locked):
            return False
    raise StoreError(
        "the file system numbers a file anew each time it is looked at",
        got=f"{directory.path}/{lock_name}",
        hint="write to a file system whose inodes keep their numbers",
    )


def drop_lock(directory: Directory, name: str, file: FileIO) -> None:
    """Release a lock and remove its file, unless a parent process has it.

    Does nothing if that is done, or if the file has become the content.
    """
    if not file_locks.has(file):
        return
    lock_name = name_beside(name, LOCK)
    try:
        # An interrupt may come when it is the content. Others lock a new file then.
        if _has_name(directory, lock_name, os.fstat(file.fileno())):
            directory.unlink(lock_name)
    finally:  # the next writer, in this process too, waits for it
        file_locks.release(file)


def _open(directory: Directory, lock_name: str) -> tuple[FileIO | None, bool]:
    """Lock file, and whether it is new; None if it was there, and is gone by now."""

    def opened(flags: int) -> FileIO:
        return FileIO(lock_name, "r+", opener=lambda n, _: directory.open(n, flags))

    with suppress(FileExistsError):
        return opened(_NEW), True
    with suppress(FileNotFoundError):
        try:
            return opened(os.O_RDWR), False
        except PermissionError:
            # It is another user's. To be locked it need not be writable, except on some
            # network file systems.
            with _telling_owner(directory, lock_name):
                return opened(os.O_RDONLY), False
    return None, False


@contextmanager
def _telling_owner(directory: Directory, lock_name: str) -> Iterator[None]:
    """Say whose lock file it is that the block has no right to open."""
    try:
        yield
    except PermissionError as error:
        status = directory.status(lock_name, follows=False)
        if status is None:  # gone by now, as for who opens it
            raise FileNotFoundError from error
        mode = stat.S_IMODE(status.st_mode)
        raise StoreError(
            "the lock file of another writer cannot be opened: it belongs to user"
            f" {status.st_uid} and has the mode {mode:04o}",
            got=f"{directory.path}/{lock_name}",
            hint=(
                "wait for that writer or, if it was killed, have the file removed; who"
                " writes to one store together needs a umask such as 002"
            ),
        ) from error


def _is_opened(directory: Directory, name: str, status: os.stat_result) -> bool:
    """Whether who opens the entry `name` gets the file with this status.

    NFS asks its server then. It may know a status from before another machine renamed
    the file, and made the next one.
    """
    with suppress(FileNotFoundError):
        fd = directory.open(name, os.O_RDONLY)
        try:
            return os.path.samestat(status, os.fstat(fd))
        finally:
            os.close(fd)
    return False


def _has_name(directory: Directory, name: str, status: os.stat_result) -> bool:
    """Whether it is the status of the entry `name`."""
    named = directory.status(name, follows=False)
    return named is not None and os.path.samestat(status, named)
