"""How an array is stored, as xarray's `to_zarr` takes it: a variable's encoding."""

from __future__ import annotations

from typing import Any

from gpushard.array import Array
from gpushard.codecs.zarr_objects import codec_object
from gpushard.errors import UnsupportedError


def encoding_of(
    array: Array, dimensions: tuple[str, ...], *, is_v2: bool
) -> dict[str, Any]:
    """Encoding of the variable that an array becomes.

    Parameters
    ----------
    is_v2
        Whether xarray sees an array of Zarr v2, whose fill value is an attribute to it.
    """
    encoding: dict[str, Any] = {}
    if array.dtype.kind == "T":  # xarray makes Python objects of it otherwise
        encoding["dtype"] = array.dtype
    lengths = [axis.lengths for axis in array.source.layout.axes]
    encoding["preferred_chunks"] = dict(zip(dimensions, lengths, strict=True))
    if array.shards is not None:
        encoding["shards"] = array.shards
    # Of shards of different lengths, to_zarr would make an object of each inner chunk.
    is_whole = array.shards is not None or not array.source.layout.levels
    if array.chunks is not None and is_whole:
        encoding["chunks"] = array.chunks
    if not is_v2:
        encoding["fill_value"] = array.fill_value
        encoding |= _codecs_of(array)
    return encoding


def _codecs_of(array: Array) -> dict[str, Any]:
    """Zarr's objects of the codecs; none if `to_zarr` has no words for all of them."""
    layout = array.source.layout
    is_plain = len(layout.levels) < 2 and not layout.object_codecs
    in_order = tuple(range(layout.ndim))
    if not is_plain or any(level.axis_order != in_order for level in layout.levels):
        return {}
    chain = layout.chain
    try:
        return {
            "filters": tuple(map(codec_object, chain.array_array)),
            "serializer": codec_object(chain.array_bytes),
            "compressors": tuple(map(codec_object, chain.bytes_bytes)),
        }
    except UnsupportedError:  # zarr does not know one of them
        return {}
