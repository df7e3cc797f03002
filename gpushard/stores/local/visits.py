"""Files that one thread locks and changes one after the other, and what they share.

As a rule they lie in few directories. So the last directory stays open, and what is
true of the store and of its root is asked once. What may change under the eyes of a
writer is asked again for each file: whether its lock is the one that others see,
whether it is a regular file, and whether its directory is still in its place.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

from gpushard.errors import StoreError
from gpushard.stores.failures import refuse_unsafe_key
from gpushard.stores.local.directories import Directory, make_directory, path_of
from gpushard.stores.local.file_locks import file_locks
from gpushard.stores.local.lock_files import drop_lock, lock_beside
from gpushard.stores.local.locked_file import LockedFile
from gpushard.stores.local.names_beside import UNDO, name_beside

if TYPE_CHECKING:
    from io import FileIO

    from gpushard.stores.local.store import LocalStore

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

# Errors where a link or a directory has the name of a file that a writer makes.
_IN_THE_WAY = (errno.ELOOP, errno.EISDIR)
# Errors that may come of the root: it was moved, or it is a link to itself by now.
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@contextmanager
def as_store_errors(store: LocalStore, key: str) -> Generator[None]:
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
            store_url=store.url,
            hint=_hint_on(error, error.errno),
        ) from error


def _hint_on(error: OSError, number: int) -> str:
    if number in _IN_THE_WAY and isinstance(error.filename, str):
        return f"move away what has the name {error.filename!r}: a writer makes files"
    rest = "check the directory's rights and the room on the disk"
    return _HINTS.get(number, rest)


class Visit:
    """Write access to files of a store, for one thread; a context that ends it.

    If it `is_durable`, the disk has the bytes of a file before they get its name. It
    has the name when the lock is given back; or, if `names_later`, by the end of the
    visit, which costs one wait for each directory.
    """

    def __init__(
        self, store: LocalStore, *, is_durable: bool, names_later: bool = False
    ) -> None:
        self._store = store
        self._is_durable = is_durable
        self._names_later = names_later
        # Key of the last file in the directory, if its name is not durable yet.
        self._unsynced: str | None = None
        self._key = ""
        self._above: str | None = None
        self._opened: list[Directory] = []
        self._name = ""
        self._taken: list[FileIO] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # An interrupt may leave `locked` before its end. It would go on later, when it
        # is collected, but by then the directory's number may be that of another file.
        try:
            self._give_back()
            if kind is None:
                self._sync_names()
            elif issubclass(kind, Exception):
                # The files before the one that failed are written.
                with suppress(OSError):
                    self._sync_names()
        finally:
            self._leave()

    @contextmanager
    def locked(self, key: str) -> Generator[LockedFile]:
        """File of an object, locked against other writers of this machine.

        Raises
        ------
        StoreError
            The key leads out of the root, or the file system reports an error.
        """
        refuse_unsafe_key(key, self._store.url)
        self._key = key
        above, _, name = key.rpartition("/")
        self._name = name
        with as_store_errors(self._store, key):
            try:
                directory = self._take_lock(above)
                has_note = self._refuse_irregular(directory, name)
                later = self._names_later and self._is_durable
                self._unsynced = key if later else None
                lock = self._taken[0]
                yield LockedFile(
                    directory, name, lock, self._is_durable, later, has_note
                )
                self._refuse_moved(directory)
            finally:
                self._give_back()

    def _take_lock(self, above: str) -> Directory:
        """Lock a file in the directory `above`, which is made if it is missing."""
        n_gone = 0
        while True:
            try:
                directory = self._at(above)
                if lock_beside(directory, self._name, self._taken):
                    return directory
                if directory.is_in_place():
                    continue
            except FileNotFoundError:
                # Another process that deletes objects removes empty directories.
                n_gone += 1
                if n_gone == _MOST_ATTEMPTS:
                    raise
            self._sync_names()
            self._leave()

    def _give_back(self) -> None:
        """Remove the lock file, if there is one, and release its lock."""
        try:
            if self._taken:
                drop_lock(self._opened[0], self._name, self._taken[0])
        finally:
            # An interrupt may come before the first line of what does it above.
            for lock in self._taken:
                file_locks.release(lock)
            self._taken.clear()

    def _at(self, above: str) -> Directory:
        """Directory with this path below the root: the last one, or opened anew."""
        if above != self._above:
            self._sync_names()
            self._leave()
            root = self._store.root
            path = os.path.join(root, above) if above else root
            try:
                directory = make_directory(
                    path, root, self._refuse_outside, is_durable=self._is_durable
                )
            except OSError as error:
                if error.errno in _GONE:
                    self._refuse_if_gone()
                raise
            self._opened.append(directory)
            self._above = above
        return self._opened[0]

    def _sync_names(self) -> None:
        """Make names that files got in the last directory durable."""
        key, self._unsynced = self._unsynced, None
        if key is None:
            return
        try:
            with as_store_errors(self._store, key):
                self._opened[0].sync()
        except StoreError as error:
            error.add_context(shard_key=key)
            raise

    def _leave(self) -> None:
        """Close the last directory, if there is one."""
        self._above = None
        while self._opened:
            self._opened.pop().close()

    def _refuse_outside(self, real_path: str) -> None:
        self._store.refuse_outside(self._key, real_path)

    def _refuse_if_gone(self) -> None:
        """Refuse to write if the store's directory is gone: a new one has no array."""
        if not os.path.isdir(self._store.root):
            raise StoreError(
                "the store's directory is gone",
                store_url=self._store.url,
                hint="it was moved, deleted or unmounted: open the array where it is",
            )

    def _refuse_irregular(self, directory: Directory, name: str) -> bool:
        """Refuse anything but a regular file of this store: partial writes read it.

        Returns whether a write in place has left a note.
        """
        status = None
        for one in (name, name_beside(name, UNDO)):
            status = directory.status(one, follows=False)
            if status is not None and stat.S_ISLNK(status.st_mode):
                directory.refuse_outside(os.path.realpath(f"{directory.path}/{one}"))
                status = directory.status(one) or status
            if status is not None and not stat.S_ISREG(status.st_mode):
                raise StoreError(
                    "what lies at the place of a shard is no regular file",
                    shard_key=self._key,
                    store_url=self._store.url,
                    got=f"{directory.path}/{one}",
                    hint="move it away",
                )
        return status is not None

    def _refuse_moved(self, directory: Directory) -> None:
        """Refuse to report a write to a directory that is no longer at its place."""
        if not directory.is_in_place():
            raise StoreError(
                "the directory of a shard was moved while it was written to",
                shard_key=self._key,
                store_url=self._store.url,
                got=directory.path,
                hint="write again, and let nobody else change the store's directories",
            )
        # A link that was put in its place may lead out of the store, where it is now.
        directory.refuse_outside(path_of(directory.fd, directory.path))
