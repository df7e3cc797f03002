"""One entry of a `codecs` list -> `CodecSpec`, its configuration checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpushard.errors import UnsupportedError
from gpushard.formats.codec_names import SHARDING
from gpushard.formats.document import Named, as_list, as_named, wrong
from gpushard.layout import CodecSpec

# Checking one takes 60 us, and a document has room for millions.
_MAX_CODECS = 256
_BLOSC_COMPRESSORS = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_BLOSC_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")


def parse_specs(value: Any, json_path: str) -> list[CodecSpec]:
    """The codecs of a list, each with its JSON path.

    Members that a reader needs are checked strictly, members that only a writer needs
    leniently. The configuration of a sharding codec has its own parser.

    Raises
    ------
    MetadataError
        The list or a configuration is malformed.
    UnsupportedError
        The list is absurdly long.
    """
    items = codec_list(value, "the codec list", json_path)
    return [_spec(item, f"{json_path}[{i}]") for i, item in enumerate(items)]


def codec_list(value: Any, what: str, json_path: str) -> list[Any]:
    """List of codecs, whose entries are not checked yet.

    Raises
    ------
    MetadataError
        It is not a list.
    UnsupportedError
        It is absurdly long.
    """
    items = as_list(value, what, json_path)
    if len(items) > _MAX_CODECS:
        raise UnsupportedError(
            "there are too many codecs in a chain",
            json_path=json_path,
            expected=f"at most {_MAX_CODECS}",
            got=len(items),
        )
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


def _check_gzip(named: Named) -> None:
    _check_type(named, "level", int)


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
    "gzip": _check_gzip,
    "crc32c": lambda named: named.refuse_members_but(()),
    # These streams do not describe themselves, so no member may be ignored; some
    # writers repeat the id.
    "numcodecs.packbits": lambda named: named.refuse_members_but(("id",)),
    "numcodecs.shuffle": lambda named: named.refuse_members_but(("id", "elementsize")),
    SHARDING: lambda named: named.refuse_members_but(
        ("chunk_shape", "codecs", "index_codecs", "index_location")
    ),
}
