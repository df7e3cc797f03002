"""`Array`: a stored array that reads like a NumPy array."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from gpushard.damage import Damage, DamagePolicy
from gpushard.devices.find import find_device, find_device_for
from gpushard.errors import OptionError, naming
from gpushard.layout import ArrayLayout, GridAxis
from gpushard.metadata import DOCUMENTS, load_array
from gpushard.nearby import hinting
from gpushard.numpy_like import DescribedArray, Manner
from gpushard.options import DEFAULT, Options
from gpushard.placing.outputs import parsed_dtype
from gpushard.reading.results import ReadRequest, read_new, read_on_host, read_single
from gpushard.remade import naming_source
from gpushard.report import CodecPlacement, ReadReport, Tally
from gpushard.selecting import expressions
from gpushard.selecting.indexer import Indexer, Parse, as_numpy_would
from gpushard.selecting.selection import ParsedSelection, n_elements
from gpushard.source import Source
from gpushard.stores.base import ByteRequest, Store
from gpushard.stores.resolve import address, from_address, resolve

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gpushard.devices.base import Device
    from gpushard.stores.resolve import Target


_Window = tuple[tuple[int, ...], tuple[int, ...]]
_Place = tuple[bytes, str, _Window | None]


def open_array(
    store: Target,
    path: str = "",
    *,
    device: str | Device = "auto",
    storage_options: Mapping[str, Any] | None = None,
    options: Options = DEFAULT,
) -> Array:
    """Open the array at `path` of a store.

    Parameters
    ----------
    store
        Local path, URL (``file://``, ``http(s)://``, ``s3://``, ``gs://``, ``az://``,
        or any that fsspec knows), zarr store, array or group, obstore store, mapping of
        fsspec, or ``UPath``.
    path
        Path of the array within the store; "" is its root.
    device
        Where inner chunks are decoded and results lie: "cpu", "cuda", "cuda:1", or a
        device of `gpushard.devices`. "auto" uses a GPU if there is a usable one that
        supports the data type, and otherwise the CPU; `Array.explain` says why.
    storage_options
        Settings of a URL's store: credentials, endpoint, ...
    options
        Options of every read and write.

    Raises
    ------
    NotFoundError
        There is no array at `path`.
    MetadataError
        Its metadata is malformed.
    UnsupportedError
        It uses something that gpushard does not read, or there is no such device.
    StoreError
        The store refuses its settings, or failed.
    OptionError
        An argument is of the wrong kind, or an option is impossible.

    Examples
    --------
    >>> a = gpushard.open_array("demo.zarr/u")
    >>> a.shape
    (2, 3, 241, 480)
    """
    opened, place = store_and_path(store, path, device, storage_options, options)
    with naming(opened, place):
        with hinting(opened, place):
            layout = load_array(opened, place, options)
        return array_over(layout, opened, device, options)


def store_and_path(
    store: Target,
    path: str,
    device: str | Device,
    storage_options: Mapping[str, Any] | None,
    options: Options,
    named: type[naming] = naming,
) -> tuple[Store, str]:
    """Store that a caller's arguments name, and the path in it.

    Raises
    ------
    NotFoundError, UnsupportedError, OptionError, StoreError
        As for `find_device`, which comes first, and for `resolve`.
    """
    with named(str(store), path):
        find_device(device)  # refused before anything is opened
    with hinting(store):
        return resolve(store, path, options, storage_options)


def array_over(
    layout: ArrayLayout, store: Store, device: str | Device, options: Options
) -> Array:
    """The array with `layout` in `store`, read to `device`.

    Raises
    ------
    UnsupportedError, MetadataError
        As for `Source.prepare`.
    """
    source = _source(layout, store, options)
    return Array(source, *find_device_for(device, layout.dtype))


def _source(layout: ArrayLayout, store: Store, options: Options) -> Source:
    """The array, ready to be read."""
    if not layout.keys.offset:
        return Source.prepare(layout, store, options)
    from gpushard.moving.watch import watched_source  # few arrays roll

    return watched_source(layout, store, options)


class Array(DescribedArray):
    """A stored array; reading parts of it returns NumPy arrays, or CuPy arrays.

    Made by `open_array` and by groups. Several threads may read from it. A pickled
    array contains only its address: the other process opens it anew.

    Parameters
    ----------
    source
        The array ready to be read.
    device
        Where inner chunks are decoded and results lie; None is the host.
    device_why
        Why "auto" chose this device.
    """

    def __init__(
        self, source: Source, device: Device | None = None, device_why: str = ""
    ) -> None:
        if not isinstance(source, Source):
            raise OptionError(
                "an array is not made of this",
                expected="a Source",
                got=f"a {type(source).__name__}",
                hint="open it with gpushard.open_array",
            )
        self.source = source
        self.device_why = device_why
        self._device = device
        self._naming = naming_source(source)

    @property
    def device(self) -> str:
        """Where inner chunks are decoded and results lie: "cpu", "cuda:0", ..."""
        return "cpu" if self._device is None else self._device.label

    @property
    def device_object(self) -> Device | None:
        """The device itself; None is the host."""
        return self._device

    @property
    def _layout(self) -> ArrayLayout:
        return self.source.layout

    @property
    def blocks(self) -> Indexer:
        """Indexing by shard: ``a.blocks[0, 2:4]`` (by chunk if not sharded)."""
        return self._indexer(partial(_blocks, self.source.layout.axes))

    def __getitem__(self, key: Any) -> Any:
        """Elements that `key` selects, by NumPy's rules for basic indexing.

        Returns
        -------
        Array of `dtype`, complete on return and ready on any stream, or a scalar where
        NumPy would give one. Errors are those of `read`.
        """
        source = self.source
        with self._naming:
            single = read_single(source, key) if self._device is None else None
            if single is not None:
                return single if single.ndim else single[()]
            is_parsed = isinstance(key, ParsedSelection)
            chosen = key if is_parsed else expressions.basic(key, source.layout.shape)
            result = self._new(chosen)
        return as_numpy_would(result, chosen)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write to the elements that `key` selects; see docs/writing.md."""
        self._write(self._selection(key), value)

    def explain(self, selection: Any = ...) -> ReadReport:
        """Report on reading `selection`: does the read, and drops its result.

        Parameters
        ----------
        selection
            Key as in ``a[key]``.
        """
        chosen = self._selection(selection)
        tally = Tally()
        with self._naming, tally.stage("total"):
            self._read(ReadRequest([chosen], [None], self.dtype, tally=tally))
        return tally.report(
            array=self.path,
            device=self.device,
            device_why=self.device_why,
            out_nbytes=n_elements(chosen) * self.dtype.itemsize,
            codecs=self._placements(tally),
        )

    def __dask_tokenize__(self) -> Any:
        """Address, metadata, and version of the metadata."""
        source = self.source
        requests = [ByteRequest(source.layout.key_prefix + name) for name in DOCUMENTS]
        with self._naming:
            found = source.read(requests)
        versions = [answer and answer.version for answer in found]
        what = replace(source.layout, attributes={}).digest()
        return "gpushard", source.store.url, self.path, self.device, what, versions

    def __repr__(self) -> str:
        url = f"{self.source.store.url}/{self.path}".rstrip("/")
        what = f"shape={self.shape} dtype={self.dtype} on {self.device}"
        return f"<gpushard.{type(self).__name__} {url} {what}>"

    def __reduce__(self) -> tuple[Callable[..., Array], tuple[Any, ...]]:
        source = self.source
        with self._naming:
            known = address(source.store)
        # A rolling array may have moved on before the other process opens it.
        offset = source.layout.keys.offset
        window = (offset, self.shape) if offset else None
        place = (known, self.path, window)
        return _reopen, (type(self), place, self.device, source.options)

    def _dtype(self, dtype: DTypeLike | None) -> np.dtype[Any]:
        if dtype is None:
            return self.dtype
        with self._naming:
            return parsed_dtype(dtype)

    def _selection(self, key: Any, parse: Parse = expressions.basic) -> ParsedSelection:
        if isinstance(key, ParsedSelection):
            return key
        with self._naming:
            return parse(key, self.source.layout.shape)

    def _read_by(self, parse: Parse, key: Any) -> Any:
        selection = self._selection(key, parse)
        with self._naming:
            result = self._new(selection)
        return as_numpy_would(result, selection)

    def _write_by(self, parse: Parse, key: Any, value: Any) -> None:
        self._write(self._selection(key, parse), value)

    def _read_over(
        self, keys: Sequence[Any], outs: Sequence[Any], manner: Manner
    ) -> list[Any]:
        if self._device is None and len(keys) == 1 and manner.is_plain:
            # A short read would notice the time that all of the rest takes.
            with self._naming:
                single = read_single(self.source, keys[0], outs[0])
            if single is not None:
                return [single]
        chosen = [self._selection(key) for key in keys]
        request = ReadRequest(chosen, outs, self._dtype(manner.dtype), manner.stream)

        def read(damage: Damage) -> list[Any]:
            with self._naming:
                return self._read(request.over(damage), manner.memory_limit)

        with self._naming:
            policy = DamagePolicy(manner.errors, self.source.layout.inner_grid)
        return policy.over(read)

    def _named(self) -> AbstractContextManager[None]:
        return self._naming

    def _new(self, selection: ParsedSelection) -> Any:
        """New array with the elements of a selection, on this array's device."""
        if self._device is None:
            return read_new(self.source, selection)
        request = ReadRequest([selection], [None], self.source.layout.dtype)
        return self._read(request)[0]

    def _read(self, request: ReadRequest, memory_limit: int | None = None) -> list[Any]:
        source = self.source.limited(memory_limit)
        if self._device is None:
            return read_on_host(source, request)
        from gpushard.device_reading.read import read_on_device

        return read_on_device(source, request, self._device)

    def _write(self, selection: ParsedSelection, value: Any) -> None:
        from gpushard.writing.assign import assign
        from gpushard.writing.enlarged import source_by_now, telling

        with self._naming:
            source = source_by_now(self.source, selection)
            with telling(self.source, source):
                assign(source, selection, value, device=self._device)

    def _placements(self, tally: Tally) -> tuple[CodecPlacement, ...]:
        if self._device is None:
            return self.source.pipeline.placements()
        with self._naming:
            from gpushard.device_reading.choice import placements

            return placements(self.source, self._device, tally)


def _blocks(axes: Sequence[GridAxis], key: Any, _: tuple[int, ...]) -> ParsedSelection:
    return expressions.blocks(key, axes)


def _reopen(kind: type[Array], place: _Place, device: str, options: Options) -> Array:
    known, path, window = place
    store = from_address(known)
    with naming(store, path):
        layout = load_array(store, path, options)
        if window is not None:
            layout = layout.over(*window)
        source = Source.prepare(layout, store, options)
        return kind(source, *find_device(device))
