"""Open files that are kept between reads, at most so many."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from time import time_ns

import numpy as np
from numpy.typing import NDArray

# Linux has both; elsewhere nothing is asked and nothing advised.
_NO_WAIT: int = getattr(os, "RWF_NOWAIT", 0)
_CAN_ADVISE = hasattr(os, "posix_fadvise")
_SETTLED_NS = 20_000_000

FileVersion = tuple[int, int, int, int, int]
"""Identity of a file's bytes: device, inode, size, times of modification and of change.

Both in ns. The first can be set back (rsync, tar, cp -p), the second cannot.
"""


def version_of(status: os.stat_result) -> FileVersion:
    """Version token of the file that `status` describes."""
    identity = status.st_dev, status.st_ino, status.st_size
    return (*identity, status.st_mtime_ns, status.st_ctime_ns)


def is_settled(version: Hashable | None) -> bool:
    """Whether bytes that replace those of `version` from now on are told from them.

    File systems take the time from a clock that ticks 100 times a second at the least:
    a file overwritten twice within a tick has the same times, and may be as large.
    """
    return isinstance(version, tuple) and time_ns() - version[-1] >= _SETTLED_NS


def is_still(version: FileVersion, status: os.stat_result) -> bool:
    """Whether an open file, whose status is `status` now, has the bytes of `version`.

    One that has lost its name to another file was changed, but its bytes were not.
    """
    now = version_of(status)
    return now == version or (status.st_nlink == 0 and now[:-1] == version[:-1])


class Handle:
    """An open file; it is closed when its last user drops it."""

    __slots__ = ("fd", "key", "mode", "recently_used", "version")

    def __init__(self, fd: int, key: str, status: os.stat_result) -> None:
        self.version = version_of(status)
        self.mode = status.st_mode
        self.key = key
        self.recently_used = False
        self.fd = fd

    # The default argument outlives the module's globals at the interpreter's exit.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.fd)


def is_in_memory(fd: int, offset: int) -> bool:
    """Whether a read at `offset` need not wait for a disk, as far as one can tell."""
    try:
        os.preadv(fd, [bytearray(1)], offset, _NO_WAIT)
    except BlockingIOError:
        return False
    except OSError:  # a file system that cannot tell
        return True
    return True


def read_ahead(fd: int, offset: int, nbytes: int) -> None:
    """Let the system begin to read a range, without waiting for it."""
    if _CAN_ADVISE:
        os.posix_fadvise(fd, offset, nbytes, os.POSIX_FADV_WILLNEED)


def read_on(fd: int, data: NDArray[np.uint8], start: int, n_bytes: int) -> int:
    """Fill `data` beyond its first `n_bytes`; bytes filled (less at the file's end).

    One call answers at most 2**31 - 4096 bytes on Linux, and any number when a signal
    comes in between.
    """
    while 0 < n_bytes < len(data):
        n_more = os.preadv(fd, (data[n_bytes:],), start + n_bytes)
        if n_more == 0:
            break
        n_bytes += n_more
    return n_bytes


class HandleTable:
    """Handles by key; when full, one that was not used lately is let go.

    `get` takes no lock: it is on the path of every small read. A handle that leaves
    the table stays open for the threads that still read from it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = max(1, limit)
        self._by_key: dict[str, Handle] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: str) -> Handle | None:
        """Handle of `key`, if one is kept."""
        handle = self._by_key.get(key)
        if handle is not None:
            handle.recently_used = True
        return handle

    def keep(self, handle: Handle) -> None:
        """Keep `handle` in place of another of its key."""
        with self._own_lock():
            self._by_key.pop(handle.key, None)
            while len(self._by_key) >= self._limit:
                self._evict_one()
            self._by_key[handle.key] = handle

    def drop(self, handle: Handle) -> None:
        """Let go of `handle`, unless another took its place."""
        with self._own_lock():
            if self._by_key.get(handle.key) is handle:
                del self._by_key[handle.key]

    def clear(self) -> None:
        """Let go of all handles."""
        with self._own_lock():
            self._by_key.clear()

    def _evict_one(self) -> None:
        """Drop the first handle in line that was not used since it was last passed."""
        for _ in range(self._limit):
            handle = self._by_key.pop(next(iter(self._by_key)))
            if not handle.recently_used:
                return
            handle.recently_used = False
            self._by_key[handle.key] = handle
        del self._by_key[next(iter(self._by_key))]

    def _own_lock(self) -> threading.Lock:
        """Lock of this process: one held by a parent's thread would stay locked."""
        pid = os.getpid()
        if pid != self._pid:
            self._lock = threading.Lock()
            self._pid = pid
        return self._lock
