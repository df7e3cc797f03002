"""Files written so that a reader, even after a crash, finds the old or the new content.

Who writes to a file holds its lock. That is the kernel's (`flock`): it ends with the
process that holds it, whatever happens to the file.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpushard.errors import StoreError
from gpushard.stores.failures import refuse_unsafe_key
from gpushard.stores.local.directories import (
    Directory,
    PathCheck,
    is_in_directory,
    make_directory,
    open_directory,
)
from gpushard.stores.local.file_bytes import Pieces, Update
from gpushard.stores.local.file_locks import file_locks
from gpushard.stores.local.locked_file import (
    LOCK,
    UNDO,
    UNFINISHED,
    LockedFile,
    name_beside,
)
from gpushard.stores.local.store import LocalStore

if TYPE_CHECKING:
    from io import FileIO

# Attempts to make a directory that others remove at once; this is rare.
_MOST_ATTEMPTS = 64
_HINTS = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close other programs that hold many files open",
    **dict.fromkeys(
        (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP),
        "write to a file system that has locks (flock), or mount it with them",
    ),
}


class FileWriter:
    """Write access to the files of a local store.

    Unless it `is_durable`, a write does not wait until the disk has what it replaces.
    """

    deletes_in_updates = True
    puts_whole = True

    def __init__(self, store: LocalStore, *, is_durable: bool = True) -> None:
        self._store = store
        self._is_durable = is_durable

    def put(self, key: str, pieces: Pieces | None) -> None:
        """Replace an object, whatever its content; None deletes it."""
        with self.locked(key) as file:
            file.replace(pieces)

    def update(self, key: str, update: Update, most_nbytes: int) -> None:
        """Replace an object by the result of `update`, under a lock."""
        with self.locked(key) as file:
            with file.opened() as data:
                pieces = update(None if data is None else data[: most_nbytes + 1])
            file.replace(pieces)

    def create(self, key: str, pieces: Pieces) -> bool:
        """Write an object unless it exists; return whether it did not exist."""
        with self.locked(key) as file:
            if file.nbytes() is not None:
                return False
            file.replace(pieces)
        return True

    def clear(self, prefix: str) -> None:
        """Delete all objects below `prefix`, or all objects of the store for ""."""
        if prefix:
            refuse_unsafe_key(prefix, self._store.url)
        with self._as_store_errors(prefix):
            try:
                directory = open_directory(
                    Path(self._store.root, prefix), self._check_of_paths(prefix)
                )
            except (FileNotFoundError, NotADirectoryError):
                return
            with directory:
                directory.clear()

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; ignore those that are gone already."""
        for key in keys:
            self.put(key, None)

    def remove_empty_directories(self, keys: Sequence[str], prefix: str) -> None:
        """Remove empty directories of deleted objects, but none directly in `prefix`.

        A writer of other objects may be about to write to those.
        """
        root = Path(self._store.root, prefix)
        for parent in {Path(self._store.root, key).parent for key in keys}:
            for directory in (parent, *parent.parents):
                if root not in directory.parent.parents:
                    break
                try:
                    check = self._check_of_paths("")
                    with open_directory(directory.parent, check) as above:
                        os.rmdir(directory.name, dir_fd=above.fd)
                except OSError:  # the directory is not empty, or it is gone
                    break

    def has_traces(self, key: str) -> bool:
        """Whether the file exists, or anything that a killed writer has left of it."""
        with self._as_store_errors(key):
            return Path(self._store.root, key).exists() or self.has_remains(key)

    def has_note(self, key: str) -> bool:
        """Whether a write in place of the file is under way or was interrupted."""
        with self._as_store_errors(key):
            return self._path_beside(key, UNDO).exists()

    def has_remains(self, key: str) -> bool:
        """Whether a write of the file is under way, or left something when it ended."""
        with self._as_store_errors(key):
            endings = (UNDO, *UNFINISHED)
            return any(self._path_beside(key, one).exists() for one in endings)

    def drop_stale_lock(self, key: str) -> None:
        """Remove the lock file that a killed writer left."""
        if self._path_beside(key, LOCK).exists():
            with self.locked(key):
                pass  # releasing the lock removes its file

    @contextmanager
    def locked(self, key: str) -> Generator[LockedFile]:
        """File of an object, locked against other writers of this machine.

        Raises
        ------
        StoreError
            The key leads out of the root, or the file system reports an error.
        """
        refuse_unsafe_key(key, self._store.url)
        path = Path(self._store.root, key)
        with self._as_store_errors(key):
            self._refuse_if_gone()
            taken: list[FileIO] = []
            try:
                with self._take_lock(path, key, taken) as directory:
                    try:
                        self._refuse_irregular(directory, path.name, key)
                        yield LockedFile(directory, path.name, self._is_durable)
                        self._refuse_moved(directory, key)
                    finally:
                        name = name_beside(path.name, LOCK)
                        directory.unlink_locked(name, taken[0])
            finally:
                # An interrupt may come before the first line of what does it above.
                for lock in taken:
                    file_locks.release(lock)

    def _take_lock(self, path: Path, key: str, taken: list[FileIO]) -> Directory:
        """Directory of a file, made if it is missing; the lock is added to `taken`."""
        refuse_outside = self._check_of_paths(key)
        n_gone = 0
        while True:
            try:
                root = Path(self._store.root)
                directory = make_directory(
                    path.parent, root, refuse_outside, is_durable=self._is_durable
                )
                with ExitStack() as stack:
                    stack.enter_context(directory)
                    if directory.lock(name_beside(path.name, LOCK), taken):
                        stack.pop_all()
                        return directory
            except FileNotFoundError:
                # Another process that deletes objects removes empty directories.
                n_gone += 1
                if n_gone == _MOST_ATTEMPTS:
                    raise

    def _path_beside(self, key: str, ending: str) -> Path:
        path = Path(self._store.root, key)
        return path.with_name(name_beside(path.name, ending))

    @contextmanager
    def _as_store_errors(self, key: str) -> Generator[None]:
        """Make the system's errors of a write ours."""
        try:
            yield
        except StoreError:
            raise
        except OSError as error:
            if error.errno is None:  # a handler of a signal raised it, not the system
                raise
            raise StoreError(
                f"cannot write {key!r}: {error.strerror or error}",
                store_url=self._store.url,
                hint=_HINTS.get(
                    error.errno,
                    "check the directory's rights and the room on the disk",
                ),
            ) from error

    def _refuse_if_gone(self) -> None:
        """Refuse to write if the store's directory is gone: a new one has no array."""
        if not os.path.isdir(self._store.root):
            raise StoreError(
                "the store's directory is gone",
                store_url=self._store.url,
                hint="it was moved, deleted or unmounted: open the array where it is",
            )

    def _refuse_irregular(self, directory: Directory, name: str, key: str) -> None:
        """Refuse anything but a regular file of this store: partial writes read it."""
        for one in (name, name_beside(name, UNDO)):
            status = directory.status(one, follows=False)
            if status is not None and stat.S_ISLNK(status.st_mode):
                directory.refuse_outside(os.path.realpath(directory.path / one))
                status = directory.status(one) or status
            if status is not None and not stat.S_ISREG(status.st_mode):
                raise StoreError(
                    "what lies at the place of a shard is no regular file",
                    shard_key=key,
                    store_url=self._store.url,
                    got=str(directory.path / one),
                    hint="move it away",
                )

    def _refuse_moved(self, directory: Directory, key: str) -> None:
        """Refuse to report a write to a directory that is no longer at its place."""
        if not directory.is_in_place():
            raise StoreError(
                "the directory of a shard was moved while it was written to",
                shard_key=key,
                store_url=self._store.url,
                got=str(directory.path),
                hint="write again, and let nobody else change the store's directories",
            )

    def _check_of_paths(self, key: str) -> PathCheck:
        """Check that refuses real paths outside the root, unless links may leave it."""
        if self._store.allow_symlinks_outside:
            return lambda _: None
        root = os.path.realpath(self._store.root)

        def refuse_outside(real: str) -> None:
            if not is_in_directory(real, root):
                raise StoreError(
                    "a symbolic link leads out of the store's root",
                    shard_key=key,
                    store_url=self._store.url,
                    got=real,
                    hint="open the store at the place that the link leads to",
                )

        return refuse_outside
