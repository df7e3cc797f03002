"""Libraries that read an array beside gpushard, as far as they are installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NamedTuple
from warnings import catch_warnings, filterwarnings

import numpy as np
from numpy.typing import NDArray

import gpushard
from gpushard.array import Array
from gpushard.cli.comparison import read_by_zarr, zarr_array
from gpushard.errors import UnsupportedError
from gpushard.stores.local.store import LocalStore

Key = tuple[Any, ...]


class Contender(NamedTuple):
    """A library that has opened the array.

    It reads a key: a basic index, or an integer array for the first axis.
    """

    name: str
    version: str
    read: Callable[[Key], NDArray[Any]]


def open_contenders(array: Array) -> list[Contender]:
    """Gpushard, then zarr-python, then other libraries that can open the array."""
    found = [Contender("gpushard", gpushard.__version__, _indexing(array))]
    for open_one in (_zarr, _zarrs, _tensorstore):
        contender = open_one(array)
        if contender is not None:
            found.append(contender)
    return found


def _indexing(array: Any) -> Callable[[Key], NDArray[Any]]:
    def read(key: Key) -> NDArray[Any]:
        is_orthogonal = any(isinstance(item, np.ndarray) for item in key)
        return np.asarray(array.oindex[key] if is_orthogonal else array[key])

    return read


def _zarr(array: Array) -> Contender:
    return Contender("zarr-python", version("zarr"), _opened_by_zarr(array))


def _opened_by_zarr(array: Array, **pipeline: str) -> Callable[[Key], NDArray[Any]]:
    """Function that reads through zarr-python; raises if that is not possible."""
    source = array.source
    try:
        handle = zarr_array(source.store, source.layout.path, **pipeline)
    except UnsupportedError as error:
        return _failing_with(error)
    return read_by_zarr()(_indexing(handle))


def _failing_with(error: Exception) -> Callable[[Key], NDArray[Any]]:
    """Function that raises the error for which a library cannot open the array."""

    def refuse(_: Key) -> NDArray[Any]:
        raise error

    return refuse


def _zarrs(array: Array) -> Contender | None:
    try:
        import zarrs  # noqa: F401 - registers its pipeline with zarr
    except ImportError:
        return None
    with catch_warnings():
        # zarrs warns, and hands every read to zarr-python's own pipeline.
        filterwarnings("error", "Array is unsupported by ZarrsCodecPipeline")
        read = _opened_by_zarr(array, pipeline="zarrs.ZarrsCodecPipeline")
    return Contender("zarrs", version("zarrs"), read)


def _tensorstore(array: Array) -> Contender | None:
    store = array.source.store
    if not isinstance(store, LocalStore):
        return None
    try:
        import tensorstore
    except ImportError:
        return None
    path = f"{store.root}/{array.source.layout.path}".rstrip("/")
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
    number = version("tensorstore")
    try:
        handle: Any = tensorstore.open(spec, read=True).result()
    except Exception as error:  # noqa: BLE001 - it may raise anything
        return Contender("tensorstore", number, _failing_with(error))
    if handle.rank != array.ndim:  # it makes an axis of an element's raw bytes
        return None

    def read(key: Key) -> NDArray[Any]:
        is_orthogonal = any(isinstance(item, np.ndarray) for item in key)
        return (handle.oindex[key] if is_orthogonal else handle[key]).read().result()

    return Contender("tensorstore", number, read)
