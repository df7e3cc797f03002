"""Metadata documents as JSON objects, and what a reader must know about a group."""

from __future__ import annotations

import json
import os
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from gpushard.errors import (
    GpushardError,
    LimitError,
    MetadataError,
    NoSuchArrayError,
    OptionError,
    StoreError,
)
from gpushard.formats.document import shown
from gpushard.options import KIB, MAX_PARSED_NBYTES
from gpushard.stores.base import ByteRequest, Fetched, Store
from gpushard.stores.checks import asked
from gpushard.stores.documents import document_bytes, document_request
from gpushard.stores.failures import refuse_unsafe_key
from gpushard.stores.local.store import LocalStore

NodeType = Literal["array", "group"]
Document = dict[str, Any]
Broken = Mapping[str, GpushardError]
"""Errors by the key or path of the document or node that has them."""

V3_DOCUMENT = "zarr.json"
"""Name of the document of a node in Zarr v3, and of a hierarchy's root in its draft."""
V2_ARRAY, V2_GROUP, V2_ATTRIBUTES = ".zarray", ".zgroup", ".zattrs"
"""Names of the documents of a node in Zarr v2."""
DRAFT_METADATA, DRAFT_DATA = "meta/root", "data/root"
"""Paths of documents and of objects in a hierarchy of the draft of Zarr v3."""

_NAMES_SHOWN = 8
# Documents of a group's children are fetched so many at a time, and only so many bytes
# of each, which is enough for nearly all.
_BATCH = 256
_USUAL_NBYTES = 64 * KIB
# Parsed memory that is not counted per document: many documents may take more together.
_USUAL_PARSED_NBYTES = 32 * KIB


@dataclass(frozen=True, slots=True)
class GroupContents:
    """What lies below a group.

    Attributes
    ----------
    children
        Name and node type of each array and group directly below. A node of unknown
        type is listed as an array, so that nobody misses it.
    documents
        Metadata documents that are known already, by path relative to the group.
        Consolidated metadata gives those of deeper nodes too.
    broken
        Errors of nodes whose consolidated metadata is malformed, by path relative to
        the group.
    is_listed
        Whether the children are known. If not, there is no consolidated metadata, and
        the store cannot list.
    """

    children: Mapping[str, NodeType] = field(default_factory=dict[str, NodeType])
    documents: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict[str, Mapping[str, Any]]
    )
    broken: Broken = field(default_factory=dict[str, GpushardError])
    is_listed: bool = True


UNLISTED = GroupContents(is_listed=False)
"""Those of a group of which nothing but the attributes is known."""


@dataclass(frozen=True, slots=True)
class GroupDocument:
    """A group as a reader sees it.

    Attributes
    ----------
    path
        Path of the group in its store; "" is the root.
    attributes
        The group's own attributes.
    contents
        What lies below it; or a function that lists the store, which many children
        make expensive, and which raises a `StoreError` if the store fails.
    is_consolidated
        Whether the contents come from consolidated metadata.
    """

    path: str
    attributes: Mapping[str, Any]
    contents: GroupContents | Callable[[], GroupContents]
    is_consolidated: bool = False

    @property
    def known(self) -> GroupContents | None:
        """The contents, if nothing has to be read for them."""
        return self.contents if isinstance(self.contents, GroupContents) else None

    def looked_up(self) -> GroupContents:
        """The contents, read now if they are not known."""
        return (
            self.contents
            if isinstance(self.contents, GroupContents)
            else self.contents()
        )


def join(*parts: str) -> str:
    """Key or path of the parts that are not empty."""
    return "/".join(part for part in parts if part)


def read_document(store: Store, key: str, path: str) -> Document | None:
    """JSON object at `key`, which describes the node at `path`; None if absent."""
    data = store.get(key)
    return None if data is None else decode_document(data, key, path)


