"""Arguments of `create_array` -> the metadata document, written by zarr itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any, Required, TypedDict

import numpy as np
from numpy.typing import NDArray

from gpushard.arguments import keywords_of, mapping, refuse_unknown
from gpushard.codecs.small_floats import are_held, bits_dtype, is_small_float
from gpushard.errors import MetadataError, OptionError
from gpushard.formats.data_types import parse_data_type, small_float_of
from gpushard.formats.fill_values import parse_fill_value, spelled_float
from gpushard.quiet import without_warnings
from gpushard.zarr_thread import running_loop

Shape = int | Sequence[int]


# For arguments that other functions have.
_HINTS = {
    "index_location": "pass shards={'shape': ..., 'index_location': 'start'}",
    "mode": "pass overwrite=True to delete what is there",
}


class ArrayArguments(TypedDict, total=False):
    """The arguments of `zarr.create_array` that say what is stored.

    Attributes
    ----------
    shape, dtype
        Elements along each axis, and their data type as zarr names it, or one of
        ml_dtypes ("bfloat16").
    chunks, shards
        Shape of the inner chunks and of the shards; `shards` may be zarr's ``{"shape":
        ..., "index_location": "start"}``. Without it, each object is one chunk. The
        index is little-endian, with a crc32c, at the end.
    filters, serializer, compressors
        zarr codecs, one or a list; ``compressors=None`` for none. A
        `zarr.codecs.ShardingCodec` as the serializer nests shards.
    fill_value
        Value of missing inner chunks, which the data type must hold (floats may be
        rounded); the data type's zero by default.
    dimension_names, attributes, chunk_key_encoding
        As zarr takes them.
    order
        Order of the elements in a chunk, "C" or "F", only for the historic formats. For
        Zarr v3, use a `zarr.codecs.TransposeCodec` among the filters.
    """

    shape: Required[Shape]
    dtype: Required[Any]
    chunks: Required[Shape]
    shards: Shape | Mapping[str, Any] | None
    filters: Any
    serializer: Any
    compressors: Any
    fill_value: Any
    dimension_names: Sequence[str | None] | None
    attributes: Mapping[str, Any] | None
    chunk_key_encoding: Any
    order: str


def new_document(arguments: ArrayArguments) -> bytes:
    """Bytes of the `zarr.json` of a new array."""
    given: dict[str, Any] = dict(arguments)
    if given.pop("order", "C") != "C":
        raise OptionError(
            "Zarr v3 has no order of elements",
            expected="order='C'",
            hint="put zarr.codecs.TransposeCodec among the filters",
        )
    for name in ("shape", "chunks", "shards"):
        given[name] = _plain(given.get(name))
    if given.get("fill_value") is None:
        given.pop("fill_value", None)  # zarr's own default differs between releases
    given["attributes"] = attributes_of(arguments)
    _refuse_named(given.get("compressors"))
    dtype = small_float_of(given["dtype"])
    return _written_by_zarr(given) if dtype is None else _as_bits(given, dtype)


def _as_bits(given: Mapping[str, Any], dtype: np.dtype[Any]) -> bytes:
    """Document for a type of ml_dtypes: zarr's for integers, with other names."""
    fill_value = _small_fill(given.get("fill_value"), dtype)
    bits = bits_dtype(dtype)
    document = _written_by_zarr(
        {**given, "dtype": bits.name, "fill_value": int(fill_value.view(bits))}
    )
    named = {
        **json.loads(document),
        "data_type": dtype.name,
        "fill_value": spelled_float(fill_value, dtype.name),
    }
    return json.dumps(named, indent=2).encode()


