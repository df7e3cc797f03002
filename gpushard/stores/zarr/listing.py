"""What a zarr store lists, and whether that is all that it has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zarr.abc.store import Store as ZarrAbstractStore

_KEYS_AT_ONCE = 1000


def lists_all(store: ZarrAbstractStore) -> bool:
    """Whether a zarr store lists all keys that its `get` finds."""
    from zarr.storage import FsspecStore, WrapperStore

    if not (store.supports_listing and follows_get(store, "list_prefix")):
        return False
    while isinstance(store, WrapperStore):
        if type(store).list_prefix is not WrapperStore.list_prefix:
            return True
        store = store._store  # noqa: SLF001
    if isinstance(store, FsspecStore):
        from gpushard.stores.zarr.fsspec_store import lists_anew

        return lists_anew(store.fs)
    return True


def follows_get(store: ZarrAbstractStore, method: str) -> bool:
    """Whether a store has a `method` of its own that matches its `get`.

    A wrapper that defines only `get` inherits a method that bypasses it.
    """
    from zarr.storage import WrapperStore

    ways = {"get", method}
    owner = next((c for c in type(store).__mro__ if ways & vars(c).keys()), None)
    if owner is WrapperStore:  # passes both on
        return follows_get(store._store, method)  # type: ignore[attr-defined]  # noqa: SLF001
    # An object that only behaves like a store, without such a class, has both methods.
    return owner is None or method in vars(owner)


async def next_keys(keys: AsyncIterator[str]) -> list[str]:
    """Some more keys of a listing; none at its end."""
    some: list[str] = []
    async for key in keys:
        some.append(key)
        if len(some) == _KEYS_AT_ONCE:
            break
    return some
