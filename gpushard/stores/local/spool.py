"""The beginning of a new file, written before the rest of the file is known."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpushard.stores.local.file_bytes import (
    Bytes,
    FileSlice,
    Piece,
    Pieces,
    bytes_of,
    joined_slices,
    write_all,
)


@dataclass(slots=True)
class _Buffer:
    """Bytes in memory, or where they are in the file by now."""

    piece: Piece


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes ``[start, stop)`` of what a spool holds, in memory or in its file."""

    buffer: _Buffer
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def part(self, start: int, stop: int) -> Held:
        """Bytes ``[start, stop)`` of these."""
        return Held(self.buffer, self.start + start, self.start + stop)

    @property
    def piece(self) -> Piece:
        """The bytes where they are now."""
        whole = self.buffer.piece
        if isinstance(whole, FileSlice):
            return whole.part(self.start, self.stop)
        return whole[self.start : self.stop]


Pending = Piece | Held
"""Bytes of an object that is being put together."""


def pieces_by_now(parts: Iterable[Pending]) -> list[Piece]:
    """The bytes where they are now; a spool that holds some takes no more then."""
    return [part.piece if isinstance(part, Held) else part for part in parts]


class Spool:
    """Bytes for a new file that memory has no room for until all are known.

    Parameters
    ----------
    open_new
        Opens the new file, to be read and written, once there are bytes for it.
    most_nbytes
        Bytes that may be held in memory instead.

    Attributes
    ----------
    fd
        The new file; None if it has not been opened.
    """

    def __init__(self, open_new: Callable[[], int], most_nbytes: int) -> None:
        self._open_new = open_new
        self._most_nbytes = most_nbytes
        self.fd: int | None = None
        self._nbytes = 0
        self._held: list[_Buffer] = []
        self._held_nbytes = 0

    def hold(self, data: Bytes) -> Held:
        """Hold the next bytes; if it is too much, all that is held goes to the file."""
        self._held.append(_Buffer(data))
        held = Held(self._held[-1], 0, len(data))
        self._held_nbytes += len(data)
        if self._held_nbytes > self._most_nbytes:
            for buffer in self._held:
                buffer.piece = self.take(bytes_of(buffer.piece))
            self._held.clear()
            self._held_nbytes = 0
        return held

    def take(self, data: Bytes) -> FileSlice:
        """Write bytes behind those that are there; where they are now."""
        if self.fd is None:
            self.fd = self._open_new()
        write_all(self.fd, [data])
        start = self._nbytes
        self._nbytes += len(data)
        return FileSlice(self.fd, start, self._nbytes)

    def rest_of(self, pieces: Pieces) -> Pieces | None:
        """What follows if a file begins with all these bytes; None if it does not."""
        if self.fd is None:
            return None
        first, *rest = joined_slices(pieces)
        if not isinstance(first, FileSlice):
            return None
        return rest if first == FileSlice(self.fd, 0, self._nbytes) else None

    def close(self) -> None:
        """Close the file, if it was opened."""
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)
