"""Filters of numcodecs -> kernels that undo them on a device, and their parameters.

Pure: no device. A kernel is used only for data types with which it calculates as NumPy
does (``kernels/filters.cu`` lists them).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from gpushard.devices.scattering.transfer import ElementType
from gpushard.errors import UnsupportedError
from gpushard.layout import CodecSpec

_TYPES = {
    np.dtype(name): ElementType[name.upper()]
    for name in (
        *("int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64", "float32", "float64"),
    )
}
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
# A double holds integers up to here exactly, and kernels take doubles.
_LARGEST_EXACT = 1 << 53


@dataclass(frozen=True, slots=True)
class ItemFilter:
    """A filter and the kernel that undoes it, for `n_items` items in an inner chunk.

    `encoded` and `decoded` are the data types of the items; `numcodecs.packbits`
    encodes to bytes. `scale` and `offset` are those of `numcodecs.fixedscaleoffset`.
    """

    kernel: str
    n_items: int
    encoded: np.dtype[Any]
    decoded: np.dtype[Any]
    scale: float = 1.0
    offset: float = 0.0

    @property
    def is_positional(self) -> bool:
        """Whether an item depends on those ahead of it in C order."""
        return self.kernel != "gs_scale_offset"

    @property
    def is_sum(self) -> bool:
        """Whether one block has to do a whole row."""
        return self.kernel in ("gs_delta", "gs_delta_float")

    @property
    def from_type(self) -> ElementType:
        """Type of the encoded items."""
        return _TYPES[self.encoded]

    @property
    def to_type(self) -> ElementType:
        """Type of the decoded items."""
        return _TYPES.get(self.decoded, ElementType.BOOL)

    @property
    def encoded_nbytes(self) -> int:
        """Size of an encoded inner chunk."""
        if self.kernel == "gs_packbits":
            return 1 + -(-self.n_items // 8)
        return self.n_items * self.encoded.itemsize

    @property
    def decoded_nbytes(self) -> int:
        """Size of a decoded inner chunk."""
        return self.n_items * self.decoded.itemsize


def compile_filter(
    spec: CodecSpec, dtype: np.dtype[Any], n_items: int
) -> ItemFilter | None:
    """Kernel for a filter that encoded `n_items` items of `dtype`; None for none.

    Raises `UnsupportedError` if the codec is no filter, or cannot be undone on a device
    for these data types.
    """
    name = spec.name.removeprefix("numcodecs.")
    if name == "bitround":
        return None
    if name == "packbits":
        return ItemFilter("gs_packbits", n_items, np.dtype(np.uint8), dtype)
    if name not in ("delta", "fixedscaleoffset"):
        raise UnsupportedError("no kernel decodes this codec", codec=spec.name)
    encoded, decoded = _item_types(spec, dtype)
    if decoded != dtype:
        raise UnsupportedError(
            f"a filter to {decoded} in an array of {dtype}", codec=spec.name
        )
    if name == "delta":
        kernel = _delta_kernel(spec, encoded, decoded)
        return ItemFilter(kernel, n_items, encoded, decoded)
    return _scale_offset(spec, encoded, decoded, n_items)


def _item_types(
    spec: CodecSpec, dtype: np.dtype[Any]
) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """Data types of encoded and decoded items that the configuration names."""
    decoded = np.dtype(spec.configuration.get("dtype") or dtype)
    encoded = np.dtype(spec.configuration.get("astype") or decoded)
    for found in (encoded, decoded):
        if found not in _TYPES:
            raise UnsupportedError(f"no kernel for items of {found}", codec=spec.name)
    return encoded, decoded


def _delta_kernel(
    spec: CodecSpec, encoded: np.dtype[Any], decoded: np.dtype[Any]
) -> str:
    """Kernel that sums as NumPy does, in the type that both types promote to."""
    promoted = np.result_type(encoded, decoded)
    is_integral = promoted.kind in "iu"
    if is_integral and decoded.itemsize >= encoded.itemsize:
        return "gs_delta"
    if decoded in _FLOATS and promoted == decoded:
        return "gs_delta_float"
    raise UnsupportedError(
        f"no kernel adds {encoded} up to {decoded} as NumPy does", codec=spec.name
    )


def _scale_offset(
    spec: CodecSpec, encoded: np.dtype[Any], decoded: np.dtype[Any], n_items: int
) -> ItemFilter:
    numbers = [spec.configuration[name] for name in ("scale", "offset")]
    scale, offset = (_exact(number, spec) for number in numbers)
    # What NumPy calculates in. Its NaNs of 0 / 0 and of infinities are the host's.
    wide = np.float32 if encoded == np.float32 else np.float64
    with np.errstate(over="ignore"):
        rounded = wide(scale), wide(offset)
    if not rounded[0] or not np.isfinite(rounded).all():
        raise UnsupportedError(
            "a scale of 0, or an infinity, once rounded: their NaNs differ",
            codec=spec.name,
        )
    if decoded not in _FLOATS:
        raise UnsupportedError(f"no kernel scales to {decoded}", codec=spec.name)
    return ItemFilter("gs_scale_offset", n_items, encoded, decoded, scale, offset)


def _exact(number: float, spec: CodecSpec) -> float:
    is_exact = isinstance(number, float) or abs(number) <= _LARGEST_EXACT
    if not is_exact or not isfinite(number):
        raise UnsupportedError(f"no kernel calculates with {number}", codec=spec.name)
    return float(number)
