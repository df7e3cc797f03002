"""How objects get into a store: replaced whole, and one writer at a time where it can.

What a store can promise differs. Files are replaced by renaming and guarded by a lock
that all processes of the machine see; object stores answer a conditional put; a zarr
store promises nothing beyond this process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

import numpy as np

from gpushard.errors import StoreError, UnsupportedError
from gpushard.stores.base import ByteRequest, Fetched, Store
from gpushard.stores.failures import refuse_unsafe_key
from gpushard.stores.file_bytes import Bytes, Pieces, bytes_of
from gpushard.stores.local import LocalStore
from gpushard.stores.zarr_loop import run
from gpushard.stores.zarr_store import ZarrStore

if TYPE_CHECKING:
    from gpushard.stores.remote import RemoteStore

Update = Callable[[Bytes | None], Pieces | None]
"""Object's new bytes from its old ones; None in and out: no object."""

# A conditional put fails as often as another writer gets in between.
_MAX_ATTEMPTS = 64


class Writer(Protocol):
    """Write access to objects by key."""

    @property
    def deletes_in_updates(self) -> bool:
        """Whether `update` may delete: object stores have no conditional delete."""
        ...

    @property
    def puts_whole(self) -> bool:
        """Whether a put that is cut off never leaves a part of an object."""
        ...

    def put(self, key: str, pieces: Pieces | None) -> None:
        """Replace an object whatever it was; None deletes it.

        Raises
        ------
        StoreError
            The store failed.
        """

    def update(self, key: str, update: Update, most_nbytes: int) -> None:
        """Replace an object by what `update` makes of it; no other write gets lost.

        Of an object of more than `most_nbytes` it is given that many and one more.

        Raises
        ------
        UnsupportedError
            The store cannot keep other writers from getting in between.
        StoreError
            The store failed.
        """

    def create(self, key: str, pieces: Pieces) -> bool:
        """Write an object unless there is one; whether there was none."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; some may be gone already.

        Raises
        ------
        StoreError
            The store failed; some may be left.
        """

    def clear(self, prefix: str) -> None:
        """Delete all objects below `prefix`, or all of the store's for ""."""
        ...


def writer_of(store: Store, tags: Mapping[str, str] | None = None) -> Writer:
    """Write access to what `store` reads.

    Parameters
    ----------
    store
        What reads.
    tags
        Tags of every object written, where the store has such.

    Raises
    ------
    UnsupportedError
        The store is read-only, or of a kind that gpushard cannot write to, or has no
        tags.
    """
    if tags and not _has_tags(store):
        raise UnsupportedError(
            "the store has no tags for its objects",
            got=store.url,
            hint="write to S3 or Azure, or without tags",
        )
    is_read_only = getattr(store, "is_read_only", False)
    if is_read_only or (isinstance(store, ZarrStore) and store.zarr_store.read_only):
        hint = getattr(store, "read_only_hint", None)
        raise UnsupportedError("the store is read-only", got=store.url, hint=hint)
    if isinstance(store, LocalStore):
        from gpushard.stores.files import FileWriter

        return FileWriter(store)
    if isinstance(store, ZarrStore):
        return ZarrWriter(store)
    if type(store).__name__ == "RemoteStore":
        return ObjectWriter(store, tags)  # type: ignore[arg-type]  # module is lazy
    raise UnsupportedError(
        "this store cannot be written to",
        got=type(store).__name__,
        hint="write to a directory, an object store or a zarr store",
    )


def _has_tags(store: Store) -> bool:
    """Whether objects of a store may be tagged; others of obstore's drop the tags."""
    if type(store).__name__ != "RemoteStore":
        return False
    from obstore.store import AzureStore, S3Store

    return isinstance(getattr(store, "object_store", None), AzureStore | S3Store)