def read_together(store: Store, keys: Sequence[str]) -> list[bytes | None]:
    """Bytes of a few documents, for which a network is waited once; None if absent."""
    answers = asked(store, [document_request(key) for key in keys])
    return [
        document_bytes(answer, key, store.url)
        for key, answer in zip(keys, answers, strict=True)
    ]


def read_documents(
    store: Store, keys: Collection[str]
) -> tuple[dict[str, Document], Broken]:
    """JSON objects at those of `keys` that exist, and the errors of others.

    The documents are read in few batches. A document that is not a JSON object, that
    lies where no object of the store should, or that would take too much memory beside
    the others, does not prevent the others from being read. If the store fails, and its
    requests are too expensive to try each document alone, its error is raised.
    """
    found: dict[str, Document] = {}
    broken: dict[str, GpushardError] = {}
    left_nbytes = MAX_PARSED_NBYTES
    for key, data in _read_in_batches(store, _safe(store, keys, broken), broken):
        path = key.rpartition("/")[0]
        try:
            data = store.get(key) or b"" if len(data) > _USUAL_NBYTES else data
            nbytes = max(0, _parsed_nbytes(data) - _USUAL_PARSED_NBYTES)
            if nbytes > left_nbytes:
                raise _too_costly(key.rpartition("/")[2], path, data)
            left_nbytes -= nbytes
            found[key] = decode_document(data, key, path)
        except GpushardError as error:
            broken[key] = error
    return found, broken


def existing(store: Store, keys: Sequence[str]) -> set[str]:
    """Those of a few keys at which something lies, asked for in one batch."""
    requests = [ByteRequest(key, max_nbytes=_USUAL_NBYTES) for key in keys]
    answers = asked(store, requests)
    return {k for k, answer in zip(keys, answers, strict=True) if answer is not None}


def is_deleted(store: Store, path: str) -> bool:
    """Whether the directory of a node that is listed at `path` of a store is gone.

    Only files tell: elsewhere, an array that is all fill value may have no object, and
    asking costs a request.
    """
    if not isinstance(store, LocalStore):
        return False
    try:
        os.stat(os.path.join(store.root, path))
    except FileNotFoundError:
        return True
    except (OSError, ValueError):  # who reads it is told
        return False
    return False


def _safe(
    store: Store, keys: Iterable[str], broken: dict[str, GpushardError]
) -> list[str]:
    """Those of `keys` that name something below the store's root."""
    safe: list[str] = []
    for key in keys:
        try:
            refuse_unsafe_key(key, store.url)
        except StoreError as error:
            broken[key] = error
        else:
            safe.append(key)
    return safe


def _read_in_batches(
    store: Store, keys: list[str], broken: dict[str, GpushardError]
) -> Iterator[tuple[str, bytes]]:
    """Documents that exist; unusually long ones are cut off."""
    for first in range(0, len(keys), _BATCH):
        requests = [
            ByteRequest(key, max_nbytes=_USUAL_NBYTES + 1)
            for key in keys[first : first + _BATCH]
        ]
        try:
            answers = asked(store, requests)
        except StoreError:
            if store.costs.prefers_whole_objects:
                raise
            answers = [_read_alone(store, request, broken) for request in requests]
        for request, answer in zip(requests, answers, strict=True):
            if answer is not None:
                yield request.key, answer.data.tobytes()


def _read_alone(
    store: Store, request: ByteRequest, broken: dict[str, GpushardError]
) -> Fetched | None:
    try:
        return asked(store, [request])[0]
    except StoreError as error:
        broken[request.key] = error
        return None


def children_of(
    documents: Mapping[str, Mapping[str, Any]], broken: Collection[str]
) -> dict[str, NodeType]:
    """Name and node type of what lies directly below a group, by relative path."""
    children: dict[str, NodeType] = dict.fromkeys(broken, "array")
    children.update({name: node["node_type"] for name, node in documents.items()})
    return {name: kind for name, kind in children.items() if "/" not in name}


