"""Zarr v3 array documents (core specification 3, sharding codec 1.0)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpushard.errors import UnsupportedError
from gpushard.formats.chains import Decoded, fold_levels, parse_chain
from gpushard.formats.data_types import parse_data_type
from gpushard.formats.document import (
    as_lengths,
    as_list,
    as_object,
    parsing,
    refuse_unknown_members,
    require_members,
    shown,
    wrong,
)
from gpushard.formats.fill_values import parse_fill_value
from gpushard.formats.grids import (
    parse_chunk_grid,
    parse_chunk_keys,
    refuse_many_axes,
)
from gpushard.formats.origins import parse_attributes as parse_origin
from gpushard.layout import ArrayLayout
from gpushard.options import Options

_REQUIRED = (
    "zarr_format",
    "node_type",
    "shape",
    "data_type",
    "chunk_grid",
    "chunk_key_encoding",
    "fill_value",
    "codecs",
)
_OPTIONAL = ("attributes", "storage_transformers", "dimension_names")


def parse_array(
    document: Mapping[str, Any], path: str, options: Options
) -> ArrayLayout:
    """Layout of the array that a `zarr.json` document describes."""
    with parsing(path):
        return _parse(document, path, options)


def _parse(document: Mapping[str, Any], path: str, options: Options) -> ArrayLayout:
    _check_members(document)
    shape = as_lengths(document["shape"], "the shape", "shape", least=0)
    refuse_many_axes(shape, "shape")
    data_type = parse_data_type(document["data_type"])
    grid = parse_chunk_grid(document["chunk_grid"], shape)
    decoded = Decoded(grid.lengths, data_type)
    parsed = parse_chain(document["codecs"], "codecs", decoded, options)
    folded = fold_levels(parsed, len(shape))
    is_sharded = folded.inner_chunk_shape is not None
    attributes = _attributes(document)
    keys = parse_chunk_keys(document["chunk_key_encoding"])
    origin = parse_origin(attributes, grid)
    return ArrayLayout(
        path=path,
        shape=shape,
        dtype=data_type.dtype,
        data_type_json=data_type.json,
        fill_value=parse_fill_value(document["fill_value"], data_type, "fill_value"),
        fill_value_json=document["fill_value"],
        axes=grid.axes,
        levels=folded.levels,
        chain=folded.chain,
        outer_order=folded.outer_order,
        object_codecs=folded.object_codecs,
        keys=replace(keys, offset=origin) if origin else keys,
        chunks=folded.inner_chunk_shape if is_sharded else grid.cell_shape,
        shards=grid.cell_shape if is_sharded else None,
        attributes=attributes,
        dimension_names=_dimension_names(document, len(shape)),
    )


def _check_members(document: Mapping[str, Any]) -> None:
    require_members(document, _REQUIRED)
    refuse_unknown_members(document, _REQUIRED + _OPTIONAL, "")
    transformers = document.get("storage_transformers")
    if transformers is not None and as_list(
        transformers, "the list of storage transformers", "storage_transformers"
    ):
        raise UnsupportedError(
            "storage transformers are not supported",
            json_path="storage_transformers",
            got=shown(transformers),
        )


def _attributes(document: Mapping[str, Any]) -> Mapping[str, Any]:
    attributes = document.get("attributes")
    if attributes is None:
        return {}
    return as_object(attributes, "attributes", "attributes")


def _dimension_names(
    document: Mapping[str, Any], ndim: int
) -> tuple[str | None, ...] | None:
    value = document.get("dimension_names")
    if value is None:
        return None
    names = as_list(value, "dimension_names", "dimension_names")
    if len(names) != ndim or not all(isinstance(name, str | None) for name in names):
        expected = f"{ndim} strings or nulls"
        raise wrong(
            "the dimension names are not valid", "dimension_names", expected, value
        )
    return tuple(names)
