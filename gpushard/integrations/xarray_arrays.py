"""Arrays for xarray, which are read, and on a device also decoded, when indexed."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xarray.backends import BackendArray
from xarray.core import indexing

from gpushard.array import Array
from gpushard.damage import ENDS_READ
from gpushard.errors import GpushardError
from gpushard.integrations.xarray_points import read_points
from gpushard.placing.outputs import new_output
from gpushard.reading.joined import ArrayRead, read_joined
from gpushard.report import Tally
from gpushard.selecting import expressions
from gpushard.selecting.selection import whole
from gpushard.threads.stop_flag import StopFlag, call_for

FILL_VALUES = ("_FillValue", "missing_value")
"""Attributes that name packed values of missing elements."""

# From its first coordinates on, xarray may take so long to open a dataset. Who reads a
# coordinate later gets what the store has then.
_OPENING_S = 10


class _Awaitable(BackendArray):
    """Base of arrays that ``load_async`` reads, too."""

    @abstractmethod
    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any: ...

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        """As indexing, in another thread, so that the event loop goes on."""
        stop = StopFlag()
        try:
            return await asyncio.to_thread(call_for, stop, lambda: self[key])
        except asyncio.CancelledError:
            stop.set()  # else the loop could not end before the requests do
            raise


class LazyArray(_Awaitable):
    """An array in the form that xarray wants of a backend; indexing reads it.

    A pickle has only its address.
    """

    def __init__(self, array: Array) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype = array.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        if isinstance(key, indexing.VectorizedIndexer):
            return read_points(self.array, key.tuple)
        return self.array.read(expressions.orthogonal(key.tuple, self.shape))


class Coordinates:
    """Short coordinates of a dataset: the first read of one reads all of them.

    xarray reads them one after the other when it opens a dataset, and over a network
    would wait for each.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._unread = dict(arrays)
        self._values: dict[str, NDArray[Any]] = {}
        self._ended_at_s = 0.0

    def values(self, name: str) -> NDArray[Any] | None:
        """All elements of a coordinate; None if it has to be read alone."""
        # Without a lock: who comes while another thread reads them reads its own.
        unread, self._unread = self._unread, {}
        if unread:
            # If one cannot be read, each tells so itself.
            with suppress(GpushardError):
                self._values.update(_read_together(unread))
            self._ended_at_s = monotonic()
        elif monotonic() > self._ended_at_s + _OPENING_S:
            self._values.clear()
        return self._values.get(name)

    def drop(self, name: str) -> None:
        """Forget a coordinate that was read whole: later reads are of the store."""
        self._values.pop(name, None)


def _read_together(arrays: Mapping[str, Array]) -> dict[str, NDArray[Any]]:
    """All elements of some arrays, by name."""
    selected = {name: whole(array.shape) for name, array in arrays.items()}
    values = {n: new_output(a.shape, a.dtype) for n, a in arrays.items()}
    reads = [ArrayRead(a.source, [selected[n]], [values[n]]) for n, a in arrays.items()]
    read_joined(reads, Tally(), ENDS_READ)
    return values


class CoordinateArray(LazyArray):
    """One of some coordinates that are read together."""

    def __init__(self, name: str, array: Array, coordinates: Coordinates) -> None:
        super().__init__(array)
        self._name = name
        self._coordinates = coordinates

    def __reduce__(self) -> tuple[type[LazyArray], tuple[Array]]:
        return LazyArray, (self.array,)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        values = self._coordinates.values(self._name)
        if values is None:
            return super().__getitem__(key)
        (chosen,) = key.tuple
        if isinstance(chosen, slice) and len(values[chosen]) == len(values):
            self._coordinates.drop(self._name)
        return values[chosen].copy()


@dataclass(frozen=True)
class CfDecoding:
    """How packed values become physical ones (CF conventions 1.11, 2.5.1 and 8.1).

    Attributes
    ----------
    fill_values
        Values of `dtype` that mean a missing value.
    scale_factor, add_offset
        A physical value is the packed one times `scale_factor` plus `add_offset`; None
        if not given.
    """

    dtype: np.dtype[Any]
    fill_values: tuple[np.generic, ...]
    scale_factor: Any
    add_offset: Any

    @classmethod
    def of(cls, dtype: np.dtype[Any], encoding: Mapping[str, Any]) -> CfDecoding:
        """Decoding to `dtype`, from a variable's encoding as xarray keeps it."""
        given = [encoding.get(name) for name in FILL_VALUES]
        fills = tuple(v for g in given if g is not None for v in _elements(g, dtype))
        factor, offset = (
            None if v is None else np.asarray(v).item()
            for v in map(encoding.get, ("scale_factor", "add_offset"))
        )
        return cls(dtype, fills, factor, offset)

    def changes(self, dtype: np.dtype[Any]) -> bool:
        """Whether there is anything to decode in values of `dtype`."""
        given = (self.scale_factor, self.add_offset)
        packs = bool(self.fill_values) or any(g is not None for g in given)
        return packs or dtype != self.dtype

    def decoded(self, packed: Any) -> Any:
        """Physical values, on the device of `packed`, without a copy to the host."""
        physical = packed.astype(self.dtype)
        missing = complex(np.nan, np.nan) if self.dtype.kind == "c" else np.nan
        for fill in self.fill_values:
            physical[physical == fill] = missing
        if self.scale_factor is not None:
            physical *= self.scale_factor
        if self.add_offset is not None:
            physical += self.add_offset
        return physical


def _elements(given: Any, dtype: np.dtype[Any]) -> Iterator[np.generic]:
    """Fill values that elements of `dtype` can equal where NumPy compares them.

    As elements, because CuPy would compare a Python number in another precision.
    """
    for value in np.ravel(given).tolist():
        exact = np.asarray(value)
        if np.can_cast(exact.dtype, dtype, "same_kind"):
            with np.errstate(over="ignore"):
                element = exact.astype(dtype)
            if element == exact:
                yield dtype.type(element)


class DecodedArray(_Awaitable):
    """A lazy array on a device, decoded there: xarray's decoding needs NumPy."""

    def __init__(self, packed: LazyArray, decoding: CfDecoding) -> None:
        self.packed = packed
        self.decoding = decoding
        self.shape = packed.shape
        self.dtype = decoding.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return self.decoding.decoded(self.packed[key])
