"""`bytes`: elements one after the other in C order, in a given byte order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.codecs.base import HostBytes
from gpushard.errors import MetadataError, UnsupportedError
from gpushard.layout import CodecSpec

UNSIZED_KINDS = "OT"
"""Kinds of elements without size or byte order: Python's objects, NumPy's strings."""
_COUNTING_KINDS = "iubmM"


@dataclass(frozen=True, slots=True)
class StoredElements:
    """How stored bytes are viewed as elements of `dtype`.

    Attributes
    ----------
    dtype
        Data type of the elements in memory.
    view_dtype
        Data type as which the bytes are viewed. If `is_castable`, a cast to `dtype`
        gives the elements.
    is_castable
        False for byte-swapped types without a byte-swapped form in NumPy (bfloat16).
        `view_dtype` is then an unsigned integer, to be swapped and viewed.
    """

    dtype: np.dtype[Any]
    view_dtype: np.dtype[Any]
    is_castable: bool

    def view(self, stored: HostBytes, shape: tuple[int, ...]) -> NDArray[Any]:
        """Elements in `stored`, which has the right size.

        They have `dtype`, but in stored byte order, and are a view if NumPy can express
        that.
        """
        elements: NDArray[Any] = np.ndarray(shape, self.view_dtype, stored)
        if self.view_dtype is self.dtype:
            return elements
        if not self.is_castable:
            return elements.astype(elements.dtype.newbyteorder("=")).view(self.dtype)
        if self.dtype == np.bool_:
            return elements != 0
        return elements


def stored_elements(spec: CodecSpec, dtype: np.dtype[Any]) -> StoredElements:
    """How the bytes codec `spec` stores elements of `dtype`."""
    if dtype.kind in UNSIZED_KINDS or dtype.hasobject:
        raise UnsupportedError(
            f"the bytes codec cannot hold elements of variable size ({dtype})",
            json_path=spec.json_path,
        )
    fields = spec.configuration.get("fields")
    if fields is not None:  # of older formats: each field has a byte order of its own
        return StoredElements(dtype, np.dtype(fields), is_castable=True)
    endian = spec.configuration.get("endian")
    if dtype == np.bool_:
        # Any other byte than 0 and 1 in a bool array is undefined behaviour to NumPy.
        return StoredElements(dtype, np.dtype(np.uint8), is_castable=True)
    if not has_byte_order(dtype):
        return StoredElements(dtype, dtype, is_castable=True)
    if endian is None and dtype.fields is None:
        raise MetadataError(
            "the bytes codec does not say in which byte order the elements are",
            json_path=f"{spec.json_path}.configuration.endian",
            expected='"little" or "big"',
            got="nothing",
        )
    order = ">" if endian == "big" else "<"  # structs without: as zarr reads them
    if order == ">" and _has_extension_field(dtype):
        raise UnsupportedError(
            f"big-endian structs with a field from outside NumPy ({dtype})",
            json_path=spec.json_path,
        )
    if _is_extension(dtype):
        integer = np.dtype(f"{order}u{dtype.itemsize}")
        if integer.isnative:
            return StoredElements(dtype, dtype, is_castable=True)
        return StoredElements(dtype, integer, is_castable=False)
    swapped = dtype.newbyteorder(order)
    view_dtype = dtype if swapped == dtype else swapped
    return StoredElements(dtype, view_dtype, is_castable=True)


def has_byte_order(dtype: np.dtype[Any]) -> bool:
    """Whether elements of `dtype` hold numbers or characters of several bytes."""
    if dtype.subdtype is not None:
        return has_byte_order(dtype.subdtype[0])
    if dtype.fields is not None:
        return any(has_byte_order(field[0]) for field in dtype.fields.values())
    if _is_extension(dtype):
        return dtype.itemsize > 1
    return dtype.kind in "iufcmMU" and dtype.itemsize > 1


def can_stand_for(decoded: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    """Whether a cast turns elements of a codec's type `decoded` into those of `dtype`.

    The same type in any byte order, or integers, times and booleans of the same size.
    """
    if dtype.kind in UNSIZED_KINDS:
        return decoded.kind in UNSIZED_KINDS
    if decoded.kind in _COUNTING_KINDS and dtype.kind in _COUNTING_KINDS:
        return decoded.itemsize == dtype.itemsize
    return decoded.newbyteorder("=") == dtype.newbyteorder("=")


def _is_extension(dtype: np.dtype[Any]) -> bool:
    """Whether `dtype` comes from outside NumPy (ml_dtypes)."""
    return dtype.kind == "V" and not issubclass(dtype.type, np.void)


def _has_extension_field(dtype: np.dtype[Any]) -> bool:
    fields = (field[0] for field in (dtype.fields or {}).values())
    return any(_is_extension(field) or _has_extension_field(field) for field in fields)
