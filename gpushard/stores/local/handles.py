"""A bounded number of open files that are kept between reads."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from math import inf
from struct import Struct
from time import time_ns
from typing import ClassVar
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from gpushard.options import GIB, KIB
from gpushard.stores.base import PassingVersion
from gpushard.threads.alone import Alone
from gpushard.threads.forks import after_fork

if sys.platform != "win32":
    import resource

# Only Linux has both. Other systems are neither asked nor advised.
_NO_WAIT: int = getattr(os, "RWF_NOWAIT", 0)
_CAN_ADVISE = hasattr(os, "posix_fadvise")
# Of a larger range Linux may start on the beginning only. As much as it reads ahead of
# a file by itself is never too large.
_ADVISED_NBYTES = 128 * KIB
# File systems take times from a clock of at least 100 ticks per second. A file that is
# overwritten twice within a tick keeps its times, and may keep its size.
_SETTLED_NS = 20_000_000
# Some note whole seconds (ext3, HFS+, many FUSE and NFS servers), FAT only even ones.
_SECOND_NS, _COARSE_TICK_NS = 1_000_000_000, 2_000_000_000
_pack_version = Struct("=IIQQQQ").pack
_LOW_64 = (1 << 64) - 1

# Part of the files that a process may have open. There may be thousands of stores, each
# with its own table, and other code has no way to make these drop their files.
_MOST_OPEN = 3 / 4
# Files kept, as part of the same, before all are dropped again: other code's files may
# be the many ones, and drop nothing for ours.
_KEPT_BETWEEN = 1 / 16

# macOS refuses to read or write 2**31 bytes or more in one call; Linux does a part.
MOST_AT_ONCE_NBYTES = GIB

FileVersion = tuple[int, int, int, int, int]
"""Identity of a file's bytes: device, inode, size, modification time and change time.

