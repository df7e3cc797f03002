"""The beginning of a new file, written before the rest of the file is known."""

from __future__ import annotations

import os
from collections.abc import Callable

from gpushard.stores.file_bytes import (
    Bytes,
    FileSlice,
    Pieces,
    joined_slices,
    write_all,
)


class Spool:
    """Bytes for a new file that memory has no room for until all are known.

    Parameters
    ----------
    open_new
        Opens the new file, to be read and written, once there are bytes for it.
    most_nbytes
        Bytes that its user may hold in memory instead.

    Attributes
    ----------
    fd
        The new file; None if it has not been opened.
    """

    def __init__(self, open_new: Callable[[], int], most_nbytes: int) -> None:
        self._open_new = open_new
        self.most_nbytes = most_nbytes
        self.fd: int | None = None
        self._nbytes = 0

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
