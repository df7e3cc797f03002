"""Metadata documents in a store -> `ArrayLayout` and `GroupDocument`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from gpushard.errors import (
    GpushardError,
    MetadataError,
    NotFoundError,
    StoreError,
    UnsupportedError,
)
from gpushard.formats import v3
from gpushard.formats.document import (
    as_object,
    is_draft_root,
    member,
    refuse_unknown_members,
    wrong,
)
from gpushard.hierarchies.documents import (
    UNLISTED,
    V2_ARRAY,
    V3_DOCUMENT,
    Broken,
    GroupContents,
    GroupDocument,
    NodeType,
    array_instead,
    children_of,
    decode_document,
    existing,
    group_instead,
    join,
    not_consolidated,
    read_document,
    read_documents,
)
from gpushard.layout import ArrayLayout
from gpushard.options import DEFAULT, Options
from gpushard.stores.base import Store

DOCUMENTS = (V3_DOCUMENT, V2_ARRAY)
"""Names of an array's metadata document, in Zarr v3 and v2."""
_NODE_TYPES = ("array", "group")
_Children = tuple[Mapping[str, Mapping[str, Any]], Broken]
"""Documents below a group, and the errors of others, by relative path."""
_Node = TypeVar("_Node")
# Names below a group that are told apart from those of other files, for a hint.
_MOST_LOOKED_AT = 1000
_GROUP_MEMBERS = ("zarr_format", "node_type", "attributes", "consolidated_metadata")


def load_array(store: Store, path: str, options: Options = DEFAULT) -> ArrayLayout:
    """Layout of the array at `path` of a store.

    Raises
    ------
    NotFoundError
        There is no metadata document at `path`.
    MetadataError
        The document is malformed, contradicts itself, or describes a group.
    UnsupportedError
        The array needs something that gpushard does not read.
    """
    path = path.strip("/")
    document = read_document(store, join(path, V3_DOCUMENT), path)
    if document is None or is_draft_root(document):
        return _load_older_array(store, path, document is None, options)
    if document.get("node_type") == "group":
        raise group_instead(path, _names(store, path, document))
    return parse_array(document, path, options)


def _load_older_array(
    store: Store, path: str, may_be_v2: bool, options: Options
) -> ArrayLayout:
    """Layout of an array of Zarr v2, or of the draft of v3."""
    from gpushard.hierarchies import draft, v2  # few arrays are as old

    document = v2.find_array(store, path) if may_be_v2 else None
    if document is not None:
        return parse_array(document, path, options)
    layout = draft.find_array(store, path, options)
    if layout is None:
        raise _absent(store, path)
    return layout


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
    if _is_v2(document):
        from gpushard.formats import v2  # slow to import, where arrays are newer

        return v2.parse_array(document, path, options)
    _check_node(document, path, "array")
    return v3.parse_array(document, path, options)


def parse_document(data: bytes, path: str, options: Options) -> ArrayLayout:
    """Layout of the array at `path` that the bytes of a `zarr.json` describe.

    Raises
    ------
    MetadataError, UnsupportedError
        As for `parse_array`.
    """
    return parse_array(decode_document(data, V3_DOCUMENT, path), path, options)


def load_group(
    store: Store, path: str, *, use_consolidated: bool | None = None
) -> GroupDocument:
    """Group at `path` of a store; what lies below it is looked up when asked for.

    Consolidated metadata, which may be older than what they are about, are left alone
    if `use_consolidated` is False. If it is True, nothing else will do, and a group
    without them is refused before anything below it is looked for.

    Raises
    ------
    OptionError
        The group has no consolidated metadata, and `use_consolidated` is True.
    NotFoundError
        There is no metadata document at `path`.
    MetadataError
        The document at `path` is malformed, or describes an array.
    UnsupportedError
        The document has a member that a reader has to understand.
    StoreError
        The store failed.
    """
    path = path.strip("/")
    document = read_document(store, join(path, V3_DOCUMENT), path)
    if document is None or is_draft_root(document):
        return _load_older_group(store, path, document is None, use_consolidated)
    _check_node(document, path, "group")
    return _group_of(store, path, document, use_consolidated)


