"""A codec's name -> its kind, and whether its encoded size is fixed."""

from __future__ import annotations

from enum import IntEnum

from gpushard.errors import MetadataError, UnsupportedError


class Kind(IntEnum):
    """The three kinds of codecs, in the order in which a chain encodes."""

    ARRAY_ARRAY = 0
    ARRAY_BYTES = 1
    BYTES_BYTES = 2


SHARDING = "sharding_indexed"

_KINDS = {
    "transpose": Kind.ARRAY_ARRAY,
    "numcodecs.astype": Kind.ARRAY_ARRAY,
    "numcodecs.bitround": Kind.ARRAY_ARRAY,
    "numcodecs.delta": Kind.ARRAY_ARRAY,
    "numcodecs.fixedscaleoffset": Kind.ARRAY_ARRAY,
    "numcodecs.packbits": Kind.ARRAY_ARRAY,
    "numcodecs.quantize": Kind.ARRAY_ARRAY,
    "bytes": Kind.ARRAY_BYTES,
    SHARDING: Kind.ARRAY_BYTES,
    "vlen-bytes": Kind.ARRAY_BYTES,
    "vlen-utf8": Kind.ARRAY_BYTES,
    "numcodecs.pcodec": Kind.ARRAY_BYTES,
    "numcodecs.zfpy": Kind.ARRAY_BYTES,
    "blosc": Kind.BYTES_BYTES,
    "crc32c": Kind.BYTES_BYTES,
    "gzip": Kind.BYTES_BYTES,
    "zstd": Kind.BYTES_BYTES,
    "numcodecs.adler32": Kind.BYTES_BYTES,
    "numcodecs.blosc": Kind.BYTES_BYTES,
    "numcodecs.bz2": Kind.BYTES_BYTES,
    "numcodecs.crc32": Kind.BYTES_BYTES,
    "numcodecs.crc32c": Kind.BYTES_BYTES,
    "numcodecs.fletcher32": Kind.BYTES_BYTES,
    "numcodecs.gzip": Kind.BYTES_BYTES,
    "numcodecs.jenkins_lookup3": Kind.BYTES_BYTES,
    "numcodecs.lz4": Kind.BYTES_BYTES,
    "numcodecs.lzma": Kind.BYTES_BYTES,
    "numcodecs.shuffle": Kind.BYTES_BYTES,
    "numcodecs.zlib": Kind.BYTES_BYTES,
    "numcodecs.zstd": Kind.BYTES_BYTES,
}

KNOWN = tuple(_KINDS)
"""Codecs whose kind is known without asking zarr."""

VARIABLE_SIZE = frozenset(
    [
        SHARDING,
        "blosc",
        "gzip",
        "vlen-bytes",
        "vlen-utf8",
        "zstd",
        "numcodecs.blosc",
        "numcodecs.bz2",
        "numcodecs.gzip",
        "numcodecs.lz4",
        "numcodecs.lzma",
        "numcodecs.pcodec",
        "numcodecs.zfpy",
        "numcodecs.zlib",
        "numcodecs.zstd",
    ]
)
"""Codecs whose encoded size depends on the data."""

KEEP_SHAPE = frozenset(
    [
        "numcodecs.astype",
        "numcodecs.bitround",
        "numcodecs.delta",
        "numcodecs.fixedscaleoffset",
        "numcodecs.quantize",
        "cast_value",
        "scale_offset",
    ]
)
"""Array-to-array codecs that may change the data type but not the shape."""

CODECS_OF_NUMBERS = KEEP_SHAPE | {"numcodecs.packbits"}
"""Array-to-array codecs that take no elements of variable size."""

VARIABLE_LENGTH_TYPES = {
    "vlen-utf8": ("string",),
    "vlen-bytes": ("variable_length_bytes", "bytes"),
}
"""Array-to-bytes codecs that take only these data types."""

_EXECUTES_DATA = frozenset(["pickle", "json2", "msgpack2", "dill", "cloudpickle"])


def kind_of(name: str, json_path: str) -> Kind:
    """Kind of the codec `name`.

    Raises
    ------
    MetadataError
        The codec builds arbitrary Python objects from the stored bytes.
    UnsupportedError
        Neither gpushard nor the installed zarr knows the codec.
    """
    if name.rpartition(".")[2] in _EXECUTES_DATA:
        raise MetadataError(
            "the codec makes Python objects out of stored bytes",
            codec=name,
            json_path=json_path,
            hint="such arrays are never read",
        )
    known = _KINDS.get(name)
    return _registered_kind(name, json_path) if known is None else known


def _registered_kind(name: str, json_path: str) -> Kind:
    from zarr.abc.codec import (
        ArrayArrayCodec,
        ArrayBytesCodec,
        BytesBytesCodec,
    )
    from zarr.registry import get_codec_class

    try:
        found = get_codec_class(name)
    except Exception as error:  # an entry point may raise anything
        raise _unknown(name, json_path) from error
    for base, kind in (
        (ArrayArrayCodec, Kind.ARRAY_ARRAY),
        (ArrayBytesCodec, Kind.ARRAY_BYTES),
        (BytesBytesCodec, Kind.BYTES_BYTES),
    ):
        if issubclass(found, base):
            return kind
    raise _unknown(name, json_path)


def _unknown(name: str, json_path: str) -> UnsupportedError:
    return UnsupportedError(
        "unknown codec",
        codec=name,
        json_path=json_path,
        hint="install the package that registers this codec with zarr",
    )
