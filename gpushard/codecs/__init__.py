"""Codecs by their name in the metadata; each module is imported on first use.

To make a codec raises `MetadataError` if its configuration is wrong or does not fit the
elements, and `UnsupportedError` if nobody knows it, or a package is missing. To decode
raises what `base.BytesCodec.decode` says.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from gpushard.codecs.base import REGISTERED, ArrayCodec, BytesCodec
from gpushard.layout import CodecSpec

BYTES_CODECS = {
    "zstd": "zstd:from_spec",
    "numcodecs.zstd": "zstd:from_spec",
    "gzip": "gzip:gzip_from_spec",
    "numcodecs.gzip": "gzip:gzip_from_spec",
    "numcodecs.zlib": "gzip:zlib_from_spec",
    "numcodecs.bz2": "bz2_lzma:bz2_from_spec",
    "numcodecs.lzma": "bz2_lzma:lzma_from_spec",
    "numcodecs.lz4": "lz4:from_spec",
    "blosc": "blosc:from_spec",
    "numcodecs.blosc": "blosc:from_spec",
    "numcodecs.shuffle": "shuffle:from_spec",
    "crc32c": "crc32c:from_spec",
}
_ARRAY_CODECS = {
    "numcodecs.delta": "numcodecs_filter:delta_from_spec",
    "numcodecs.fixedscaleoffset": "numcodecs_filter:scale_offset_from_spec",
    "numcodecs.bitround": "numcodecs_filter:bitround_from_spec",
    "numcodecs.packbits": "numcodecs_filter:packbits_from_spec",
    "cast_value": "packed_values:cast_from_spec",
    "scale_offset": "packed_values:scale_from_spec",
}
_ANY_BYTES_CODEC = "zarr_codec:zarr_bytes_codec"
_REGISTERED_CODEC = "registered:from_spec"
_TRANSPOSE = "transpose"


def bytes_codec(spec: CodecSpec) -> BytesCodec:
    """Decoder of a bytes-to-bytes codec."""
    if spec.name.startswith(REGISTERED):
        return _factory(_REGISTERED_CODEC)(spec)
    return _factory(BYTES_CODECS.get(spec.name, _ANY_BYTES_CODEC))(spec)


def array_codec(spec: CodecSpec, dtype: np.dtype[Any]) -> ArrayCodec | None:
    """Decoder of an array-to-array codec on `dtype`; None if only zarr has one."""
    if spec.name == _TRANSPOSE:
        return _factory("transpose:from_spec")(spec)
    if spec.name in _ARRAY_CODECS:
        return _factory(_ARRAY_CODECS[spec.name])(spec, dtype)
    return None


def _factory(address: str) -> Callable[..., Any]:
    module, name = address.split(":")
    return getattr(import_module(f"gpushard.codecs.{module}"), name)
