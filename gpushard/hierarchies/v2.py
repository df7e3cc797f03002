"""Zarr v2: `.zarray`, `.zgroup` and `.zattrs` beside one another, or `.zmetadata`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from gpushard.errors import GpushardError, MetadataError, StoreError
from gpushard.formats.document import as_object, wrong
from gpushard.hierarchies.documents import (
    UNLISTED,
    V2_ARRAY,
    V2_ATTRIBUTES,
    V2_GROUP,
    Broken,
    Document,
    GroupContents,
    GroupDocument,
    NodeType,
    array_instead,
    children_of,
    decode_document,
    group_instead,
    join,
    not_consolidated,
    read_document,
    read_documents,
    read_together,
)
from gpushard.stores.base import Store

_CONSOLIDATED = ".zmetadata"
_DOCUMENTS = (V2_ARRAY, V2_GROUP, V2_ATTRIBUTES, _CONSOLIDATED)
_NODE_TYPES: dict[str, NodeType] = {V2_ARRAY: "array", V2_GROUP: "group"}


def find_array(store: Store, path: str) -> Document | None:
    """Document of the array at `path`, its attributes among its members.

    None if there is neither an array nor a group.
    """
    array, attributes = _with_attributes(store, path, V2_ARRAY)
    if array is not None:
        return _node(
            "array",
            decode_document(array, V2_ARRAY, path),
            _decoded(attributes, V2_ATTRIBUTES, path),
        )
    if store.get(join(path, V2_GROUP)) is not None:
        raise group_instead(path, _names(store, path))
    return None


def find_group(
    store: Store, path: str, *, use_consolidated: bool | None = None
) -> GroupDocument | None:
    """Group at `path`; None if there is no node.

    What `use_consolidated` means, `gpushard.metadata.load_group` says.
    """
    consolidated = None
    if use_consolidated is not False:
        consolidated = read_document(store, join(path, _CONSOLIDATED), path)
    if consolidated is not None:
        try:
            return _consolidated(consolidated, path)
        except GpushardError as error:
            error.add_context(array_path=path, node_type="group")
            raise
    group, attributes = _with_attributes(store, path, V2_GROUP)
    if group is None:
        if store.get(join(path, V2_ARRAY)) is not None:
            raise array_instead(path)
        return None
    if use_consolidated:
        raise not_consolidated(path)
    named = _decoded(attributes, V2_ATTRIBUTES, path) or {}
    return GroupDocument(path, named, partial(_contents, store, path))


def _with_attributes(
    store: Store, path: str, name: str
) -> tuple[bytes | None, bytes | None]:
    """Document `name` of the node at `path`, and its attributes; None if absent."""
    document, attributes = read_together(
        store, [join(path, name), join(path, V2_ATTRIBUTES)]
    )
    return document, attributes


def _decoded(data: bytes | None, name: str, path: str) -> Document | None:
    return None if data is None else decode_document(data, name, path)


def _node(
    node_type: NodeType, document: Mapping[str, Any], attributes: Any
) -> Document:
    """The node's two documents joined to one, as in Zarr v3."""
    return {**document, "node_type": node_type, "attributes": attributes or {}}


def _names(store: Store, path: str) -> Iterable[str]:
    """Arrays and groups below a group, as far as the store reveals them."""
    try:
        group = find_group(store, path)
        return group.looked_up().children if group is not None else ()
    except (MetadataError, StoreError):
        return ()


def _contents(store: Store, path: str) -> GroupContents:
    """What lies directly below a group."""
    names = store.list_children(path)
    if names is None:
        return UNLISTED
    # A broken child is read again when it is opened, which raises its error.
    nodes, broken = _read(store, path, names)
    return GroupContents(children_of(nodes, broken), nodes)


def _read(
    store: Store, path: str, names: Iterable[str]
) -> tuple[dict[str, Document], Broken]:
    """Nodes directly below a group that has `names`, and the errors of others."""
    keys = [
        join(path, name, document)
        for name in names
        if name not in _DOCUMENTS
        for document in (V2_ARRAY, V2_GROUP, V2_ATTRIBUTES)
    ]
    below = f"{path}/" if path else ""
    found, unread = read_documents(store, keys)
    nodes, broken = _nodes({key.removeprefix(below): found[key] for key in found}, "")
    for key, error in unread.items():
        broken[key.removeprefix(below).rpartition("/")[0]] = error
    whole = {name: node for name, node in nodes.items() if name not in broken}
    return whole, broken


def _consolidated(document: Mapping[str, Any], path: str) -> GroupDocument:
    # Kerchunk's references in Parquet tell no format; zarr-python reads any.
    kind = document.get("zarr_consolidated_format", 1)
    if kind != 1:
        what = "the format of the consolidated metadata is unknown"
        raise wrong(what, "zarr_consolidated_format", 1, kind)
    where = "metadata"
    found = as_object(document.get(where), "consolidated metadata", where)
    nodes, broken = _nodes(found, where)
    if "" in broken:
        raise broken[""]
    own = nodes.pop("", None)
    if own is None:
        expected = f"a member {V2_GROUP}"
        raise wrong("the group is not in it", where, expected, list(found))
    if own["node_type"] == "array":
        raise array_instead(path)
    contents = GroupContents(children_of(nodes, broken), nodes, broken)
    return GroupDocument(path, own["attributes"], contents, is_consolidated=True)


def _nodes(
    found: Mapping[str, Any], json_path: str
) -> tuple[dict[str, Document], dict[str, GpushardError]]:
    """Documents by key -> nodes by path, and the errors of others."""
    nodes: dict[str, Document] = {}
    broken: dict[str, GpushardError] = {}
    for key in found:
        path, _, name = key.rpartition("/")
        if name not in _NODE_TYPES:
            continue
        try:
            nodes[path] = _parsed(found, key, f"{json_path}[{key!r}]")
        except MetadataError as error:
            broken[path] = error
    return nodes, broken


def _parsed(found: Mapping[str, Any], key: str, where: str) -> Document:
    path, _, name = key.rpartition("/")
    attributes = found.get(join(path, V2_ATTRIBUTES))
    if attributes is not None:
        attributes = as_object(attributes, "attributes", where)
    document = as_object(found[key], "the metadata of a child", where)
    return _node(_NODE_TYPES[name], document, attributes)
