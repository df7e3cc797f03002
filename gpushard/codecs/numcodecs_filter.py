"""Filters of numcodecs: delta, fixedscaleoffset, bitround, packbits.

numcodecs does the arithmetic; this module knows data types and shapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numcodecs
import numpy as np
from numpy.typing import NDArray

from gpushard.codecs.base import (
    ArrayCodec,
    ElementCodec,
    configuration_error,
    library_label,
    stream_error,
)
from gpushard.codecs.bytes import can_stand_for
from gpushard.errors import MetadataError
from gpushard.layout import CodecSpec


@dataclass(frozen=True, slots=True)
class ElementFilter(ElementCodec):
    """Decoder of a filter that keeps the shape.

    Attributes
    ----------
    decoder
        numcodecs' object.
    computed_nbytes
        Temporary memory per element.
    """

    decoder: Any
    computed_nbytes: int

    def working_nbytes(self, n_elements: int, dtype: np.dtype[Any]) -> int:
        """Memory of the result, and of temporary arrays."""
        return n_elements * (self.computed_nbytes + dtype.itemsize)

    def decode(
        self, encoded: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        """Decoded elements in a new array."""
        decoded = _run(self.name, self.decoder, encoded)
        if decoded.size != encoded.size:
            raise stream_error(
                self.name, f"{encoded.size} elements decode to {decoded.size}"
            )
        return decoded.reshape(shape).astype(dtype, copy=False)


@dataclass(frozen=True, slots=True)
class BitRoundFilter(ArrayCodec):
    """`numcodecs.bitround`: rounded floats need no decoding."""

    keeps_elements: ClassVar[bool] = True

    def decode(
        self,
        encoded: NDArray[Any],
        shape: tuple[int, ...],  # noqa: ARG002 - the signature of `ArrayCodec`
        dtype: np.dtype[Any],  # noqa: ARG002 - the signature of `ArrayCodec`
    ) -> NDArray[Any]:
        """`encoded` itself."""
        return encoded


@dataclass(frozen=True, slots=True)
class PackBitsFilter(ArrayCodec):
    """`numcodecs.packbits`: a byte with the number of padding bits, then the bits."""

    def working_nbytes(self, n_elements: int, dtype: np.dtype[Any]) -> int:
        """Memory of the booleans, and of their bits in order."""
        return n_elements * dtype.itemsize + n_elements // 8 + 1

    def encoded_spec(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],  # noqa: ARG002 - the signature of `ArrayCodec`
    ) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """One axis of bytes, one for the padding and one for each eight elements."""
        n_elements = int(np.prod(shape, dtype=np.int64))
        return (1 + -(-n_elements // 8),), np.dtype(np.uint8)

    def decode(
        self,
        encoded: NDArray[Any],
        shape: tuple[int, ...],
        dtype: np.dtype[Any],  # noqa: ARG002 - the signature of `ArrayCodec`
    ) -> NDArray[Any]:
        """Booleans in a new array."""
        n_elements = int(np.prod(shape, dtype=np.int64))
        if int(encoded[0]) != -n_elements % 8:
            raise stream_error(
                self.name, f"it claims {encoded[0]} padding bits of {-n_elements % 8}"
            )
        bits = np.unpackbits(encoded[1:], count=n_elements)
        return bits.view(np.bool_).reshape(shape)


def _run(codec: str, decoder: Any, encoded: NDArray[Any]) -> NDArray[Any]:
    # numcodecs flattens in memory order, but elements count in C order. Damaged
    # elements may overflow, as they may when zarr decodes them.
    try:
        with np.errstate(all="ignore"):
            return decoder.decode(np.ascontiguousarray(encoded))
    except (ValueError, TypeError, OverflowError) as error:
        raise stream_error(codec, error) from error


def delta_from_spec(spec: CodecSpec, dtype: np.dtype[Any]) -> ElementFilter:
    """Decoder of `numcodecs.delta` for one entry of `codecs`."""
    return _element_filter(spec, {"dtype": dtype.str, **spec.configuration}, dtype)


def scale_offset_from_spec(spec: CodecSpec, dtype: np.dtype[Any]) -> ElementFilter:
    """Decoder of `numcodecs.fixedscaleoffset` for one entry of `codecs`."""
    configuration = dict(spec.configuration)
    if configuration.get("dtype") is None:
        configuration["dtype"] = dtype.str
    for key in ("offset", "scale"):
        value = configuration.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise configuration_error(spec, f"{key} is {value!r} and no number")
    return _element_filter(spec, configuration, dtype)


def bitround_from_spec(spec: CodecSpec, dtype: np.dtype[Any]) -> BitRoundFilter:
    """Decoder of `numcodecs.bitround` for one entry of `codecs`."""
    if dtype.kind != "f":
        raise configuration_error(spec, f"it rounds floats and not {dtype}")
    return BitRoundFilter(spec.name, library_label("numpy"))


def packbits_from_spec(spec: CodecSpec, dtype: np.dtype[Any]) -> PackBitsFilter:
    """Decoder of `numcodecs.packbits` for one entry of `codecs`."""
    if dtype != np.bool_:
        raise configuration_error(spec, f"it packs booleans and not {dtype}")
    return PackBitsFilter(spec.name, library_label("numpy"))


def _element_filter(
    spec: CodecSpec, configuration: dict[str, Any], dtype: np.dtype[Any]
) -> ElementFilter:
    identifier = spec.name.removeprefix("numcodecs.")
    try:
        decoder: Any = numcodecs.get_codec({**configuration, "id": identifier})
        astype = configuration.get("astype")
        # This is not always the decoded type: booleans are differences of bytes, for
        # example.
        native = decoder.astype.newbyteorder("=")
        encoded_dtype = native if astype is None else np.dtype(astype)
    except (TypeError, ValueError) as error:
        raise configuration_error(spec, error) from error
    for named in (decoder.dtype, decoder.astype):
        if named.kind not in "iufcbmM":
            raise configuration_error(spec, f"{named} is no type of numbers")
    if not can_stand_for(decoder.dtype, dtype):
        raise MetadataError(
            "the codec is meant for another data type",
            codec=spec.name,
            json_path=f"{spec.json_path}.configuration.dtype",
            expected=dtype,
            got=decoder.dtype,
        )
    # Sums are computed in place; offset and scale take two steps, mostly in 64 bits.
    computed = 16 if "scale" in configuration else 0
    if decoder.dtype != dtype:  # an equivalent type, which takes one more cast
        computed += decoder.dtype.itemsize
    label = library_label("numcodecs")
    return ElementFilter(spec.name, label, encoded_dtype, decoder, computed)