class ObjectWriter:
    """Write access to an obstore store.

    Parameters
    ----------
    store
        What reads it.
    tags
        Tags of every object written.
    """

    deletes_in_updates = False
    puts_whole = True

    def __init__(
        self, store: RemoteStore, tags: Mapping[str, str] | None = None
    ) -> None:
        self._store = store
        self._tags = dict(tags) if tags else None

    def put(self, key: str, pieces: Pieces | None) -> None:
        """Replace an object whatever it was; None deletes it."""
        import obstore

        refuse_unsafe_key(key, self._store.url)
        try:
            if pieces is None:
                obstore.delete(self._store.object_store, key)
            else:
                body = _joined(pieces)
                obstore.put(self._store.object_store, key, body, tags=self._tags)
        except _object_errors() as error:
            # Gone before it was deleted; a put that finds no bucket has put nothing.
            if pieces is not None or not isinstance(error, FileNotFoundError):
                raise _failed(self._store.url, key, error) from error

    def update(self, key: str, update: Update, most_nbytes: int) -> None:
        """Replace an object by what `update` makes of it, by conditional puts."""
        self._refuse_unless_conditional(key)
        for _ in range(_MAX_ATTEMPTS):
            old = self._store.read([ByteRequest(key, max_nbytes=most_nbytes + 1)])[0]
            pieces = update(None if old is None else old.data)
            if pieces is None or self._put_if(key, pieces, old):
                return
        raise StoreError(
            "other writers replaced the object each time before this one could",
            shard_key=key,
            store_url=self._store.url,
            hint="let fewer processes write to one shard",
        )

    def create(self, key: str, pieces: Pieces) -> bool:
        """Write an object unless there is one; whether there was none."""
        return self._put_if(key, pieces, None)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, many a request; some may be gone already."""
        import obstore

        for key in keys:
            refuse_unsafe_key(key, self._store.url)
        try:
            if keys:
                obstore.delete(self._store.object_store, list(keys))
        except FileNotFoundError:
            # Not all stores take it for done, nor go on.
            for key in keys:
                self.put(key, None)
        except _object_errors() as error:
            raise _failed(self._store.url, keys[0], error) from error

    def clear(self, prefix: str) -> None:
        """Delete all objects below `prefix`, or all of the store's for ""."""
        import obstore

        store = self._store.object_store
        try:
            for batch in obstore.list(store, prefix or None):
                for item in batch:
                    obstore.delete(store, item["path"])
        except _object_errors() as error:
            raise _failed(self._store.url, prefix, error) from error

    def _put_if(self, key: str, pieces: Pieces, old: Fetched | None) -> bool:
        """Put an object if it still is `old`; whether it was."""
        import obstore
        from obstore.exceptions import (
            AlreadyExistsError,
            NotSupportedError,
            PreconditionError,
        )

        if old is not None and not isinstance(old.version, str):
            raise self._unconditional(key, "it tells no strong ETags")
        try:
            mode = "create" if old is None else self._version(key, old.version)
            if mode is None:
                return False
            body = _joined(pieces)
            where = self._store.object_store
            obstore.put(where, key, body, tags=self._tags, mode=mode)
        except (AlreadyExistsError, PreconditionError):
            return False
        except (NotSupportedError, NotImplementedError) as error:
            raise self._unconditional(key, str(error)) from error
        except _object_errors() as error:
            raise _failed(self._store.url, key, error) from error
        return True

    def _version(self, key: str, e_tag: Hashable) -> Any:
        """What a put replaces; None if that is no longer there."""
        import obstore

        store = self._store.object_store
        if type(store).__name__ != "GCSStore":
            return {"e_tag": e_tag}
        # Google's condition is a number of its own, which changes with the ETag.
        try:
            about = obstore.head(store, key)
        except FileNotFoundError:
            return None
        if about["e_tag"] != e_tag:
            return None
        return {"e_tag": e_tag, "version": about["version"]}

    def _refuse_unless_conditional(self, key: str) -> None:
        """Refuse servers that take a conditional put and forget the condition.

        Some that speak S3's protocol do, and nothing in their answer tells. Each is
        asked once, with an object of its own that is deleted afterwards.
        """
        object_store = self._store.object_store
        if type(object_store).__name__ != "S3Store":
            return
        if self._store.puts_conditionally is None:
            probe = f"{key.rpartition('/')[0]}/.gpushard-{uuid4().hex}".lstrip("/")
            self.put(probe, [np.zeros(1, np.uint8)])
            try:
                stale = Fetched(np.zeros(0, np.uint8), None, '"0"')
                overwrites = [
                    self._put_if(probe, [np.ones(1, np.uint8)], old)
                    for old in (None, stale)
                ]
            finally:
                self.put(probe, None)
            self._store.puts_conditionally = not any(overwrites)
        if not self._store.puts_conditionally:
            raise self._unconditional(key, "it ignores the condition")

    def _unconditional(self, key: str, why: str) -> UnsupportedError:
        return UnsupportedError(
            f"the object store has no conditional put ({why}), so that a write to a"
            " part of a shard could undo another one",
            shard_key=key,
            store_url=self._store.url,
            hint="write whole shards",
        )


