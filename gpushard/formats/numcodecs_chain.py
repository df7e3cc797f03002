"""Filters and compressor of Zarr v2, by their names in numcodecs -> a codec chain.

Filters work on the elements of a chunk in stored order; for order "F" that is the order
of the transposed chunk (Zarr storage specification 2, "Filters").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpushard.codecs.base import REGISTERED
from gpushard.errors import UnsupportedError
from gpushard.formats.codec_specs import Kind, codec_list, kind_of
from gpushard.formats.data_types import DataType, parse_data_type
from gpushard.formats.document import as_object, member, wrong
from gpushard.formats.numpy_spelling import (
    OBJECTS,
    StoredType,
    order_of,
    parse_numpy_type,
)
from gpushard.layout import CodecChain, CodecSpec

# Filters for elements of variable size: the codec, and the data type, in Zarr v3.
_OBJECT_FILTERS = {"vlen-utf8": "string", "vlen-bytes": "variable_length_bytes"}
# Members that name a filter's data types: of its input, and of its output.
_DECODED_MEMBERS = ("dtype", "decode_dtype")
_ENCODED_MEMBERS = ("astype", "encode_dtype")
# Default of numcodecs.shuffle, which v3's codec takes from the data type instead.
_SHUFFLE_ITEMSIZE = 4


@dataclass(frozen=True, slots=True)
class StoredCodecs:
    """Codecs as the metadata names them.

    Attributes
    ----------
    filters, compressor
        Configurations of numcodecs, with the member "id"; None means no compressor.
    is_transposed
        Whether chunks are stored in order "F".
    filters_path
        JSON path of the filters.
    """

    filters: Any
    compressor: Any
    is_transposed: bool
    filters_path: str = "filters"


def parse_elements(
    dtype: Any, codecs: StoredCodecs, ndim: int, json_path: str
) -> tuple[StoredType, CodecChain]:
    """Data type of an array's elements, and the codecs of its chunks."""
    filters = _filters(codecs)
    after: list[CodecSpec] = []
    if codecs.compressor is not None:
        spec = _spec(codecs.compressor, "compressor")
        _refuse_unless_bytes(spec)
        after.append(spec)
    before = [_transpose(ndim)] if codecs.is_transposed and ndim > 1 else []
    if dtype == OBJECTS:
        stored, serializer, rest = _objects(filters, json_path)
        return stored, CodecChain(tuple(before), serializer, (*rest, *after))
    stored = parse_numpy_type(dtype, json_path)
    split = _n_element_filters(filters)
    elements = [_native(spec) for spec in filters[:split]]
    endian = _check_types(filters[:split], stored)
    configuration: dict[str, Any] = {} if endian is None else {"endian": endian}
    if stored.has_both_orders:
        configuration = {"fields": stored.stored.descr}
    serializer = CodecSpec("bytes", configuration, json_path)
    rest = [_refuse_unless_bytes(spec) for spec in filters[split:]]
    return stored, CodecChain((*before, *elements), serializer, (*rest, *after))


def _transpose(ndim: int) -> CodecSpec:
    return CodecSpec("transpose", {"order": list(reversed(range(ndim)))}, "order")


def _filters(codecs: StoredCodecs) -> list[CodecSpec]:
    if codecs.filters is None:
        return []
    path = codecs.filters_path
    items = codec_list(codecs.filters, "the list of filters", path)
    return [_spec(item, f"{path}[{i}]") for i, item in enumerate(items)]


def _spec(value: Any, json_path: str) -> CodecSpec:
    fields = as_object(value, "the codec", json_path)
    name = fields.get("id")
    if not isinstance(name, str):
        raise wrong("the codec has no id", member(json_path, "id"), "a string", name)
    configuration = {key: item for key, item in fields.items() if key != "id"}
    if name == "shuffle":
        configuration.setdefault("elementsize", _SHUFFLE_ITEMSIZE)
    return CodecSpec(_name_of(name, json_path), configuration, json_path)


