"""Facts about `get_ranges` of a zarr store, which reads many ranges of one object."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zarr.abc.store import Store as ZarrAbstractStore


def gives_ranges(store: ZarrAbstractStore) -> bool:
    """Whether a store has a `get_ranges` of its own that matches its `get`.

    zarr has `get_ranges` since 3.3. The inherited method joins ranges and gets them one
    by one, which gpushard has done already. And for a wrapper that defines only `get`,
    the inherited method would bypass that `get`.
    """
    from zarr.abc.store import Store
    from zarr.storage import WrapperStore

    if not hasattr(Store, "get_ranges"):
        return False
    ways = {"get", "get_ranges"}
    owner = next((c for c in type(store).__mro__ if ways & vars(c).keys()), None)
    if owner is WrapperStore:  # passes both on
        return gives_ranges(store._store)  # type: ignore[attr-defined]  # noqa: SLF001
    # An object that only behaves like a store, without such a class, has both methods.
    return owner is None or "get_ranges" in vars(owner)


def first_failure(error: BaseException) -> BaseException | None:
    """First real failure in a call for ranges; None if the object does not exist."""
    failures = [*_leaves(error)]
    # If one range fails, the ranges in flight are cancelled.
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