class ZarrWriter:
    """Write access to a zarr store; writes of this process take turns."""

    deletes_in_updates = True

    def __init__(self, store: ZarrStore) -> None:
        self._store = store

    @property
    def puts_whole(self) -> bool:
        """Only in memory: fsspec's file systems write where the object lies."""
        return self._is_in_memory

    def put(self, key: str, pieces: Pieces | None) -> None:
        """Replace an object whatever it was; None deletes it."""
        refuse_unsafe_key(key, self._store.url)
        with _TURNS:
            self._put(key, pieces)

    def update(self, key: str, update: Update, most_nbytes: int) -> None:
        """Replace an object by what `update` makes of it, if it lies in memory.

        What lies elsewhere other processes may write to, which no lock of this one
        keeps away.
        """
        if not self._is_in_memory:
            raise UnsupportedError(
                "nothing keeps other processes from writing to a part of the same shard"
                " of this store, so that one write could undo another",
                shard_key=key,
                store_url=self._store.url,
                hint="write whole shards, or pass a path or an object store's URL",
            )
        with _TURNS:
            old = self._store.read([ByteRequest(key, max_nbytes=most_nbytes + 1)])[0]
            self._put(key, update(None if old is None else old.data))

    def create(self, key: str, pieces: Pieces) -> bool:
        """Write an object unless there is one; whether there was none."""
        with _TURNS:
            if self._store.get(key) is not None:
                return False
            self._put(key, pieces)
        return True

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; some may be gone already."""
        for key in keys:
            self.put(key, None)

    def clear(self, prefix: str) -> None:
        """Delete all objects below `prefix`, or all of the store's for ""."""
        if prefix:
            refuse_unsafe_key(prefix, self._store.url)
        self._run(self._store.zarr_store.delete_dir(prefix), prefix, deletes=True)

    @property
    def _is_in_memory(self) -> bool:
        from zarr.storage import MemoryStore

        return isinstance(self._store.zarr_store, MemoryStore)

    def _put(self, key: str, pieces: Pieces | None) -> None:
        store = self._store.zarr_store
        if pieces is None:
            self._run(store.delete(key), key, deletes=True)
            return
        from zarr.core.buffer import default_buffer_prototype

        buffer = default_buffer_prototype().buffer.from_bytes(_joined(pieces))
        self._run(store.set(key, buffer), key)

    def _run(self, coroutine: Any, key: str, *, deletes: bool = False) -> None:
        try:
            run(coroutine)
        except StoreError:
            raise
        except Exception as error:
            if not (deletes and isinstance(error, (KeyError, FileNotFoundError))):
                raise _failed(self._store.url, key, error) from error


# zarr stores have no locks, and one array may be open several times in a process.
_TURNS = threading.RLock()


def _joined(pieces: Pieces) -> bytes:
    return b"".join(memoryview(bytes_of(piece)) for piece in pieces)


def _object_errors() -> tuple[type[Exception], ...]:
    from obstore.exceptions import BaseError

    return BaseError, OSError, ValueError


def _failed(url: str, key: str, error: Exception) -> StoreError:
    return StoreError(
        f"cannot write {key!r}: {type(error).__name__}: {error}",
        store_url=url,
        hint="check the store, its settings and your rights",
    )
