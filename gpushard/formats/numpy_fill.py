"""`fill_value` as Zarr v2 and the draft of v3 spell it -> one element, bit for bit."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.formats.document import wrong
from gpushard.formats.fill_values import parse_fill_value
from gpushard.formats.numpy_types import StoredType


def parse_numpy_fill(value: Any, stored: StoredType, json_path: str) -> NDArray[Any]:
    """Read-only 0-d array of the data type that holds the fill value.

    Without a fill value (null) missing chunks are undefined; they read as zeros, as in
    zarr-python. Some writers spelled the zero of every type as 0.

    Raises
    ------
    MetadataError
        The value does not belong to the data type.
    """
    data_type = stored.data_type
    dtype = data_type.dtype
    is_number = dtype.kind in "iufcmM"
    if value is None or (type(value) is int and value == 0 and not is_number):
        return _zero(dtype)
    if dtype.names is not None:
        return _struct(value, stored, json_path)
    if dtype.kind == "b" and type(value) is int and value == 1:
        value = True
    if dtype.kind == "c" and isinstance(value, int | float):
        value = [value, 0.0]
    return parse_fill_value(value, data_type, json_path)


def _zero(dtype: np.dtype[Any]) -> NDArray[Any]:
    zero = np.zeros((), dtype)
    if dtype.kind == "O":
        zero[()] = b""
    zero.setflags(write=False)
    return zero


def _struct(value: Any, stored: StoredType, json_path: str) -> NDArray[Any]:
    """Struct given as the base64 of its stored bytes."""
    expected = f"base64 of {stored.stored.itemsize} bytes"
    try:
        data = base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise wrong(
            "the fill value is no base64", json_path, expected, value
        ) from error
    if len(data) != stored.stored.itemsize:
        what = "the fill value does not fit the data type"
        raise wrong(what, json_path, expected, value)
    element = np.frombuffer(data, stored.stored).reshape(())
    native = element.astype(stored.data_type.dtype)
    native.setflags(write=False)
    return native
