"""Arguments of `create_array` -> documents of the two historic shard formats.

The documents equal those of the formats' own writers (docs/historic-formats.md): sizes
of shards in chunks, codecs under their numcodecs names, data types in NumPy's spelling.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import OptionError, UnsupportedError
from gpushard.formats import v3_draft
from gpushard.formats.data_types import small_float_of
from gpushard.formats.new_document import (
    ArrayArguments,
    attributes_of,
    lengths,
)
from gpushard.formats.numcodecs_names import numcodecs_configuration
from gpushard.formats.numpy_spelling import parse_numpy_type, spelled
from gpushard.formats.v2 import DIMENSION_NAMES, sharding_members

HistoricFormat = Literal["v3-draft-transformer", "v2-prototype-ii"]

# As zarr's own default for Zarr v2.
_DEFAULT_COMPRESSOR = {"id": "zstd", "level": 0, "checksum": False}
_SEPARATORS = {"v2-prototype-ii": ".", "v3-draft-transformer": "/"}
_FILTERS = "filters"
_ORDERS = ("C", "F")


@dataclass(frozen=True, slots=True)
class HistoricArguments:
    """Arguments in the form of the historic formats; `fill_value` has the data type.

    Attributes
    ----------
    chunks_per_shard
        Chunks that a shard has along each axis.
    filters, compressor
        Configurations of numcodecs; None means no filters.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]
    chunks_per_shard: tuple[int, ...]
    filters: list[dict[str, Any]] | None
    compressor: dict[str, Any] | None
    fill_value: NDArray[Any]
    order: Literal["C", "F"]
    separator: Literal["/", "."]
    attributes: dict[str, Any]
    dimension_names: list[str] | None

    @classmethod
    def parse(
        cls, format_name: HistoricFormat, arguments: ArrayArguments
    ) -> HistoricArguments:
        """Checked arguments for an array of that format."""
        given: dict[str, Any] = dict(arguments)
        if given.get("serializer") not in (None, "auto"):
            raise _refused("serializer", "none: numcodecs' filters and compressor")
        shape = lengths(given["shape"], "shape")
        dtype = _dtype(given["dtype"], format_name)
        chunks = _along_axes(given["chunks"], "chunks", len(shape))
        return cls(
            shape=shape,
            dtype=dtype,
            chunks=chunks,
            chunks_per_shard=_chunks_per_shard(given.get("shards"), chunks),
            filters=_filters(given.get(_FILTERS), dtype),
            compressor=_compressor(given.get("compressors", _DEFAULT_COMPRESSOR)),
            fill_value=_fill_value(given.get("fill_value"), dtype),
            order=_order(given.get("order")),
            separator=_separator(given.get("chunk_key_encoding"), format_name),
            attributes=attributes_of(given),
            dimension_names=_names(given.get("dimension_names"), len(shape)),
        )


