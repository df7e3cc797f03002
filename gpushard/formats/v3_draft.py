"""The draft of Zarr v3 of 2020 to 2023, and its sharding as a storage transformer.

The layout is that of zarr-python 2.14 to 2.18 with its experimental interface. Where
this writer and the text of the draft differ, both forms are read
(`docs/historic-formats.md`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np

from gpushard.chunk_keys import ChunkKeys
from gpushard.errors import UnsupportedError
from gpushard.formats.document import (
    as_lengths,
    as_list,
    as_object,
    as_separator,
    member,
    parsing,
    require_members,
    shown,
    unsupported,
    wrong,
)
from gpushard.formats.historic import HistoricArray, HistoricSharding
from gpushard.formats.numcodecs_chain import StoredCodecs
from gpushard.layout import ArrayLayout
from gpushard.options import Options

PROTOCOL = "https://purl.org/zarr/spec/protocol/core/3.0"
"""What `zarr_format` and `metadata_encoding` say in the root of a hierarchy."""
TRANSFORMER = "https://purl.org/zarr/spec/storage_transformers/sharding/1.0"
"""Sharding as a writer names it; the draft's text has another address."""
SHARD_FORMAT = "indexed"
"""The only type of the sharding transformer."""
DRAFT_SUFFIX = ".json"
"""What the names of documents end in, unless the root says otherwise."""

_CODEC = "spec/codec/"
_CODEC_ADDRESS = "https://purl.org/zarr/spec/codec/{}/1.0"
# Address that the draft's writer gave for the description of complex numbers.
_COMPLEX = (
    "https://zarr-specs.readthedocs.io/en/core-protocol-v3.0-dev/protocol/extensions"
    "/complex-dtypes/v1.0.html"
)
_REQUIRED = ("shape", "data_type", "chunk_grid", "fill_value")
_KNOWN = (
    *_REQUIRED,
    "attributes",
    "chunk_memory_layout",
    "compressor",
    "dimension_separator",
    "extensions",
    "storage_transformers",
)


def parse_root(document: Mapping[str, Any]) -> str:
    """Suffix of the metadata keys of the hierarchy."""
    for name in ("zarr_format", "metadata_encoding"):
        value = document.get(name)
        if value is not None and _without_scheme(value) != _without_scheme(PROTOCOL):
            what = "the draft of Zarr v3 is unknown"
            raise unsupported(what, name, PROTOCOL, value)
    _refuse_extensions(document)
    suffix = document.get("metadata_key_suffix", DRAFT_SUFFIX)
    if not isinstance(suffix, str):
        what = "the suffix of the metadata keys is not valid"
        raise wrong(what, "metadata_key_suffix", "a string", suffix)
    return suffix


def parse_array(
    document: Mapping[str, Any], path: str, data_path: str, options: Options
) -> ArrayLayout:
    """Layout of the array that an `.array.json` document describes.

    `data_path` is the path below which its objects lie, such as "data/root/a".
    """
    with parsing(path):
        return _parse(document, data_path).layout(path, options)


def _parse(document: Mapping[str, Any], data_path: str) -> HistoricArray:
    require_members(document, _REQUIRED)
    unknown = [name for name in document if name not in _KNOWN]
    if unknown:
        expected = f"only {', '.join(_KNOWN)}"
        raise UnsupportedError(
            f"unknown member {shown(unknown[0])}",
            json_path=unknown[0],
            expected=expected,
        )
    _refuse_extensions(document)
    shape = as_lengths(document["shape"], "the shape", "shape", least=0)
    chunk_shape, separator = _grid(document["chunk_grid"], len(shape))
    attributes = as_object(document.get("attributes") or {}, "attributes", "attributes")
    return HistoricArray(
        shape=shape,
        chunk_shape=chunk_shape,
        dtype=_numpy_spelling(document["data_type"]),
        codecs=StoredCodecs(
            _filters(attributes),
            _compressor(document.get("compressor")),
            _is_transposed(document),
            filters_path="attributes.filters",
        ),
        fill_value=document["fill_value"],
        sharding=_transformers(document.get("storage_transformers"), len(shape)),
        keys=ChunkKeys("draft", separator),
        attributes=attributes,
        data_path=data_path,
        paths=("shape", "chunk_grid.chunk_shape", "data_type"),
    )


def _without_scheme(value: Any) -> str:
    return str(value).partition("://")[2].rstrip("/")


def _refuse_extensions(document: Mapping[str, Any]) -> None:
    path = "extensions"
    for i, item in enumerate(as_list(document.get(path) or [], path, path)):
        extension = as_object(item, "the extension", f"{path}[{i}]")
        if extension.get("must_understand", True) is not False:
            raise UnsupportedError(
                "unknown extension",
                json_path=f"{path}[{i}]",
                got=shown(extension.get("extension")),
            )


