"""One codec, two names: numcodecs' configurations and the codecs of Zarr v3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from gpushard.errors import OptionError
from gpushard.layout import CodecSpec

_PREFIX = "numcodecs."
# Codecs that Zarr v3 has under a name of its own, as well as through numcodecs.
_SHARED = ("zstd", "gzip", "blosc")
# numcodecs' numbers for the names in v3; -1 means that the element's size decides.
_SHUFFLES = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}
_AUTOMATIC = -1


def numcodecs_configuration(codec: Any) -> dict[str, Any]:
    """Configuration of numcodecs, "id" among its members, that `codec` stands for.

    A codec or a configuration of numcodecs, a codec of zarr, or its entry in a list.
    """
    fields = _fields(codec)
    if isinstance(fields.get("id"), str):
        return fields
    name = str(fields.get("name"))
    configuration = dict(cast("Mapping[str, Any]", fields.get("configuration") or {}))
    if name.startswith(_PREFIX):
        return {"id": name.removeprefix(_PREFIX), **configuration}
    if name not in _SHARED:
        raise _unknown(codec)
    if name == "blosc":
        numbers = {text: number for number, text in _SHUFFLES.items()}
        configuration["shuffle"] = numbers.get(
            str(configuration.get("shuffle")), _AUTOMATIC
        )
        configuration.pop("typesize", None)
    return {"id": name, **configuration}


def v3_codec(spec: CodecSpec, itemsize: int) -> dict[str, Any]:
    """Entry of a v3 list of codecs for `spec`, under v3's own name where it has one.

    `spec` has the name of any of the formats. Blosc needs the size of an element for
    shuffling.
    """
    configuration: dict[str, Any] = dict(spec.configuration)
    name = spec.name.removeprefix(_PREFIX)
    if name == spec.name or name not in _SHARED:
        return _entry(spec.name, configuration)
    if name == "gzip":
        return _entry(name, {"level": configuration.get("level", 1)})
    if name == "zstd":
        members = {"level": configuration.get("level", 1), "checksum": False}
        return _entry(name, {**members, **configuration})
    number = configuration.get("shuffle", 1)
    if number == _AUTOMATIC:
        number = 2 if itemsize == 1 else 1
    return _entry(
        name,
        {
            "cname": configuration.get("cname", "lz4"),
            "clevel": configuration.get("clevel", 5),
            "shuffle": _SHUFFLES.get(number, "noshuffle"),
            "typesize": min(itemsize, 255),
            "blocksize": configuration.get("blocksize", 0),
        },
    )


def _entry(name: str, configuration: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


def _fields(codec: Any) -> dict[str, Any]:
    """Members of a codec's configuration, in whichever form it is given."""
    if isinstance(codec, Mapping):
        return dict(cast("Mapping[str, Any]", codec))
    for method in ("get_config", "to_dict"):
        if hasattr(codec, method):
            return dict(getattr(codec, method)())
    raise _unknown(codec)


def _unknown(codec: Any) -> OptionError:
    return OptionError(
        "the format takes codecs of numcodecs only",
        expected='such as numcodecs.Zstd(), or {"id": "zstd", "level": 3}',
        got=repr(codec),
    )
