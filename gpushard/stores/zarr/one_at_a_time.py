"""File systems of fsspec that only one thread at a time may read, read so."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from typing import Any
from weakref import WeakValueDictionary

from fsspec.archive import AbstractArchiveFileSystem
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.cached import CachingFileSystem
from fsspec.implementations.dirfs import DirFileSystem

from gpushard.errors import StoreError
from gpushard.threads.forks import after_fork

# Archives share one open file: with zipfile of Python 3.12, threads get bytes of other
# places. A cache answers with as much of a file as another thread has written so far.
_UNSAFE = (AbstractArchiveFileSystem, CachingFileSystem)


class _ForkSafeLock:
    """A lock that is free in a forked process, whoever held it in its parent."""

    def __init__(self) -> None:
        self.renew()
        after_fork(self.renew)

    def renew(self) -> None:
        self.lock = threading.Lock()


# Several stores may have one file system, or equal ones (caches in the same folder).
# They share a lock as long as any of them is there, not only the first.
_locks: WeakValueDictionary[int, _ForkSafeLock] = WeakValueDictionary()
_locks_lock = _ForkSafeLock()


def _lock_of(fs: Any) -> _ForkSafeLock:
    with _locks_lock.lock:
        return _locks.setdefault(hash(fs), _ForkSafeLock())


def one_at_a_time(fs: Any) -> OneAtATime | None:
    """File system that reads `fs` in one thread at a time; None if more may read it."""
    if isinstance(fs, OneAtATime):
        return fs
    is_unsafe = isinstance(innermost(fs), _UNSAFE)
    return OneAtATime(_synchronous(fs)) if is_unsafe else None


def _synchronous(fs: Any) -> Any:
    """`fs` without the wrappers that only make it asynchronous."""
    if isinstance(fs, AsyncFileSystemWrapper):
        return _synchronous(fs.sync_fs)
    if isinstance(fs, DirFileSystem):
        return DirFileSystem(fs.path, _synchronous(fs.fs))
    return fs


def innermost(fs: Any) -> Any:
    """`fs` without all wrappers of directories and of calls."""
    if isinstance(fs, AsyncFileSystemWrapper):
        return innermost(fs.sync_fs)
    return innermost(fs.fs) if isinstance(fs, DirFileSystem) else fs


class _OwnInEachProcess:
    """A file system, opened anew in forked processes if it is an archive.

    Who reads from the open file of an archive moves it for all that have inherited it.
    """

    def __init__(self, fs: Any) -> None:
        self._fs = fs
        self._is_archive = isinstance(innermost(fs), AbstractArchiveFileSystem)
        self._pid = os.getpid()

    def here(self) -> Any:
        """The file system to read in this process; only one thread may ask."""
        if self._is_archive and self._pid != (pid := os.getpid()):
            self._fs, self._pid = _opened_anew(self._fs), pid
        return self._fs


def _opened_anew(fs: Any) -> Any:
    try:
        address = pickle.dumps(fs)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise StoreError(
            "an archive that was opened as a file object cannot be read by a forked"
            " process",
            hint="open it from a path or a URL",
        ) from error
    return pickle.loads(address)


class OneAtATime(AsyncFileSystemWrapper):
    """Asynchronous file system over one that a single thread reads at a time."""

    cachable = False

    def __init__(self, fs: Any, **_: Any) -> None:
        super().__init__(fs, asynchronous=True)
        reading, own = _lock_of(innermost(fs)), _OwnInEachProcess(fs)

        def cat_file(*where: Any, **options: Any) -> bytes:
            with reading.lock:
                return own.here().cat_file(*where, **options)

        async def read(*where: Any, **options: Any) -> bytes:
            return await asyncio.to_thread(cat_file, *where, **options)

        # The wrapper's own methods are attributes of the instance, too.
        self._cat_file: Any = read
