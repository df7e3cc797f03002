"""Stores of zarr's arrays, read as zarr and its settings would read them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from zarr.core.buffer import cpu

from gpushard.options import DEFAULT
from gpushard.source import Source
from gpushard.stores.base import FetchCosts, Store
from gpushard.stores.local import LocalStore
from gpushard.stores.resolve import adapt
from gpushard.stores.zarr_store import ZarrStore

if TYPE_CHECKING:
    import asyncio

    from zarr.abc.store import Store as ZarrAbstractStore
    from zarr.core.array_spec import ArraySpec

# Stores of the same directory share their open files.
_local_stores: WeakValueDictionary[str, LocalStore] = WeakValueDictionary()


def reader_of(store: ZarrAbstractStore) -> Store:
    """Store of gpushard that reads what a zarr store has."""
    adapted = adapt(store, DEFAULT)
    if not isinstance(adapted, LocalStore):
        return adapted
    # zarr follows symbolic links wherever they lead.
    mine = LocalStore(adapted.root, DEFAULT, allow_symlinks_outside=True)
    return _local_stores.setdefault(adapted.root, mine)


def inside(source: Source, loop: asyncio.AbstractEventLoop, spec: ArraySpec) -> Source:
    """The same array, whose requests run in the event loop that the read came from.

    Requests are joined as far as zarr's settings for the array allow.
    """
    store = source.store
    if not isinstance(store, ZarrStore):
        return source
    # Encoded bytes are wanted on the host, wherever the result lies.
    on_host = issubclass(spec.prototype.buffer, cpu.Buffer)
    mine = spec.prototype if on_host else cpu.buffer_prototype
    costs = _costs_as_set(store.costs, spec.config)
    options = source.options
    if costs.gap_nbytes < store.costs.gap_nbytes or (
        costs.max_request_nbytes < store.costs.max_request_nbytes
    ):
        # A user who bounds what one request fetches does not want whole shards either.
        options = options.but(whole_object_fraction=1.0)
    asked = ZarrStore(store.zarr_store, loop, mine, costs)
    return replace(source, store=asked, options=options)


def _costs_as_set(costs: FetchCosts, settings: Any) -> FetchCosts:
    gap_nbytes = getattr(settings, "sharding_coalesce_max_gap_bytes", None)
    if gap_nbytes is None:  # zarr has it since 3.3
        return costs
    most = max(1, settings.sharding_coalesce_max_bytes)
    return replace(
        costs, gap_nbytes=gap_nbytes, max_request_nbytes=most, bounds_requests=True
    )