def load_node(store: Store, path: str, options: Options) -> ArrayLayout | GroupDocument:
    """Layout of the array at `path` of a store, or the group there.

    Raises
    ------
    NotFoundError, MetadataError, UnsupportedError, StoreError
        As for `load_array`, and as for `load_group` if there is a group.
    """
    path = path.strip("/")
    document = read_document(store, join(path, V3_DOCUMENT), path)
    if document is None or is_draft_root(document):
        try:
            return _load_older_array(store, path, document is None, options)
        except MetadataError as error:
            if error.json_path != "node_type":
                raise
        return _load_older_group(store, path, document is None, None)
    if document.get("node_type") == "group":
        _check_node(document, path, "group")
        return _group_of(store, path, document, None)
    return parse_array(document, path, options)


def _group_of(
    store: Store,
    path: str,
    document: Mapping[str, Any],
    use_consolidated: bool | None,
) -> GroupDocument:
    """Group of Zarr v3 that a document describes; see `load_group`."""
    try:
        attributes = _attributes_of_group(document)
        consolidated = None
        if use_consolidated is not False:
            consolidated = _consolidated(document)
    except GpushardError as error:
        error.add_context(array_path=path, node_type="group")
        raise
    if consolidated is not None:
        contents = GroupContents(children_of(*consolidated), *consolidated)
        return GroupDocument(path, attributes, contents, is_consolidated=True)
    if use_consolidated:
        raise not_consolidated(path)
    return GroupDocument(path, attributes, partial(_contents, store, path))


def names_in(store: Store, path: str) -> list[str]:
    """Names below the group at `path`, as far as they are known; [] if there is none.

    Raises
    ------
    MetadataError, UnsupportedError, StoreError
        As for `load_group`.
    """
    document = read_document(store, join(path, V3_DOCUMENT), path)
    if document is None or is_draft_root(document):
        with suppress(NotFoundError):
            group = _load_older_group(store, path, document is None, None)
            return [*group.looked_up().children]
        return []
    if document.get("node_type") != "group":
        return []
    names = _names(store, path, document)
    return [name for name in names if not name.startswith(".")]


def group_below(group: GroupDocument, name: str) -> GroupDocument | None:
    """Group `name` below `group` from consolidated metadata; None if not there.

    Raises
    ------
    MetadataError, UnsupportedError
        Its document is malformed, or has a member that a reader has to understand.
    """
    name = name.strip("/")
    known = group.known
    if not group.is_consolidated or known is None:
        return None
    document = known.documents.get(name)
    if document is None or document["node_type"] != "group":
        return None
    is_v3 = document.get("zarr_format") == 3
    attributes = _attributes_of_group(document) if is_v3 else document["attributes"]
    documents = _below(name, known.documents)
    broken = _below(name, known.broken)
    contents = GroupContents(children_of(documents, broken), documents, broken)
    path = join(group.path, name)
    return GroupDocument(path, attributes, contents, is_consolidated=True)


def _below(name: str, nodes: Mapping[str, _Node]) -> dict[str, _Node]:
    """The nodes below the group `name`, by path relative to it."""
    start = f"{name}/"
    return {
        path.removeprefix(start): node
        for path, node in nodes.items()
        if path.startswith(start)
    }


def _attributes_of_group(document: Mapping[str, Any]) -> Mapping[str, Any]:
    refuse_unknown_members(document, _GROUP_MEMBERS, "")
    return as_object(document.get("attributes") or {}, "attributes", "attributes")


def _load_older_group(
    store: Store, path: str, may_be_v2: bool, use_consolidated: bool | None
) -> GroupDocument:
    """Group of Zarr v2, or of the draft of v3."""
    from gpushard.hierarchies import draft, v2  # few groups are as old

    group = None
    if may_be_v2:
        group = v2.find_group(store, path, use_consolidated=use_consolidated)
    if group is None:
        group = draft.find_group(store, path)
    if group is None:
        raise _absent(store, path)
    if use_consolidated and not group.is_consolidated:
        raise not_consolidated(path)
    return group


