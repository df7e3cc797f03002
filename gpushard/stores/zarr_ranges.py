"""What a zarr store's `get_ranges` is: its way to many ranges of one object."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zarr.abc.store import Store as ZarrAbstractStore


def gives_ranges(store: ZarrAbstractStore) -> bool:
    """Whether a store has a `get_ranges` of its own, which gives what its `get` gives.

    zarr asks for ranges since 3.3. The way that all stores inherit joins them and gets
    them one by one, which is done already; and it would go past the `get` of a wrapper
    that has no more than that of its own.
    """
    from zarr.abc.store import Store
    from zarr.storage import WrapperStore

    if not hasattr(Store, "get_ranges"):
        return False
    ways = {"get", "get_ranges"}
    owner = next((c for c in type(store).__mro__ if ways & vars(c).keys()), None)
    if owner is WrapperStore:  # passes both on
        return gives_ranges(store._store)  # type: ignore[attr-defined]  # noqa: SLF001
    # What poses as a store, without a class that says how, has both.
    return owner is None or "get_ranges" in vars(owner)


def first_failure(error: BaseException) -> BaseException | None:
    """What failed of a call for ranges; None if it is that there is no such object."""
    failures = [*_leaves(error)]
    # When one range fails, those under way are cancelled.
    telling = [e for e in failures if not isinstance(e, asyncio.CancelledError)]
    others = [e for e in telling if not isinstance(e, (KeyError, FileNotFoundError))]
    if telling and not others:
        return None
    return (others or failures)[0]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
