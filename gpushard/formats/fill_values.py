"""`fill_value` of a metadata document -> one element, bit for bit.

Spellings: core specification 3, section "Permitted fill values", and the pages of the
registered data types. Hex bits never pass through a Python float, which would turn a
signalling NaN into a quiet one.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gpushard.codecs.small_floats import is_small_float
from gpushard.errors import GpushardError, MetadataError
from gpushard.formats.data_types import DataType, parse_data_type
from gpushard.formats.document import as_list, member, wrong

Scalar = NDArray[Any]
_SPECIAL_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_HEX_BITS = re.compile(r"0x[0-9a-fA-F]+")
_NOT_A_TIME = np.iinfo(np.int64).min


def parse_fill_value(value: Any, data_type: DataType, json_path: str) -> Scalar:
    """Read-only 0-d array of the data type that holds the fill value, bit for bit."""
    if value is None:
        raise MetadataError(
            "the array has no fill value",
            json_path=json_path,
            hint="every Zarr v3 array must name one",
        )
    try:
        if data_type.foreign is not None:
            scalar = _foreign(value, data_type, json_path)
        else:
            scalar = _of_dtype(value, data_type.dtype, json_path)
    except GpushardError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise _misfit(value, data_type.dtype, json_path) from error
    scalar.setflags(write=False)
    return scalar


def _misfit(value: Any, dtype: np.dtype[Any], json_path: str) -> MetadataError:
    what = "the fill value does not fit the data type"
    return wrong(what, json_path, f"a value of {dtype}", value)


def _foreign(value: Any, data_type: DataType, json_path: str) -> Scalar:
    try:
        scalar = data_type.foreign.from_json_scalar(value, zarr_format=3)
    except Exception as error:  # data types of any package raise anything
        raise _misfit(value, data_type.dtype, json_path) from error
    return np.asarray(scalar, dtype=data_type.dtype).reshape(())


def _of_dtype(value: Any, dtype: np.dtype[Any], json_path: str) -> Scalar:
    if dtype.names is not None:
        return _struct(value, dtype, json_path)
    kind = "f" if is_small_float(dtype) else dtype.kind
    return _PARSERS[kind](value, dtype, json_path)


def _from_bytes(data: bytes, dtype: np.dtype[Any]) -> Scalar:
    return np.frombuffer(data, dtype).reshape(()).copy()


def _bool(value: Any, dtype: np.dtype[Any], json_path: str) -> Scalar:
    if not isinstance(value, bool):
        raise _misfit(value, dtype, json_path)
    return np.array(value, dtype)


def _integer(value: Any, dtype: np.dtype[Any], json_path: str) -> Scalar:
    """An integer; 3.0 is accepted too, because some JSON writers write 3 so."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    limits = np.iinfo(dtype)
    if type(value) is not int or not limits.min <= value <= limits.max:
        raise _misfit(value, dtype, json_path)
    return np.array(value, dtype)


def _float(value: Any, dtype: np.dtype[Any], json_path: str) -> Scalar:
    if isinstance(value, str):
        if _HEX_BITS.fullmatch(value):
            return _hex_bits(value, dtype, json_path)
        if value not in _SPECIAL_FLOATS:
            raise _misfit(value, dtype, json_path)
        number = _SPECIAL_FLOATS[value]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
    else:
        raise _misfit(value, dtype, json_path)
    with np.errstate(all="ignore"):
        scalar = np.array(number, np.float64).astype(dtype)
        back = float(scalar.astype(np.float64))
    if (math.isnan(back), math.isinf(back)) != (math.isnan(number), math.isinf(number)):
        raise _misfit(value, dtype, json_path)
    return scalar


def spelled_float(element: Scalar, name: str) -> float | str:
    """Spelling of a float of the data type `name` that is read bit for bit."""
    data_type, bits = parse_data_type(name), element.tobytes()
    with np.errstate(all="ignore"):
        number = float(element.astype(np.float64))
    spelling = next(
        (text for text, value in _SPECIAL_FLOATS.items() if value == number),
        "NaN" if math.isnan(number) else number,
    )
    # tensorstore 0.1.86 reads numbers of this type wrong: 2.0 as the bits 0x40.
    is_misread = name == "float8_e8m0fnu" and math.isfinite(number)
    parsed = parse_fill_value(spelling, data_type, "fill_value")
    if parsed.tobytes() == bits and not is_misread:
        return spelling
    return f"0x{(bits[::-1] if sys.byteorder == 'little' else bits).hex()}"


