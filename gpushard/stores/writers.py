"""Writing objects to a store: whole, and by one writer at a time if the store allows.

Stores differ in what they guarantee. Files are replaced by renaming, under a lock that
all processes of the machine see. Object stores have conditional puts. A zarr store
guarantees nothing beyond this process. A store may say that it `is_read_only`, with a
`read_only_hint` for the error, and that its objects can have tags (`takes_tags`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

import numpy as np

from gpushard.errors import StoreError, UnsupportedError
from gpushard.stores.base import ByteRequest, Fetched, Store
from gpushard.stores.failures import failed_write, first_line_of, refuse_unsafe_key
from gpushard.stores.local.file_bytes import Pieces, Update, whole_object
from gpushard.stores.local.files import FileWriter
from gpushard.stores.local.store import LocalStore
from gpushard.stores.obstores import request_errors
from gpushard.threads.workers import run_side_by_side

if TYPE_CHECKING:
    from gpushard.stores.remote import RemoteStore

# Attempts of a conditional put, which fails each time another writer was faster.
_MAX_ATTEMPTS = 64
# Metadata that tells which put wrote an object. obstore repeats a put whose answer was
# lost, and the repeat is refused because of the first put. Azure allows no hyphen here.
_MARK = "gpushardput"


class Writer(Protocol):
    """Write access to objects by key."""

    @property
    def deletes_in_updates(self) -> bool:
        """Whether `update` may delete; object stores have no conditional delete."""
        ...

    @property
    def puts_whole(self) -> bool:
        """Whether an interrupted put never leaves a part of an object."""
        ...

    def put(self, key: str, pieces: Pieces | None) -> None:
        """Replace an object, whatever its content; None deletes it."""

    def update(self, key: str, update: Update, most_nbytes: int) -> None:
        """Replace an object by the result of `update`; no other write is lost.

        `update` gets at most ``most_nbytes + 1`` bytes of the object.

        Raises
        ------
        UnsupportedError
            The store cannot keep other writers from writing in between.
        StoreError
            The store failed.
        """

    def create(self, key: str, pieces: Pieces) -> bool:
        """Write an object unless it exists; return whether it did not exist."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; ignore those that are gone. If it fails, some may be left."""

    def clear(self, prefix: str) -> None:
        """Delete all objects below `prefix`, or all objects of the store for ""."""
        ...


def writer_of(
    store: Store, tags: Mapping[str, str] | None = None, *, is_durable: bool = True
) -> Writer:
    """Write access to the objects that `store` reads; written ones get the tags.

    Unless it `is_durable`, writes to files do not wait until the disk has the bytes.
    """
    if tags and not getattr(store, "takes_tags", False):
        raise UnsupportedError(
            "the store has no tags for its objects",
            got=store.url,
            hint="write to S3 or Azure, or without tags",
        )
    if getattr(store, "is_read_only", False):
        writable = "open the array from a store that can be written to"
        hint = getattr(store, "read_only_hint", writable)
        raise UnsupportedError("the store is read-only", got=store.url, hint=hint)
    if isinstance(store, LocalStore):
        return FileWriter(store, is_durable=is_durable)
    # Who writes files need not wait for the import of the others.
    from gpushard.stores.remote import RemoteStore
    from gpushard.stores.zarr.store import ZarrStore

    if isinstance(store, RemoteStore):
        return ObjectWriter(store, tags)
    if isinstance(store, ZarrStore):
        from gpushard.stores.zarr.writer import ZarrWriter

        return ZarrWriter(store)
    raise UnsupportedError(
        "this store cannot be written to",
        got=type(store).__name__,
        hint="write to a directory, an object store or a zarr store",
    )


