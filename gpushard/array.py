"""`Array`: a stored array that reads like a NumPy one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpushard import expressions
from gpushard.errors import SelectionError, UnsupportedError
from gpushard.job import Job
from gpushard.metadata import load_array
from gpushard.options import DEFAULT, Options
from gpushard.outputs import usable_output
from gpushard.place import HostSink
from gpushard.plan import plan_read
from gpushard.read import execute
from gpushard.report import ReadReport, Tally
from gpushard.scatter import check_cast, make_target
from gpushard.selection import Orthogonal, Points, Selection
from gpushard.small import read_small
from gpushard.source import Source
from gpushard.stores.resolve import StoreAddress, address, from_address, resolve

if TYPE_CHECKING:
    from zarr import Array as ZarrArray
    from zarr.abc.store import Store as ZarrStore

    Target = str | Path | ZarrStore | ZarrArray[Any]


def open_array(
    store: Target,
    path: str = "",
    *,
    device: str = "auto",
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
        Where inner chunks are decoded and results lie: "auto" or "cpu". This version
        has no GPU path.
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
    device = check_device(device)
    opened, place = resolve(store, path, options, storage_options)
    layout = load_array(opened, place, options)
    return Array(Source.prepare(layout, opened, options), device)


def check_device(device: str) -> str:
    """Device that a request for `device` gives.

    Raises
    ------
    UnsupportedError
        It is not there.
    """
    if device in ("auto", "cpu"):
        return "cpu"
    raise UnsupportedError(
        "this version reads on the CPU only",
        expected="device 'auto' or 'cpu'",
        got=repr(device),
        hint="leave device= away and copy the result to the device",
    )


class Array:
    """A stored array; reading parts of it gives NumPy arrays.

    Made by `open_array` and by groups. Safe to read from several threads. Pickles as
    an address: the other process opens it anew.

    Parameters
    ----------
    source
        The array ready to be read.
    device
        Where it is decoded.
    """

    def __init__(self, source: Source, device: str = "cpu") -> None:
        self._source = source
        self.device = device

    @property
    def path(self) -> str:
        """Path of the array in its store; "" is the root."""
        return self._source.layout.path

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self._source.layout.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._source.layout.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._source.layout.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the elements, in native byte order."""
        return self._source.layout.dtype

    @property
    def nbytes(self) -> int:
        """Size of all elements in memory, in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """Inner chunk shape in elements; None if the grid is rectilinear."""
        return self._source.layout.chunks

    @property
    def shards(self) -> tuple[int, ...] | None:
        """Shard shape in elements; None if not sharded or rectilinear."""
        return self._source.layout.shards

    @property
    def fill_value(self) -> Any:
        """What missing inner chunks hold, as a scalar of `dtype`."""
        return self._source.layout.fill_value[()]

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The array's attributes."""
        return self._source.layout.attributes

    @property
    def dimension_names(self) -> tuple[str | None, ...] | None:
        """Names of the axes, where they have any."""
        return self._source.layout.dimension_names

    @property
    def oindex(self) -> Indexer:
        """Orthogonal indexing: ``a.oindex[[0, 5], :, mask]``."""
        return Indexer(self.read, lambda key: expressions.orthogonal(key, self.shape))

    @property
    def vindex(self) -> Indexer:
        """Indexing by coordinates or a mask: ``a.vindex[[0, 5], [1, 2]]``."""
        return Indexer(self.read, lambda key: expressions.points(key, self.shape))

    @property
    def blocks(self) -> Indexer:
        """Indexing by shard: ``a.blocks[0, 2:4]`` (by chunk if not sharded)."""
        axes = self._source.layout.axes
        return Indexer(self.read, lambda key: expressions.blocks(key, axes))

    def __getitem__(self, key: Any) -> Any:
        """Elements that `key` selects, by NumPy's rules; see `expressions.basic`."""
        return Indexer(self.read, self._selection)[key]

    def read(
        self,
        selection: Any = ...,
        *,
        out: Any = None,
        dtype: DTypeLike | None = None,
        memory_limit: int | None = None,
    ) -> NDArray[Any]:
        """Elements that `selection` selects, in your array or a new one.

        Parameters
        ----------
        selection
            Key as in ``a[key]``.
        out
            Array on the host to write into, of the selection's shape and any strides:
            NumPy's or anything that shares its memory with NumPy (a torch tensor).
        dtype
            Data type of the result where `out` is not given; values are cast on the
            way. Casts that change the kind of number (float to int) are refused.
        memory_limit
            Bytes of staging this read may hold, instead of the option's.

        Returns
        -------
        ndarray of the selection's shape, host; `out` itself if it was given.

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
        chosen = self._selection(selection)
        return self._read([chosen], [out], dtype, memory_limit)[0]

    def read_many(
        self,
        selections: Sequence[Any],
        *,
        out: Sequence[Any] | None = None,
        dtype: DTypeLike | None = None,
        memory_limit: int | None = None,
    ) -> list[NDArray[Any]]:
        """One result a selection, all read in one batch.

        An inner chunk that several selections want is fetched and decoded once.

        Parameters
        ----------
        selections
            Keys as in ``a[key]``.
        out
            One array a selection, or None; see `read`.
        dtype, memory_limit
            See `read`.
        """
        chosen = [self._selection(selection) for selection in selections]
        outs: Sequence[Any] = [None] * len(chosen) if out is None else out
        if len(outs) != len(chosen):
            raise SelectionError(
                "out= needs one array a selection", expected=len(chosen), got=len(outs)
            )
        return self._read(chosen, outs, dtype, memory_limit) if chosen else []

    def explain(self, selection: Any = ...) -> ReadReport:
        """What reading `selection` takes; the read is done and its result dropped.

        Parameters
        ----------
        selection
            Key as in ``a[key]``.
        """
        chosen = self._selection(selection)
        tally = Tally()
        out = np.empty(chosen.shape, self.dtype)
        with tally.stage("total"):
            with tally.stage("plan"):
                job = self.job([chosen], [out], None, tally)
            execute([job])
        return tally.report(
            array=self.path,
            device=self.device,
            out_nbytes=out.nbytes,
            codecs=self._source.pipeline.placements(),
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
        url = f"{self._source.store.url}/{self.path}".rstrip("/")
        what = f"shape={self.shape} dtype={self.dtype} on {self.device}"
        return f"<gpushard.Array {url} {what}>"

    def __reduce__(self) -> tuple[Callable[..., Array], tuple[Any, ...]]:
        source = self._source
        known = address(source.store)
        if known is None:
            raise UnsupportedError(
                "the array lies in a store that cannot be opened by another process",
                array_path=self.path,
                hint="open it from a path or a URL",
            )
        return _reopen, (known, self.path, self.device, source.options)

    def _selection(self, selection: Any) -> Selection:
        if isinstance(selection, Orthogonal | Points):
            return selection
        return expressions.basic(selection, self.shape)

    def _read(
        self,
        selections: Sequence[Selection],
        outs: Sequence[Any],
        dtype: DTypeLike | None,
        memory_limit: int | None,
    ) -> list[NDArray[Any]]:
        wanted = self.dtype if dtype is None else np.dtype(dtype)
        arrays = [
            usable_output(out, selection.shape, wanted)
            for out, selection in zip(outs, selections, strict=True)
        ]
        for array in arrays:
            check_cast(self.dtype, array.dtype)
        first = selections[0]
        if (
            len(selections) > 1
            or not isinstance(first, Orthogonal)
            or not read_small(self._source, first, arrays[0])
        ):
            execute([self.job(selections, arrays, memory_limit, Tally())])
        return [a if o is None else o for a, o in zip(arrays, outs, strict=True)]

    def job(
        self,
        selections: Sequence[Selection],
        outs: Sequence[NDArray[Any]],
        memory_limit: int | None,
        tally: Tally,
    ) -> Job:
        """Job that reads `selections` into `outs`, for a batch of several arrays."""
        source = self._source.limited(memory_limit)
        plan = plan_read(source.layout, selections)
        targets = tuple(
            make_target(part, out) for part, out in zip(plan.parts, outs, strict=True)
        )
        return Job(source, plan, targets, HostSink(), tally)


class Indexer:
    """``a.oindex`` and its like: an array read through another kind of index.

    Parameters
    ----------
    read
        What reads a selection.
    parse
        What makes a selection of the key.
    """

    def __init__(
        self,
        read: Callable[[Selection], NDArray[Any]],
        parse: Callable[[Any], Selection],
    ) -> None:
        self._read = read
        self._parse = parse

    def __getitem__(self, key: Any) -> Any:
        selection = self._parse(key)
        result = self._read(selection)
        return result[()] if selection.scalar else result


def _reopen(known: StoreAddress, path: str, device: str, options: Options) -> Array:
    store = from_address(known)
    layout = load_array(store, path, options)
    return Array(Source.prepare(layout, store, options), device)
