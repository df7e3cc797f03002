"""`Array`: a stored array that reads like a NumPy one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpushard import expressions
from gpushard.devices.find import find_device
from gpushard.errors import GpushardError, SelectionError, UnsupportedError
from gpushard.indexer import Indexer
from gpushard.metadata import load_array
from gpushard.options import DEFAULT, Options
from gpushard.report import CodecPlacement, ReadReport, Tally
from gpushard.results import ReadRequest, read_on_host
from gpushard.selection import Orthogonal, Points, Selection, n_elements
from gpushard.source import Source
from gpushard.stores.base import Store
from gpushard.stores.resolve import StoreAddress, address, from_address, resolve

if TYPE_CHECKING:
    from zarr import Array as ZarrArray
    from zarr.abc.store import Store as ZarrStore

    from gpushard.devices.base import Device

    Target = str | Path | ZarrStore | ZarrArray[Any]


def open_array(
    store: Target,
    path: str = "",
    *,
    device: str | Device = "auto",
    storage_options: Mapping[str, Any] | None = None,
    options: Options = DEFAULT,
) -> Array:
    """Array that reads what `store` holds at `path`.

    Parameters
    ----------
    store
        Local path, URL (``file://``, ``http(s)://``, ``s3://``, ``gs://``, ``az://``,
        or any that fsspec knows), zarr store or zarr array.
    path
        Path of the array within the store; "" is its root.
    device
        Where inner chunks are decoded and results lie: "cpu", "cuda", "cuda:1", or a
        device of `gpushard.devices`. "auto" is the CPU until the GPU path has proven
        itself on GPUs.
    storage_options
        Settings of a URL's store: credentials, endpoint, ...
    options
        Knobs of every read.

    Raises
    ------
    NotFoundError
        There is no array at `path`.
    MetadataError
        Its metadata is malformed.
    UnsupportedError
        It uses something that gpushard does not read, or the device is not there.

    Examples
    --------
    >>> a = gpushard.open_array("demo.zarr/u")
    >>> a.shape
    (2, 3, 241, 480)
    """
    chosen = find_device(device)
    opened, place = resolve(store, path, options, storage_options)
    return Array(_prepared(opened, place, options), chosen)


def _prepared(store: Store, path: str, options: Options) -> Source:
    """Array of a store, ready to be read; errors tell which store."""
    try:
        return Source.prepare(load_array(store, path, options), store, options)
    except GpushardError as error:
        error.add_context(store_url=store.url, array_path=path)
        raise


class Array:
    """A stored array; reading parts of it gives NumPy arrays, or those of a device.

    Made by `open_array` and by groups. Safe to read from several threads. Pickles as
    an address: the other process opens it anew.

    Parameters
    ----------
    source
        The array ready to be read.
    device
        Where it is decoded and results lie; None is the host.
    """

    def __init__(self, source: Source, device: Device | None = None) -> None:
        self.source = source
        self._device = device

    @property
    def device(self) -> str:
        """Where inner chunks are decoded and results lie: "cpu", "cuda:0", ..."""
        return "cpu" if self._device is None else self._device.label

    @property
    def path(self) -> str:
        """Path of the array in its store; "" is the root."""
        return self.source.layout.path

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self.source.layout.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.source.layout.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.source.layout.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the elements, in native byte order."""
        return self.source.layout.dtype

    @property
    def nbytes(self) -> int:
        """Size of all elements in memory, in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """Inner chunk shape in elements; None if the grid is rectilinear."""
        return self.source.layout.chunks

    @property
    def shards(self) -> tuple[int, ...] | None:
        """Shard shape in elements; None if not sharded or rectilinear."""
        return self.source.layout.shards

    @property
    def fill_value(self) -> Any:
        """What missing inner chunks hold, as a scalar of `dtype`."""
        return self.source.layout.fill_value[()]

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The array's attributes."""
        return self.source.layout.attributes

    @property
    def dimension_names(self) -> tuple[str | None, ...] | None:
        """Names of the axes, where they have any."""
        return self.source.layout.dimension_names

    @property
    def oindex(self) -> Indexer:
        """Orthogonal indexing: ``a.oindex[[0, 5], :, mask]``."""
        return self._indexer(lambda key: expressions.orthogonal(key, self.shape))

    @property
    def vindex(self) -> Indexer:
        """Indexing by coordinates or a mask: ``a.vindex[[0, 5], [1, 2]]``."""
        return self._indexer(lambda key: expressions.points(key, self.shape))

    @property
    def blocks(self) -> Indexer:
        """Indexing by shard: ``a.blocks[0, 2:4]`` (by chunk if not sharded)."""
        axes = self.source.layout.axes
        return self._indexer(lambda key: expressions.blocks(key, axes))

    def _indexer(self, parse: Callable[[Any], Selection]) -> Indexer:
        return Indexer(self.read, lambda key: self._parsed(parse, key))

    def __getitem__(self, key: Any) -> Any:
        """Elements that `key` selects, by NumPy's rules; see `expressions.basic`."""
        return Indexer(self.read, self._selection)[key]

    def read(
        self,
        selection: Any = ...,
        *,
        out: Any = None,
        dtype: DTypeLike | None = None,
        stream: Any = None,
        errors: Literal["raise"] = "raise",
        memory_limit: int | None = None,
    ) -> Any:
        """Elements that `selection` selects, in your array or a new one.

        Parameters
        ----------
        selection
            Key as in ``a[key]``.
        out
            Array to write into, of the selection's shape and any strides. On the host
            NumPy's or anything that shares its memory with NumPy (a torch tensor); on
            a device anything with ``__cuda_array_interface__``.
        dtype
            Data type of the result where `out` is not given; values are cast on the
            way. Casts that change the kind of number (float to int) are refused.
        stream
            On a device, the CUDA stream that `out` is used on: nothing is written
            before what is queued there is done. The result is complete on return.
        errors
            What a damaged inner chunk does: "raise", the only way so far.
        memory_limit
            Bytes of staging this read may hold, instead of the option's.

        Returns
        -------
        ndarray of the selection's shape, host, or the device's kind of array; `out`
        itself if it was given.

        Raises
        ------
        SelectionError
            The selection does not fit the array, `out` does not fit the selection, or
            the cast is refused.
        CorruptShardError
            Stored bytes are damaged; nothing in `out` has meaning then.
        StoreError
            The store failed.
        """
        _check_errors(errors)
        chosen = self._selection(selection)
        request = ReadRequest([chosen], [out], self._dtype(dtype), stream)
        return self._read(request, memory_limit)[0]

    def read_many(
        self,
        selections: Sequence[Any],
        *,
        out: Sequence[Any] | None = None,
        dtype: DTypeLike | None = None,
        stream: Any = None,
        errors: Literal["raise"] = "raise",
        memory_limit: int | None = None,
    ) -> list[Any]:
        """One result a selection, all read in one batch.

        An inner chunk that several selections want is fetched and decoded once.

        Parameters
        ----------
        selections
            Keys as in ``a[key]``.
        out
            One array a selection, or None; see `read`.
        dtype, stream, errors, memory_limit
            See `read`.
        """
        _check_errors(errors)
        chosen = [self._selection(selection) for selection in selections]
        outs: Sequence[Any] = [None] * len(chosen) if out is None else out
        if len(outs) != len(chosen):
            raise SelectionError(
                "out= needs one array a selection", expected=len(chosen), got=len(outs)
            )
        request = ReadRequest(chosen, outs, self._dtype(dtype), stream)
        return self._read(request, memory_limit) if chosen else []

    def explain(self, selection: Any = ...) -> ReadReport:
        """What reading `selection` takes; the read is done and its result dropped.

        Parameters
        ----------
        selection
            Key as in ``a[key]``.
        """
        chosen = self._selection(selection)
        tally = Tally()
        with tally.stage("total"):
            self._read(ReadRequest([chosen], [None], self.dtype, tally=tally))
        return tally.report(
            array=self.path,
            device=self.device,
            out_nbytes=n_elements(chosen) * self.dtype.itemsize,
            codecs=self._placements(),
        )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d array")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self.shape[0]))

    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        """All elements as a NumPy array."""
        if copy is False:
            raise ValueError("a stored array cannot become an ndarray without a copy")
        return self.read() if dtype is None else self.read().astype(dtype, copy=False)

    def __repr__(self) -> str:
        url = f"{self.source.store.url}/{self.path}".rstrip("/")
        what = f"shape={self.shape} dtype={self.dtype} on {self.device}"
        return f"<gpushard.Array {url} {what}>"

    def __reduce__(self) -> tuple[Callable[..., Array], tuple[Any, ...]]:
        source = self.source
        known = address(source.store)
        if known is None:
            raise UnsupportedError(
                "the array lies in a store that cannot be opened by another process",
                array_path=self.path,
                hint="open it from a path or a URL",
            )
        return _reopen, (known, self.path, self.device, source.options)

    def _dtype(self, dtype: DTypeLike | None) -> np.dtype[Any]:
        try:
            return self.dtype if dtype is None else np.dtype(dtype)
        except TypeError as error:
            raise SelectionError(
                "dtype= is no data type", array_path=self.path, got=repr(dtype)
            ) from error

    def _selection(self, selection: Any) -> Selection:
        if isinstance(selection, Orthogonal | Points):
            return selection
        return self._parsed(lambda key: expressions.basic(key, self.shape), selection)

    def _parsed(self, parse: Callable[[Any], Selection], key: Any) -> Selection:
        try:
            return parse(key)
        except GpushardError as error:
            error.add_context(store_url=self.source.store.url, array_path=self.path)
            raise

    def _read(self, request: ReadRequest, memory_limit: int | None = None) -> list[Any]:
        source = self.source.limited(memory_limit)
        try:
            if self._device is None:
                return read_on_host(source, request)
            from gpushard.devices.results import read_on_device

            return read_on_device(source, request, self._device)
        except GpushardError as error:
            error.add_context(store_url=source.store.url, array_path=self.path)
            raise

    def _placements(self) -> tuple[CodecPlacement, ...]:
        if self._device is None:
            return self.source.pipeline.placements()
        from gpushard.devices.reading import placements

        return placements(self.source, self._device)


def _check_errors(errors: str) -> None:
    if errors != "raise":
        raise UnsupportedError(
            "this version can only raise on damage",
            expected="errors='raise'",
            got=repr(errors),
        )


def _reopen(known: StoreAddress, path: str, device: str, options: Options) -> Array:
    source = _prepared(from_address(known), path, options)
    return Array(source, find_device(device))