Both times are in ns. The modification time can be set back (rsync, tar, cp -p), the
change time cannot.
"""


class RecentVersion(FileVersion, PassingVersion):
    """`FileVersion` of a file that has just changed; it equals the plain tuple.

    Another change may leave the file the same times, and so the same version.
    """

    __slots__ = ()


def file_version(status: os.stat_result) -> FileVersion:
    """Version token of the file that `status` describes."""
    identity = status.st_dev, status.st_ino, status.st_size
    return (*identity, status.st_mtime_ns, status.st_ctime_ns)


def has_same_bytes(version: FileVersion, status: os.stat_result) -> bool:
    """Whether an open file with the status `status` still has the bytes of `version`.

    Replacing a file by renaming changes the old file's status, but not its bytes.
    """
    now = file_version(status)
    return now == version or (status.st_nlink == 0 and now[:-1] == version[:-1])


def packed_version(version: FileVersion) -> bytes:
    """The bytes that the compiled loops make of a version (`fused.words.VERSION`)."""
    device, *rest = version
    low = [word & _LOW_64 for word in rest]
    return _pack_version(os.major(device), os.minor(device), *low)


class FileHandle:
    """An open file; it is closed when its last user drops it.

    `version` is a `RecentVersion` until `version_to_read` finds it settled. `nbytes` is
    the size of the file in that version.
    """

    __slots__ = ("fd", "key", "mode", "nbytes", "recently_used", "version")

    def __init__(self, fd: int, key: str, status: os.stat_result) -> None:
        self.fd = fd
        self.version: FileVersion = RecentVersion(file_version(status))
        self.nbytes = status.st_size
        self.mode = status.st_mode
        self.key = key
        self.recently_used = False

    def version_to_read(self) -> FileVersion:
        """Version of the bytes read after this call, if it is the file's then, too.

        Unless the result is a `RecentVersion`, all later changes of the file give it
        another version. A look at the clock after the bytes were read would not tell: a
        file that has settled since may have changed in between.
        """
        version = self.version
        if type(version) is not tuple and is_settled(version[-1], time_ns()):
            version = self.version = (*version,)
        return version

    # The default argument outlives the module's globals at the interpreter's exit.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        try:
            close(self.fd)
        # A file system may fail to close what was only read, and nobody takes an error
        # here. To close a number twice is a mistake of ours, which may be told.
        except OSError as error:
            if error.errno == errno.EBADF:
                raise


def is_settled(changed_ns: int, now_ns: int) -> bool:
    """Whether a change from `now_ns` on gives a file a time other than `changed_ns`."""
    is_coarse = changed_ns % _SECOND_NS == 0
    tick_ns = _COARSE_TICK_NS if is_coarse else 0
    return now_ns - changed_ns >= tick_ns + _SETTLED_NS


def is_in_memory(fd: int, offset: int) -> bool:
    """Whether a read at `offset` needs no disk, as far as the system can tell."""
    try:
        os.preadv(fd, [bytearray(1)], offset, _NO_WAIT)
    except BlockingIOError:
        return False
    except OSError:  # this file system cannot tell
        return True
    return True


def read_ahead(fd: int, offset: int, nbytes: int) -> None:
    """Ask the system to start reading a range, without waiting for it."""
    if not _CAN_ADVISE:
        return
    with suppress(OSError):  # the read itself will tell what it cannot read
        for start in range(offset, offset + nbytes, _ADVISED_NBYTES):
            n = min(_ADVISED_NBYTES, offset + nbytes - start)
            os.posix_fadvise(fd, start, n, os.POSIX_FADV_WILLNEED)


def read_rest(fd: int, data: NDArray[np.uint8], start: int, n_bytes: int) -> int:
    """Fill `data` after its first `n_bytes`; returns all bytes filled.

    The result is less than ``len(data)`` at the end of the file. One call reads at most
    `MOST_AT_ONCE_NBYTES`, and fewer if a signal arrives.
    """
    while 0 < n_bytes < len(data):
        some = data[n_bytes : n_bytes + MOST_AT_ONCE_NBYTES]
        n_more = os.preadv(fd, (some,), start + n_bytes)
        if n_more == 0:
            break
        n_bytes += n_more
    return n_bytes


def _limit_of_files() -> float:
    """Number of files that this process may have open."""
    if sys.platform == "win32":
        return inf
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return inf if soft == resource.RLIM_INFINITY else soft


class HandleTable:
    """Handles by key; if the table is full, one that was not used lately is dropped.

    `get` takes no lock, because every small read calls it. A handle that leaves the
    table stays open for the threads that still read from it. What the handler of a
    signal opens while its own thread is in here is not kept.
    """

    _n_kept: ClassVar[float] = inf  # since all were last dropped

    def __init__(self, limit: int) -> None:
        self._limit = max(1, limit)
        self._by_key: dict[str, FileHandle] = {}
        self._renew()
        after_fork(self._renew)
        _tables.add(ref(self, _tables.discard))

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: str) -> FileHandle | None:
        """Handle of `key`; None if none is kept."""
        handle = self._by_key.get(key)
        if handle is not None:
            handle.recently_used = True
        return handle

    def keep(self, handle: FileHandle) -> None:
        """Keep `handle`, in place of any other handle of its key.

        If it is among the last files that the process may open, others are dropped.
        """
        HandleTable._n_kept += 1
        # The system gives the lowest number that is free, so numbers count the files.
        if handle.fd >= _MOST_OPEN * _limit_of_files():
            HandleTable._leave_room(handle.fd)
        self._alone.call(self._keep, handle)

    def _keep(self, handle: FileHandle) -> None:
        self._by_key.pop(handle.key, None)
        while len(self._by_key) >= self._limit:
            self._evict_one()
        self._by_key[handle.key] = handle

    def drop(self, handle: FileHandle) -> None:
        """Drop `handle`, unless another handle took its place."""
        self._alone.call(self._drop, handle)

    def _drop(self, handle: FileHandle) -> None:
        if self._by_key.get(handle.key) is handle:
            del self._by_key[handle.key]

    def clear(self) -> None:
        """Drop all handles."""
        self._alone.call(self._by_key.clear)

    @classmethod
    def _leave_room(cls, fd: int) -> None:
        """Drop all handles, unless few were kept since, and `fd` leaves others some."""
        few = _KEPT_BETWEEN * _limit_of_files()
        if cls._n_kept >= few or fd >= _limit_of_files() - few:
            cls._n_kept = 0
            cls.clear_all()

    @staticmethod
    def clear_all() -> None:
        """Drop all handles of all tables, which share the process's limit of files."""
        for known in list(_tables):
            table = known()
            if table:  # most are empty where there are thousands
                table.clear()

    def drop_deleted(self) -> None:
        """Drop the handles of deleted files, which take room on the disk until then."""
        self._alone.call(self._drop_deleted)

    def _drop_deleted(self) -> None:
        for key, handle in list(self._by_key.items()):
            with suppress(OSError):  # a network file system may have lost the file
                if os.fstat(handle.fd).st_nlink == 0:
                    del self._by_key[key]

    @staticmethod
    def drop_deleted_of_all() -> None:
        """Drop the handles of deleted files of all tables."""
        for known in list(_tables):
            table = known()
            if table is not None:
                table.drop_deleted()

    def _evict_one(self) -> None:
        """Drop the first handle that was not used since it was last passed over."""
        for _ in range(self._limit):
            handle = self._by_key.pop(next(iter(self._by_key)))
            if not handle.recently_used:
                return
            handle.recently_used = False
            self._by_key[handle.key] = handle
        del self._by_key[next(iter(self._by_key))]

    def _renew(self) -> None:
        self._alone = Alone()


_tables: set[ref[HandleTable]] = set()