def _name_of(identifier: str, json_path: str) -> str:
    """Name of a codec, whose id numcodecs knows it by."""
    if identifier in _OBJECT_FILTERS:
        return identifier
    name = f"numcodecs.{identifier}"
    try:
        # In Zarr v2 each codec is given bytes, also those that make bytes of elements.
        is_own = kind_of(name, json_path) is not Kind.ARRAY_BYTES
    except UnsupportedError:
        from gpushard.codecs.registered import is_registered

        if not is_registered(identifier):
            raise
        is_own = False
    return name if is_own else f"{REGISTERED}{identifier}"


def _objects(
    filters: list[CodecSpec], json_path: str
) -> tuple[StoredType, CodecSpec, list[CodecSpec]]:
    """Type, serializer and remaining filters of elements of variable size."""
    first = filters[0] if filters else None
    if first is not None:
        kind_of(first.name, first.json_path)  # refuses those that build objects
    if first is None or first.name not in _OBJECT_FILTERS:
        raise UnsupportedError(
            "elements are objects of an unknown kind",
            json_path=json_path if first is None else first.json_path,
            expected=f"first filter {' or '.join(_OBJECT_FILTERS)}",
            got="no filter" if first is None else first.name,
        )
    data_type: DataType = parse_data_type(_OBJECT_FILTERS[first.name])
    rest = [_refuse_unless_bytes(spec) for spec in filters[1:]]
    serializer = CodecSpec(first.name, {}, first.json_path)
    return StoredType(data_type, data_type.dtype, None), serializer, rest


def _n_element_filters(filters: Sequence[CodecSpec]) -> int:
    """Number of filters ahead of the first that works on bytes."""
    for i, spec in enumerate(filters):
        if kind_of(spec.name, spec.json_path) is not Kind.ARRAY_ARRAY:
            return i
    return len(filters)


def _refuse_unless_bytes(spec: CodecSpec) -> CodecSpec:
    if kind_of(spec.name, spec.json_path) is Kind.BYTES_BYTES:
        return spec
    raise UnsupportedError(
        "the codec is not supported at this place",
        codec=spec.name,
        json_path=spec.json_path,
        expected="a codec that makes bytes of bytes",
    )


def _check_types(filters: Sequence[CodecSpec], stored: StoredType) -> Any:
    """Byte order of the last filter's output, once all filters are seen to fit."""
    current, endian = stored.stored, stored.endian
    if filters and stored.has_both_orders:
        raise UnsupportedError(
            "a filter changes elements whose fields have both byte orders",
            codec=filters[0].name,
            json_path=filters[0].json_path,
            expected="filters that change bytes, such as shuffle",
        )
    for spec in filters:
        given = _named_type(spec, _DECODED_MEMBERS) or current
        if given != current:
            raise UnsupportedError(
                "a filter views elements as another data type than they have",
                codec=spec.name,
                json_path=spec.json_path,
                expected=current.str,
                got=given.str,
            )
        if spec.name == "numcodecs.packbits":
            current = np.dtype(np.uint8)
        else:
            current = _named_type(spec, _ENCODED_MEMBERS) or current
        endian = order_of(current)
    return endian


def _named_type(spec: CodecSpec, names: Sequence[str]) -> np.dtype[Any] | None:
    for name in names:
        value = spec.configuration.get(name)
        if value is not None:
            return parse_numpy_type(value, member(spec.json_path, name)).stored
    return None


def _native(spec: CodecSpec) -> CodecSpec:
    """The filter for elements in native byte order; `bytes` has the stored order."""
    configuration: dict[str, Any] = dict(spec.configuration)
    for name in _DECODED_MEMBERS + _ENCODED_MEMBERS:
        value = configuration.get(name)
        if isinstance(value, str):
            dtype = parse_numpy_type(value, member(spec.json_path, name)).stored
            configuration[name] = dtype.newbyteorder("=").str
    return CodecSpec(spec.name, configuration, spec.json_path)
