"""`data_type` of a metadata document -> NumPy data type.

The core types and raw bits are named here. bfloat16 and the 8-bit floats come from
ml_dtypes. Structs are composed of their fields. All other types (times, strings, byte
strings, types of other packages) come from the registry of the installed zarr.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from gpushard.codecs.bytes import UNSIZED_KINDS, has_byte_order
from gpushard.codecs.small_floats import SMALL_FLOAT_NAMES, is_small_float
from gpushard.errors import MetadataError, UnsupportedError
from gpushard.formats.document import Named, as_list, as_named, shown, wrong
from gpushard.options import MAX_DOCUMENT_NBYTES

_CORE_NAMES = frozenset(
    [
        "bool",
        *(f"{sign}int{n_bits}" for sign in ("", "u") for n_bits in (8, 16, 32, 64)),
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ]
)
_RAW_BITS = re.compile(r"r([1-9][0-9]{0,9})")
_STRUCT_NAMES = ("struct", "structured")


@dataclass(frozen=True, slots=True)
class DataType:
    """A parsed `data_type`.

    Attributes
    ----------
    dtype
        Data type in memory, native byte order.
    json
        The spelling in the metadata; a core type is always its bare name.
    has_byte_order
        Whether the `bytes` codec has to say in which byte order elements are stored.
    foreign
        zarr's data type object, if a package other than zarr defines the type.
    """

    dtype: np.dtype[Any]
    json: Any
    has_byte_order: bool
    foreign: Any = None

    @property
    def is_variable_length(self) -> bool:
        """Whether elements have no fixed size."""
        return self.dtype.kind in UNSIZED_KINDS

    @property
    def is_struct(self) -> bool:
        """Whether elements have named fields."""
        return self.dtype.names is not None


def parse_data_type(value: Any, json_path: str = "data_type") -> DataType:
    """Data type that the metadata names."""
    data_type = _parsed(value, json_path)
    refuse_large_elements(data_type.dtype, json_path)
    return data_type


def refuse_large_elements(dtype: np.dtype[Any], json_path: str) -> None:
    """Refuse elements that no document could spell, but whose fill value is held.

    A document of a few bytes may name a string of 2 GiB that is padded.
    """
    if dtype.itemsize > MAX_DOCUMENT_NBYTES:
        raise UnsupportedError(
            "the elements of the data type are too large",
            json_path=json_path,
            expected=f"at most {MAX_DOCUMENT_NBYTES} bytes",
            got=dtype.itemsize,
        )


def _parsed(value: Any, json_path: str) -> DataType:
    named = as_named(value, "the data type", json_path)
    if named.name in _STRUCT_NAMES:
        return _struct(named)
    if named.name in _CORE_NAMES or named.name in SMALL_FLOAT_NAMES:
        named.refuse_members_but(())
        return _plain(dtype_of_numbers(named.name), named.name)
    if raw := _RAW_BITS.fullmatch(named.name):
        return _plain(_raw_bits(int(raw[1]), json_path), named.name)
    if named.name == "fixed_length_utf32":
        _check_utf32(named)
    return _registered(value, named)


def _check_utf32(named: Named) -> None:
    """Refuse a length of broken characters, which zarr would round down."""
    nbytes = named.configuration.get("length_bytes")
    if type(nbytes) is int and nbytes % 4:
        what = "the length of the strings is no whole number of characters"
        raise wrong(what, named.at("length_bytes"), "a multiple of 4", nbytes)


def _plain(dtype: np.dtype[Any], json: Any) -> DataType:
    return DataType(dtype, json, has_byte_order(dtype))


def dtype_of_numbers(name: str) -> np.dtype[Any]:
    """Data type in memory by its name; as `numpy.dtype` for any other."""
    if name not in SMALL_FLOAT_NAMES:
        return np.dtype(name)
    # NumPy knows these names only once somebody has imported the package.
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name))


def small_float_of(value: Any) -> np.dtype[Any] | None:
    """Data type of ml_dtypes that an argument names, or is; None for any other."""
    name = value
    if isinstance(value, np.dtype):
        name = cast("np.dtype[Any]", value).name
    elif isinstance(value, type) and issubclass(value, np.generic):
        name = value.__name__
    is_named = isinstance(name, str) and name in SMALL_FLOAT_NAMES
    return dtype_of_numbers(name) if is_named else None


def _raw_bits(n_bits: int, json_path: str) -> np.dtype[Any]:
    if n_bits % 8 or n_bits // 8 > np.iinfo(np.int32).max:
        expected = "a multiple of 8 bits below 2 GiB"
        raise wrong(
            "raw data type has no whole bytes", json_path, expected, f"r{n_bits}"
        )
    return np.dtype(f"V{n_bits // 8}")


def _struct(named: Named) -> DataType:
    """Packed struct: no padding between fields (zarr-extensions, data type struct)."""
    named.refuse_members_but(("fields",))
    path = named.at("fields")
    fields = as_list(named.required("fields"), "the fields of a struct", path)
    if not fields:
        raise wrong("the struct has no fields", path, "at least one", fields)
    parsed = [_struct_field(field, f"{path}[{i}]") for i, field in enumerate(fields)]
    names = [name for name, _ in parsed]
    if len(set(names)) != len(names):
        raise wrong("field names of a struct repeat", path, "distinct names", names)
    json_fields = [{"name": name, "data_type": field.json} for name, field in parsed]
    if named.name == "structured":
        json_fields = [[name, field.json] for name, field in parsed]
    json = {"name": named.name, "configuration": {"fields": json_fields}}
    return _plain(np.dtype([(name, field.dtype) for name, field in parsed]), json)


def _struct_field(value: Any, json_path: str) -> tuple[str, DataType]:
    """Name and data type of ``{"name", "data_type"}`` or of the older pair."""
    if isinstance(value, list | tuple):
        if len(value) != 2:
            expected = "name and data type"
            raise wrong("a struct field is malformed", json_path, expected, value)
        name, data_type = value
        type_path = f"{json_path}[1]"
    else:
        if not (isinstance(value, dict) and set(value) == {"name", "data_type"}):
            expected = "an object with name and data_type"
            raise wrong("a struct field is malformed", json_path, expected, value)
        name, data_type = value["name"], value["data_type"]
        type_path = f"{json_path}.data_type"
    if not isinstance(name, str) or not name:
        raise wrong("a struct field has no name", json_path, "a string", name)
    parsed = parse_data_type(data_type, type_path)
    if parsed.is_variable_length or parsed.foreign is not None:
        raise wrong(
            "a struct field has no fixed size", type_path, "a fixed size", data_type
        )
    if is_small_float(parsed.dtype):
        what = f"data type {data_type!r} inside a struct is not supported"
        raise UnsupportedError(what, json_path=type_path)
    return name, parsed


def _registered(value: Any, named: Named) -> DataType:
    """Data type of zarr's registry."""
    from zarr.dtype import data_type_registry

    json = (
        {"name": named.name, "configuration": dict(named.configuration)}
        if named.configuration
        else named.name
    )
    try:
        found: Any = data_type_registry.match_json(json, zarr_format=3)
        dtype: np.dtype[Any] = found.to_native_dtype()
    except Exception as error:  # data types of any package raise anything
        known = named.name in data_type_registry.contents
        kind, what = (
            (MetadataError, f"data type {named.name!r} is malformed")
            if known
            else (UnsupportedError, f"data type {named.name!r} is not supported")
        )
        raise kind(what, json_path=named.json_path, got=shown(value)) from error
    if not dtype.isnative:
        dtype = dtype.newbyteorder("=")
    is_foreign = not type(found).__module__.startswith("zarr.")
    return DataType(dtype, json, has_byte_order(dtype), found if is_foreign else None)
