"""What a converted array keeps of its source, and the document for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

import numpy as np

from gpushard.codecs.base import REGISTERED
from gpushard.converting.shapes import Shape, along_axes, chunk_shape, shard_shape
from gpushard.errors import OptionError, UnsupportedError
from gpushard.formats.new_document import ArrayArguments, data_type_of, new_document
from gpushard.formats.numcodecs_names import v3_codec
from gpushard.formats.origins import without_origin
from gpushard.formats.v2 import DIMENSION_NAMES
from gpushard.formats.v3_draft import is_list_of_codecs
from gpushard.layout import ArrayLayout, CodecSpec
from gpushard.options import Options
from gpushard.writing.blueprint import Blueprint, v3_blueprint

KEEP: Any = "keep"
"""Value of an argument that keeps what the source has."""

_EXACT_FILTERS = ("transpose", "numcodecs.packbits")
# zarr chooses one of these by the data type.
_USUAL_SERIALIZERS = ("bytes", "vlen-utf8", "vlen-bytes")


class TargetArguments(TypedDict, total=False):
    """How the converted array is stored; all arguments are optional.

    Attributes
    ----------
    shards, chunks
        Shapes of the shards and inner chunks in elements; a number means all axes. By
        default those of the source, if it has usable ones.
    filters, serializer, compressors
        zarr codecs, as in `create_array`. "keep", the default, keeps the source's,
        except for filters that round.
    index_location
        Place of a shard's index: "end" or "start".
    """

    shards: int | tuple[int, ...] | None
    chunks: int | tuple[int, ...] | None
    filters: Any
    serializer: Any
    compressors: Any
    index_location: str


def _shapes(layout: ArrayLayout, asked: TargetArguments) -> tuple[Shape, Shape]:
    """Shapes of shards and inner chunks: those asked for, or ones that suit."""
    shape, itemsize = layout.shape, layout.dtype.itemsize
    shards = along_axes(asked.get("shards"), "shards", layout.ndim)
    chunks = along_axes(asked.get("chunks"), "chunks", layout.ndim)
    if chunks is None:
        chunks = chunk_shape(shape, itemsize, layout.chunks, shards)
    if shards is None:
        shards = shard_shape(shape, itemsize, chunks, layout.shards)
    if any(map(int.__mod__, shards, chunks)):
        raise OptionError(
            "shards are not whole inner chunks",
            expected=f"along each axis a multiple of {chunks}",
            got=f"shards {shards}",
            hint="choose others, or leave chunks or shards out to have them chosen",
        )
    return shards, chunks


def target_blueprint(
    layout: ArrayLayout, asked: TargetArguments, place: str, options: Options
) -> Blueprint:
    """Blueprint, at `place`, of the sharded array to convert an array to."""
    shards, chunks = _shapes(layout, asked)
    arguments: dict[str, Any] = {
        "shape": layout.shape,
        "dtype": data_type_of(layout.data_type_json, layout.dtype),
        "chunks": chunks,
        "shards": {
            "shape": shards,
            "index_location": asked.get("index_location", "end"),
        },
        "fill_value": layout.fill_value[()],
        "attributes": _attributes(layout),
        "dimension_names": layout.dimension_names,
        **_codecs(layout, asked),
    }
    document = new_document(cast("ArrayArguments", arguments))
    return _with_fill_value(document, layout, place, options)


def _codecs(layout: ArrayLayout, asked: TargetArguments) -> dict[str, Any]:
    """Codec arguments: those that were given, or the source's own."""
    chain, dtype = layout.chain, layout.dtype
    filters = [spec for spec in chain.array_array if _is_exact(spec, dtype)]
    if len(filters) < len(chain.array_array):
        # Filters after one that rounds were chosen for rounded elements.
        filters = [spec for spec in filters if spec.name == "transpose"]
    codecs: dict[str, Any] = {
        "filters": [v3_codec(spec, dtype.itemsize) for spec in filters],
        "compressors": [v3_codec(s, dtype.itemsize) for s in chain.bytes_bytes],
    }
    if chain.array_bytes.name not in _USUAL_SERIALIZERS:
        codecs["serializer"] = v3_codec(chain.array_bytes, dtype.itemsize)
    for name in ("filters", "serializer", "compressors"):
        given = asked.get(name, KEEP)
        if not (isinstance(given, str) and given == KEEP):
            codecs[name] = given
        elif name == "compressors":
            _refuse_unwritable(chain.bytes_bytes)
    return codecs


def _refuse_unwritable(specs: Sequence[CodecSpec]) -> None:
    for spec in specs:
        if spec.name.startswith(REGISTERED):
            raise UnsupportedError(
                "Zarr v3 has no such codec as the source has",
                codec=spec.name,
                json_path=spec.json_path,
                hint='choose others with compressors=, such as "auto"',
            )


def _is_exact(spec: CodecSpec, dtype: np.dtype[Any]) -> bool:
    """Whether a filter returns the elements that it was given, bit for bit.

    Rounding is not repeated on rounded elements, because it may change them again.
    """
    if spec.name == "numcodecs.delta":
        types = {spec.configuration.get(name) for name in ("dtype", "astype")}
        named = {np.dtype(name).newbyteorder("=") for name in types if name}
        return dtype.kind in "iu" and named <= {dtype}
    return spec.name in _EXACT_FILTERS


def _attributes(layout: ArrayLayout) -> Mapping[str, Any]:
    """Attributes without those of older formats that v3 has members for."""
    kept = dict(layout.attributes)
    if layout.keys.offset:
        kept = without_origin(kept)  # the converted array has an origin of its own
    names = kept.get(DIMENSION_NAMES)
    if layout.keys.kind == "v2" and names == list(layout.dimension_names or ()):
        del kept[DIMENSION_NAMES]
    if layout.keys.kind == "draft" and is_list_of_codecs(kept.get("filters")):
        del kept["filters"]
    return kept


def _with_fill_value(
    document: bytes, layout: ArrayLayout, place: str, options: Options
) -> Blueprint:
    """Blueprint whose fill value equals the source's bit for bit."""
    plan = v3_blueprint(document, place, options)
    if _same_fill(plan.layout, layout):
        return plan
    # zarr spells all NaNs alike; the source's spelling keeps the bits.
    members = json.loads(document)
    members["fill_value"] = layout.fill_value_json
    plan = v3_blueprint(json.dumps(members, indent=2).encode(), place, options)
    if _same_fill(plan.layout, layout):
        return plan
    raise UnsupportedError(
        "Zarr v3 cannot spell the array's fill value",
        json_path="fill_value",
        got=repr(layout.fill_value_json),
    )


def _same_fill(one: ArrayLayout, other: ArrayLayout) -> bool:
    if one.dtype.kind in "OT":
        return bool(one.fill_value[()] == other.fill_value[()])
    return one.fill_value.tobytes() == other.fill_value.tobytes()
