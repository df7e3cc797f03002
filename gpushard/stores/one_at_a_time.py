"""File systems of fsspec that only one thread at a time may read, read so."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from weakref import WeakKeyDictionary

from fsspec.archive import AbstractArchiveFileSystem
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.cached import CachingFileSystem

# Archives share one open file: with zipfile of Python 3.12, threads get bytes of other
# places. A cache answers with as much of a file as another thread has written so far.
UNSAFE = (AbstractArchiveFileSystem, CachingFileSystem)

# Several stores may have the same file system.
_locks: WeakKeyDictionary[Any, threading.Lock] = WeakKeyDictionary()


class OneAtATime(AsyncFileSystemWrapper):
    """Asynchronous file system that reads from a synchronous one in one thread at once.

    Parameters
    ----------
    fs
        The synchronous file system.
    """

    cachable = False

    def __init__(self, fs: Any, **_: Any) -> None:
        super().__init__(fs, asynchronous=True)
        lock = _locks.setdefault(fs, threading.Lock())

        def cat_file(*where: Any, **options: Any) -> bytes:
            with lock:
                return fs.cat_file(*where, **options)

        async def read(*where: Any, **options: Any) -> bytes:
            return await asyncio.to_thread(cat_file, *where, **options)

        # The wrapper's own methods are attributes of the instance, too.
        self._cat_file = read
