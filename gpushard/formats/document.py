"""Checked access to a JSON metadata document; every refusal carries its JSON path."""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

from gpushard.errors import GpushardError, MetadataError, UnsupportedError
from gpushard.layout import MAX_LENGTH

# JSON has numbers of any length; those of more bits are shortened, as text.
_MOST_BITS = 64


@contextmanager
def parsing(array_path: str) -> Generator[None]:
    """Add the path of the array to errors of the block that parses its document."""
    try:
        yield
    except GpushardError as error:
        error.add_context(array_path=array_path)
        raise
    except RecursionError as error:
        raise MetadataError(
            "the metadata is nested too deep", array_path=array_path
        ) from error


def wrong(what: str, json_path: str, expected: Any, got: Any) -> MetadataError:
    """Error that shows a shortened `got`."""
    got = _fact(got)
    return MetadataError(what, json_path=json_path, expected=expected, got=got)


def unsupported(what: str, json_path: str, expected: Any, got: Any) -> UnsupportedError:
    """Error for what gpushard does not read; shows a shortened `got`."""
    got = _fact(got)
    return UnsupportedError(what, json_path=json_path, expected=expected, got=got)


def _fact(value: Any) -> Any:
    """A JSON value for an error: a number, for programs, or a short form of others."""
    is_number = isinstance(value, float) or (
        isinstance(value, int) and value.bit_length() <= _MOST_BITS
    )
    return value if is_number else shown(value)


def is_draft_root(document: Mapping[str, Any]) -> bool:
    """Whether a `zarr.json` is the root of a hierarchy of some draft of v3."""
    return str(document.get("zarr_format")).startswith(("http://", "https://"))


def as_separator(value: Any, json_path: str) -> Literal["/", "."]:
    """`value`, which must be a separator of the coordinates in a chunk key."""
    if value not in ("/", "."):
        what = "the separator of the chunk keys is not valid"
        raise wrong(what, json_path, '"/" or "."', value)
    return cast("Any", value)


def shown(value: Any) -> str:
    """Short form of a JSON value for messages."""
    return reprlib.repr(value)


def member(json_path: str, name: str) -> str:
    """JSON path of a member of the object at `json_path`."""
    return f"{json_path}.{name}" if json_path else name


def require_members(fields: Mapping[str, Any], names: Collection[str]) -> None:
    """Refuse a document without members that it must have."""
    for name in names:
        if name not in fields:
            raise MetadataError(f"the metadata lacks {name!r}", json_path=name)


def as_object(value: Any, what: str, json_path: str) -> Mapping[str, Any]:
    """`value`, which must be a JSON object."""
    if not isinstance(value, Mapping):
        raise wrong(f"{what} has the wrong type", json_path, "an object", value)
    return cast("Mapping[str, Any]", value)


def as_list(value: Any, what: str, json_path: str) -> list[Any]:
    """`value`, which must be a JSON array."""
    if not isinstance(value, list | tuple):
        raise wrong(f"{what} has the wrong type", json_path, "an array", value)
    return list(cast("list[Any]", value))


def as_length(value: Any, what: str, json_path: str, *, least: int) -> int:
    """`value`, which must be an integer in ``[least, MAX_LENGTH]``."""
    if type(value) is not int or not least <= value <= MAX_LENGTH:
        expected = f"an integer from {least} to {MAX_LENGTH}"
        raise wrong(f"{what} is not valid", json_path, expected, value)
    return value


def as_lengths(
    value: Any, what: str, json_path: str, *, least: int, ndim: int | None = None
) -> tuple[int, ...]:
    """`value`, which must be a shape, of rank `ndim` if that is given."""
    items = as_list(value, what, json_path)
    if ndim is not None and len(items) != ndim:
        raise wrong(f"{what} has the wrong rank", json_path, f"{ndim} lengths", value)
    return tuple(
        as_length(item, what, f"{json_path}[{axis}]", least=least)
        for axis, item in enumerate(items)
    )


@dataclass(frozen=True, slots=True)
class Named:
    """Value of an extension point: a name and its configuration."""

    name: str
    configuration: Mapping[str, Any]
    json_path: str

    def at(self, key: str) -> str:
        """JSON path of a member of the configuration."""
        return f"{self.json_path}.configuration.{key}"

    def required(self, key: str) -> Any:
        """A required member of the configuration."""
        if key not in self.configuration:
            what = f"{self.name!r} lacks {key!r} in its configuration"
            raise MetadataError(what, json_path=self.at(key))
        return self.configuration[key]

    def refuse_members_but(self, known: Collection[str]) -> None:
        """Refuse a configuration with members that gpushard would ignore."""
        path = f"{self.json_path}.configuration"
        refuse_unknown_members(self.configuration, known, path)


def as_named(value: Any, what: str, json_path: str) -> Named:
    """Name and configuration of an extension point: an object, or a bare name."""
    if isinstance(value, str):
        return Named(value, {}, json_path)
    fields = as_object(value, what, json_path)
    name = fields.get("name")
    if not isinstance(name, str):
        path = member(json_path, "name")
        raise wrong(f"{what} has no name", path, "a string", name)
    refuse_unknown_members(
        fields, ("name", "configuration", "must_understand"), json_path
    )
    configuration = fields.get("configuration")
    if configuration is None:
        return Named(name, {}, json_path)
    path = member(json_path, "configuration")
    return Named(
        name, as_object(configuration, f"configuration of {name!r}", path), json_path
    )


def refuse_unknown_members(
    fields: Mapping[str, Any], known: Collection[str], json_path: str
) -> None:
    """Refuse members that a reader has to understand (core specification 3)."""
    for name, value in fields.items():
        if name not in known and not _may_be_ignored(value):
            raise UnsupportedError(
                f"unknown member {name!r}",
                json_path=member(json_path, name),
                expected=f"only {', '.join(known) or 'nothing'}",
                got=shown(name),
                hint='only a member with "must_understand": false may be ignored',
            )


def _may_be_ignored(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    return cast("Mapping[str, Any]", value).get("must_understand") is False
