"""The documents that make arrays and groups in a store, format by format."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from gpushard.codecs.small_floats import refuse_computing
from gpushard.errors import OptionError
from gpushard.formats.document import is_draft_root
from gpushard.formats.new_document import ArrayArguments, new_document
from gpushard.formats.new_historic import (
    HistoricArguments,
    draft_document,
    encoded_document,
    prototype_documents,
)
from gpushard.formats.v3_draft import DRAFT_SUFFIX, parse_root, root_document
from gpushard.formats.v3_draft import parse_array as parse_draft_array
from gpushard.hierarchies.documents import (
    DRAFT_DATA,
    DRAFT_METADATA,
    V2_ARRAY,
    V2_ATTRIBUTES,
    V2_GROUP,
    V3_DOCUMENT,
    decode_document,
    existing,
    join,
    read_documents,
)
from gpushard.layout import ArrayLayout
from gpushard.metadata import parse_array, parse_document
from gpushard.options import Options
from gpushard.stores.base import Store
from gpushard.stores.local.store import LocalStore
from gpushard.stores.writers import writer_of

ArrayFormat = Literal["v3", "v3-draft-transformer", "v2-prototype-ii"]
"""Formats that arrays are written in."""

_DOCUMENTS = (V3_DOCUMENT, V2_ARRAY, V2_GROUP)

# Kinds of fill values that are comparable with elements of each kind.
_SAME_FILL = {**dict.fromkeys("biu", "biuf"), "S": "S", "U": "U"}


@dataclass(frozen=True, slots=True)
class Blueprint:
    """An array that is to be created.

    Attributes
    ----------
    layout
        The layout with which it will be read.
    documents
        Key and bytes of each document; the last one makes the array.
    occupied
        Keys that must not exist.
    below
        Prefixes of the array's own objects, deleted to make room for it.
    root
        Key and bytes of the document of the hierarchy, which may exist already.
    group
        Name and bytes of the document of each group above the array; None if the
        format has groups without one.
    """

    layout: ArrayLayout
    documents: tuple[tuple[str, bytes], ...]
    occupied: tuple[str, ...]
    below: tuple[str, ...]
    root: tuple[str, bytes] | None = None
    group: tuple[str, bytes] | None = None

    def make(self, store: Store, *, overwrite: bool) -> None:
        """Make the array, and the groups above it up to the root, where nothing is."""
        if self.root is None:
            refuse_unfit_place(store, self.layout.path)
        else:
            _refuse_in_draft(store)
            _refuse_below_draft_array(store, self.layout.path)
        if overwrite:
            self.clear(store)
        self.put(store)
        if self.group is not None:
            put_groups_above(store, self.layout.path, self.group)

    def clear(self, store: Store) -> None:
        """Delete everything at the array's place."""
        writer = writer_of(store)
        for prefix in self.below:
            writer.clear(prefix)
        if self.root is not None:
            for key in self.occupied:
                writer.put(key, None)

    def put(self, store: Store) -> None:
        """Write the documents; the array exists once the last one is written."""
        refuse_occupied(store, self.occupied)
        writer = writer_of(store)
        if self.root is not None:
            self._put_root(store, *self.root)
        *others, (key, document) = self.documents
        for other, data in others:
            writer.put(other, [np.frombuffer(data, np.uint8)])
        if not writer.create(key, [np.frombuffer(document, np.uint8)]):
            raise _occupied()

    def _put_root(self, store: Store, key: str, document: bytes) -> None:
        pieces = [np.frombuffer(document, np.uint8)]
        is_other = bool(existing(store, (V2_ARRAY, V2_GROUP)))
        if not is_other and not writer_of(store).create(key, pieces):
            found = decode_document(store.get(key) or b"{}", key, self.layout.path)
            is_other = not is_draft_root(found) or parse_root(found) != DRAFT_SUFFIX
        if is_other:
            raise OptionError(
                "the store's root is of another format than the draft of Zarr v3,"
                " or names its documents otherwise",
                hint="choose another store, or pass overwrite=True with no path",
            )


def blueprint(
    array_format: ArrayFormat, arguments: ArrayArguments, place: str, options: Options
) -> Blueprint:
    """Blueprint of an array at `place` of a store."""
    if not isinstance(array_format, str) or array_format not in _MAKERS:
        raise OptionError(
            "the format is unknown",
            expected=" or ".join(map(repr, get_args(ArrayFormat))),
            got=repr(array_format),
        )
    return _MAKERS[array_format](arguments, place, options)


def _v3_group(attributes: Mapping[str, Any]) -> tuple[str, bytes]:
    """Name and contents of the document of a group in Zarr v3."""
    members = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": dict(attributes),
    }
    return V3_DOCUMENT, json.dumps(members, indent=2).encode()


_V3_GROUP = _v3_group({})


def put_group(store: Store, place: str, attributes: Mapping[str, Any]) -> None:
    """Make a group of Zarr v3 at a place."""
    name, document = _v3_group(attributes)
    writer_of(store).put(join(place, name), [np.frombuffer(document, np.uint8)])


def put_groups_above(
    store: Store, place: str, group: tuple[str, bytes] = _V3_GROUP
) -> None:
    """Make a group of each place above `place`, up to the root, where nothing is.

    Parameters
    ----------
    group
        Name and contents of a group's document.
    """
    name, document = group
    above = _places_above(place)
    taken = existing(store, [key for at in above for key in plain_keys(at)])
    for at in reversed(above):
        if taken.isdisjoint(plain_keys(at)):
            pieces = [np.frombuffer(document, np.uint8)]
            writer_of(store).create(join(at, name), pieces)


def _places_above(place: str) -> list[str]:
    """Places above a place, from the root on."""
    parts = place.split("/") if place else []
    return ["/".join(parts[:n]) for n in range(len(parts))]


