"""Data types and fill values as Zarr v2 and the draft of v3 spell them: NumPy's way."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpushard.formats.data_types import DataType, refuse_large_elements
from gpushard.formats.document import as_lengths, as_list, shown, unsupported, wrong
from gpushard.formats.fill_values import parse_fill_value

OBJECTS = "|O"
"""Elements of variable size, whose type a filter names."""

# Zarr storage specification 2, "Data type encoding"; extended floats are left out, as
# their bytes differ between machines.
_PLAIN = re.compile(
    r"[<>|](?:b1|[iu][1248]|f[248]|c8|c16|[SUV][1-9][0-9]{0,8}"
    r"|[mM]8\[(?!generic)[0-9A-Za-z]+\])"
)
_NAMELESS_ORDER = "|"
_FILL_VALUE = "fill_value"


@dataclass(frozen=True, slots=True)
class StoredType:
    """A data type, and how its elements lie in a chunk.

    Attributes
    ----------
    data_type
        The data type in memory.
    stored
        The stored data type, byte order included.
    endian
        Byte order of all elements; None if they have none, or both.
    has_both_orders
        Whether some fields of a struct are little-endian and others big-endian.
    """

    data_type: DataType
    stored: np.dtype[Any]
    endian: Literal["little", "big"] | None
    has_both_orders: bool = False


def parse_numpy_type(value: Any, json_path: str) -> StoredType:
    """Stored data type that NumPy's spelling `value` names."""
    stored = _dtype(value, json_path)
    refuse_large_elements(stored, json_path)
    native = stored.newbyteorder("=")
    orders = set(_byte_orders(stored))
    endian = next(iter(orders)) if len(orders) == 1 else None
    data_type = DataType(native, _json(value, native), bool(orders))
    return StoredType(data_type, stored, endian, len(orders) > 1)


def spelled(dtype: np.dtype[Any]) -> Any:
    """A data type's spelling, which `parse_numpy_type` takes.

    Bytes between fields are left out: zarr-python knows packed structs only.
    """
    if dtype.fields is None:
        return dtype.str
    return [[name, *_spelled_field(dtype[name])] for name in dtype.names or ()]


def _spelled_field(dtype: np.dtype[Any]) -> list[Any]:
    if dtype.subdtype is None:
        return [spelled(dtype)]
    element, shape = dtype.subdtype
    return [spelled(element), list(shape)]


def order_of(dtype: np.dtype[Any]) -> Literal["little", "big"] | None:
    """Byte order of a plain data type; None if it has none."""
    if dtype.byteorder == _NAMELESS_ORDER:
        return None
    return "big" if dtype.str.startswith(">") else "little"


def _dtype(value: Any, json_path: str) -> np.dtype[Any]:
    if isinstance(value, str):
        return _plain(value, json_path)
    fields = as_list(value, "the data type", json_path)
    if not fields:
        raise wrong("the struct has no fields", json_path, "at least one", value)
    parsed = [_field(field, f"{json_path}[{i}]") for i, field in enumerate(fields)]
    try:
        return np.dtype(parsed)
    except (ValueError, TypeError) as error:
        expected = "distinct names and lengths that fit"
        raise wrong("the struct is not valid", json_path, expected, value) from error


def _plain(value: str, json_path: str) -> np.dtype[Any]:
    try:
        if _PLAIN.fullmatch(value):
            return np.dtype(value)
    except (ValueError, TypeError):
        pass  # a unit of time or a length that NumPy does not know
    what = f"data type {shown(value)} is not supported"
    expected = 'such as "<f8", "|S5" or a list of fields'
    raise unsupported(what, json_path, expected, value)


def _field(value: Any, json_path: str) -> tuple[Any, ...]:
    parts = as_list(value, "a struct field", json_path)
    if len(parts) not in (2, 3) or not isinstance(parts[0], str) or not parts[0]:
        expected = "a name, a data type and perhaps a shape"
        raise wrong("a struct field is malformed", json_path, expected, value)
    dtype = _dtype(parts[1], f"{json_path}[1]")
    if len(parts) == 2:
        return parts[0], dtype
    path = f"{json_path}[2]"
    shape = as_lengths(parts[2], "the shape of a struct field", path, least=1)
    return parts[0], dtype, shape


def _byte_orders(dtype: np.dtype[Any]) -> Iterator[Literal["little", "big"]]:
    if dtype.subdtype is not None:
        yield from _byte_orders(dtype.subdtype[0])
    elif dtype.fields is not None:
        for field in dtype.fields.values():
            yield from _byte_orders(field[0])
    elif (order := order_of(dtype)) is not None:
        yield order


def _json(value: Any, dtype: np.dtype[Any]) -> Any:
    """The type in Zarr v3's spelling, for zarr's own codecs, which know no structs."""
    if dtype.kind in "biufc":
        return dtype.name
    if dtype.kind in "mM":
        unit, count = np.datetime_data(dtype)
        name = "numpy.datetime64" if dtype.kind == "M" else "numpy.timedelta64"
        return {"name": name, "configuration": {"unit": unit, "scale_factor": count}}
    names = {
        "S": "null_terminated_bytes",
        "U": "fixed_length_utf32",
        "V": "raw_bytes",
    }
    if dtype.names is not None:
        return value
    configuration = {"length_bytes": dtype.itemsize}
    return {"name": names[dtype.kind], "configuration": configuration}


def parse_numpy_fill(value: Any, stored: StoredType) -> NDArray[Any]:
    """Read-only 0-d array of the data type that holds the fill value.

    Without a fill value (null) missing chunks are undefined; they read as zeros, and
    times as NaT, as in zarr-python. Some writers spelled the zero of every type as 0;
    of text, zarr-python has made "0" of that ever since, which its version 2 stored
    where nobody chose a fill value.
    """
    data_type = stored.data_type
    dtype = data_type.dtype
    if value is None and dtype.kind in "mM":
        value = "NaT"
    if type(value) is int and value == 0 and dtype.kind in "SUT":
        return _element(dtype, "0")
    is_number = dtype.kind in "iufcmM"
    if value is None or (type(value) is int and value == 0 and not is_number):
        return _element(dtype, b"" if dtype.kind == "O" else None)
    if dtype.names is not None:
        return _fill_struct(value, stored)
    if dtype.kind == "b" and type(value) is int and value == 1:
        value = True
    if dtype.kind == "c" and isinstance(value, int | float):
        value = [value, 0.0]
    return parse_fill_value(value, data_type, _FILL_VALUE)


def _element(dtype: np.dtype[Any], value: bytes | str | None) -> NDArray[Any]:
    """Read-only 0-d array of an element; None is zero."""
    element = np.zeros((), dtype)
    if value is not None:
        element[()] = value
    element.setflags(write=False)
    return element


def _fill_struct(value: Any, stored: StoredType) -> NDArray[Any]:
    """Struct given as the base64 of its stored bytes."""
    expected = f"base64 of {stored.stored.itemsize} bytes"
    try:
        data = base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        what = "the fill value is no base64"
        raise wrong(what, _FILL_VALUE, expected, value) from error
    if len(data) != stored.stored.itemsize:
        what = "the fill value does not fit the data type"
        raise wrong(what, _FILL_VALUE, expected, value)
    element = np.frombuffer(data, stored.stored).reshape(())
    native = element.astype(stored.data_type.dtype)
    native.setflags(write=False)
    return native
