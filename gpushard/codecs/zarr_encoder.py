"""Inner chunks -> bytes, through zarr's own codec objects."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from zarr.core.buffer import cpu
from zarr.core.sync import sync

from gpushard.codecs.bytes import stored_elements
from gpushard.codecs.zarr_objects import (
    codec_object,
    elements_spec,
    encoded_spec,
    fit,
)
from gpushard.errors import UnsupportedError
from gpushard.layout import CodecChain, CodecSpec, Elements
from gpushard.options import KIB
from gpushard.workers import run_side_by_side

Bytes = NDArray[np.uint8]

# A smaller array is encoded before another thread has begun.
_LARGE_NBYTES = 64 * KIB


class _Step(NamedTuple):
    """One codec, fitted to the arrays that it gets.

    Attributes
    ----------
    codec
        zarr's object; None for structs, which become their bytes in `stored` form.
    array
        What it gets.
    """

    spec: CodecSpec
    codec: Any
    array: Any
    stored: np.dtype[Any] | None

    @property
    def runs_here(self) -> bool:
        """Whether the codec can encode in the calling thread, without an event loop.

        From zarr 3.2 on most codecs can (`zarr.abc.codec.SupportsSyncCodec`).
        """
        can = hasattr(self.codec, "_encode_sync")
        return self.codec is None or (
            can and getattr(self.codec, "_sync_capable", True)
        )

    def encode_here(self, item: Any) -> Any:
        """One buffer, encoded in the calling thread; None stays None."""
        if item is None:
            return None
        if self.codec is None:
            return _plain_bytes(item, self.stored)
        with _encoding(self.spec):
            return self.codec._encode_sync(self._readied(item), self.array)  # noqa: SLF001 - the protocol names it so

    def encode(self, batch: list[Any]) -> list[Any]:
        """Buffers, encoded together in zarr's threads."""
        if self.codec is None:
            return [_plain_bytes(item, self.stored) for item in batch]
        pairs = [(self._readied(item), self.array) for item in batch]
        with _encoding(self.spec):
            return list(sync(self.codec.encode(pairs)))

    def _readied(self, item: Any) -> Any:
        is_numcodecs = self.spec.name.startswith("numcodecs.")
        return _in_c_order(item) if is_numcodecs else item


class ZarrEncoder:
    """A codec chain, ready to encode arrays.

    The encoder may be called from several threads at once. Structs become bytes here,
    because zarr does not know all structs of Zarr v2, and does not give each field its
    byte order.
    """

    def __init__(self, chain: CodecChain, elements: Elements) -> None:
        self._specs = (*chain.array_array, chain.array_bytes, *chain.bytes_bytes)
        self._struct: np.dtype[Any] | None = None
        if elements.dtype.names is not None and chain.array_bytes.name == "bytes":
            stored = stored_elements(chain.array_bytes, elements.dtype)
            self._struct = stored.view_dtype
            elements = replace(elements, data_type_json=_opaque(elements.dtype))
        self._codecs = tuple(
            None
            if self._struct is not None and spec is chain.array_bytes
            else codec_object(spec)
            for spec in self._specs
        )
        self._array = elements_spec(chain.array_bytes, elements)
        self._fitted: tuple[tuple[int, ...], list[_Step]] = ((), [])

    def encode(
        self, arrays: Sequence[NDArray[Any]], n_threads: int = 1
    ) -> list[Bytes | None]:
        """Bytes of each array, all of one shape; None if a codec stores nothing.

        Parameters
        ----------
        n_threads
            Threads that encode large arrays, where the codecs need no event loop.
            Otherwise zarr encodes the arrays in threads of its own.

        Returns
        -------
        list of uint8, shape (n_bytes,), host. May be views on the arrays.

        Raises
        ------
        UnsupportedError
            A codec cannot encode these values.
        """
        if not arrays:
            return []
        steps = self._steps(arrays[0].shape)
        if all(step.runs_here for step in steps):
            is_large = arrays[0].nbytes >= _LARGE_NBYTES
            encode = partial(_encoded_here, steps)
            return run_side_by_side(encode, arrays, n_threads if is_large else 1)
        data: list[Any] = [cpu.NDBuffer.from_numpy_array(array) for array in arrays]
        for step in steps:
            data = step.encode(data)
        return [None if item is None else as_bytes(item) for item in data]

    def _steps(self, shape: tuple[int, ...]) -> list[_Step]:
        """The codecs, fitted to arrays of a shape: as a rule, of the last one."""
        fitted_shape, steps = self._fitted
        if steps and fitted_shape == shape:
            return steps
        steps, array = [], replace(self._array, shape=shape)
        for spec, unfitted in zip(self._specs, self._codecs, strict=True):
            codec = None if unfitted is None else fit(spec, unfitted, array)
            steps.append(_Step(spec, codec, array, self._struct))
            if codec is not None:
                array = encoded_spec(spec, codec, array)
        self._fitted = shape, steps
        return steps


def _encoded_here(steps: Sequence[_Step], array: NDArray[Any]) -> Bytes | None:
    item: Any = cpu.NDBuffer.from_numpy_array(array)
    for step in steps:
        item = step.encode_here(item)
    return None if item is None else as_bytes(item)


def encode_bytes(specs: Sequence[CodecSpec], data: Bytes) -> Bytes:
    """`data` through bytes-to-bytes codecs, in encoding order."""
    byte = Elements(np.dtype(np.uint8), "uint8", 0, np.zeros((), np.uint8))
    stored: Any = data  # zarr's ArrayLike is narrower
    buffer: Any = cpu.Buffer.from_array_like(stored)
    for spec in specs:
        array = replace(elements_spec(spec, byte), shape=(1,))
        codec = fit(spec, codec_object(spec), array)
        (buffer,) = _Step(spec, codec, array, None).encode([buffer])
    return as_bytes(buffer)


def as_bytes(buffer: Any) -> Bytes:
    """Bytes of a zarr buffer."""
    array = np.ascontiguousarray(buffer.as_numpy_array())
    return array.reshape(-1).view(np.uint8)


def _opaque(dtype: np.dtype[Any]) -> Any:
    """Plain data type of the same size, which hides a struct from codecs."""
    configuration = {"length_bytes": dtype.itemsize}
    return {"name": "raw_bytes", "configuration": configuration}


def _plain_bytes(item: Any, stored: np.dtype[Any] | None) -> Any:
    """Buffer of elements in stored form, one after the other in C order."""
    elements = np.ascontiguousarray(item.as_numpy_array(), stored)
    data: Any = elements.reshape(-1).view(np.uint8)  # zarr's ArrayLike is narrower
    return cpu.Buffer.from_array_like(data)


def _in_c_order(item: Any) -> Any:
    """Elements in C order; numcodecs assumes it without looking at the layout."""
    if item is None or not isinstance(item, cpu.NDBuffer):
        return item
    array = item.as_numpy_array()
    if array.flags.c_contiguous:
        return item
    return cpu.NDBuffer.from_numpy_array(array.copy(order="C"))


@contextmanager
def _encoding(spec: CodecSpec) -> Generator[None]:
    """Say of any error of the block that the codec cannot encode the values."""
    try:
        yield
    except Exception as error:
        raise UnsupportedError(
            f"the values cannot be encoded, zarr's codec says: {error}",
            codec=spec.name,
            json_path=spec.json_path,
            hint="check that the values fit the array's codecs",
        ) from error
