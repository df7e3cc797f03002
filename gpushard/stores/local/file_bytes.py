"""Bytes of open files: read in slices, or copied to another file by the kernel."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.options import KIB, MIB
from gpushard.stores.local.handles import MOST_AT_ONCE_NBYTES

Bytes = NDArray[np.uint8]

# The kernel copies slices of at least this size. Smaller slices are read and written
# many at once, which costs fewer calls.
_COPIED_NBYTES = 64 * KIB
# Bytes held in memory at once if the kernel does not copy.
_HELD_NBYTES = MIB
# Bytes that the kernel copies in one call; an interrupt waits for the end of the call.
_STEP_NBYTES = 64 * MIB
# Buffers of one writev; Linux takes at most 1024.
_MOST_BUFFERS = 512
# Errors of a kernel or a file system that cannot copy.
_CANNOT_COPY = (
    *(errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP),
    *(errno.EPERM, errno.EBADF),
)


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Bytes ``[start, stop)`` of an open file that have not been read yet."""

    fd: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def part(self, start: int, stop: int) -> FileSlice:
        """Bytes ``[start, stop)`` of the slice."""
        return FileSlice(self.fd, self.start + start, self.start + stop)

    def read(self) -> Bytes:
        """Read the bytes: uint8, host."""
        data = np.empty(len(self), np.uint8)
        left = memoryview(data)
        while left:
            some = left[:MOST_AT_ONCE_NBYTES]
            n_read = os.preadv(self.fd, [some], self.stop - len(left))
            if not n_read:
                raise _became_shorter()
            left = left[n_read:]
        return data

    def copy_to(self, fd: int, at: int | None = None) -> None:
        """Copy the bytes into another file, at `at` or at its current position."""
        start = self.start
        while start < self.stop:
            n_copied = _copy_some(FileSlice(self.fd, start, self.stop), fd, at)
            start += n_copied
            at = None if at is None else at + n_copied


@dataclass(frozen=True, slots=True)
class FileBytes:
    """`nbytes` bytes of an open file from `start` on; only slices of them are read."""

    fd: int
    nbytes: int
    start: int = 0

    def __len__(self) -> int:
        return self.nbytes

    def __getitem__(self, span: slice) -> Bytes:
        return self.unread_slice(span).read()

    def unread_slice(self, span: slice) -> FileSlice:
        """A slice that is not read yet."""
        start, stop, _ = span.indices(self.nbytes)
        return FileSlice(self.fd, self.start + start, self.start + max(start, stop))

    def within(self, span: slice) -> FileBytes:
        """The bytes of a slice, of which only slices are read."""
        part = self.unread_slice(span)
        return FileBytes(self.fd, len(part), part.start)


Piece = Bytes | FileSlice
Pieces = Sequence[Piece]
"""Bytes of an object, to be written one piece after the other."""
Update = Callable[[Bytes | None], Pieces | None]
"""Old bytes of an object -> its new bytes; None means that there is no object."""


def bytes_of(piece: Piece) -> Bytes:
    """Bytes of the piece, in memory."""
    return piece.read() if isinstance(piece, FileSlice) else piece


def join_pieces(pieces: Pieces) -> Bytes:
    """All pieces, at least one, joined in memory."""
    return np.concatenate([bytes_of(piece) for piece in pieces])


def whole_object(pieces: Pieces) -> bytes:
    """Bytes of an object, in the form that clients of other stores take."""
    return b"".join(memoryview(bytes_of(piece)) for piece in pieces)


def write_all(fd: int, pieces: Pieces) -> None:
    """Write pieces one after the other, from the file's current position.

    At most a few MiB of the pieces in other files are held in memory.
    """
    for batch in _batches(pieces):
        if isinstance(batch, FileSlice):
            batch.copy_to(fd)
        else:
            _write_buffers(fd, batch)


def _batches(pieces: Pieces) -> Iterator[FileSlice | list[Bytes]]:
    """Pieces to write with one call: a slice of a file, or bytes in memory."""
    some: list[Piece] = []
    n_read = 0
    for piece in joined_slices(pieces):
        is_copied = isinstance(piece, FileSlice) and len(piece) >= _COPIED_NBYTES
        if some and (is_copied or len(some) == _MOST_BUFFERS or n_read > _HELD_NBYTES):
            yield _in_memory(some)
            some, n_read = [], 0
        if isinstance(piece, FileSlice):
            if is_copied:
                yield piece
                continue
            n_read += len(piece)
        some.append(piece)
    if some:
        yield _in_memory(some)


def _in_memory(pieces: Sequence[Piece]) -> list[Bytes]:
    """Pieces in memory; slices close together are read at once, with their gaps."""
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


def joined_slices(pieces: Pieces) -> Iterator[Piece]:
    """Pieces that are not empty, with neighbours in one file joined to one piece."""
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
        if sum(map(len, batch)) > MOST_AT_ONCE_NBYTES:
            batch = [batch[0][:MOST_AT_ONCE_NBYTES]]
        n_written = os.writev(fd, batch)
        for _ in batch:
            piece = left.pop()
            if n_written < len(piece):
                left.append(piece[n_written:])
                break
            n_written -= len(piece)


def _copy_some(some: FileSlice, fd: int, at: int | None) -> int:
    """Copy some bytes of `some` to `fd`, and return how many: at least one."""
    n_copied = 0
    if hasattr(os, "copy_file_range"):  # not on macOS
        n_wanted = min(len(some), _STEP_NBYTES)
        try:
            n_copied = os.copy_file_range(some.fd, fd, n_wanted, some.start, at)
        except OSError as error:
            if error.errno not in _CANNOT_COPY:
                raise
    # Nothing is copied at the end of a file, and some file systems never copy.
    if n_copied:
        return n_copied
    data = os.pread(some.fd, min(len(some), _HELD_NBYTES), some.start)
    if not data:
        raise _became_shorter()
    return os.write(fd, data) if at is None else os.pwrite(fd, data, at)


def _became_shorter() -> OSError:
    return OSError(errno.EIO, "the file became shorter while it was read")