def decode_document(data: bytes, key: str, path: str) -> Document:
    """JSON object of a metadata document; one that takes too much memory is refused."""
    name = key.rpartition("/")[2]
    if _parsed_nbytes(data) > MAX_PARSED_NBYTES:
        raise _too_costly(name, path, data)
    try:
        document = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "nested too deep"
        hint = "restore it from a copy, or make the array or group again"
        if bytes(data[:64]).lstrip().startswith(b"<"):
            hint = "it is a web page: check the address, and whether it needs a login"
        raise MetadataError(
            f"{name} is no valid JSON: {reason}", array_path=path, hint=hint
        ) from error
    if not isinstance(document, dict):
        raise MetadataError(
            f"{name} has the wrong type",
            array_path=path,
            expected="an object",
            got=type(document).__name__,
        )
    return cast("Document", document)


def _parsed_nbytes(data: bytes) -> int:
    """Upper bound of the memory that a parsed document takes."""
    # For CPython 3.12, rounded up: a text is held three times; a list takes 56 bytes
    # and 8 per value, an object with one member 200, a short string or a number 32 to
    # 56.
    nbytes = 3 * len(data) + 56 * data.count(b",")
    return nbytes + 64 * data.count(b"[") + 144 * data.count(b"{")


def _too_costly(name: str, path: str, data: bytes) -> LimitError:
    """Error for a small document that takes far more memory once it is parsed."""
    hint = "shorten its attributes"
    if b"consolidated" in bytes(data):
        hint = "open arrays below by their own paths, or consolidate fewer at once"
    return LimitError(
        f"{name} would take too much memory once it is parsed",
        array_path=path,
        expected=f"at most {MAX_PARSED_NBYTES} bytes, with those beside it",
        got=f"about {_parsed_nbytes(data)} bytes from {len(data)} bytes of JSON",
        hint=hint,
    )


def listed(store: Store, prefix: str, path: str) -> list[str]:
    """Names below `prefix`, for the group at `path`; else a `StoreError`."""
    names = store.list_children(prefix)
    if names is None:
        raise cannot_list(path)
    return names


def cannot_list(path: str) -> StoreError:
    """Error for the unknown contents of the group at `path`."""
    return StoreError(
        "this store cannot list what lies below a group",
        array_path=path,
        node_type="group",
        hint="open an array by its path, or consolidate the group's metadata",
    )


def not_consolidated(path: str) -> OptionError:
    """Error for the group at `path` if its consolidated metadata are demanded."""
    return OptionError(
        "the group has no consolidated metadata",
        array_path=path,
        node_type="group",
        hint="run zarr.consolidate_metadata, or do not demand them",
    )


def no_such_array(what: str, path: str, hint: str | None) -> NoSuchArrayError:
    """Error for an array that the group at `path` does not have."""
    return NoSuchArrayError(what, array_path=path, node_type="group", hint=hint)


def directory_gone(name: str) -> NoSuchArrayError:
    """Error for an array of consolidated metadata of which nothing is left."""
    # A read would give the fill value for all of it, as if nothing had been lost.
    return NoSuchArrayError(
        f"the consolidated metadata list {name!r}, whose directory was deleted",
        hint="consolidate them again, or open the group with use_consolidated=False",
    )


def group_instead(path: str, names: Iterable[str]) -> MetadataError:
    """Error for a group opened as an array, which names what could be opened."""
    shortened = sorted(names)
    if shortened[_NAMES_SHOWN:]:
        shortened = [*shortened[:_NAMES_SHOWN], "..."]
    return MetadataError(
        f"{shown(path) if path else 'the root of the store'} is a group, not an array",
        json_path="node_type",
        node_type="group",
        hint=f"open {' or '.join(shortened) or 'an array below it'}",
    )


def array_instead(path: str) -> MetadataError:
    """Error for an array opened as a group."""
    return MetadataError(
        "this is an array, not a group",
        array_path=path,
        json_path="node_type",
        node_type="array",
        hint="open it with gpushard.open_array, or name the group that has it",
    )
