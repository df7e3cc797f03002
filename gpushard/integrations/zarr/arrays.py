"""The array that zarr made a codec pipeline for, as gpushard reads it.

zarr gives a pipeline the metadata and the store. Only the keys of chunks, which come
with each read, say where in the store the array lies.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from zarr import config
from zarr.core.buffer import cpu
from zarr.storage import StorePath

from gpushard.chunk_keys import ChunkKeys
from gpushard.errors import LimitError, MetadataError, UnsupportedError
from gpushard.integrations.zarr.pieces import Entry
from gpushard.metadata import parse_array
from gpushard.options import DEFAULT, LIMITS, MIB, Options
from gpushard.quiet import without_warnings
from gpushard.source import Source
from gpushard.stores.base import FetchCosts, Store
from gpushard.stores.local.store import LocalStore
from gpushard.stores.resolve import adapt
from gpushard.stores.zarr.store import ZarrStore

if TYPE_CHECKING:
    import asyncio

    from zarr.abc.store import Store as ZarrAbstractStore
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import BufferPrototype

    from gpushard.layout import ArrayLayout

    Batch = Sequence[tuple[Any, ArraySpec, Any, Any, bool]]

# zarr's defaults of the settings that say how requests are joined.
_ZARRS_GAP_NBYTES, _ZARRS_REQUEST_NBYTES = MIB, 16 * MIB
_NO_LIMITS = (None,) * len(LIMITS)
# Stores of the same directory share their open files.
_local_stores: WeakValueDictionary[str, LocalStore] = WeakValueDictionary()


class _Inside(NamedTuple):
    """An array whose requests run in an event loop; kept with what readers found.

    It was made of `base`, which is forgotten when something is written.
    """

    base: Source
    loop: asyncio.AbstractEventLoop
    buffer_prototype: BufferPrototype
    settings: Any
    source: Source


@dataclass(slots=True)
class _Prepared:
    """What is ready for the next reads under the limits of zarr's configuration.

    Attributes
    ----------
    limits
        The value that is set for each limit, unchecked; None if there is none.
    layout
        Layout of the array, without its path; or why gpushard does not read the array.
    sources
        The array by its path, of which there is one.
    insides
        The same as the last read asked for it, if it is read through zarr's store.
    """

    limits: tuple[Any, ...]
    options: Options
    layout: ArrayLayout | UnsupportedError
    sources: dict[str, Source] = field(default_factory=dict[str, Source])
    insides: dict[str, _Inside] = field(default_factory=dict[str, _Inside])


class PipelineArray:
    """The array with `metadata` in `store`, parsed when it is first read."""

    def __init__(self, metadata: Any, store: ZarrAbstractStore) -> None:
        self._metadata = metadata
        self._store = store
        self._prepared: _Prepared | None = None

    def wanted(
        self, batch: Batch, loop: asyncio.AbstractEventLoop
    ) -> tuple[Source, list[Entry]]:
        """The array that a batch reads, and what the batch wants of each chunk.

        Requests to a store of zarr's run in `loop`, which the read came from. They are
        joined as far as zarr's settings for the array allow.

        Raises `LimitError` if the array asks for more than the limits allow, and
        `UnsupportedError` if gpushard does not read it, or the batch reads several
        arrays.
        """
        prepared = self._under_the_limits()
        layout = prepared.layout
        if isinstance(layout, UnsupportedError):
            raise layout.with_traceback(None)
        keys = [_key_of(getter, self._store) for getter, *_ in batch]
        path, coordinates = _split_keys(keys, layout.keys, layout.ndim)
        source = prepared.sources.get(path)
        if source is None:
            store = _reader_of(self._store)
            layout = replace(layout, path=path)
            source = Source.prepare(layout, store, prepared.options)
            prepared.sources[path] = source
        if isinstance(source.store, ZarrStore):
            source = _inside(prepared, path, source, source.store, loop, batch[0][1])
        return source, [
            Entry(coordinate, chunk_selection, out_selection)
            for coordinate, (_, _, chunk_selection, out_selection, *_) in zip(
                coordinates, batch, strict=True
            )
        ]

    def forget(self) -> None:
        """Forget what is known of shards, because they may have been replaced."""
        if self._prepared is not None:
            self._prepared.sources.clear()
            self._prepared.insides.clear()

    def _under_the_limits(self) -> _Prepared:
        """What is ready for reads; prepared anew if zarr's limits have changed.

        Raises `OptionError` if a value that is set is not a possible limit.
        """
        limits = _NO_LIMITS
        if config.get("gpushard", None) is not None:
            limits = tuple(config.get(f"gpushard.{name}", None) for name in LIMITS)
        prepared = self._prepared
        if prepared is None or prepared.limits != limits:
            options = DEFAULT.but(**dict(zip(LIMITS, limits, strict=True)))
            layout = _layout_of(self._metadata, options)
            prepared = self._prepared = _Prepared(limits, options, layout)
        return prepared


def _inside(
    prepared: _Prepared,
    path: str,
    base: Source,
    store: ZarrStore,
    loop: asyncio.AbstractEventLoop,
    spec: ArraySpec,
) -> Source:
    """The array at `path`, whose requests to `store` run in `loop`."""
    # Encoded bytes are wanted on the host, wherever the result lies.
    on_host = issubclass(spec.prototype.buffer, cpu.Buffer)
    mine = spec.prototype if on_host else cpu.buffer_prototype
    known = prepared.insides.get(path)
    if (
        known is not None
        and known.base is base
        and known[1:4] == (loop, mine, spec.config)
    ):
        return known.source
    costs = _costs_as_set(store.costs, spec.config)
    options = base.options
    is_set = costs is not store.costs
    if is_set and (
        costs.gap_nbytes < _ZARRS_GAP_NBYTES
        or costs.max_request_nbytes < _ZARRS_REQUEST_NBYTES
    ):
        # A user who bounds what one request fetches does not want whole shards either.
        options = options.but(whole_object_fraction=1.0)
    asked = ZarrStore(store.zarr_store, loop, mine, costs)
    source = replace(base, store=asked, options=options)
    prepared.insides[path] = _Inside(base, loop, mine, spec.config, source)
    return source


def _costs_as_set(costs: FetchCosts, settings: Any) -> FetchCosts:
    gap_nbytes = getattr(settings, "sharding_coalesce_max_gap_bytes", None)
    if gap_nbytes is None:  # zarr has it since 3.3
        return costs
    most = max(1, settings.sharding_coalesce_max_bytes)
    return replace(
        costs,
        gap_nbytes=gap_nbytes,
        idle_gap_nbytes=None,
        max_request_nbytes=most,
        bounds_requests=True,
    )


class _Numbers(dict[str, int]):
    """Decimal numbers by their text; -1 of text that is no such number."""

    def __missing__(self, text: str) -> int:
        number = int(text) if text.isdecimal() else -1
        self[text] = number = number if str(number) == text else -1
        return number


def _split_keys(
    keys: Sequence[str], of: ChunkKeys, ndim: int
) -> tuple[str, list[tuple[int, ...]]]:
    """Path of the array and coordinates of the chunks that a store's keys are made of.

    Raises `UnsupportedError` if they are not keys of chunks of one array.
    """
    path, first = _split_key(keys[0], of, ndim)
    start = f"{path}/{of.start}" if path else of.start
    coordinates, number = [first], _Numbers()
    for key in keys[1:]:
        parts = key[len(start) :].split(of.separator)
        coordinate = tuple([number[part] for part in parts])
        if len(parts) != ndim or -1 in coordinate or not key.startswith(start):
            place, _ = _split_key(key, of, ndim)
            raise UnsupportedError("this read is of several arrays", got=place)
        coordinates.append(coordinate)
    return path, coordinates


def _split_key(key: str, keys: ChunkKeys, ndim: int) -> tuple[str, tuple[int, ...]]:
    """Path of the array and coordinate of the chunk that a store's `key` is made of.

    Raises `UnsupportedError` if it is not the key of a chunk.
    """
    n_parts = ndim + 1 if keys.kind == "default" else max(ndim, 1)
    parts = key.split("/")
    if keys.separator == "/":
        path, name = parts[:-n_parts], parts[-n_parts:]
    else:
        path, name = parts[:-1], parts[-1].split(".")
    numbers = name[len(name) - ndim :]
    if len(numbers) == ndim and all(number.isdecimal() for number in numbers):
        coordinate = tuple(map(int, numbers))
        prefix = "/".join(path)
        if key == (f"{prefix}/" if prefix else "") + keys.key(coordinate):
            return prefix, coordinate
    raise UnsupportedError("zarr asks for an object that is not a chunk", got=repr(key))


def _key_of(getter: Any, store: ZarrAbstractStore) -> str:
    if type(getter) is not StorePath or getter.store is not store:
        raise UnsupportedError(
            "chunks are read through something other than the array's store",
            got=type(getter).__name__,
        )
    return getter.path


def _layout_of(metadata: Any, options: Options) -> ArrayLayout | UnsupportedError:
    """Layout of an array, without its path; or why gpushard does not read the array.

    Raises `LimitError` if the array asks for more than the options allow.
    """
    # Tuples become lists. Attributes can be large, and what gpushard reads from those
    # of Zarr v2 (rolled arrays) means nothing to zarr.
    with without_warnings():  # zarr has warned of them when it opened the array
        members = metadata.to_dict()
    document = json.loads(json.dumps({**members, "attributes": {}}))
    try:
        return parse_array(document, "", options)
    except LimitError:
        raise
    except UnsupportedError as error:
        return error
    except MetadataError as error:
        # zarr has opened the array: whether to read it after all, such as pickled
        # objects, is for zarr to say.
        return UnsupportedError(
            error.what, codec=error.codec, json_path=error.json_path, got=error.got
        )


def _reader_of(store: ZarrAbstractStore) -> Store:
    """Store of gpushard that reads what a zarr store has."""
    adapted = adapt(store, DEFAULT)
    if not isinstance(adapted, LocalStore):
        return adapted
    # zarr follows symbolic links wherever they lead.
    mine = LocalStore(adapted.root, DEFAULT, allow_symlinks_outside=True)
    return _local_stores.setdefault(adapted.root, mine)
