"""Metadata documents in a store -> `ArrayLayout` and `GroupDocument`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from gpushard.errors import (
    GpushardError,
    MetadataError,
    NotFoundError,
    StoreError,
    UnsupportedError,
)
from gpushard.formats import v3
from gpushard.formats.document import as_object, member, refuse_unknown_members, wrong
from gpushard.layout import ArrayLayout
from gpushard.options import DEFAULT, Options
from gpushard.stores.base import ByteRequest, Store

NodeType = Literal["array", "group"]
_DOCUMENT = "zarr.json"
_NODE_TYPES = ("array", "group")
_GROUP_MEMBERS = ("zarr_format", "node_type", "attributes", "consolidated_metadata")
_V2_DOCUMENTS = (".zarray", ".zgroup")
_NAMES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class GroupDocument:
    """A group as a reader sees it.

    Attributes
    ----------
    path
        Path of the group in its store; "" is the root.
    attributes
        The group's own attributes.
    children
        Name and node type of each array and group directly below.
    documents
        Metadata documents that are known already, by path relative to the group.
        Consolidated metadata gives those of deeper nodes too.
    is_consolidated
        Whether they come from consolidated metadata.
    """

    path: str
    attributes: Mapping[str, Any]
    children: Mapping[str, NodeType]
    documents: Mapping[str, Mapping[str, Any]]
    is_consolidated: bool


def load_array(store: Store, path: str, options: Options = DEFAULT) -> ArrayLayout:
    """Layout of the array at `path` of a store.

    Raises
    ------
    NotFoundError
        There is no metadata document at `path`.
    MetadataError
        The document is malformed, contradicts itself, or describes a group.
    UnsupportedError
        The array needs something that gpushard does not read, Zarr v2 for one.
    """
    path = path.strip("/")
    document = _load_document(store, path)
    if document.get("node_type") == "group":
        raise _is_group(store, path, document)
    return parse_array(document, path, options)


def parse_array(
    document: Mapping[str, Any], path: str, options: Options = DEFAULT
) -> ArrayLayout:
    """Layout of the array at `path` that a metadata document describes.

    Raises
    ------
    MetadataError
        The document is malformed, contradicts itself, or describes a group.
    UnsupportedError
        The array needs something that gpushard does not read.
    """
    _check_node(document, path, "array")
    return v3.parse_array(document, path, options)


def load_group(store: Store, path: str) -> GroupDocument:
    """Group at `path` of a store, with what lies directly below it.

    Raises
    ------
    NotFoundError
        There is no metadata document at `path`.
    MetadataError
        A document is malformed, or the one at `path` describes an array.
    UnsupportedError
        The document has a member that a reader has to understand.
    StoreError
        There is no consolidated metadata and the store cannot list.
    """
    path = path.strip("/")
    document = _load_document(store, path)
    _check_node(document, path, "group")
    try:
        refuse_unknown_members(document, _GROUP_MEMBERS, "")
        attributes = as_object(
            document.get("attributes") or {}, "attributes", "attributes"
        )
        documents = _consolidated(document)
    except GpushardError as error:
        error.add_context(array_path=path)
        raise
    is_consolidated = documents is not None
    if documents is None:
        documents = _listed(store, path)
    children: dict[str, NodeType] = {
        name: child["node_type"] for name, child in documents.items() if "/" not in name
    }
    return GroupDocument(path, attributes, children, documents, is_consolidated)


def _load_document(store: Store, path: str) -> dict[str, Any]:
    data = store.get(_key(path, _DOCUMENT))
    if data is None:
        raise _absent(store, path)
    return _decode(data, path)


def _key(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _decode(data: bytes, path: str) -> dict[str, Any]:
    try:
        document = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "nested too deep"
        raise MetadataError(
            f"{_DOCUMENT} is no valid JSON: {reason}", array_path=path
        ) from error
    if not isinstance(document, dict):
        raise MetadataError(
            f"{_DOCUMENT} has the wrong type",
            array_path=path,
            expected="an object",
            got=type(document).__name__,
        )
    return cast("dict[str, Any]", document)


def _absent(store: Store, path: str) -> NotFoundError | UnsupportedError:
    for name in _V2_DOCUMENTS:
        if store.get(_key(path, name)) is not None:
            return UnsupportedError(
                "this is Zarr v2", array_path=path, expected=_DOCUMENT, got=name
            )
    return NotFoundError(
        f"there is no {_key(path, _DOCUMENT)} in {store.url}",
        hint="check the address and the path inside the store",
    )


def _check_node(document: Mapping[str, Any], path: str, wanted: NodeType) -> None:
    zarr_format, node_type = document.get("zarr_format"), document.get("node_type")
    if type(zarr_format) is not int or zarr_format != 3:
        # Version 2, or a draft of version 3, which gave a URL.
        is_other = zarr_format == 2 or str(zarr_format).startswith("https://")
        kind = UnsupportedError if is_other else MetadataError
        raise kind(
            "the Zarr format is not 3",
            array_path=path,
            json_path="zarr_format",
            expected=3,
            got=repr(zarr_format)[:80],
        )
    if node_type != wanted:
        error = wrong(f"this is no {wanted}", "node_type", wanted, node_type)
        error.add_context(array_path=path)
        raise error


def _is_group(store: Store, path: str, document: Mapping[str, Any]) -> MetadataError:
    """Error that names what could be opened instead."""
    try:
        names = sorted(_consolidated(document) or store.list_children(path) or ())
    except (MetadataError, StoreError):
        names = []
    names = [name for name in names if name != _DOCUMENT]
    shortened = [*names[:_NAMES_SHOWN], "..."] if names[_NAMES_SHOWN:] else names
    return MetadataError(
        f"{repr(path) if path else 'the root of the store'} is a group, not an array",
        json_path="node_type",
        hint=f"open {' or '.join(shortened) or 'an array below it'}",
    )


def _consolidated(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]] | None:
    """Documents below a group by relative path; None without consolidated metadata."""
    where = "consolidated_metadata"
    consolidated = document.get(where)
    if consolidated is None:
        return None
    fields = as_object(consolidated, "consolidated metadata", where)
    path = member(where, "metadata")
    documents = as_object(fields.get("metadata"), "consolidated metadata", path)
    return {
        name.strip("/"): _child(value, f"{path}[{name!r}]")
        for name, value in documents.items()
    }


def _child(value: Any, json_path: str) -> Mapping[str, Any]:
    document = as_object(value, "the metadata of a child", json_path)
    if document.get("node_type") not in _NODE_TYPES:
        path = member(json_path, "node_type")
        raise wrong(
            "a child is no node", path, "array or group", document.get("node_type")
        )
    return document


def _listed(store: Store, path: str) -> dict[str, Mapping[str, Any]]:
    """Documents directly below a group, found by listing the store."""
    names = store.list_children(path)
    if names is None:
        raise StoreError(
            "this store cannot list what lies below a group",
            array_path=path,
            hint="open an array by its path, or consolidate the group's metadata",
        )
    paths = {name: _key(path, name) for name in names if name != _DOCUMENT}
    answers = store.read([ByteRequest(_key(at, _DOCUMENT)) for at in paths.values()])
    return {
        name: _child(_decode(answer.data.tobytes(), paths[name]), "")
        for name, answer in zip(paths, answers, strict=True)
        if answer is not None
    }
