"""Inner chunks -> bytes, through zarr's own codec objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

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

Bytes = NDArray[np.uint8]


class ZarrEncoder:
    """A codec chain, ready to encode arrays.

    zarr runs the codecs of a batch in parallel in its own threads. The encoder may be
    called from several threads at once. Structs become bytes here, because zarr does
    not know all structs of Zarr v2, and does not give each field its byte order.
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

    def encode(self, arrays: Sequence[NDArray[Any]]) -> list[Bytes | None]:
        """Bytes of each array, all of one shape; None if a codec stores nothing.

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
        spec = replace(self._array, shape=arrays[0].shape)
        data: list[Any] = [cpu.NDBuffer.from_numpy_array(array) for array in arrays]
        for codec_spec, unfitted in zip(self._specs, self._codecs, strict=True):
            if unfitted is None:
                data = [_plain_bytes(item, self._struct) for item in data]
                continue
            codec = fit(codec_spec, unfitted, spec)
            if codec_spec.name.startswith("numcodecs."):
                data = [_in_c_order(item) for item in data]
            data = _encoded(codec_spec, codec, [(item, spec) for item in data])
            spec = encoded_spec(codec_spec, codec, spec)
        return [None if item is None else as_bytes(item) for item in data]


def encode_bytes(specs: Sequence[CodecSpec], data: Bytes) -> Bytes:
    """`data` through bytes-to-bytes codecs, in encoding order."""
    byte = Elements(np.dtype(np.uint8), "uint8", 0, np.zeros((), np.uint8))
    stored: Any = data  # zarr's ArrayLike is narrower
    buffer: Any = cpu.Buffer.from_array_like(stored)
    for spec in specs:
        array = replace(elements_spec(spec, byte), shape=(1,))
        codec = fit(spec, codec_object(spec), array)
        (buffer,) = _encoded(spec, codec, [(buffer, array)])
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


def _encoded(spec: CodecSpec, codec: Any, batch: list[tuple[Any, Any]]) -> list[Any]:
    try:
        return list(sync(codec.encode(batch)))
    except Exception as error:
        raise UnsupportedError(
            f"the values cannot be encoded, zarr's codec says: {error}",
            codec=spec.name,
            json_path=spec.json_path,
            hint="check that the values fit the array's codecs",
        ) from error
