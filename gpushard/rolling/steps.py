"""The three steps of a roll: write new shards, move the origin, delete old shards.

In this order a reader finds a complete array at any moment. In any other order it would
find the fill value where a step is still to come.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np

from gpushard.errors import StoreError, UnsupportedError
from gpushard.formats.origins import moved_document, rolling_members, tags_of
from gpushard.hierarchies.documents import V3_DOCUMENT, decode_document, join
from gpushard.layout import Coordinate
from gpushard.metadata import parse_document
from gpushard.moving.window import Window
from gpushard.options import MAX_DOCUMENT_NBYTES
from gpushard.rolling.view import source_over
from gpushard.selecting.expressions import basic
from gpushard.selecting.selection import ParsedSelection
from gpushard.source import Source
from gpushard.stores.base import Fetched
from gpushard.stores.documents import document_bytes
from gpushard.stores.local.file_bytes import Bytes, Pieces
from gpushard.stores.local.files import FileWriter
from gpushard.stores.local.names_beside import object_key_of
from gpushard.stores.writers import Writer, writer_of
from gpushard.writing.assign import WriteSession, assign
from gpushard.writing.shard import Region

Change = Callable[[Window], Window]

# A writer holds it while it finds the array's end, writes there and moves the end.
_LOCK = f"{V3_DOCUMENT}.window"


class Steps:
    """The separate steps; several processes may take them at the same time.

    `source` is the array through any of its windows. Other than rolling arrays of Zarr
    v3, and stores that are read-only, are refused.
    """

    def __init__(self, source: Source) -> None:
        attributes = source.layout.attributes
        if rolling_members(attributes) is None:
            raise UnsupportedError(
                "only rolling arrays of Zarr v3 can be written to",
                hint="RollingArray.create makes one",
            )
        self.source = source
        self._documents = writer_of(source.store)
        self._shards = writer_of(source.store, tags_of(attributes))

    def window(self) -> Window:
        """The array's current window.

        If the window could not be moved, an error is raised here already.
        """
        return self._changed(lambda now: now)[0]

    def write(
        self,
        window: Window,
        values: Any,
        selection: ParsedSelection | None = None,
        claimed: str | None = None,
    ) -> None:
        """Write `values` to `window`, or to a selection of it, wherever the array is.

        The shard `claimed` exists afterwards even if its values are all fill value.
        Otherwise another writer could take its place before the window has moved.
        """
        source = source_over(self.source, self.source.indexes, window)
        whole = basic(..., window.shape) if selection is None else selection
        writer = self._shards
        if claimed is not None:
            writer = _ClaimingWriter(writer, claimed)
        assign(source, whole, values, writer)

    def move(self, change: Change) -> tuple[Window, Window]:
        """Apply `change` to the window; other moves at the same time are not lost.

        Returns the window before and the window after. A store that cannot keep other
        writers from interfering is refused.
        """
        return self._changed(change)

    def _changed(self, change: Change) -> tuple[Window, Window]:
        moved: list[tuple[Window, Window]] = []

        def update(old: Bytes | None) -> Pieces:
            before, document = self._parsed(old)
            after = change(before)
            moved.append((before, after))
            if after == before:
                raise _UnchangedError
            new = moved_document(document, after.origin, after.shape)
            return [np.frombuffer(new, np.uint8)]

        with suppress(_UnchangedError):
            self._documents.update(self._key, update, MAX_DOCUMENT_NBYTES)
        return moved[-1]

    def delete(self, window: Window) -> int:
        """Delete a window's shards, wherever the array is; returns their number."""
        return self.delete_objects(window.objects())

    def delete_objects(self, stored: Iterable[Coordinate]) -> int:
        """Delete objects by their own coordinates; returns the number of objects."""
        keys = list(map(self.key, stored))
        self._shards.delete(keys)
        if isinstance(self._shards, FileWriter):
            self._shards.remove_empty_directories(keys, self.source.layout.key_prefix)
        return len(keys)

    def key(self, stored: Coordinate) -> str:
        """Key of the object whose own coordinate is `stored`, whatever the window."""
        layout = self.source.layout
        return layout.key_prefix + replace(layout.keys, offset=()).key(stored)

    def stored(self) -> set[Coordinate]:
        """Coordinates of all objects of the array in its store, whole or partial."""
        layout = self.source.layout
        depth = 0
        if layout.keys.separator == "/":
            depth = layout.ndim - (layout.keys.kind == "v2")
        keys = map(object_key_of, self._listed(layout.key_prefix, depth))
        below = (key.removeprefix(layout.key_prefix) for key in keys)
        found = (layout.keys.stored_coordinates(key, layout.ndim) for key in below)
        return {at for at in found if at is not None}

    @contextmanager
    def alone(self) -> Generator[None]:
        """Keep other processes from looking for the end, if files can be locked.

        In other stores, `claim` does that instead.
        """
        if isinstance(self._shards, FileWriter):
            key = join(self.source.layout.path, _LOCK)
            with self._shards.locked(key):
                yield
        else:
            yield

    def claim(self, window: Window) -> str | None:
        """Create an empty shard that reserves a window, in a store without locks.

        Returns its key; None if none is needed.

        Raises
        ------
        StoreError
            The first shard of the window exists already.
        """
        first = next(window.objects(), None)
        if first is None or isinstance(self._shards, FileWriter):
            return None
        source = source_over(self.source, self.source.indexes, window)
        region = Region.of_object(source, (0,) * source.layout.ndim)
        empty = WriteSession(source, self._shards).encoder.empty_object(region)
        if not self._shards.create(self.key(first), empty):
            raise StoreError(
                "another writer has put a shard where this one was to go, or was cut"
                " off there",
                shard_key=self.key(first),
                store_url=source.store.url,
                hint="say where the values belong, by at=, which overwrites it",
            )
        return self.key(first)

    @property
    def _key(self) -> str:
        return join(self.source.layout.path, V3_DOCUMENT)

    def _parsed(self, data: Bytes | None) -> tuple[Window, Any]:
        path = self.source.layout.path
        if data is None:
            raise StoreError(
                f"{self._key} is gone",
                store_url=self.source.store.url,
                hint="the array was deleted while it was written to",
            )
        told = Fetched(data, None, None)
        encoded = document_bytes(told, self._key, self.source.store.url) or b""
        layout = parse_document(encoded, path, self.source.options)
        return Window.of(layout), decode_document(encoded, V3_DOCUMENT, path)

    def _listed(self, prefix: str, depth: int) -> Iterator[str]:
        """Keys of objects and directories `depth` directories below `prefix`."""
        names = self.source.store.list_children(prefix.rstrip("/"))
        if names is None:
            raise UnsupportedError("the store cannot list", got=self.source.store.url)
        for name in names:
            if depth and not name.startswith("."):
                yield from self._listed(f"{prefix}{name}/", depth - 1)
            else:
                yield prefix + name


class _ClaimingWriter:
    """Writer that never deletes the object `claimed`."""

    def __init__(self, writer: Writer, claimed: str) -> None:
        self._claimed = claimed
        self.deletes_in_updates = writer.deletes_in_updates
        self.puts_whole = writer.puts_whole
        self._put = writer.put
        self.update = writer.update
        self.create = writer.create
        self.delete = writer.delete
        self.clear = writer.clear

    def put(self, key: str, pieces: Pieces | None) -> None:
        """Replace an object; None deletes it, unless it is the claimed one."""
        if pieces is not None or key != self._claimed:
            self._put(key, pieces)


class _UnchangedError(Exception):
    """Raised if there is nothing to write."""
