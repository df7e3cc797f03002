"""`scale_offset` and `cast_value`: numbers stored as others, mostly floats as integers.

Both are of the zarr-extensions registry. What is decoded here takes a step of NumPy or
two and rounds as the specifications say; all else is left to zarr's own codecs, which
also say what is wrong with a configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.codecs.base import ArrayCodec, ElementCodec, library_label
from gpushard.layout import CodecSpec

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")
# Texts by which JSON names floats that it has no numbers for.
_NO_NUMBERS = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}
_ROUNDINGS = (
    "nearest-even",
    "towards-zero",
    "towards-positive",
    "towards-negative",
    "nearest-away",
)


@dataclass(frozen=True, slots=True)
class ScaleOffset(ArrayCodec):
    """`scale_offset` of floats: ``encoded / scale + offset`` in their own precision.

    Attributes
    ----------
    scale, offset
        Numbers of the elements' data type.
    """

    scale: np.floating[Any]
    offset: np.floating[Any]

    def working_nbytes(self, n_elements: int, dtype: np.dtype[Any]) -> int:
        """Memory of the result."""
        return n_elements * dtype.itemsize

    def decode(
        self, encoded: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        """Decoded elements in a new array; they may overflow to infinity."""
        decoded = np.empty(shape, dtype)
        with np.errstate(all="ignore"):
            np.divide(encoded, self.scale, out=decoded)
            return np.add(decoded, self.offset, out=decoded)


@dataclass(frozen=True, slots=True)
class CastValue(ElementCodec):
    """`cast_value` where every stored number is cast to one that is as near as any.

    Attributes
    ----------
    replaced
        Stored integers that stand for another number than their own, mostly NaN.
    """

    replaced: Mapping[Any, Any]

    def working_nbytes(self, n_elements: int, dtype: np.dtype[Any]) -> int:
        """Memory of the result, and of a mask."""
        return n_elements * (dtype.itemsize + bool(self.replaced))

    def decode(
        self,
        encoded: NDArray[Any],
        shape: tuple[int, ...],  # noqa: ARG002 - the signature of `ArrayCodec`
        dtype: np.dtype[Any],
    ) -> NDArray[Any]:
        """Decoded elements in a new array."""
        decoded = encoded.astype(dtype)
        for stored, number in self.replaced.items():
            decoded[encoded == stored] = number
        return decoded


def scale_from_spec(spec: CodecSpec, dtype: np.dtype[Any]) -> ScaleOffset | None:
    """Decoder of `scale_offset` for one entry of `codecs`; None if zarr has to."""
    given = {"offset": 0, "scale": 1, **spec.configuration}
    offset, scale = (_number(given.pop(name), dtype) for name in ("offset", "scale"))
    if given or dtype.name not in _FLOATS or offset is None or scale is None:
        return None
    if not scale or not np.isfinite((offset, scale)).all():
        return None
    return ScaleOffset(spec.name, library_label("numpy"), scale, offset)


def cast_from_spec(spec: CodecSpec, dtype: np.dtype[Any]) -> CastValue | None:
    """Decoder of `cast_value` for one entry of `codecs`; None if zarr has to."""
    given = {"data_type": None, "rounding": _ROUNDINGS[0], **spec.configuration}
    name, rounding = given.pop("data_type"), given.pop("rounding")
    out_of_range = given.pop("out_of_range", None)
    scalar_map = given.pop("scalar_map", None)
    wraps = ("wrap",) if name in _INTEGERS else ()
    if (
        given
        or name not in (*_INTEGERS, *_FLOATS)
        or rounding not in _ROUNDINGS
        or out_of_range not in (None, "clamp", *wraps)
        or not _casts_alike(np.dtype(name), dtype, rounding)
    ):
        return None
    stored = np.dtype(name)
    replaced = _replaced(scalar_map, stored, dtype)
    if replaced is None:
        return None
    return CastValue(spec.name, library_label("numpy"), stored, replaced)


def _casts_alike(stored: np.dtype[Any], dtype: np.dtype[Any], rounding: str) -> bool:
    """Whether NumPy casts every stored number as the specification wants."""
    if dtype.name not in (*_INTEGERS, *_FLOATS):
        return False
    if stored.kind in "iu" and dtype.kind == "f":
        n_bits = 8 * stored.itemsize - (stored.kind == "i")
        is_exact = n_bits <= np.finfo(dtype).nmant + 1
        # To float16 NumPy casts by way of float32, and may round twice.
        return is_exact or (rounding == _ROUNDINGS[0] and dtype.itemsize > 2)
    # NumPy widens float16 without making signalling NaNs quiet, as zarr does.
    return stored.name != "float16" and np.can_cast(stored, dtype)


def _replaced(
    scalar_map: Any, stored: np.dtype[Any], dtype: np.dtype[Any]
) -> Mapping[Any, Any] | None:
    """What stored integers stand for; None if it takes zarr to tell."""
    if scalar_map is None:
        return {}
    if not isinstance(scalar_map, dict) or stored.kind == "f":
        return None
    directions = {"encode": (dtype, stored), "decode": (stored, dtype)}
    found = {
        name: _pairs(scalar_map[name], *directions[name])
        for name in scalar_map
        if name in directions
    }
    if len(found) < len(scalar_map) or None in found.values():
        return None
    return found.get("decode", {})


def _pairs(
    entries: Any, of: np.dtype[Any], to: np.dtype[Any]
) -> Mapping[Any, Any] | None:
    """Numbers of one data type, and those of another that stand for them."""
    if not isinstance(entries, list):
        return None
    found: dict[Any, Any] = {}
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 2:
            return None
        one, other = _number(entry[0], of), _number(entry[1], to)
        if one is None or other is None:
            return None
        found[one] = other
    return found


def _number(value: Any, dtype: np.dtype[Any]) -> Any:
    """Number of a data type that JSON has as a number, or as the text of none."""
    if dtype.name in _INTEGERS:
        info = np.iinfo(dtype)
        is_within = type(value) is int and info.min <= value <= info.max
        return dtype.type(value) if is_within else None
    if dtype.name not in _FLOATS:
        return None
    if isinstance(value, str):
        value = _NO_NUMBERS.get(value)
    if type(value) not in (int, float):
        return None
    largest = float(np.finfo(dtype).max)
    is_none = isinstance(value, float) and not isfinite(value)
    return dtype.type(value) if is_none or -largest <= value <= largest else None