def _is_v2(document: Mapping[str, Any]) -> bool:
    zarr_format = document.get("zarr_format")
    return type(zarr_format) is int and zarr_format == 2


def _absent(store: Store, path: str) -> NotFoundError:
    return NotFoundError(
        f"there is no {join(path, V3_DOCUMENT)} in {store.url}",
        hint="check the address and the path inside the store",
    )


def _check_node(document: Mapping[str, Any], path: str, wanted: NodeType) -> None:
    zarr_format, node_type = document.get("zarr_format"), document.get("node_type")
    if type(zarr_format) is not int or zarr_format != 3:
        # A draft of version 3 gave a URL, and its documents lie elsewhere.
        kind = UnsupportedError if is_draft_root(document) else MetadataError
        raise kind(
            "the Zarr format is not 3",
            array_path=path,
            node_type=wanted,
            json_path="zarr_format",
            expected=3,
            got=repr(zarr_format)[:80],
        )
    if node_type != wanted:
        if wanted == "group" and node_type == "array":
            raise array_instead(path)
        error = wrong(f"this is no {wanted}", "node_type", wanted, node_type)
        error.add_context(array_path=path)
        raise error


def _names(store: Store, path: str, document: Mapping[str, Any]) -> list[str]:
    """Names below a group, as far as they are known."""
    try:
        consolidated = _consolidated(document)
        if consolidated:
            return [*consolidated[0], *consolidated[1]]
        names = [n for n in store.list_children(path) or () if n != V3_DOCUMENT]
    except (MetadataError, StoreError):
        return []
    if store.costs.prefers_whole_objects or len(names) > _MOST_LOOKED_AT:
        return names
    keys = {name: join(path, name, V3_DOCUMENT) for name in names}
    try:
        found = existing(store, [*keys.values()])
    except StoreError:  # as where a link leads out of the store
        found = {key for key in keys.values() if _is_there(store, key)}
    return [name for name, key in keys.items() if key in found]


def _is_there(store: Store, key: str) -> bool:
    """Whether something that can be read lies at a key."""
    try:
        return bool(existing(store, [key]))
    except StoreError:
        return False


def _consolidated(document: Mapping[str, Any]) -> _Children | None:
    """Documents below a group; None without consolidated metadata."""
    where = "consolidated_metadata"
    consolidated = document.get(where)
    if consolidated is None:
        return None
    fields = as_object(consolidated, "consolidated metadata", where)
    path = member(where, "metadata")
    documents = as_object(fields.get("metadata"), "consolidated metadata", path)
    by_path = {name.strip("/"): value for name, value in documents.items()}
    by_path.pop("", None)  # the group itself, which does not lie below itself
    return _nodes(by_path, lambda name: f"{path}[{name!r}]")


def _nodes(documents: Mapping[str, Any], where: Callable[[str], str]) -> _Children:
    """Documents of nodes, and the errors of others; `where` gives a JSON path."""
    found: dict[str, Mapping[str, Any]] = {}
    broken: dict[str, GpushardError] = {}
    for name, value in documents.items():
        try:
            found[name] = _child(value, where(name))
        except MetadataError as error:
            broken[name] = error
    return found, broken


def _child(value: Any, json_path: str) -> Mapping[str, Any]:
    document = as_object(value, "the metadata of a child", json_path)
    if document.get("node_type") not in _NODE_TYPES:
        path = member(json_path, "node_type")
        raise wrong(
            "a child is no node", path, "array or group", document.get("node_type")
        )
    return document


def _contents(store: Store, path: str) -> GroupContents:
    """What lies directly below a group."""
    names = store.list_children(path)
    if names is None:
        return UNLISTED
    keys = {
        join(path, name, V3_DOCUMENT): name for name in names if name != V3_DOCUMENT
    }
    found, unread = read_documents(store, keys)
    nodes, broken = _nodes({keys[key]: found[key] for key in found}, lambda _: "")
    # Opening a broken child reads its document again, which raises its error.
    return GroupContents(
        children_of(nodes, {*broken, *map(keys.__getitem__, unread)}), nodes
    )
