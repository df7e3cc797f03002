"""Array-to-array codecs that gpushard knows, and the `bytes` codec after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard import codecs
from gpushard.codecs.base import ArrayCodec, HostBytes, library_label
from gpushard.codecs.bytes import StoredElements, stored_elements
from gpushard.codecs.transpose import TransposeCodec
from gpushard.layout import CodecChain

_ArrayStep = tuple[Callable[..., NDArray[Any]], tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class ElementsPart:
    """The `bytes` codec, after array-to-array codecs that gpushard knows.

    Attributes
    ----------
    dtype
        Data type of the decoded elements.
    codecs
        The array-to-array codecs, in encoding order.
    elements
        How the bytes are viewed as the output of the last of these codecs.
    """

    dtype: np.dtype[Any]
    codecs: tuple[ArrayCodec, ...]
    elements: StoredElements

    @property
    def has_filters(self) -> bool:
        """Whether decoding changes elements, not only their order."""
        return not all(codec.keeps_elements for codec in self.codecs)

    @property
    def axis_order(self) -> tuple[int, ...] | None:
        """Chain axis of each stored axis; None if there is no transpose."""
        axes: tuple[int, ...] | None = None
        for codec in self._transposes:
            order = codec.order
            axes = order if axes is None else tuple(axes[axis] for axis in order)
        return axes

    @property
    def _transposes(self) -> list[TransposeCodec]:
        return [codec for codec in self.codecs if isinstance(codec, TransposeCodec)]

    def encoded_nbytes(self, shape: tuple[int, ...]) -> int:
        """Encoded size of an inner chunk of `shape`."""
        dtype = self.dtype
        for codec in self.codecs:
            shape, dtype = codec.encoded_spec(shape, dtype)
        return prod(shape) * dtype.itemsize

    def working_nbytes(self, shape: tuple[int, ...]) -> int:
        """Memory that decoding an inner chunk of `shape` takes besides its bytes."""
        dtype, nbytes = self.dtype, 0
        for codec in self.codecs:
            nbytes += codec.working_nbytes(prod(shape), dtype)
            shape, dtype = codec.encoded_spec(shape, dtype)
        # Filters take native elements in C order, so others are copied first.
        is_copied = bool(self._transposes) or not self.elements.view_dtype.isnative
        return nbytes + is_copied * self.has_filters * prod(shape) * dtype.itemsize

    def decoder(self, shape: tuple[int, ...]) -> Callable[[HostBytes], NDArray[Any]]:
        """Function from bytes of the right size to an inner chunk of `shape`."""
        dtype = self.dtype
        steps: list[_ArrayStep] = []
        for codec in self.codecs:
            steps.append((codec.decode, shape, dtype))
            shape, dtype = codec.encoded_spec(shape, dtype)
        view = partial(self.elements.view, shape=shape)
        if not steps:
            return view
        steps.reverse()
        native = dtype if self.has_filters else None
        return partial(_decode_steps, view=view, native=native, steps=steps)

    @property
    def labels(self) -> list[tuple[str, str]]:
        """Name and library of each codec, in encoding order."""
        before = [(codec.name, codec.library) for codec in self.codecs]
        return [*before, ("bytes", library_label("numpy"))]


def _decode_steps(
    encoded: HostBytes,
    *,
    view: Callable[[HostBytes], NDArray[Any]],
    native: np.dtype[Any] | None,
    steps: Sequence[_ArrayStep],
) -> NDArray[Any]:
    array = view(encoded)
    if native is not None:  # filters compute in native byte order
        array = array.astype(native, copy=False)
    for decode, shape, dtype in steps:
        array = decode(array, shape, dtype)
    return array


def compile_elements(chain: CodecChain, dtype: np.dtype[Any]) -> ElementsPart | None:
    """Array part of a chain; None if it needs a codec that only zarr has."""
    if chain.array_bytes.name != "bytes":
        return None
    array_codecs: list[ArrayCodec] = []
    encoded_dtype = dtype
    for spec in chain.array_array:
        codec = codecs.array_codec(spec, encoded_dtype)
        if codec is None:
            return None
        array_codecs.append(codec)
        if not isinstance(codec, TransposeCodec):
            _, encoded_dtype = codec.encoded_spec((), encoded_dtype)
    elements = stored_elements(chain.array_bytes, encoded_dtype)
    return ElementsPart(dtype, tuple(array_codecs), elements)
