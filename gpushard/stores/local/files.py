"""Files written so that a reader, even after a crash, finds the old or the new content.

Who writes to a file holds its lock. That is the kernel's (`flock`): it ends with the
process that holds it, whatever happens to the file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from gpushard.stores.failures import refuse_unsafe_key
from gpushard.stores.local.directories import open_directory
from gpushard.stores.local.file_bytes import Pieces, Update
from gpushard.stores.local.locked_file import LockedFile
from gpushard.stores.local.names_beside import LOCK, UNDO, UNFINISHED, name_beside
from gpushard.stores.local.store import LocalStore
from gpushard.stores.local.visits import Visit, as_store_errors

# Errors of a path at whose end there is no file.
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class FileWriter:
    """Write access to the files of a local store.

    Unless it `is_durable`, a write does not wait until the disk has what it replaces.
    """

    deletes_in_updates = True
    puts_whole = True

    def __init__(self, store: LocalStore, *, is_durable: bool = True) -> None:
        self._store = store
        self.is_durable = is_durable

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
        with as_store_errors(self._store, prefix):
            try:
                directory = open_directory(
                    str(Path(self._store.root, prefix)),
                    partial(self._store.refuse_outside, prefix),
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
                    check = partial(self._store.refuse_outside, prefix)
                    with open_directory(str(directory.parent), check) as above:
                        os.rmdir(directory.name, dir_fd=above.fd)
                except OSError:  # the directory is not empty, or it is gone
                    break

    def has_traces(self, key: str) -> bool:
        """Whether the file exists, or anything that a killed writer has left of it."""
        with as_store_errors(self._store, key):
            return Path(self._store.root, key).exists() or self.has_remains(key)

    def has_note(self, key: str) -> bool:
        """Whether a write in place of the file is under way or was interrupted."""
        with as_store_errors(self._store, key):
            return self._is_beside(key, UNDO)

    def has_remains(self, key: str) -> bool:
        """Whether a write of the file is under way, or left something when it ended."""
        with as_store_errors(self._store, key):
            endings = (LOCK, UNDO, *UNFINISHED)
            return any(self._is_beside(key, one) for one in endings)

    def drop_stale_lock(self, key: str) -> None:
        """Remove the lock file that a killed writer left."""
        if self._is_beside(key, LOCK):
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
        with self.visit() as visit, visit.locked(key) as file:
            yield file

    def visit(self, *, names_later: bool = False) -> Visit:
        """Write access to files that one thread changes one after the other.

        With `names_later` their names are durable only at its end.
        """
        return Visit(self._store, is_durable=self.is_durable, names_later=names_later)

    def _is_beside(self, key: str, ending: str) -> bool:
        """Whether there is a file of that ending beside the file of an object."""
        above, _, name = key.rpartition("/")
        # Verifying asks for every shard: a `Path` takes longer than the look itself.
        path = os.path.join(self._store.root, above, name_beside(name, ending))
        try:
            os.stat(path)
        except OSError as error:
            if error.errno not in _MISSING:
                raise
            return False
        return True
