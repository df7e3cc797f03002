"""Files written so that a reader, or the next start of the machine, finds old or new.

A file is replaced by writing another beside it, making that durable, and renaming it.
Beside ``c/0/1`` lie, while it is written, ``c/0/.1.lock`` and ``c/0/.1.new``, and for
writes in place ``c/0/.1.undo``. The lock is the kernel's (`flock`): it ends with the
process that holds it, whatever becomes of the file.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpushard.errors import StoreError
from gpushard.stores.failures import refuse_unsafe_key
from gpushard.stores.file_bytes import FileBytes, Pieces, Update, write_all
from gpushard.stores.local import LocalStore

# A directory is removed by others just when it was made: not often in a row.
_MOST_ATTEMPTS = 64
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW
_LOCK, _UNDO, _NEW, _NEW_UNDO = "lock", "undo", "new", "undo.new"
_UNFINISHED = (_NEW, _NEW_UNDO)
_BESIDE = re.compile(rf"(.*/)?\.([^/]+?)\.(?:{_NEW_UNDO}|{_LOCK}|{_UNDO}|{_NEW})")


@dataclass(frozen=True, slots=True)
class LockedFile:
    """A file that no other writer touches meanwhile."""

    path: Path

    @property
    def undo_path(self) -> Path:
        """Where a write in place notes what it overwrites."""
        return _beside(self.path, _UNDO)

    @contextmanager
    def opened(self) -> Generator[FileBytes | None]:
        """Its bytes, to be read in slices; None if there is no file."""
        with _opened(self.path) as data:
            yield data

    @contextmanager
    def opened_note(self) -> Generator[FileBytes | None]:
        """What undoes a write in place, so too."""
        with _opened(self.undo_path) as data:
            yield data

    def nbytes(self) -> int | None:
        """Its size; None if there is no file."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return None

    def replace(self, pieces: Pieces | None) -> None:
        """Replace the file in one step; None deletes it."""
        if pieces is None:
            # What a writer left that was killed goes too.
            for gone in (self.path, *(_beside(self.path, end) for end in _UNFINISHED)):
                with suppress(FileNotFoundError):
                    gone.unlink()
        else:
            replace_file(self.path, _beside(self.path, _NEW), pieces)
        # What was to be undone is gone.
        with suppress(FileNotFoundError):
            self.undo_path.unlink()
        sync_directory(self.path.parent)

    def has_note(self) -> bool:
        """Whether a write in place is under way, or was cut off."""
        return self.undo_path.exists()

    def note(self, pieces: Pieces) -> None:
        """Keep what undoes a write in place, before it starts."""
        replace_file(self.undo_path, _beside(self.path, _NEW_UNDO), pieces)
        sync_directory(self.path.parent)

    def forget_note(self) -> None:
        """Drop what undoes a write in place, after it is done."""
        with suppress(FileNotFoundError):
            self.undo_path.unlink()


def written_key(key: str) -> str:
    """Key of the object beside which a writer puts a file; any other key as it is."""
    found = _BESIDE.fullmatch(key)
    return key if found is None else f"{found[1] or ''}{found[2]}"


