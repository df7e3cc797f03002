"""Writing objects to zarr stores: as these have no locks, one writer of an object."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from gpushard.errors import StoreError, UnsupportedError
from gpushard.stores.base import ByteRequest
from gpushard.stores.event_loops import Work
from gpushard.stores.failures import failed_write, failure, refuse_unsafe_key
from gpushard.stores.local.file_bytes import Pieces, Update, whole_object
from gpushard.stores.zarr.loop import run_in_loop
from gpushard.stores.zarr.store import ZarrStore
from gpushard.threads.forks import after_fork

# Many more than there are writes under way, so that these seldom share one.
_N_LOCKS = 256


class _KeyLocks:
    """Locks of the objects that this process writes to zarr stores.

    Zarr stores have no locks, and one array may be open several times. So objects of
    the same key share a lock, whatever their stores.
    """

    def __init__(self) -> None:
        self.renew()
        after_fork(self.renew)

    def renew(self) -> None:
        self._locks = [threading.RLock() for _ in range(_N_LOCKS)]

    def of(self, key: str) -> threading.RLock:
        """Lock of an object; some objects have the same."""
        return self._locks[hash(key) % _N_LOCKS]


_key_locks = _KeyLocks()


class ZarrWriter:
    """Write access to a zarr store; this process writes an object in turns."""

    deletes_in_updates = True

    def __init__(self, store: ZarrStore) -> None:
        self._store = store

    @property
    def puts_whole(self) -> bool:
        """Only in memory; fsspec's file systems overwrite an object in place."""
        return self._is_in_memory

    def put(self, key: str, pieces: Pieces | None) -> None:
        """Replace an object, whatever its content; None deletes it."""
        with _key_locks.of(key):
            self.put_without_lock(key, pieces)

    def put_without_lock(self, key: str, pieces: Pieces | None) -> None:
        """Do as `put` without taking a turn, which another thread may wait in for this.

        It may: its zarr store may be made of the store that is written to here.
        """
        refuse_unsafe_key(key, self._store.url)
        self._put(key, pieces)

    def update(self, key: str, update: Update, most_nbytes: int) -> None:
        """Replace an object by the result of `update`, if the store is in memory.

        Other stores are refused: other processes may write to them, and a lock of this
        process does not stop those.
        """
        if not self._is_in_memory:
            raise UnsupportedError(
                "nothing keeps other processes from writing to a part of the same shard"
                " of this store, so that one write could undo another",
                shard_key=key,
                store_url=self._store.url,
                hint="write whole shards, or pass a path or an object store's URL",
            )
        with _key_locks.of(key):
            old = self._store.read([ByteRequest(key, max_nbytes=most_nbytes + 1)])[0]
            if old is not None:
                self._refuse_cut_off(key, len(old.data), most_nbytes + 1)
            self._put(key, update(None if old is None else old.data))

    def _refuse_cut_off(self, key: str, n_bytes: int, most_nbytes: int) -> None:
        """Refuse an answer of another size than the object's, if the store tells that.

        What is written anew of it would be lost, or of other inner chunks.
        """
        told = self._store.size_of(key)
        if told is not None and n_bytes != min(told, most_nbytes):
            raise failure(
                self._store.url,
                key,
                "the store answered with other bytes than a whole object",
                expected=f"{min(told, most_nbytes)} bytes",
                got=f"{n_bytes} bytes",
                hint="check the store; nothing was written",
            )

    def create(self, key: str, pieces: Pieces) -> bool:
        """Write an object unless it exists; return whether it did not exist."""
        with _key_locks.of(key):
            if self._store.get(key) is not None:
                return False
            self._put(key, pieces)
        return True

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; ignore those that are gone already."""
        for key in keys:
            self.put(key, None)

    def clear(self, prefix: str) -> None:
        """Delete all objects below `prefix`, or all objects of the store for ""."""
        if prefix:
            refuse_unsafe_key(prefix, self._store.url)
        store = self._store.zarr_store
        self._run(lambda: store.delete_dir(prefix), prefix, deletes=True)

    @property
    def _is_in_memory(self) -> bool:
        from zarr.storage import MemoryStore

        return isinstance(self._store.zarr_store, MemoryStore)

    def _put(self, key: str, pieces: Pieces | None) -> None:
        store = self._store.zarr_store
        if pieces is None:
            self._run(lambda: store.delete(key), key, deletes=True)
            return
        from zarr.core.buffer import default_buffer_prototype

        buffer = default_buffer_prototype().buffer.from_bytes(whole_object(pieces))
        self._run(lambda: store.set(key, buffer), key)

    def _run(self, work: Work[None], key: str, *, deletes: bool = False) -> None:
        try:
            run_in_loop(work)
        except StoreError:
            raise
        except Exception as error:
            if not (deletes and isinstance(error, (KeyError, FileNotFoundError))):
                raise failed_write(self._store.url, key, error) from error
