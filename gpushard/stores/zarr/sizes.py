"""Sizes of objects in zarr stores, and which store tells them."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zarr.abc.store import Store as ZarrAbstractStore


def store_inside(store: ZarrAbstractStore) -> ZarrAbstractStore:
    """The store whose bytes are read: wrappers that only pass `get` on are opened."""
    from zarr.storage import WrapperStore

    while isinstance(store, WrapperStore) and type(store).get is WrapperStore.get:
        store = store._store  # noqa: SLF001
    return store


def tells_sizes(store: ZarrAbstractStore) -> bool:
    """Whether a store tells the size of an object without fetching all of it."""
    from zarr.abc.store import Store

    return getattr(type(store), "getsize", None) is not Store.getsize


def told_size(nbytes: Any) -> int:
    """Size of an object, as a store tells it; raises if it is no size."""
    size = index(nbytes)
    if size < 0:
        raise ValueError(f"an object has {size} bytes")
    return size
