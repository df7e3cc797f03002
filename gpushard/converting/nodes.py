"""Finds what to convert: an array, or the arrays and groups below a group."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np

from gpushard.errors import OptionError, naming
from gpushard.group import Group, all_groups, node_at
from gpushard.hierarchies.documents import join
from gpushard.layout import ArrayLayout
from gpushard.nearby import hinting
from gpushard.options import Options
from gpushard.stores.base import ByteRequest, Store
from gpushard.stores.checks import asked
from gpushard.stores.local.store import LocalStore
from gpushard.stores.writers import writer_of

# An object that tells, for a moment, whether two stores have it.
_PROBE = ".gpushard-overlap"


@dataclass(frozen=True, slots=True)
class Nodes:
    """Arrays and groups below a place, by path relative to it; "" is the place itself.

    Attributes
    ----------
    arrays
        Layouts of the arrays.
    groups
        Attributes of the groups; empty if the place is an array.
    """

    arrays: Mapping[str, ArrayLayout]
    groups: Mapping[str, Mapping[str, Any]]


def nodes_at(store: Store, place: str, options: Options) -> Nodes:
    """The arrays and groups at `place` and below."""
    with naming(store, place), hinting(store, place):
        top = node_at(store, place, options)
    return nodes_of(top)


def nodes_of(top: ArrayLayout | Group) -> Nodes:
    """An array, or a group with all below it, as they were opened."""
    if isinstance(top, ArrayLayout):
        return Nodes({"": top}, {})
    groups: dict[str, Mapping[str, Any]] = {}
    arrays: dict[str, ArrayLayout] = {}
    for path, group in all_groups(top):
        groups[path] = group.attrs
        for name in group:
            arrays[join(path, name)] = group[name].source.layout
    return Nodes(arrays, groups)


def refuse_overlap(source: tuple[Store, str], target: tuple[Store, str]) -> None:
    """Refuse a destination inside the source, and a source inside the destination."""
    one, other = _address(*source), _address(*target)
    if one.startswith(other) or other.startswith(one):
        raise _overlap(one, other)


def refuse_clearing(
    store: Store, paths: Iterable[str], target: tuple[Store, str]
) -> None:
    """Refuse a destination in whose objects `store` has the arrays at `paths`.

    Stores of different kinds may give one place different addresses. So an object that
    is put at the destination is looked for from the arrays upwards.
    """
    to, place = target
    writer, key, token = writer_of(to), join(place, _PROBE), uuid4().bytes
    above = {parent for path in paths for parent in _upwards(path)}
    looked_for = [ByteRequest(join(at, _PROBE), 0, len(token)) for at in sorted(above)]
    writer.put(key, [np.frombuffer(token, np.uint8)])
    try:
        found = asked(store, looked_for)
    finally:
        writer.put(key, None)
    if any(answer and answer.data.tobytes() == token for answer in found):
        raise _overlap(_address(store, ""), _address(*target))


def _upwards(path: str) -> list[str]:
    """The place itself, and all above it up to the root."""
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(len(parts) + 1)]


def _overlap(source: str, target: str) -> OptionError:
    return OptionError(
        "the source and the destination of a conversion overlap",
        expected="two places, neither below the other",
        got=f"{source} and {target}",
        hint="convert to another place",
    )


def _address(store: Store, place: str) -> str:
    root = store.url
    if isinstance(store, LocalStore):
        root = os.path.realpath(store.root)
    return f"{join(root.rstrip('/'), place)}/"
