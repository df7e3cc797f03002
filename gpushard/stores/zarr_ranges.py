"""Ranges of objects in the words of zarr's stores, and how these stores read them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpushard.stores.base import ByteRequest

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest as ZarrByteRequest
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


def refuses_beyond(store: ZarrAbstractStore) -> bool:
    """Whether a store is known to fail for ranges beyond the end of an object.

    Icechunk's does, and prints the backtrace of a panic if the object is a document.
    """
    return _is_of("icechunk", store)


def reads_on(store: ZarrAbstractStore) -> bool:
    """Whether a store answers a range with bytes that lie behind the object's end.

    virtualizarr's `ManifestStore` does, with those that follow in the file.
    """
    return _is_of("virtualizarr", store)


def _is_of(package: str, store: ZarrAbstractStore) -> bool:
    """Whether a store, or the one in a wrapper, is of a package."""
    from zarr.storage import WrapperStore

    if type(store).__module__.partition(".")[0] == package:
        return True
    return isinstance(store, WrapperStore) and _is_of(package, store._store)  # noqa: SLF001


def byte_range_of(request: ByteRequest) -> ZarrByteRequest | None:
    """The request's range as zarr spells it; None for the whole object."""
    from zarr.abc.store import (
        OffsetByteRequest,
        RangeByteRequest,
        SuffixByteRequest,
    )

    if request.start < 0:
        return SuffixByteRequest(-request.start)
    if request.stop is not None:
        return RangeByteRequest(request.start, request.stop)
    if request.max_nbytes is not None:
        return RangeByteRequest(0, request.max_nbytes)
    return OffsetByteRequest(request.start) if request.start else None


def byte_range_within(
    request: ByteRequest, object_nbytes: int | None
) -> ZarrByteRequest | None:
    """The request's range in an object of that size; None if it has no known bytes."""
    from zarr.abc.store import RangeByteRequest

    if object_nbytes is None or byte_range_of(request) is None:
        return None
    start, stop = request.within(object_nbytes)
    return RangeByteRequest(start, stop) if start < stop else None


def longest_answer(request: ByteRequest) -> int | None:
    """Most bytes that may answer a request; None if there is no limit."""
    if request.start < 0:
        return -request.start
    if request.stop is None:
        return request.max_nbytes
    return max(0, request.stop - request.start)


def is_whole(request: ByteRequest, object_nbytes: int) -> bool:
    """Whether an object of that size has bytes in the range, and all that it names."""
    start, stop = request.within(object_nbytes)
    return start < stop and stop - start == longest_answer(request)


def is_beyond(request: ByteRequest, nbytes: int) -> bool:
    """Whether a range without a known end was answered with `nbytes` bytes of it."""
    if request.stop is not None:
        return False
    return request.start < 0 or nbytes < (request.max_nbytes or 0)


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
