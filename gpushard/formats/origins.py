"""The documents of each format -> where a rolling array's window lies: its `origin`.

An origin is the coordinate in the key of the array's first stored object. It may be
negative. docs/rolling.md describes the convention.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gpushard.errors import MetadataError, UnsupportedError
from gpushard.formats.document import as_object, wrong
from gpushard.formats.grids import ChunkGrid
from gpushard.layout import MAX_LENGTH

ORIGIN = "origin"
"""Attribute of a rolling Zarr v3 array, and member of `.zarray` in Zarr v2."""
ROLLING = "rolling"
"""Attribute that marks `origin` as an origin: other software uses that name too."""
VERSION = 1
_OFFSET = "_offset"


def parse_attributes(attributes: Mapping[str, Any], grid: ChunkGrid) -> tuple[int, ...]:
    """Origin of a Zarr v3 array; () if it does not roll."""
    if rolling_members(attributes) is None:
        return ()
    path = f"attributes.{ORIGIN}"
    if ORIGIN not in attributes:
        raise MetadataError("the rolling array has no origin", json_path=path)
    if grid.cell_shape is None:
        raise UnsupportedError(
            "arrays with a rectilinear chunk grid cannot roll", json_path=path
        )
    return _coordinates(attributes[ORIGIN], len(grid.axes), path)


def rolling_members(attributes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a Zarr v3 array says about its rolling; None if it does not roll."""
    members = attributes.get(ROLLING)
    if not isinstance(members, Mapping) or "version" not in members:
        return None
    version = cast("Mapping[str, Any]", members)["version"]
    if version != VERSION:
        raise UnsupportedError(
            "the array rolls in a way of another version",
            json_path=f"attributes.{ROLLING}.version",
            expected=VERSION,
            got=version,
        )
    return cast("Mapping[str, Any]", members)


def tags_of(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Tags of a Zarr v3 array's stored objects."""
    path = f"attributes.{ROLLING}.tags"
    members = rolling_members(attributes) or {}
    tags = as_object(members.get("tags") or {}, "the tags of stored objects", path)
    if not all(isinstance(value, str) for value in tags.values()):
        raise wrong("the tags are not valid", path, "strings", dict(tags))
    return dict(tags)


def new_attributes(
    given: Mapping[str, Any], origin: Sequence[int], tags: Mapping[str, str]
) -> dict[str, Any]:
    """Attributes of a new rolling array, including those `given` by the caller."""
    rolling: dict[str, Any] = {"version": VERSION}
    if tags:
        rolling["tags"] = dict(tags)
    return {**given, ORIGIN: list(origin), ROLLING: rolling}


def without_origin(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of an array of either format, as if it did not roll."""
    names = {_OFFSET}
    if rolling_members(attributes) is not None:
        names |= {ORIGIN, ROLLING}
    return {name: value for name, value in attributes.items() if name not in names}


def moved_document(
    document: Mapping[str, Any], origin: Sequence[int], shape: Sequence[int]
) -> bytes:
    """Bytes of a `zarr.json` with a moved window and otherwise unchanged."""
    attributes = {**document["attributes"], ORIGIN: list(origin)}
    moved = {**document, "shape": list(shape), "attributes": attributes}
    return json.dumps(moved, indent=2).encode()


def parse_zarray(
    document: Mapping[str, Any], attributes: Mapping[str, Any], ndim: int
) -> tuple[int, ...]:
    """Origin of a Zarr v2 array, by its two documents; () if it does not roll."""
    told = document.get(ORIGIN)
    origin = () if told is None or told == [] else _coordinates(told, ndim, ORIGIN)
    offset = _offset(attributes, ndim)
    if origin and offset and origin != offset:
        raise wrong(
            "the origin contradicts the offset of the rolling array",
            ORIGIN,
            f"{list(offset)}, as .zattrs says",
            list(origin),
        )
    return origin or offset


def _offset(attributes: Mapping[str, Any], ndim: int) -> tuple[int, ...]:
    """Offset of `rolling_zarr_array_store`: any other value means something else."""
    value = attributes.get(_OFFSET)
    if not isinstance(value, list) or not value:
        return ()
    items = cast("list[Any]", value)
    if any(type(n) is not int for n in items):
        return ()
    return _coordinates(items, ndim, f".zattrs.{_OFFSET}")


def _coordinates(value: Any, ndim: int, json_path: str) -> tuple[int, ...]:
    is_list = isinstance(value, list | tuple)
    items = cast("list[Any]", value) if is_list else []
    is_valid = all(type(n) is int and abs(n) <= MAX_LENGTH for n in items)
    if not is_list or len(items) != ndim or not is_valid:
        what = "the origin of the rolling array is not valid"
        raise wrong(what, json_path, f"{ndim} integers", value)
    return tuple(items)