def _hex_bits(value: str, dtype: np.dtype[Any], json_path: str) -> Scalar:
    """Element whose bits are the unsigned integer that `value` spells."""
    n_digits = 2 * dtype.itemsize
    if len(value) != 2 + n_digits:
        what = "the fill value's bits do not fill an element"
        raise wrong(what, json_path, f"0x and {n_digits} hex digits", value)
    bits = bytes.fromhex(value[2:])
    return _from_bytes(bits if sys.byteorder == "big" else bits[::-1], dtype)


def _complex(value: Any, dtype: np.dtype[Any], json_path: str) -> Scalar:
    parts = as_list(value, "the fill value", json_path)
    if len(parts) != 2:
        raise _misfit(value, dtype, json_path)
    part_dtype = np.dtype(f"f{dtype.itemsize // 2}")
    encoded = [
        _float(part, part_dtype, f"{json_path}[{i}]").tobytes()
        for i, part in enumerate(parts)
    ]
    return _from_bytes(b"".join(encoded), dtype)


def _time(value: Any, dtype: np.dtype[Any], json_path: str) -> Scalar:
    count = _NOT_A_TIME if value == "NaT" else value
    return _integer(count, np.dtype(np.int64), json_path).view(dtype)


def _byte_string(value: Any, json_path: str) -> bytes:
    """Bytes spelled in base64 or as an array of integers."""
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except binascii.Error as error:
            raise wrong(
                "the fill value is no base64", json_path, "base64", value
            ) from error
    items = as_list(value, "the fill value", json_path)
    return b"".join(
        _integer(item, np.dtype(np.uint8), f"{json_path}[{i}]").tobytes()
        for i, item in enumerate(items)
    )


def _raw(value: Any, dtype: np.dtype[Any], json_path: str) -> Scalar:
    data = _byte_string(value, json_path)
    if len(data) != dtype.itemsize:
        what = "the fill value has the wrong size"
        raise wrong(what, json_path, f"{dtype.itemsize} bytes", value)
    return _from_bytes(data, dtype)


def _padded_bytes(value: Any, dtype: np.dtype[Any], json_path: str) -> Scalar:
    data = _byte_string(value, json_path)
    if len(data) > dtype.itemsize:
        what = "the fill value is too long"
        raise wrong(what, json_path, f"at most {dtype.itemsize} bytes", value)
    return np.array(data, dtype)


def _text(value: Any, dtype: np.dtype[Any], json_path: str) -> Scalar:
    if not isinstance(value, str):
        raise _misfit(value, dtype, json_path)
    n_characters = dtype.itemsize // 4
    if dtype.kind == "U" and len(value) > n_characters:
        what = "the fill value is too long"
        raise wrong(what, json_path, f"at most {n_characters} characters", value)
    return np.array(value, dtype)


def _bytes_object(value: Any, dtype: np.dtype[Any], json_path: str) -> Scalar:
    scalar = np.empty((), dtype)
    scalar[()] = _byte_string(value, json_path)
    return scalar


def _struct(value: Any, dtype: np.dtype[Any], json_path: str) -> Scalar:
    """Struct given field by field, or packed as little-endian base64 (older form)."""
    if isinstance(value, str):
        packed = _raw(value, np.dtype(f"V{dtype.itemsize}"), json_path).tobytes()
        stored = np.frombuffer(packed, dtype.newbyteorder("<")).reshape(())
        return stored.copy() if stored.dtype == dtype else stored.astype(dtype)
    names = cast("tuple[str, ...]", dtype.names)
    if not isinstance(value, Mapping) or set(cast("Any", value)) != set(names):
        expected = f"an object with {', '.join(names)}"
        raise wrong("the fill value lacks fields", json_path, expected, value)
    encoded = [
        _of_dtype(value[name], dtype[name], member(json_path, name)).tobytes()
        for name in names
    ]
    return _from_bytes(b"".join(encoded), dtype)


_PARSERS: dict[str, Callable[[Any, np.dtype[Any], str], Scalar]] = {
    "b": _bool,
    "i": _integer,
    "u": _integer,
    "f": _float,
    "c": _complex,
    "m": _time,
    "M": _time,
    "V": _raw,
    "S": _padded_bytes,
    "U": _text,
    "T": _text,
    "O": _bytes_object,
}