def prototype_documents(
    arguments: HistoricArguments,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The `.zarray` and the `.zattrs` of an array of prototype II."""
    attributes = arguments.attributes
    if arguments.dimension_names is not None:
        attributes = {**attributes, DIMENSION_NAMES: arguments.dimension_names}
    described: dict[str, Any] = {
        "zarr_format": 2,
        "shape": list(arguments.shape),
        "chunks": list(arguments.chunks),
        "dtype": spelled(arguments.dtype),
        "compressor": arguments.compressor,
        "fill_value": _fill_json(arguments.fill_value),
        "order": arguments.order,
        "filters": arguments.filters,
        "dimension_separator": arguments.separator,
        **sharding_members(arguments.chunks_per_shard),
    }
    return described, attributes


def draft_document(arguments: HistoricArguments) -> dict[str, Any]:
    """The `.array.json` of an array of the draft of v3."""
    attributes = arguments.attributes
    if arguments.dimension_names is not None:
        raise _refused("dimension_names", "none: the draft has no place for them")
    if _FILTERS in attributes:
        raise _refused("attributes", "none named 'filters': the draft's filters do")
    if arguments.filters is not None:
        attributes = {**attributes, _FILTERS: arguments.filters}
    separator = arguments.separator
    described: dict[str, Any] = {
        "attributes": attributes,
        "chunk_grid": {
            "chunk_shape": list(arguments.chunks),
            "separator": separator,
            "type": "regular",
        },
        "chunk_memory_layout": arguments.order,
        "data_type": v3_draft.data_type_document(arguments.dtype),
        "dimension_separator": separator,
        "extensions": [],
        "fill_value": _fill_json(arguments.fill_value),
        "shape": list(arguments.shape),
        "storage_transformers": [
            v3_draft.transformer_document(arguments.chunks_per_shard)
        ],
    }
    if arguments.compressor is not None:
        described["compressor"] = v3_draft.compressor_document(arguments.compressor)
    return described


def encoded_document(document: Mapping[str, Any]) -> bytes:
    """Bytes of a metadata document, as its own writers laid them out."""
    try:
        text = json.dumps(document, indent=4, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise OptionError(f"the attributes are no JSON: {error}") from error
    return text.encode()


def _dtype(value: Any, format_name: HistoricFormat) -> np.dtype[Any]:
    small = small_float_of(value)
    try:
        dtype = np.dtype(value) if small is None else small
    except TypeError as error:
        expected = "a data type of NumPy's"
        raise _refused("dtype", expected, value) from error
    if small is None and dtype.kind in "biufcSUmM":
        return dtype
    if dtype.names is not None and format_name == "v2-prototype-ii":
        return parse_numpy_type(spelled(dtype), "dtype").stored
    raise UnsupportedError(
        f"arrays of {format_name} are not written with elements of this kind",
        expected="booleans, numbers, times, strings of a fixed length, or in Zarr v2"
        " structs of these",
        got=str(dtype),
    )


def _along_axes(value: Any, name: str, ndim: int) -> tuple[int, ...]:
    values = lengths(value, name)
    if len(values) != ndim or min(values, default=1) < 1:
        raise _refused(name, f"{ndim} lengths of 1 or more", value)
    return values


def _chunks_per_shard(value: Any, chunks: tuple[int, ...]) -> tuple[int, ...]:
    if isinstance(value, Mapping):
        described = cast("Mapping[str, Any]", value)
        if described.get("index_location", "end") != "end":
            raise _refused("shards", "the index at the end", value)
        value = described.get("shape")
    if value is None:
        raise OptionError(
            "the format needs the argument 'shards'",
            expected="the shape of the shards in elements",
            got="None",
        )
    shards = _along_axes(value, "shards", len(chunks))
    if any(n % chunk for n, chunk in zip(shards, chunks, strict=True)):
        raise _refused("shards", f"multiples of the chunk shape {chunks}", shards)
    return tuple(n // chunk for n, chunk in zip(shards, chunks, strict=True))


def _filters(value: Any, dtype: np.dtype[Any]) -> list[dict[str, Any]] | None:
    if value is None or value == "auto":
        return None
    items: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    filters = [numcodecs_configuration(item) for item in items]
    for configuration in filters:
        if configuration["id"] in ("delta", "fixedscaleoffset"):
            configuration.setdefault("dtype", dtype.str)
    return filters or None


def _compressor(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str) and value == "auto":
        return dict(_DEFAULT_COMPRESSOR)
    items: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    if len(items) > 1:
        expected = "one compressor: what comes before it is a filter"
        raise _refused("compressors", expected, f"{len(items)} codecs")
    kept = [item for item in items if item is not None]
    return numcodecs_configuration(kept[0]) if kept else None


def _fill_value(value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    if value is None:
        return np.zeros((), dtype)
    if dtype.names is not None and not hasattr(value, "dtype"):
        return _fill_struct(value, dtype)
    try:
        if isinstance(value, int):  # has no width, so NumPy checks its size
            return np.asarray(value, dtype)
        given = np.asarray(value)
        found = given.astype(dtype, casting="same_kind").reshape(())
        if dtype.kind in "SU" and found != given:
            raise ValueError("the text is longer")
        return found
    except (TypeError, ValueError, OverflowError) as error:
        raise _refused("fill_value", f"one element of {dtype}", value) from error


def _fill_struct(value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Struct from a tuple with one fitting value per field; 0 means all zeros."""
    element, names = np.zeros((), dtype), dtype.names or ()
    if type(value) is int and value == 0:
        return element
    items = cast("tuple[Any, ...]", value if isinstance(value, tuple) else ())
    if len(items) != len(names):
        raise _refused("fill_value", f"a tuple of {len(names)}, as of {dtype}", value)
    for name, item in zip(names, items, strict=True):
        field: NDArray[Any] = element[name]
        each = np.broadcast_to(np.asarray(item, object), field.shape)
        for at in np.ndindex(field.shape):
            field[at] = _fill_value(each[at], field.dtype)
    return element


def _order(value: Any) -> Literal["C", "F"]:
    if value is None:
        return "C"
    if value not in _ORDERS:
        raise _refused("order", "'C' or 'F'", value)
    return value


def _separator(value: Any, format_name: HistoricFormat) -> Literal["/", "."]:
    default = _SEPARATORS[format_name]
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        inside = cast("Mapping[str, Any]", fields.get("configuration") or fields)
        value = inside.get("separator", default)
    separator = default if value is None else getattr(value, "separator", value)
    if separator not in ("/", "."):
        raise _refused("chunk_key_encoding", "a separator '/' or '.'", value)
    return cast("Any", separator)


def _names(value: Any, ndim: int) -> list[str] | None:
    if value is None:
        return None
    names = [value] if isinstance(value, str) else list(value)
    if len(names) != ndim or not all(isinstance(name, str) for name in names):
        raise _refused("dimension_names", f"{ndim} names", value)
    return names


def _fill_json(fill_value: NDArray[Any]) -> Any:
    """One element as Zarr v2 spells it (specification 2, "Fill value encoding")."""
    kind = fill_value.dtype.kind
    element: Any = fill_value[()]
    if kind == "c":
        return [_float_json(float(element.real)), _float_json(float(element.imag))]
    if kind == "f":
        return _float_json(float(element))
    if kind in "mM":
        return int(element.view(np.int64))
    if kind in "biu":
        return element.item()
    if kind == "U":
        return str(element)
    return base64.standard_b64encode(fill_value.tobytes()).decode()


def _float_json(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _refused(name: str, expected: str, got: Any = None) -> OptionError:
    return OptionError(
        f"the format takes no such {name}",
        expected=expected,
        got=None if got is None else repr(got),
    )
