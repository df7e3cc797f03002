"""Which objects of an array its store lists, where that beats asking for each."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import StoreError
from gpushard.layout import ArrayLayout
from gpushard.metadata import DOCUMENTS
from gpushard.source import Source
from gpushard.stores.base import ListingStore
from gpushard.stores.local.names_beside import object_key_of
from gpushard.stores.local.store import LocalStore

# A server lists so many objects in one answer. Fewer are asked for as soon.
_LEAST_OBJECTS = 1000
# Part of the memory limit for coordinates; sorting them takes as much again, twice.
_SHARE = 16
_LEAST_LISTED = 1 << 14
_AT_ONCE = 4096


def listed_coordinates(source: Source) -> NDArray[np.int64] | None:
    """Coordinates of the objects that the store lists, and perhaps of some others.

    Others are those that a cut off write has left files of, and directories in the
    place of objects. Nothing is listed of a small grid.

    Returns
    -------
    int64, shape (n_objects, n_dim), host, in C order. None if the objects have to be
    asked for one by one: the store cannot list, it failed, it does not list the array's
    document either, or there are too many keys to be held.
    """
    layout, store = source.layout, source.store
    if layout.n_objects <= _LEAST_OBJECTS or not isinstance(store, ListingStore):
        return None
    row_nbytes = 8 * layout.ndim
    most = max(source.options.memory_limit // _SHARE // row_nbytes, _LEAST_LISTED)
    try:
        listing = store.list_keys(layout.key_prefix.rstrip("/"))
        if listing is None:
            return None
        with closing(listing):
            # Some stores list nothing, or other names, and do not say that they cannot.
            is_sure = isinstance(store, LocalStore)
            return _found(layout, listing, most, is_sure=is_sure)
    except StoreError:  # which asking tells better
        return None


def _found(
    layout: ArrayLayout, listing: Generator[Sequence[str]], most: int, *, is_sure: bool
) -> NDArray[np.int64] | None:
    documents = {f"{layout.key_prefix}{name}" for name in DOCUMENTS}
    found: list[NDArray[np.int64]] = [np.empty((0, layout.ndim), np.int64)]
    n_keys = 0
    for keys in listing:
        n_keys += len(keys)
        if n_keys > most:
            return None
        is_sure |= not documents.isdisjoint(keys)
        written = map(object_key_of, keys)
        at = [at for key in written if (at := coordinate_of(layout, key)) is not None]
        found.append(np.array(at, np.int64).reshape(len(at), layout.ndim))
    return np.unique(np.concatenate(found), axis=0) if is_sure else None


def coordinate_of(layout: ArrayLayout, key: str) -> tuple[int, ...] | None:
    """Coordinate in the chunk grid of the object with that key; None if it has none."""
    keys, prefix = layout.keys, layout.key_prefix
    below = key.removeprefix(prefix) if key.startswith(prefix) else ""
    if not layout.ndim:
        return () if below == keys.key(()) else None
    stored = keys.stored_coordinates(below, layout.ndim)
    if stored is None:
        return None
    first = keys.offset or (0,) * layout.ndim
    at = tuple(place - start for place, start in zip(stored, first, strict=True))
    is_inside = all(0 <= i < n for i, n in zip(at, layout.grid, strict=True))
    # One number has several spellings, of which one is a key.
    return at if is_inside and keys.key(at) == below else None


def each_of(coordinates: NDArray[np.int64]) -> Iterator[tuple[int, ...]]:
    """Rows, of which a few become Python objects at a time."""
    for first in range(0, len(coordinates), _AT_ONCE):
        yield from map(tuple, coordinates[first : first + _AT_ONCE].tolist())
