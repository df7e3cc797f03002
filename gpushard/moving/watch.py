"""Stores that distinguish a shard that was never written from one that has rolled off.

Both are missing. A writer deletes shards only after it has moved the origin past them.
So the origin, read again after a shard was not found, tells which case it is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from gpushard.errors import ObjectChangedError, WindowMovedError
from gpushard.hierarchies.documents import V3_DOCUMENT
from gpushard.layout import ArrayLayout
from gpushard.metadata import load_array
from gpushard.moving.window import Window
from gpushard.options import Options
from gpushard.source import Source
from gpushard.stores.base import ByteRequest, FetchCosts, Fetched, Store
from gpushard.stores.local.store import LocalStore

HINT = "write to it through gpushard.rolling.RollingArray"


@dataclass(frozen=True)
class Watch:
    """Checks missing objects of one array against its window.

    Attributes
    ----------
    store, path, options
        Where the array lies.
    layout
        The array, through any of its windows.
    seen
        The last window found, by the version of the document that has it.
    """

    store: Store
    path: str
    options: Options
    layout: ArrayLayout
    seen: dict[Hashable, Window] = field(default_factory=dict[Hashable, Window])

    def read(
        self,
        read: Callable[[Sequence[ByteRequest]], list[Fetched | None]],
        requests: Sequence[ByteRequest],
    ) -> list[Fetched | None]:
        """Answers of a store's `read`; a missing object is then inside the window.

        Raises
        ------
        WindowMovedError
            An object is missing or was replaced, and the window has left it.
        StoreError
            `read` raises it.
        """
        try:
            answers = read(requests)
        except ObjectChangedError as error:
            if error.shard_key is not None:
                self._confirm([error.shard_key])
            raise
        pairs = zip(requests, answers, strict=True)
        missing = [request.key for request, answer in pairs if answer is None]
        if missing:
            self._confirm(missing)
        return answers

    def _confirm(self, keys: Iterable[str]) -> None:
        """Refuse objects that are outside the current window."""
        prefix = self.layout.key_prefix
        stored = {}
        for key in keys:
            below = key.removeprefix(prefix) if key.startswith(prefix) else ""
            at = self.layout.keys.stored_coordinates(below, self.layout.ndim)
            if at is not None:
                stored[at] = key
        if not stored:
            return
        now = self._window()
        for at, key in stored.items():
            if not now.holds(at):
                raise WindowMovedError(
                    "the array has rolled past a shard that was asked for",
                    shard_key=key,
                    expected=f"a shard from {now.origin} on",
                    got=at,
                    hint="refresh the array, or make a new view, and read again",
                )

    def _window(self) -> Window:
        """The array's current window."""
        # A sparse array need not be opened again for each missing shard. An array in an
        # older format has two documents, and may have rolled by the other one.
        key = f"{self.layout.key_prefix}{V3_DOCUMENT}"
        is_told, version = self.store.current_version(key)
        known = self.seen.get(version) if is_told else None
        if known is not None:
            return known
        now = Window.of(load_array(self.store, self.path, self.options))
        if is_told and version is not None:
            self.seen.clear()
            self.seen[version] = now
        return now


class WatchedStore:
    """Store of one rolling array. It is read-only, because writers need the window."""

    is_read_only = True
    read_only_hint = HINT

    def __init__(self, store: Store, watch: Watch) -> None:
        self._store = store
        self._watch = watch

    @property
    def url(self) -> str:
        """Address of the store's root."""
        return self._store.url

    @property
    def costs(self) -> FetchCosts:
        """What requests to the store cost."""
        return self._store.costs

    def read(self, requests: Sequence[ByteRequest]) -> list[Fetched | None]:
        """Answer each request; None where a shard of the window does not exist."""
        return self._watch.read(self._store.read, requests)

    def current_version(self, key: str) -> tuple[bool, Hashable | None]:
        """Version of an object, if the store can tell it cheaply."""
        return self._store.current_version(key)

    def get(self, key: str) -> bytes | None:
        """Bytes of a metadata document; None if there is none."""
        return self._store.get(key)

    def list_children(self, prefix: str) -> list[str] | None:
        """Names directly below `prefix`; None if the store cannot list."""
        return self._store.list_children(prefix)


class WatchedFiles(LocalStore):
    """Files of one rolling array: like `WatchedStore`, but still readable as files."""

    # Only missing objects need a check, for which readers of files ask `read`.
    has_plain_files = checks_missing = True
    read_only_hint = HINT

    def __init__(self, store: LocalStore, watch: Watch) -> None:
        super().__init__(
            store.root,
            store.options,
            allow_symlinks_outside=store.allow_symlinks_outside,
        )
        self.is_read_only = True
        self._store = store
        self._watch = watch

    def __reduce__(self) -> tuple[object, ...]:
        return WatchedFiles, (self._store, self._watch)

    def read(self, requests: Sequence[ByteRequest]) -> list[Fetched | None]:
        """Answer each request; None where a shard of the window does not exist."""
        return self._watch.read(super().read, requests)

    def list_keys(self, prefix: str) -> None:
        """None, because what a listing leaves out would not be checked."""


def watched(store: Store, layout: ArrayLayout, options: Options) -> Store:
    """Store to read an array from; for a rolling array, one that checks its window."""
    if not layout.keys.offset or isinstance(store, WatchedStore | WatchedFiles):
        return store
    watch = Watch(store, layout.path, options, layout)
    if type(store) is LocalStore:
        return WatchedFiles(store, watch)
    return WatchedStore(store, watch)


def watched_source(layout: ArrayLayout, store: Store, options: Options) -> Source:
    """An array ready to be read; a rolling array gets a `watched` store."""
    return Source.prepare(layout, watched(store, layout, options), options)
