"""Inner chunks -> bytes, by compressors' own functions or zarr's codec objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from zarr.core.buffer import cpu
from zarr.core.sync import sync

from gpushard.codecs.bytes import stored_elements
from gpushard.codecs.compressing import compressor
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
        zarr's object; None for structs, which become their bytes.
    array
        What it gets.
    own
        Function that encodes without zarr's object; None if there is none.
    takes_bytes
        Whether it gets bytes, not elements.
    """

    spec: CodecSpec
    codec: Any
    array: Any
    own: Callable[[NDArray[Any]], NDArray[Any]] | None
    takes_bytes: bool

    @property
    def runs_here(self) -> bool:
        """Whether the codec can encode in the calling thread, without an event loop.

        From zarr 3.2 on most codecs can (`zarr.abc.codec.SupportsSyncCodec`).
        """
        can = hasattr(self.codec, "_encode_sync")
        return self.own is not None or (
            can and getattr(self.codec, "_sync_capable", True)
        )

    def encode_here(self, item: NDArray[Any]) -> NDArray[Any] | None:
        """One array, encoded in the calling thread; None if nothing is stored."""
        try:
            if self.own is not None:
                return self.own(item)
            encoded = self.codec._encode_sync(self._buffer(item), self.array)  # noqa: SLF001 - the protocol names it so
        except Exception as error:
            raise self._refused(error) from error
        return None if encoded is None else encoded.as_numpy_array()

    def encode(self, batch: list[NDArray[Any] | None]) -> list[NDArray[Any] | None]:
        """Arrays, encoded together in zarr's threads; None stays None."""
        try:
            if self.own is not None:
                return [None if item is None else self.own(item) for item in batch]
            pairs = [
                (None if item is None else self._buffer(item), self.array)
                for item in batch
            ]
            encoded = sync(self.codec.encode(pairs))
        except Exception as error:
            raise self._refused(error) from error
        return [None if one is None else one.as_numpy_array() for one in encoded]

    def _buffer(self, item: Any) -> Any:
        if self.takes_bytes:
            data: Any = as_bytes(item)  # zarr's ArrayLike is narrower
            return cpu.Buffer.from_array_like(data)
        # numcodecs assumes C order without looking at the layout.
        if self.spec.name.startswith("numcodecs."):
            item = np.asarray(item, order="C")
        return cpu.NDBuffer.from_numpy_array(item)

    def _refused(self, error: Exception) -> UnsupportedError:
        return UnsupportedError(
            f"the values cannot be encoded, the codec says: {error}",
            codec=self.spec.name,
            json_path=self.spec.json_path,
            hint="check that the values fit the array's codecs",
        )


class ChainEncoder:
    """A codec chain, ready to encode arrays.

    The encoder may be called from several threads at once. Structs become bytes here,
    because zarr does not know all structs of Zarr v2, and does not give each field its
    byte order.
    """

    def __init__(self, chain: CodecChain, elements: Elements) -> None:
        self._specs = (*chain.array_array, chain.array_bytes, *chain.bytes_bytes)
        self._n_array_array = len(chain.array_array)
        self._struct: np.dtype[Any] | None = None
        if elements.dtype.names is not None and chain.array_bytes.name == "bytes":
            self._struct = elements.dtype
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
        if not len(arrays):
            return []
        steps = self._steps(arrays[0].shape)
        if all(step.runs_here for step in steps):
            is_large = arrays[0].nbytes >= _LARGE_NBYTES
            encode = partial(_encoded_here, steps)
            return run_side_by_side(encode, arrays, n_threads if is_large else 1)
        data: list[NDArray[Any] | None] = list(arrays)
        for step in steps:
            data = step.encode(data)
        return [None if item is None else as_bytes(item) for item in data]

    def _steps(self, shape: tuple[int, ...]) -> list[_Step]:
        """The codecs, fitted to arrays of a shape: as a rule, of the last one."""
        fitted_shape, steps = self._fitted
        if steps and fitted_shape == shape:
            return steps
        steps, array = [], replace(self._array, shape=shape)
        for i, (spec, unfitted) in enumerate(
            zip(self._specs, self._codecs, strict=True)
        ):
            codec: Any = None if unfitted is None else fit(spec, unfitted, array)
            own = None
            if i > self._n_array_array:
                own = compressor(spec, codec.to_dict().get("configuration", {}))
            elif i == self._n_array_array and spec.name == "bytes":
                own = _to_bytes(spec, self._struct or array.dtype.to_native_dtype())
            steps.append(_Step(spec, codec, array, own, i > self._n_array_array))
            if codec is not None:
                array = encoded_spec(spec, codec, array)
        self._fitted = shape, steps
        return steps


def _encoded_here(steps: Sequence[_Step], array: NDArray[Any]) -> Bytes | None:
    item: NDArray[Any] | None = array
    for step in steps:
        if item is None:
            return None
        item = step.encode_here(item)
    return None if item is None else as_bytes(item)


def encode_bytes(specs: Sequence[CodecSpec], data: Bytes) -> Bytes:
    """`data` through bytes-to-bytes codecs, in encoding order."""
    byte = Elements(np.dtype(np.uint8), "uint8", 0, np.zeros((), np.uint8))
    encoded: NDArray[Any] | None = data
    for spec in specs:
        array = replace(elements_spec(spec, byte), shape=(1,))
        codec = fit(spec, codec_object(spec), array)
        (encoded,) = _Step(spec, codec, array, None, True).encode([encoded])
    if encoded is None:
        raise AssertionError("an object of no bytes")  # bytes are always stored
    return as_bytes(encoded)


def as_bytes(array: NDArray[Any]) -> Bytes:
    """The elements of an array one after the other, in C order."""
    flat: NDArray[Any] = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8)


def _opaque(dtype: np.dtype[Any]) -> Any:
    """Plain data type of the same size, which hides a struct from codecs."""
    configuration = {"length_bytes": dtype.itemsize}
    return {"name": "raw_bytes", "configuration": configuration}


def _to_bytes(
    spec: CodecSpec, dtype: np.dtype[Any]
) -> Callable[[NDArray[Any]], Bytes] | None:
    """The codec "bytes" for elements of `dtype`; None if NumPy has no such cast."""
    stored = stored_elements(spec, dtype)
    if not stored.is_castable or not dtype.itemsize:
        return None

    def encode(array: NDArray[Any]) -> Bytes:
        return as_bytes(np.ascontiguousarray(array, stored.view_dtype))

    return encode
