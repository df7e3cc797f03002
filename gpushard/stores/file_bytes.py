"""Bytes of open files: read in slices, or copied to another file without being held."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.options import KIB, MIB

Bytes = NDArray[np.uint8]

# Slices from this size on are copied by the kernel; of smaller ones many are read and
# written at once, which costs fewer calls.
_COPIED_NBYTES = 64 * KIB
# Bytes read to be written again, where the kernel does not copy.
_HELD_NBYTES = MIB
# An interrupt waits for no more than this is copied.
_STEP_NBYTES = 64 * MIB
# Buffers of one writev; Linux takes at most 1024.
_MOST_BUFFERS = 512
# What a kernel or a file system says that does not copy.
_CANNOT_COPY = (
    *(errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP),
    *(errno.EPERM, errno.EBADF),
)


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Bytes ``[start, stop)`` of an open file that were not read yet."""

    fd: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def read(self) -> Bytes:
        """Its bytes: uint8, host."""
        data = np.empty(len(self), np.uint8)
        left = memoryview(data)
        while left:
            n_read = os.preadv(self.fd, [left], self.stop - len(left))
            if not n_read:
                raise _shorter()
            left = left[n_read:]
        return data

    def copy_to(self, fd: int, at: int | None = None) -> None:
        """Copy the bytes into another file, at `at` or from where that stands."""
        start = self.start
        while start < self.stop:
            n_copied = _copied(FileSlice(self.fd, start, self.stop), fd, at)
            start += n_copied
            at = None if at is None else at + n_copied


@dataclass(frozen=True, slots=True)
class FileBytes:
    """Bytes of an open file, of which only slices are read."""

    fd: int
    nbytes: int

    def __len__(self) -> int:
        return self.nbytes

    def __getitem__(self, span: slice) -> Bytes:
        return self.unread(span).read()

    def unread(self, span: slice) -> FileSlice:
        """A slice that is not read."""
        start, stop, _ = span.indices(self.nbytes)
        return FileSlice(self.fd, start, max(start, stop))


Piece = Bytes | FileSlice
Pieces = Sequence[Piece]
"""An object's bytes, to be written one after the other."""
Update = Callable[[Bytes | None], Pieces | None]
"""Object's new bytes from its old ones; None in and out: no object."""


def bytes_of(piece: Piece) -> Bytes:
    """The piece, in memory."""
    return piece.read() if isinstance(piece, FileSlice) else piece


def joined(pieces: Pieces) -> Bytes:
    """All pieces, of which there is one at least, in memory."""
    return np.concatenate([bytes_of(piece) for piece in pieces])


def whole_object(pieces: Pieces) -> bytes:
    """An object's bytes, as clients of other stores take them."""
    return b"".join(memoryview(bytes_of(piece)) for piece in pieces)


def write_all(fd: int, pieces: Pieces) -> None:
    """Write pieces one after the other, from where the file stands.

    Of what lies in files no more than a few MiB are held.
    """
    for batch in _batches(pieces):
        if isinstance(batch, FileSlice):
            batch.copy_to(fd)
        else:
            _write_buffers(fd, batch)


def _batches(pieces: Pieces) -> Iterator[FileSlice | list[Bytes]]:
    """What is written in one go: a slice of a file, or bytes in memory."""
    some: list[Piece] = []
    n_read = 0
    for piece in _merged(pieces):
        is_copied = isinstance(piece, FileSlice) and len(piece) >= _COPIED_NBYTES
        if some and (is_copied or len(some) == _MOST_BUFFERS or n_read > _HELD_NBYTES):
            yield _held(some)
            some, n_read = [], 0
        if isinstance(piece, FileSlice):
            if is_copied:
                yield piece
                continue
            n_read += len(piece)
        some.append(piece)
    if some:
        yield _held(some)


def _held(pieces: Sequence[Piece]) -> list[Bytes]:
    """Pieces in memory; slices that lie close are read in one go, gaps included."""
    slices = [piece for piece in pieces if isinstance(piece, FileSlice)]
    if not slices:
        return [bytes_of(piece) for piece in pieces]
    first, last = min(s.start for s in slices), max(s.stop for s in slices)
    files = {s.fd for s in slices}
    if len(files) > 1 or last - first > 2 * _HELD_NBYTES:
        return [bytes_of(piece) for piece in pieces]
    data = FileSlice(files.pop(), first, last).read()
    return [
        data[piece.start - first : piece.stop - first]
        if isinstance(piece, FileSlice)
        else piece
        for piece in pieces
    ]


def _merged(pieces: Pieces) -> Iterator[Piece]:
    """Pieces that are not empty; neighbours in one file are one piece."""
    last: FileSlice | None = None
    for piece in pieces:
        if not len(piece):
            continue
        if last is not None:
            if isinstance(piece, FileSlice) and _is_next(last, piece):
                last = FileSlice(last.fd, last.start, piece.stop)
                continue
            yield last
            last = None
        if isinstance(piece, FileSlice):
            last = piece
        else:
            yield piece
    if last is not None:
        yield last


def _is_next(one: FileSlice, other: FileSlice) -> bool:
    return (one.fd, one.stop) == (other.fd, other.start)


def _write_buffers(fd: int, pieces: Sequence[Bytes]) -> None:
    left: list[Any] = [memoryview(piece) for piece in pieces]
    left.reverse()
    while left:
        batch = left[: -_MOST_BUFFERS - 1 : -1]
        n_written = os.writev(fd, batch)
        for piece in batch:
            left.pop()
            if n_written < len(piece):
                left.append(piece[n_written:])
                break
            n_written -= len(piece)


def _copied(some: FileSlice, fd: int, at: int | None) -> int:
    """How many bytes of `some` were copied to `fd`, one at least."""
    n_copied = 0
    if hasattr(os, "copy_file_range"):  # not on macOS
        n_wanted = min(len(some), _STEP_NBYTES)
        try:
            n_copied = os.copy_file_range(some.fd, fd, n_wanted, some.start, at)
        except OSError as error:
            if error.errno not in _CANNOT_COPY:
                raise
    # At the end of a file nothing is copied, and by some file systems nowhere.
    if n_copied:
        return n_copied
    data = os.pread(some.fd, min(len(some), _HELD_NBYTES), some.start)
    if not data:
        raise _shorter()
    return os.write(fd, data) if at is None else os.pwrite(fd, data, at)


def _shorter() -> OSError:
    return OSError(errno.EIO, "the file became shorter while it was read")