class FileWriter:
    """Write access to the files of a local store."""

    deletes_in_updates = True
    puts_whole = True

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def put(self, key: str, pieces: Pieces | None) -> None:
        """Replace an object whatever it was; None deletes it."""
        with self.locked(key) as file:
            file.replace(pieces)

    def update(self, key: str, update: Update, most_nbytes: int) -> None:
        """Replace an object by what `update` makes of it, under a lock."""
        with self.locked(key) as file:
            with file.opened() as data:
                pieces = update(None if data is None else data[: most_nbytes + 1])
            file.replace(pieces)

    def create(self, key: str, pieces: Pieces) -> bool:
        """Write an object unless there is one; whether there was none."""
        with self.locked(key) as file:
            if file.path.exists():
                return False
            file.replace(pieces)
        return True

    def clear(self, prefix: str) -> None:
        """Delete all objects below `prefix`, or all of the store's for ""."""
        if prefix:
            refuse_unsafe_key(prefix, self._store.url)
        root = Path(self._store.root, prefix)
        with self._worded(prefix):
            if not root.is_dir():
                return
            self._refuse_links_out(prefix, root)
            for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; some may be gone already."""
        for key in keys:
            self.put(key, None)

    def tidy(self, keys: Sequence[str], prefix: str) -> None:
        """Remove empty directories of deleted objects, but none directly in `prefix`.

        Those a writer of other objects may be about to write to.
        """
        root = Path(self._store.root, prefix)
        for parent in {Path(self._store.root, key).parent for key in keys}:
            for directory in (parent, *parent.parents):
                if root not in directory.parent.parents:
                    break
                try:
                    directory.rmdir()
                except OSError:  # something lies there, or it is gone
                    break

    def has_traces(self, key: str) -> bool:
        """Whether there is such a file, or a note of one that was written in place."""
        return Path(self._store.root, key).exists() or self.has_note(key)

    def has_note(self, key: str) -> bool:
        """Whether a write in place of that file is under way, or was cut off."""
        return _beside(Path(self._store.root, key), _UNDO).exists()

    def drop_stale_lock(self, key: str) -> None:
        """Remove the lock that a writer left which was killed."""
        if _beside(Path(self._store.root, key), _LOCK).exists():
            with self.locked(key):
                pass  # letting go of it removes it

    @contextmanager
    def locked(self, key: str) -> Generator[LockedFile]:
        """File of an object, while no other writer of this machine touches it.

        Raises
        ------
        StoreError
            The key leads out of the root, or the file system refuses.
        """
        refuse_unsafe_key(key, self._store.url)
        path = Path(self._store.root, key)
        with self._worded(key):
            self._refuse_gone()
            self._refuse_outside(path, key)
            with _flock(_beside(path, _LOCK)):
                yield LockedFile(path)

    @contextmanager
    def _worded(self, key: str) -> Generator[None]:
        try:
            yield
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(
                f"cannot write {key!r}: {error.strerror or error}",
                store_url=self._store.url,
                hint="check the directory's rights and the room on the disk",
            ) from error

    def _refuse_gone(self) -> None:
        """Refuse to write where the store was: a directory made anew has no array."""
        if not os.path.isdir(self._store.root):
            raise StoreError(
                "the store's directory is gone",
                store_url=self._store.url,
                hint="it was moved, deleted or unmounted: open the array where it is",
            )

    def _refuse_outside(self, path: Path, key: str) -> None:
        """Refuse what is no file of this store: partial writes read what is there."""
        note = _beside(path, _UNDO)
        self._refuse_links_out(key, path.parent, path, note)
        for one in (path, note):
            if os.path.lexists(one) and not os.path.isfile(one):
                raise StoreError(
                    "what lies at the place of a shard is no regular file",
                    shard_key=key,
                    store_url=self._store.url,
                    got=str(one),
                    hint="move it away",
                )

    def _refuse_links_out(self, key: str, *paths: Path) -> None:
        if self._store.allow_symlinks_outside:
            return
        root = os.path.realpath(self._store.root)
        for path in paths:
            real = os.path.realpath(path)
            if os.path.commonpath([root, real]) != root:
                raise StoreError(
                    "a symbolic link leads out of the store's root",
                    shard_key=key,
                    store_url=self._store.url,
                    got=real,
                    hint="open the store at the place that the link leads to",
                )


def replace_file(path: Path, temporary: Path, pieces: Pieces) -> None:
    """Let `path` have these bytes, in one step and durably but for its name."""
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _FLAGS, 0o666)
    try:
        try:
            write_all(fd, pieces)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except OSError:
        # On a full disk, half a file would keep others from what little room there is.
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def _opened(path: Path) -> Generator[FileBytes | None]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        yield FileBytes(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def make_directories(path: Path) -> None:
    """Make a directory and those above it, each durably."""
    missing: list[Path] = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name}.{ending}")


@contextmanager
def _flock(path: Path) -> Generator[None]:
    """Hold the lock of that name, alone among all processes and threads."""
    while True:
        fd = _opened_lock(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            # Its last holder unlinked it: another file may have the name by now.
            if _is_at(fd, path):
                break
        except BaseException:
            _let_go(fd)
            raise
        _let_go(fd)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            path.unlink()
        _let_go(fd)


def _opened_lock(path: Path) -> int:
    """File of a lock, in a directory that is made if need be."""
    for _ in range(_MOST_ATTEMPTS):
        # Whoever deletes objects removes directories that it finds empty.
        with suppress(FileNotFoundError):
            make_directories(path.parent)
            return os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666)
    make_directories(path.parent)
    return os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666)


def _let_go(fd: int) -> None:
    # A process forked meanwhile has the file open too: closing it here would leave the
    # lock to that one.
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
