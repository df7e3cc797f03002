"""What a new rolling array needs: attributes that say so, and tags that are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gpushard.arguments import integer, items, mapping
from gpushard.errors import OptionError, UnsupportedError
from gpushard.formats.new_document import (
    ArrayArguments,
    attributes_of,
    lengths,
)
from gpushard.formats.origins import ORIGIN, ROLLING, new_attributes
from gpushard.options import DEFAULT
from gpushard.stores.resolve import local_path_of, resolve
from gpushard.stores.writers import writer_of

if TYPE_CHECKING:
    from gpushard.stores.resolve import Target


def rolling_attributes(
    array: ArrayArguments,
    origin: int | tuple[int, ...],
    tags: Mapping[str, str] | None,
) -> dict[str, Any]:
    """Attributes of a new array, with those that make it roll."""
    attributes = attributes_of(array)
    if taken := attributes.keys() & {ORIGIN, ROLLING}:
        raise OptionError(
            f"gpushard itself sets the attribute {min(taken)!r} of a rolling array",
            hint="leave it out of attributes=, and pass origin= or tags=",
        )
    ndim = len(lengths(array["shape"], "shape"))
    if not ndim:
        raise OptionError("an array without axes cannot roll", got="shape=()")
    known = mapping(tags, "tags", "a mapping of names to texts")
    return new_attributes(attributes, _coordinates(origin, ndim), known)


def _coordinates(origin: Any, ndim: int) -> tuple[int, ...]:
    """Coordinate of the first shard along each axis."""
    if not isinstance(origin, Iterable):
        return integer(origin, "origin"), *(0,) * (ndim - 1)
    given = items(origin, "origin", "an integer, or one for each axis")
    if len(given) != ndim:
        raise OptionError(
            "origin= needs one coordinate for each axis", expected=ndim, got=len(given)
        )
    return tuple(integer(n, "origin") for n in given)


def refuse_untaggable(
    store: Target, tags: Mapping[str, str], settings: Mapping[str, Any] | None
) -> None:
    """Refuse tags that a store cannot keep, before anything is created."""
    if local_path_of(store) is not None:
        raise UnsupportedError(
            "files have no tags", got=str(store), hint="leave the tags out"
        )
    writer_of(resolve(store, "", DEFAULT, settings)[0], tags)
