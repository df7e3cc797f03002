"""A file that one writer at a time changes, by way of other files beside it.

To replace a file, another file is written beside it, made durable, and renamed: to
replace ``c/0/1``, its lock file ``c/0/.1.lock``. So one new file does for both, and
making files is most of what small ones cost. Only what does not fit memory, and what
replaces a file with a note, is written to ``c/0/.1.new``. During a write in place there
is also ``c/0/.1.undo``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gpushard.stores.local.directories import Directory, duplicate
from gpushard.stores.local.file_bytes import FileBytes, Pieces, write_all
from gpushard.stores.local.file_locks import file_locks
from gpushard.stores.local.names_beside import (
    LOCK,
    NEW,
    NEW_UNDO,
    UNDO,
    UNFINISHED,
    name_beside,
)
from gpushard.stores.local.spool import Spool

if TYPE_CHECKING:
    from io import FileIO

# Errors of file systems that do not rename a file that is open.
_CANNOT_RENAME_OPEN = (errno.EACCES, errno.EBUSY, errno.EPERM, errno.ETXTBSY)


@dataclass(slots=True)
class LockedFile:
    """A file, by its name in a directory, that no other writer changes meanwhile.

    Its lock file, which is empty, may become its content; that ends the lock. If it
    `is_durable`, the disk has the bytes that replace it before they get its name. The
    name itself is durable when it is replaced, or, if `is_named_later`, at the end of
    the visit. `may_have_note` is False once it is known that no write in place has left
    a note: only the holder of the lock writes one.
    """

    directory: Directory
    name: str
    lock: FileIO | None
    is_durable: bool = True
    is_named_later: bool = False
    may_have_note: bool = True

    @property
    def undo_name(self) -> str:
        """Name of the file in which a write in place saves what it overwrites."""
        return name_beside(self.name, UNDO)

    @contextmanager
    def opened(self) -> Generator[FileBytes | None]:
        """Bytes of the file, to be read in slices; None if there is no file."""
        with _open_to_read(self.directory, self.name) as data:
            yield data

    @contextmanager
    def opened_note(self) -> Generator[FileBytes | None]:
        """Bytes that undo a write in place; None if there are none."""
        with _open_to_read(self.directory, self.undo_name) as data:
            yield data

    @contextmanager
    def opened_to_change(self) -> Generator[int]:
        """The file, opened to be written in place; it is created if it is missing."""
        fd = self.directory.open(self.name, os.O_RDWR | os.O_CREAT)
        try:
            yield fd
        finally:
            os.close(fd)

    def nbytes(self) -> int | None:
        """Size of the file; None if there is no file."""
        status = self.directory.status(self.name)
        return None if status is None else status.st_size

    @contextmanager
    def spooled(self, most_nbytes: int) -> Generator[Spool]:
        """Beginning of the next content, for `replace`; at the end it is dropped."""
        temporary = name_beside(self.name, NEW)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        spool = Spool(partial(self.directory.open, temporary, flags), most_nbytes)
        try:
            yield spool
        finally:
            if spool.fd is not None:
                with suppress(OSError):
                    self.directory.unlink(temporary)
            spool.close()

    def replace(self, pieces: Pieces | None, spool: Spool | None = None) -> None:
        """Replace the file in one step, with which the lock may end; None deletes it.

        Pieces may lie in a `spool` of this file.
        """
        is_spooled = spool is not None and spool.fd is not None
        if pieces is None:
            self.directory.unlink(self.name)
            self.drop_unfinished()
        elif is_spooled or self.may_have_note or not self._became(pieces):
            temporary = name_beside(self.name, NEW)
            self._put(
                self.name, temporary, pieces, is_durable=self.is_durable, spool=spool
            )
        # The content that the note would restore has been replaced.
        self.forget_note()
        if self.is_durable and not self.is_named_later:
            self.directory.sync()

    def has_note(self) -> bool:
        """Whether a write in place is under way or was interrupted."""
        if not self.may_have_note:
            return False
        return self.directory.status(self.undo_name) is not None

    def drop_unfinished(self) -> None:
        """Remove what killed writers have left half written."""
        for ending in UNFINISHED:
            self.directory.unlink(name_beside(self.name, ending))

    def note(self, pieces: Pieces) -> None:
        """Save the bytes that undo a write in place, before the write starts."""
        temporary = name_beside(self.name, NEW_UNDO)
        self.may_have_note = True
        self._put(self.undo_name, temporary, pieces, is_durable=True)
        self.directory.sync()

    def forget_note(self) -> None:
        """Drop the bytes that undo a write in place, after the write is done."""
        if self.may_have_note:
            self.directory.unlink(self.undo_name)
            self.may_have_note = False

    def _became(self, pieces: Pieces) -> bool:
        """Make the lock file the content, of these bytes; False if that is no way."""
        lock, self.lock = self.lock, None  # it is written once
        if lock is None:
            return False
        _write_through(lock.fileno(), pieces, is_durable=self.is_durable)
        os.close(duplicate(lock.fileno()))  # as it may tell of a quota: see `_put`
        try:
            self.directory.rename(name_beside(self.name, LOCK), self.name)
        except OSError as error:
            if error.errno not in _CANNOT_RENAME_OPEN:
                raise
            return False
        # Where locks are mandatory (CIFS), readers of the content wait for its end.
        file_locks.release(lock)
        return True

    def _put(
        self,
        name: str,
        temporary: str,
        pieces: Pieces,
        *,
        is_durable: bool,
        spool: Spool | None = None,
    ) -> None:
        """Give a name these bytes in one step; the name itself is not yet durable."""
        rest = None if spool is None else spool.rest_of(pieces)
        try:
            if spool is not None and spool.fd is not None and rest is not None:
                _write_through(spool.fd, rest, is_durable=is_durable)
                spool.close()  # only this may tell of a quota, or of a server's errors
            else:
                if spool is not None and spool.fd is not None:
                    self.directory.unlink(temporary)  # it is read on without a name
                self._write_new(temporary, pieces, is_durable=is_durable)
            self.directory.rename(temporary, name)
        except (Exception, KeyboardInterrupt, SystemExit):
            # On a full disk, half a file would take the little room that others need.
            with suppress(OSError):
                self.directory.unlink(temporary)
            raise

    def _write_new(self, name: str, pieces: Pieces, *, is_durable: bool) -> None:
        fd = self.directory.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            _write_through(fd, pieces, is_durable=is_durable)
        finally:
            os.close(fd)


def _write_through(fd: int, pieces: Pieces, *, is_durable: bool) -> None:
    write_all(fd, pieces)
    if is_durable:
        os.fsync(fd)


@contextmanager
def _open_to_read(directory: Directory, name: str) -> Generator[FileBytes | None]:
    try:
        fd = directory.open_to_read(name)
    except FileNotFoundError:
        yield None
        return
    try:
        yield FileBytes(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)