class ObjectWriter:
    """Write access to the objects of an obstore store."""

    deletes_in_updates = False
    puts_whole = True

    def __init__(self, store: RemoteStore, tags: Mapping[str, str] | None) -> None:
        self._store = store
        self._tags = dict(tags) if tags else None

    def put(self, key: str, pieces: Pieces | None) -> None:
        """Replace an object, whatever its content; None deletes it."""
        import obstore

        refuse_unsafe_key(key, self._store.url)
        try:
            if pieces is None:
                obstore.delete(self._store.object_store, key)
            else:
                body = whole_object(pieces)
                obstore.put(self._store.object_store, key, body, tags=self._tags)
        except request_errors() as error:
            # A missing object counts as deleted. A put without its bucket has failed.
            if pieces is not None or not isinstance(error, FileNotFoundError):
                raise failed_write(self._store.url, key, error) from error

    def update(self, key: str, update: Update, most_nbytes: int) -> None:
        """Replace an object by the result of `update`, by conditional puts."""
        self._refuse_unless_conditional(key)
        for _ in range(_MAX_ATTEMPTS):
            old = self._store.read([ByteRequest(key, max_nbytes=most_nbytes + 1)])[0]
            pieces = update(None if old is None else old.data)
            if pieces is None or self._put_if_unchanged(key, pieces, old):
                return
        raise StoreError(
            "other writers replaced the object each time before this one could",
            shard_key=key,
            store_url=self._store.url,
            hint="let fewer processes write to one shard",
        )

    def create(self, key: str, pieces: Pieces) -> bool:
        """Write an object unless it exists; return whether it did not exist."""
        return self._put_if_unchanged(key, pieces, None)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, many per request; ignore those that are gone already."""
        import obstore

        for key in keys:
            refuse_unsafe_key(key, self._store.url)
        try:
            if keys:
                obstore.delete(self._store.object_store, list(keys))
        except FileNotFoundError:
            # For some stores a missing object is an error, and ends the request.
            for key in keys:
                self.put(key, None)
        except request_errors() as error:
            raise failed_write(self._store.url, keys[0], error) from error

    def clear(self, prefix: str) -> None:
        """Delete all objects below `prefix`, or all objects of the store for ""."""
        import obstore

        store = self._store.object_store
        try:
            for batch in obstore.list(store, prefix or None):
                for item in batch:
                    obstore.delete(store, item["path"])
        except request_errors() as error:
            raise failed_write(self._store.url, prefix, error) from error

    def _put_if_unchanged(self, key: str, pieces: Pieces, old: Fetched | None) -> bool:
        """Put an object if it is still `old`; return whether it was."""
        import obstore
        from obstore.exceptions import (
            AlreadyExistsError,
            NotSupportedError,
            PreconditionError,
        )
        from obstore.store import AzureStore, GCSStore, S3Store

        if old is not None and not isinstance(old.version, str):
            raise self._no_conditional_put(key, "it tells no strong ETags")
        object_store, mark = self._store.object_store, uuid4().hex
        keeps_metadata = isinstance(object_store, AzureStore | GCSStore | S3Store)
        attributes = {_MARK: mark} if keeps_metadata else None
        try:
            mode = "create" if old is None else self._put_condition(key, old.version)
            if mode is None:
                return False
            obstore.put(
                object_store,
                key,
                whole_object(pieces),
                attributes=attributes,
                tags=self._tags,
                mode=mode,
            )
        except (AlreadyExistsError, PreconditionError):
            return self._is_marked(key, mark)
        except (NotSupportedError, NotImplementedError) as error:
            raise self._no_conditional_put(key, first_line_of(error)) from error
        except request_errors() as error:
            if not self._is_marked(key, mark):
                raise failed_write(self._store.url, key, error) from error
        return True

    def _is_marked(self, key: str, mark: str) -> bool:
        """Whether the put with that mark wrote the object, if the store can tell."""
        import obstore

        try:
            answer = obstore.get(self._store.object_store, key, options={"head": True})
        except request_errors():
            return False
        return answer.attributes.get(_MARK) == mark

    def _put_condition(self, key: str, e_tag: Hashable) -> Any:
        """Condition for a put: the version to replace; None if that one is gone."""
        import obstore
        from obstore.store import GCSStore

        store = self._store.object_store
        if not isinstance(store, GCSStore):
            return {"e_tag": e_tag}
        # Google's condition is a separate number, which changes with the ETag.
        try:
            meta = obstore.head(store, key)
        except FileNotFoundError:
            return None
        if meta["e_tag"] != e_tag:
            return None
        return {"e_tag": e_tag, "version": meta["version"]}

    def _refuse_unless_conditional(self, key: str) -> None:
        """Refuse servers that accept a conditional put and ignore the condition.

        Some servers with S3's protocol do so, and their answers do not show it. So each
        store tests its server once, with an object that is deleted afterwards.
        """
        from obstore.store import S3Store

        if not isinstance(self._store.object_store, S3Store):
            return
        if self._store.puts_conditionally is None:
            probe = f"{key.rpartition('/')[0]}/.gpushard-{uuid4().hex}".lstrip("/")
            self.put(probe, [np.zeros(1, np.uint8)])
            try:
                stale = Fetched(np.zeros(0, np.uint8), None, '"0"')
                put = partial(self._put_if_unchanged, probe, [np.ones(1, np.uint8)])
                overwrites = run_side_by_side(put, [None, stale], 2)
            finally:
                self.put(probe, None)
            self._store.puts_conditionally = not any(overwrites)
        if not self._store.puts_conditionally:
            raise self._no_conditional_put(key, "it ignores the condition")

    def _no_conditional_put(self, key: str, why: str) -> UnsupportedError:
        return UnsupportedError(
            f"the object store has no conditional put ({why}), so that a write to a"
            " part of a shard could undo another one",
            shard_key=key,
            store_url=self._store.url,
            hint="write whole shards",
        )