def _small_fill(given: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The fill value as one element; without one the element of no set bits."""
    if given is None:
        return np.zeros((), dtype)
    try:
        if isinstance(given, str):
            return parse_fill_value(given, parse_data_type(dtype.name), "fill_value")
        value = np.asarray(given).reshape(())
        if value.dtype.kind in "biuf" or is_small_float(value.dtype):
            with np.errstate(all="ignore"):
                element = value.astype(dtype)
            if are_held(value, element):
                return element
    except (MetadataError, ValueError, TypeError):
        pass  # no such spelling, several values, or no cast
    raise OptionError(
        "the data type cannot hold the fill value",
        expected=f"one element of {dtype}",
        got=repr(given),
    )


def _refuse_named(compressors: Any) -> None:
    """Refuse a compressor that is only named, as other libraries take it."""
    all_of_them = (
        compressors if isinstance(compressors, list | tuple) else [compressors]
    )
    if compressors != "auto" and any(isinstance(one, str) for one in all_of_them):
        raise OptionError(
            "compressors= takes no names of codecs",
            expected="codecs of zarr, 'auto', or None for none",
            got=repr(compressors),
            hint="pass such as zarr.codecs.ZstdCodec(level=3)",
        )


def attributes_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes among the arguments of a new array."""
    given = arguments.get("attributes")
    return mapping(given, "attributes", "a mapping of names to JSON values")


def check_names(
    given: Mapping[str, Any], function: Callable[..., Any], name: str
) -> None:
    """Refuse unknown arguments of a function, and calls without a required one.

    `given` are those arguments that say what is stored; `name` is the function's.
    """
    known = [*ArrayArguments.__annotations__, *keywords_of(function)]
    refuse_unknown(given, known, f"{name} has no argument", _HINTS)
    for required in ("shape", "dtype", "chunks"):
        if given.get(required) is None:
            is_choice = required == "chunks"
            raise OptionError(
                f"{name} needs the argument {required!r}",
                hint="pass chunks='auto' to let zarr choose" if is_choice else None,
            )
    if isinstance(given.get("shards"), Mapping):
        _check_members(given["shards"])


def _check_members(shards: Mapping[str, Any]) -> None:
    """Refuse unknown members, which zarr ignores, and shards without a shape."""
    refuse_unknown(shards, ("shape", "index_location"), "shards= has no member")
    if "shape" not in shards:
        raise OptionError("shards= needs the member 'shape'", got=repr(dict(shards)))


def _written_by_zarr(given: dict[str, Any]) -> bytes:
    import zarr
    from zarr.storage import MemoryStore

    store = MemoryStore()
    running_loop()  # what keeps it from running is not about the arguments
    try:
        # zarr warns of new data types and codecs, which the caller asked for.
        with without_warnings():
            zarr.create_array(store, zarr_format=3, **given)
    except Exception as error:
        # Python's text of it is nothing but the name of what is missing.
        reason = f"there is no {error}" if isinstance(error, KeyError) else error
        raise OptionError(
            f"zarr makes no such array: {str(reason).rstrip('.')}",
            hint="see zarr.create_array for what each argument takes",
        ) from error
    return store._store_dict["zarr.json"].to_bytes()  # noqa: SLF001 - no await needed


def lengths(value: Any, name: str) -> tuple[int, ...]:
    """A shape given as a number or a sequence of them."""
    plain = _plain(value)
    try:
        found = tuple(index(n) for n in plain)
    except TypeError:
        found = (-1,)
    if min(found, default=0) < 0:
        expected = "whole numbers of 0 or more"
        raise OptionError(f"{name} is no shape", expected=expected, got=repr(value))
    return found


def data_type_of(data_type_json: Any, dtype: np.dtype[Any]) -> Any:
    """A value of `ArrayArguments.dtype` that makes the data type of a layout."""
    from zarr.core.dtype import get_data_type_from_json

    try:
        with without_warnings():  # as in `_written_by_zarr`
            return get_data_type_from_json(data_type_json, zarr_format=3)
    except Exception:  # noqa: BLE001 - zarr raises what it likes; it may know NumPy's
        return dtype


def _plain(shape: Any) -> Any:
    """A shape as zarr takes it: a tuple, or its own mapping for shards."""
    if shape is None or isinstance(shape, Mapping | str):
        return shape
    # Older releases of zarr take no numbers of NumPy.
    if isinstance(shape, np.ndarray | np.integer):
        shape = shape.tolist()
    return tuple(shape) if hasattr(shape, "__iter__") else (shape,)
