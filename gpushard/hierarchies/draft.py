"""The draft of Zarr v3: documents below `meta/root`, objects below `data/root`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpushard.errors import GpushardError, NotFoundError
from gpushard.formats import v3_draft
from gpushard.formats.document import as_object, is_draft_root, parsing
from gpushard.hierarchies.documents import (
    DRAFT_DATA,
    DRAFT_METADATA,
    V3_DOCUMENT,
    GroupContents,
    GroupDocument,
    NodeType,
    array_instead,
    decode_document,
    group_instead,
    join,
    listed,
    read_document,
    read_together,
)
from gpushard.layout import ArrayLayout
from gpushard.options import Options
from gpushard.stores.base import Store


@dataclass(frozen=True, slots=True)
class _Node:
    """A place in a hierarchy.

    `root` is the path of the hierarchy in its store, and `path` that of the node in the
    hierarchy. `suffix` is that of metadata keys.
    """

    root: str
    path: str
    suffix: str

    @property
    def store_path(self) -> str:
        """Path of the node in the store, as the user names it."""
        return join(self.root, self.path)

    def key(self, node_type: NodeType) -> str:
        """Key of the node's metadata document."""
        stem = join(self.root, DRAFT_METADATA, self.path)
        return f"{stem}.{node_type}{self.suffix}"

    def read(self, store: Store, node_type: NodeType) -> dict[str, Any] | None:
        """Metadata document of the node; None if it is no such node."""
        return read_document(store, self.key(node_type), self.store_path)


def find_array(store: Store, path: str, options: Options) -> ArrayLayout | None:
    """Layout of the array at `path`; None if `path` is in no hierarchy of the draft.

    If the hierarchy has no such array, that is a `NotFoundError`.
    """
    node = _find(store, path)
    if node is None:
        return None
    document = node.read(store, "array")
    if document is not None:
        data_path = join(node.root, DRAFT_DATA, node.path)
        return v3_draft.parse_array(document, path, data_path, options)
    try:
        children = _children(store, node)
    except GpushardError:  # a store that cannot list
        children = {}
    if not node.path or children or node.read(store, "group") is not None:
        raise group_instead(path, children)
    raise _absent(store, node.key("array"))


def find_group(store: Store, path: str) -> GroupDocument | None:
    """Group at `path`; None if `path` is in no hierarchy of the draft.

    Groups need no document of their own: every directory above a node is a group. If
    the hierarchy has no such group, that is a `NotFoundError`.
    """
    node = _find(store, path)
    if node is None:
        return None
    document = node.read(store, "group")
    children = _children(store, node)
    if document is None and not children and node.path:
        if node.read(store, "array") is not None:
            raise array_instead(path)
        raise _absent(store, node.key("group"))
    with parsing(path):
        given = (document or {}).get("attributes") or {}
        attributes = as_object(given, "attributes", "attributes")
    return GroupDocument(path, attributes, GroupContents(children))


def _find(store: Store, path: str) -> _Node | None:
    """The hierarchy around `path`, and the place of `path` in it."""
    parts = path.split("/") if path else []
    roots = ["/".join(parts[:n]) for n in range(len(parts), -1, -1)]
    keys = [join(root, V3_DOCUMENT) for root in roots]
    for n, data in enumerate(_read_upwards(store, keys)):
        if data is None:
            continue
        document = decode_document(data, V3_DOCUMENT, path)
        if not is_draft_root(document):
            return None
        with parsing(path):
            suffix = v3_draft.parse_root(document)
        return _Node(roots[n], "/".join(parts[len(parts) - n :]), suffix)
    return None


def _read_upwards(store: Store, keys: Sequence[str]) -> Iterable[bytes | None]:
    """Bytes at each key; after the last one that is wanted, no failure matters.

    All are read together, as of a path where nothing lies, all are wanted.
    """
    try:
        return read_together(store, keys)
    except GpushardError:  # above a hierarchy, its readers may have no rights
        return (read_together(store, [key])[0] for key in keys)


def _children(store: Store, node: _Node) -> dict[str, NodeType]:
    """Name and kind of every node directly below; a directory is a group."""
    names = listed(store, join(node.root, DRAFT_METADATA, node.path), node.store_path)
    children: dict[str, NodeType] = {}
    for name in names:
        if name.endswith(f".array{node.suffix}"):
            children[name.removesuffix(f".array{node.suffix}")] = "array"
        else:
            # An array beside a directory of the same name stays an array.
            children.setdefault(name.removesuffix(f".group{node.suffix}"), "group")
    return children


def _absent(store: Store, key: str) -> NotFoundError:
    return NotFoundError(
        f"there is no {key} in {store.url}",
        hint="check the address and the path inside the store",
    )
