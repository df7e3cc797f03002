"""Codecs of a `codecs` list: their kinds by name, and their checked configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any

from gpushard.codecs import BYTES_CODECS
from gpushard.codecs.base import FILTERS_OF_NUMCODECS, REGISTERED
from gpushard.errors import MetadataError, UnsupportedError
from gpushard.formats.document import Named, as_list, as_named, unsupported, wrong
from gpushard.layout import CodecSpec


class Kind(IntEnum):
    """The three kinds of codecs, in the order in which a chain encodes."""

    ARRAY_ARRAY = 0
    ARRAY_BYTES = 1
    BYTES_BYTES = 2


SHARDING = "sharding_indexed"
SHUFFLE = "numcodecs.shuffle"

_ARRAY_BYTES = (
    "bytes",
    SHARDING,
    "vlen-bytes",
    "vlen-utf8",
    "numcodecs.pcodec",
    "numcodecs.zfpy",
)
# Checksums that zarr's codecs verify; gpushard's own codecs are in their registry.
_CHECKSUMS_OF_NUMCODECS = (
    "numcodecs.adler32",
    "numcodecs.crc32",
    "numcodecs.crc32c",
    "numcodecs.fletcher32",
    "numcodecs.jenkins_lookup3",
)


def _in_groups(names: Iterable[str]) -> list[str]:
    """Names of Zarr v3 before those of numcodecs, each in alphabetical order."""
    return sorted(names, key=lambda name: ("." in name, name))


_KINDS = {
    "cast_value": Kind.ARRAY_ARRAY,
    "scale_offset": Kind.ARRAY_ARRAY,
    "transpose": Kind.ARRAY_ARRAY,
    **dict.fromkeys(sorted(FILTERS_OF_NUMCODECS), Kind.ARRAY_ARRAY),
    "numcodecs.packbits": Kind.ARRAY_ARRAY,
    **dict.fromkeys(_ARRAY_BYTES, Kind.ARRAY_BYTES),
    **dict.fromkeys(
        _in_groups((*BYTES_CODECS, *_CHECKSUMS_OF_NUMCODECS)), Kind.BYTES_BYTES
    ),
}

KNOWN = tuple(_KINDS)
"""Codecs whose kind is known without asking zarr."""

CHECKSUMS = frozenset(("crc32c", *_CHECKSUMS_OF_NUMCODECS))
"""Bytes-to-bytes codecs that only verify."""

VARIABLE_SIZE = frozenset((*_ARRAY_BYTES, *BYTES_CODECS)) - {"bytes", "crc32c", SHUFFLE}
"""Codecs whose encoded size depends on the data."""

KEEP_SHAPE = FILTERS_OF_NUMCODECS | {"cast_value", "scale_offset"}
"""Array-to-array codecs that may change the data type but not the shape."""

CODECS_OF_NUMBERS = KEEP_SHAPE | {"numcodecs.packbits"}
"""Array-to-array codecs that take no elements of variable size."""

VARIABLE_LENGTH_TYPES = {
    "vlen-utf8": ("string",),
    "vlen-bytes": ("variable_length_bytes", "bytes"),
}
"""Array-to-bytes codecs that take only these data types."""

_EXECUTES_DATA = frozenset(["pickle", "json2", "msgpack2", "dill", "cloudpickle"])
# Checking one takes 60 us, and a document has room for millions.
_MAX_CODECS = 256
_BLOSC_COMPRESSORS = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_BLOSC_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")


def kind_of(name: str, json_path: str) -> Kind:
    """Kind of the codec `name`.

    A codec that builds arbitrary Python objects from stored bytes is a `MetadataError`.
    """
    if name.removeprefix(REGISTERED).rpartition(".")[2] in _EXECUTES_DATA:
        raise MetadataError(
            "the codec makes Python objects out of stored bytes",
            codec=name,
            json_path=json_path,
            hint="such arrays are never read",
        )
    if name.startswith(REGISTERED):
        return Kind.BYTES_BYTES
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
        hint="install the package that registers this codec with zarr (for an array of"
        " Zarr v2, with numcodecs)",
    )


def parse_specs(value: Any, json_path: str) -> list[CodecSpec]:
    """The codecs of a list, each with its JSON path.

    Members that a reader needs are checked strictly, members that only a writer needs
    leniently. The configuration of a sharding codec has its own parser.
    """
    items = codec_list(value, "the codec list", json_path)
    return [_spec(item, f"{json_path}[{i}]") for i, item in enumerate(items)]


def codec_list(value: Any, what: str, json_path: str) -> list[Any]:
    """List of codecs, whose entries are not checked yet."""
    items = as_list(value, what, json_path)
    if len(items) > _MAX_CODECS:
        what = "there are too many codecs in a chain"
        raise unsupported(what, json_path, f"at most {_MAX_CODECS}", len(items))
    return items


def _spec(value: Any, json_path: str) -> CodecSpec:
    named = as_named(value, "the codec", json_path)
    check = _CHECKS.get(named.name)
    if check is not None:
        check(named)
    return CodecSpec(named.name, dict(named.configuration), json_path)


def as_json(spec: CodecSpec) -> dict[str, Any]:
    """Long form of a codec entry, as zarr reads it."""
    return {"name": spec.name, "configuration": dict(spec.configuration)}


def _check_transpose(named: Named) -> None:
    named.refuse_members_but(("order",))
    order = as_list(named.required("order"), "the order of the axes", named.at("order"))
    if any(type(axis) is not int for axis in order) or sorted(order) != list(
        range(len(order))
    ):
        expected = "a permutation of the axes"
        raise wrong(
            "the order of the axes is not valid", named.at("order"), expected, order
        )


def _check_bytes(named: Named) -> None:
    named.refuse_members_but(("endian",))
    _check_choice(named, "endian", ("little", "big"))


def _check_blosc(named: Named) -> None:
    _check_choice(named, "cname", _BLOSC_COMPRESSORS)
    _check_choice(named, "shuffle", _BLOSC_SHUFFLES)
    for key in ("clevel", "typesize", "blocksize"):
        _check_type(named, key, int)


def _check_zstd(named: Named) -> None:
    _check_type(named, "level", int)
    _check_type(named, "checksum", bool)


def _check_choice(named: Named, key: str, choices: tuple[str, ...]) -> None:
    value = named.configuration.get(key)
    if value is not None and value not in choices:
        what = f"{key!r} of codec {named.name!r} is not valid"
        raise wrong(what, named.at(key), f"one of {', '.join(choices)}", value)


def _check_type(named: Named, key: str, wanted: type) -> None:
    value = named.configuration.get(key)
    if value is not None and type(value) is not wanted:
        what = f"{key!r} of codec {named.name!r} has the wrong type"
        raise wrong(what, named.at(key), f"a JSON {wanted.__name__}", value)


_CHECKS: Mapping[str, Callable[[Named], None]] = {
    "transpose": _check_transpose,
    "bytes": _check_bytes,
    "blosc": _check_blosc,
    "zstd": _check_zstd,
    "gzip": lambda named: _check_type(named, "level", int),
    "crc32c": lambda named: named.refuse_members_but(()),
    # These streams do not describe themselves, so no member may be ignored; some
    # writers repeat the id.
    "numcodecs.packbits": lambda named: named.refuse_members_but(("id",)),
    SHUFFLE: lambda named: named.refuse_members_but(("id", "elementsize")),
    SHARDING: lambda named: named.refuse_members_but(
        ("chunk_shape", "codecs", "index_codecs", "index_location")
    ),
}