def refuse_unfit_place(store: Store, place: str) -> None:
    """Refuse a place below an array, or in a hierarchy of the draft of Zarr v3.

    Broken documents above it refuse nothing.
    """
    _refuse_in_draft(store)
    documents = (V3_DOCUMENT, V2_ARRAY)
    keys = [join(at, name) for at in _places_above(place) for name in documents]
    for key, document in read_documents(store, keys)[0].items():
        path, _, name = key.rpartition("/")
        if name == V2_ARRAY or document.get("node_type") == "array":
            raise _below_array(path)
        if is_draft_root(document):
            # Documents of groups would hide the hierarchy's arrays from readers.
            raise _in_draft(path)


def _refuse_in_draft(store: Store) -> None:
    """Refuse a local directory below the root of a hierarchy of the draft of Zarr v3.

    Nothing in that hierarchy names it, and its arrays that have a path below it would
    not be found by that path any more.
    """
    if not isinstance(store, LocalStore):
        return
    for above in Path(os.path.abspath(store.root)).parents:
        # Not `Path.is_dir`, which raises where a directory above cannot be searched.
        if os.path.isdir(above / DRAFT_METADATA):
            document = read_documents(LocalStore(above), [V3_DOCUMENT])[0]
            if is_draft_root(document.get(V3_DOCUMENT, {})):
                raise _in_draft(str(above))


def _in_draft(root: str) -> OptionError:
    return OptionError(
        "the place is in a hierarchy of the draft of Zarr v3",
        got=f"the root of one at {root!r}",
        hint="choose another store, or write to that root in the draft's format",
    )


def _refuse_below_draft_array(store: Store, place: str) -> None:
    above = {_draft_key(at): at for at in _places_above(place)}
    for key in existing(store, [*above]):
        raise _below_array(above[key])


def _below_array(path: str) -> OptionError:
    return OptionError(
        "a place above is an array, and only groups have arrays below them",
        got=f"an array at {path!r}" if path else "an array at the root",
        hint="choose a path beside that array",
    )


def refuse_occupied(store: Store, keys: Sequence[str]) -> None:
    """Refuse a place where an array or group has one of these documents."""
    if existing(store, keys):
        raise _occupied()


def _occupied() -> OptionError:
    return OptionError(
        "there is an array or a group already",
        hint="choose another path, or pass overwrite=True to delete what is there",
    )


def _v3(arguments: ArrayArguments, place: str, options: Options) -> Blueprint:
    plan = v3_blueprint(new_document(arguments), place, options)
    _refuse_other_fill(arguments.get("fill_value"), plan.layout)
    return plan


def _refuse_other_fill(given: Any, layout: ArrayLayout) -> None:
    """Refuse a fill value of which zarr has stored what the data type can hold."""
    value, kept = np.asarray(given), layout.fill_value
    if layout.dtype.kind in "fc" and value.dtype.kind in "biufc":
        is_kept = np.isfinite(value) == np.isfinite(kept)  # floats may be rounded
    elif value.dtype.kind in _SAME_FILL.get(layout.dtype.kind, ""):
        is_kept = value == kept
    else:
        return
    if not is_kept:
        raise OptionError(
            "the data type cannot hold the fill value",
            expected=f"one element of {layout.dtype}",
            got=repr(given),
        )


def v3_blueprint(document: bytes, place: str, options: Options) -> Blueprint:
    """Blueprint of an array of Zarr v3 with this document."""
    layout = parse_document(document, place, options)
    refuse_computing(layout.chain, layout.dtype)
    documents = ((join(place, V3_DOCUMENT), document),)
    return Blueprint(layout, documents, plain_keys(place), (place,), group=_V3_GROUP)


def _prototype(arguments: ArrayArguments, place: str, options: Options) -> Blueprint:
    parsed = HistoricArguments.parse("v2-prototype-ii", arguments)
    document, attributes = prototype_documents(parsed)
    named = {V2_ATTRIBUTES: attributes} if attributes else {}
    documents = tuple(
        (join(place, name), encoded_document(members))
        for name, members in {**named, V2_ARRAY: document}.items()
    )
    layout = parse_array({**document, "attributes": attributes}, place, options)
    group = (V2_GROUP, encoded_document({"zarr_format": 2}))
    return Blueprint(layout, documents, plain_keys(place), (place,), group=group)


def _draft(arguments: ArrayArguments, place: str, options: Options) -> Blueprint:
    document = draft_document(
        HistoricArguments.parse("v3-draft-transformer", arguments)
    )
    metadata, data_path = join(DRAFT_METADATA, place), join(DRAFT_DATA, place)
    key = _draft_key(place)
    taken = (key, f"{metadata}.group{DRAFT_SUFFIX}")
    # If the array is the root, documents of other formats are in its way as well.
    other = () if place else (V2_ARRAY, V2_GROUP)
    below = (metadata, data_path) if place else ("",)
    return Blueprint(
        parse_draft_array(document, place, data_path, options),
        ((key, encoded_document(document)),),
        (*taken, *other),
        below,
        (V3_DOCUMENT, encoded_document(root_document())),
    )


def _draft_key(place: str) -> str:
    """Key of the document of an array of the draft of v3."""
    return f"{join(DRAFT_METADATA, place)}.array{DRAFT_SUFFIX}"


def plain_keys(place: str) -> tuple[str, ...]:
    """Keys of the documents of an array or group at a place, in v2 and v3."""
    return tuple(join(place, name) for name in _DOCUMENTS)


_MAKERS: dict[str, Callable[[ArrayArguments, str, Options], Blueprint]] = {
    "v3": _v3,
    "v2-prototype-ii": _prototype,
    "v3-draft-transformer": _draft,
}