def _grid(value: Any, ndim: int) -> tuple[tuple[int, ...], Literal["/", "."]]:
    grid = as_object(value, "the chunk grid", "chunk_grid")
    if grid.get("type") != "regular":
        what = "the chunk grid is of an unknown type"
        raise unsupported(what, "chunk_grid.type", "regular", grid.get("type"))
    path = "chunk_grid.chunk_shape"
    chunk_shape = as_lengths(
        grid.get("chunk_shape"), "the chunk shape", path, least=0, ndim=ndim
    )
    separator = grid.get("separator", "/")
    return chunk_shape, as_separator(separator, "chunk_grid.separator")


def _numpy_spelling(value: Any) -> Any:
    """Data type in NumPy's spelling; extensions carry it as their `type`."""
    if value == "bool":
        return "|b1"
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value).get("type")
    if value in ("i1", "u1"):
        return f"|{value}"
    return value


def _is_transposed(document: Mapping[str, Any]) -> bool:
    order = document.get("chunk_memory_layout", "C")
    if order not in ("C", "F"):
        what = "the memory layout of the chunks is unknown"
        raise unsupported(what, "chunk_memory_layout", "C or F", order)
    return order == "F"


def is_list_of_codecs(value: Any) -> bool:
    """Whether the attribute `filters` was set by the writer, not by the user."""
    return isinstance(value, list) and all(
        isinstance(item, Mapping) and "id" in item for item in cast("list[Any]", value)
    )


def _filters(attributes: Mapping[str, Any]) -> Any:
    """Filters, which the writer put among the attributes; None if there are none."""
    filters = attributes.get("filters")
    return filters if is_list_of_codecs(filters) else None


def _compressor(value: Any) -> dict[str, Any] | None:
    """Configuration of numcodecs that the address of a codec stands for."""
    if value is None:
        return None
    fields = as_object(value, "the compressor", "compressor")
    address = fields.get("codec")
    name, _, version = str(address).rpartition(_CODEC)[2].partition("/")
    if _CODEC not in str(address) or version.rstrip("/") != "1.0":
        expected = _CODEC_ADDRESS.format("<name>")
        what = "the compressor is unknown"
        raise unsupported(what, "compressor.codec", expected, address)
    path = "compressor.configuration"
    configuration = as_object(fields.get("configuration") or {}, "configuration", path)
    return {**configuration, "id": name}


def _transformers(value: Any, ndim: int) -> Sequence[HistoricSharding]:
    """Sharding transformers, from that next to the array to that next to the store."""
    path = "storage_transformers"
    items = as_list(value or [], "the list of storage transformers", path)
    return [_transformer(item, f"{path}[{i}]", ndim) for i, item in enumerate(items)]


def _transformer(value: Any, json_path: str, ndim: int) -> HistoricSharding:
    fields = as_object(value, "the storage transformer", json_path)
    extension = fields.get("extension")
    if not str(extension).rstrip("/").endswith("/sharding/1.0"):
        path = member(json_path, "extension")
        what = "the storage transformer is unknown"
        raise unsupported(what, path, TRANSFORMER, extension)
    if fields.get("type") != SHARD_FORMAT:
        what, path = "the format of the shards is unknown", member(json_path, "type")
        raise unsupported(what, path, SHARD_FORMAT, fields.get("type"))
    path = member(json_path, "configuration")
    configuration = as_object(fields.get("configuration"), "the configuration", path)
    path = member(path, "chunks_per_shard")
    per_shard = as_lengths(
        configuration.get("chunks_per_shard"),
        "the number of chunks a shard",
        path,
        least=1,
        ndim=ndim,
    )
    return HistoricSharding(per_shard, path)


def root_document() -> dict[str, Any]:
    """The `zarr.json` at the root of a hierarchy."""
    return {
        "extensions": [],
        "metadata_encoding": PROTOCOL,
        "metadata_key_suffix": DRAFT_SUFFIX,
        "zarr_format": PROTOCOL,
    }


def transformer_document(chunks_per_shard: Sequence[int]) -> dict[str, Any]:
    """Entry of `storage_transformers` that combines chunks in shards."""
    return {
        "extension": TRANSFORMER,
        "type": SHARD_FORMAT,
        "configuration": {"chunks_per_shard": list(chunks_per_shard)},
    }


def data_type_document(dtype: np.dtype[Any]) -> Any:
    """The data type as the draft spells it: its core types, and complex numbers."""
    kind, itemsize = dtype.kind, dtype.itemsize
    if kind == "b":
        return "bool"
    if kind in "iuf" and itemsize <= 8:
        return dtype.str.lstrip("|")
    if kind == "c" and itemsize <= 16:
        return {"extension": _COMPLEX, "fallback": None, "type": dtype.str}
    raise UnsupportedError(
        "the draft of v3 has no such data type",
        expected="booleans, integers, floats and complex numbers",
        got=str(dtype),
    )


def compressor_document(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The member `compressor` for a configuration of numcodecs."""
    members = {name: value for name, value in configuration.items() if name != "id"}
    address = _CODEC_ADDRESS.format(configuration["id"])
    return {"codec": address, "configuration": members}
