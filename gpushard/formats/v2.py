"""Zarr v2 arrays (storage specification 2), plain or sharded by prototype II.

In prototype II (pull request 947 of zarr-python, 2022), every stored object is a shard
with a fixed number of chunks along each axis, which `shard_format` and `shards` tell.
At its end it has the index that the draft of the storage transformer describes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from gpushard.chunk_keys import ChunkKeys
from gpushard.errors import MetadataError, UnsupportedError
from gpushard.formats.document import (
    as_lengths,
    as_object,
    as_separator,
    parsing,
    require_members,
    unsupported,
    wrong,
)
from gpushard.formats.historic import HistoricArray, HistoricSharding
from gpushard.formats.numcodecs_chain import StoredCodecs
from gpushard.formats.origins import ORIGIN, parse_zarray
from gpushard.layout import ArrayLayout
from gpushard.options import Options

_REQUIRED = (
    "shape",
    "chunks",
    "dtype",
    "compressor",
    "fill_value",
    "order",
    "filters",
)
DIMENSION_NAMES = "_ARRAY_DIMENSIONS"
"""Attribute that names the dimensions in Zarr v2, by xarray's convention."""
# What netCDF-C notes of an array, in releases up to 4.9.2 and later ones (its page
# "NCZarr"): the dimensions, each with the path of its group.
_NCZARR = ("_NCZARR_ARRAY", "_nczarr_array")
_SHARD_FORMAT = "indexed"  # the only value of `shard_format` with a known meaning


def parse_array(
    document: Mapping[str, Any], path: str, options: Options
) -> ArrayLayout:
    """Layout of the array that a `.zarray` document describes.

    `document` has the members of `.zattrs` too, as its member "attributes".
    """
    with parsing(path):
        return _parse(document).layout(path, options)


def sharding_members(chunks_per_shard: Sequence[int]) -> dict[str, Any]:
    """Members that a `.zarray` document needs to combine chunks in shards."""
    return {"shard_format": _SHARD_FORMAT, "shards": list(chunks_per_shard)}


def _parse(document: Mapping[str, Any]) -> HistoricArray:
    # Other members must be ignored (storage specification 2, "Metadata"), except those
    # that describe shards.
    require_members(document, _REQUIRED)
    shape = as_lengths(document["shape"], "the shape", "shape", least=0)
    ndim = len(shape)
    chunk_shape = as_lengths(
        document["chunks"], "the chunk shape", "chunks", least=0, ndim=ndim
    )
    attributes = as_object(document.get("attributes") or {}, "attributes", ".zattrs")
    sharding = _sharding(document, ndim)
    separator = document.get("dimension_separator", ".")
    rolled = _rolled(document, attributes, ndim, is_sharded=bool(sharding))
    return HistoricArray(
        shape=shape,
        chunk_shape=chunk_shape,
        dtype=document["dtype"],
        codecs=StoredCodecs(
            document["filters"], document["compressor"], _is_transposed(document)
        ),
        fill_value=document["fill_value"],
        sharding=sharding,
        keys=ChunkKeys("v2", as_separator(separator, "dimension_separator"), rolled),
        attributes=attributes,
        dimension_names=_dimension_names(document, attributes, ndim),
        fill_is_missing=document["fill_value"] is not None,
        is_v2=True,
    )


def _sharding(document: Mapping[str, Any], ndim: int) -> Sequence[HistoricSharding]:
    """How the document combines chunks in shards; empty if it does not."""
    shards, shard_format = document.get("shards"), document.get("shard_format")
    if shards is None:
        if shard_format is not None:
            raise MetadataError(
                "the metadata names a format of shards but no shards",
                json_path="shards",
                expected=f"{ndim} lengths",
            )
        return ()
    if shard_format != _SHARD_FORMAT:
        what = "the format of the shards is unknown"
        raise unsupported(what, "shard_format", _SHARD_FORMAT, shard_format)
    per_shard = as_lengths(
        shards, "the number of chunks a shard", "shards", least=1, ndim=ndim
    )
    return (HistoricSharding(per_shard, "shards"),)


def _is_transposed(document: Mapping[str, Any]) -> bool:
    order = document["order"]
    if order not in ("C", "F"):
        raise wrong("the order of the elements is not valid", "order", "C or F", order)
    return order == "F"


def _dimension_names(
    document: Mapping[str, Any], attributes: Mapping[str, Any], ndim: int
) -> tuple[str | None, ...] | None:
    """Names by convention: members that do not follow it mean something else."""
    names = _names(attributes.get(DIMENSION_NAMES), ndim)
    if names is not None:
        return names
    notes = (place.get(key) for place in (document, attributes) for key in _NCZARR)
    for note in notes:
        if isinstance(note, dict):
            known = cast("dict[str, Any]", note)
            refs = _names(known.get("dimrefs", known.get("dimension_references")), ndim)
            if refs is not None:
                return tuple(ref.rpartition("/")[2] for ref in refs)
    return None


def _names(names: object, ndim: int) -> tuple[str, ...] | None:
    if not isinstance(names, list) or len(cast("list[Any]", names)) != ndim:
        return None
    known = cast("list[Any]", names)
    return tuple(known) if all(isinstance(name, str) for name in known) else None


def _rolled(
    document: Mapping[str, Any],
    attributes: Mapping[str, Any],
    ndim: int,
    *,
    is_sharded: bool,
) -> tuple[int, ...]:
    """Origin of a rolling array's stored chunk keys; () if it has none."""
    if not is_sharded:
        return parse_zarray(document, attributes, ndim)
    if document.get(ORIGIN):
        raise UnsupportedError(
            "the origin of a sharded array could count chunks or shards",
            json_path=ORIGIN,
        )
    return ()
