"""The facts that `gpushard info` prints about an array or a group."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from itertools import chain, islice
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

from gpushard.cli.codec_table import placed_codecs
from gpushard.devices.find import find_device_for
from gpushard.errors import GpushardError, OptionError, StoreError, naming
from gpushard.group import Group, node_at
from gpushard.inspection.census import census
from gpushard.layout import ArrayLayout, ShardLevel
from gpushard.listed import coordinate_of
from gpushard.nearby import hinting
from gpushard.options import DEFAULT, Options
from gpushard.source import Source
from gpushard.stores.base import Store
from gpushard.stores.local.store import LocalStore
from gpushard.stores.resolve import resolve

if TYPE_CHECKING:
    from gpushard.converting.advice import Plan

# Files whose sizes are summed; more would keep a user waiting.
_MAX_FILES = 100_000
# Shard indexes that are read to count inner chunks.
_MAX_INDEXES = 1_000
# What needs no option of `convert`: shapes without axes, and the array's own codecs.
_DEFAULT_TEXTS = ("", "keep")

_ADVICE_BASIS = {
    "g": "measured on a GPU (H200)",
    "m": "measured on a CPU",
    "e": "estimated",
}


def describe(url: str, options: Options, *, advise: bool) -> dict[str, Any]:
    """Facts about the array or group at `url`, ready for JSON.

    `options` limit what an array may need. `advise` adds, for an array, shapes and
    codecs that would read better on a GPU.

    Raises
    ------
    NotFoundError
        There is neither an array nor a group.
    MetadataError, UnsupportedError, StoreError
        It cannot be opened.
    """
    with hinting(url):
        store, path = resolve(url)
    with naming(store, path):
        with hinting(store, path):
            node = node_at(store, path, options)
        if isinstance(node, ArrayLayout):
            more = _array_facts(node, store, options)
            facts = {"url": url, "node_type": "array", **more}
            return {**facts, "advice": _advice(node, facts)} if advise else facts
        if advise:
            raise OptionError(
                "advice is given for one array at a time",
                got="a group",
                hint="name one of its arrays",
            )
        return {"url": url, "node_type": "group", **_group_facts(node)}


def _advice(layout: ArrayLayout, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Shapes and codecs that would read better on a GPU, and the command for them."""
    # Imported here, because most who look at an array want no advice.
    from gpushard.converting.advice import READ_NBYTES
    from gpushard.converting.advice import advise as advise_on

    stored = facts["stored_nbytes"]
    # If many shards are missing, sizes say nothing about the codec.
    is_known = stored and facts["n_stored"] == facts["n_shards"]
    ratio = facts["nbytes"] / stored if is_known else None
    advice = advise_on(layout, DEFAULT.threads, ratio)
    return {
        "now": asdict(advice.now),
        "better": asdict(advice.better),
        "reasons": advice.reasons,
        "read_nbytes": min(READ_NBYTES, facts["nbytes"]),
        "ratio": ratio,
        "basis": _ADVICE_BASIS,
        "command": None
        if advice.is_fine
        else _convert_command(facts["url"], advice.better),
    }


def _convert_command(url: str, plan: Plan) -> str:
    options = {
        "shards": ",".join(map(str, plan.shards or ())),
        "chunks": ",".join(map(str, plan.chunks)),
        "compressors": plan.compressor,
    }
    given = [
        f"--{name} {text}"
        for name, text in options.items()
        if text not in _DEFAULT_TEXTS
    ]
    return " ".join(("gpushard convert", shlex.quote(url), "DST", *given))


def _array_facts(layout: ArrayLayout, store: Store, options: Options) -> dict[str, Any]:
    source = Source.prepare(layout, store, options)
    n_stored, stored_nbytes = _count_and_size(layout, store)
    found = find_device_for("auto", layout.dtype)
    return {
        **_main_facts(layout),
        "n_shards": layout.n_objects,
        "n_stored": n_stored,
        **_inner_chunk_counts(source),
        "nbytes": layout.nbytes,
        "stored_nbytes": stored_nbytes,
        "fill_value": layout.fill_value_json,
        "sharding": [_level_facts(level) for level in layout.levels],
        "object_codecs": [spec.name for spec in layout.object_codecs],
        "device": "cpu" if found.device is None else found.device.label,
        "device_why": found.why,
        "codecs": [asdict(placed) for placed in placed_codecs(source, found.device)],
        "attributes": layout.attributes,
    }


def _main_facts(layout: ArrayLayout) -> dict[str, Any]:
    """The main facts about an array."""
    return {
        "shape": layout.shape,
        "dimension_names": layout.dimension_names,
        "dtype": str(layout.dtype),
        "chunks": layout.chunks,
        "shards": layout.shards,
    }


def _level_facts(level: ShardLevel) -> dict[str, Any]:
    return {
        "chunk_shape": level.chunk_shape,
        "index_location": level.index_location,
        "index_codecs": [spec.name for spec in level.index_chain.specs],
    }


def _count_and_size(layout: ArrayLayout, store: Store) -> tuple[int | None, int | None]:
    """Number and size of the objects of an array; None if counting takes too long."""
    if not isinstance(store, LocalStore):
        return None, None
    try:
        keys = store.list_keys(layout.key_prefix) or ()
        keys_so_far = list(islice(chain.from_iterable(keys), _MAX_FILES + 1))
        if len(keys_so_far) > _MAX_FILES:
            return None, None
        # Programs that copy or write leave other files for a time, or for ever.
        mine = [key for key in keys_so_far if coordinate_of(layout, key) is not None]
        found = [os.stat(f"{store.root}/{key}") for key in mine]
    except OSError:  # a store that cannot list can still be read
        return None, None
    sizes = [one.st_size for one in found if S_ISREG(one.st_mode)]
    return len(sizes), sum(sizes)


def _inner_chunk_counts(source: Source) -> dict[str, Any]:
    """Counts of stored and empty inner chunks, or why they were not counted."""
    why = _why_not_counted(source)
    found = None
    if why is None:
        try:
            found = census(source)
        except GpushardError as error:
            why = str(error).rstrip(".")
    return {
        "n_stored_inner_chunks": None if found is None else found.n_stored,
        "n_empty_inner_chunks": None if found is None else found.n_empty,
        "n_damaged_indexes": None if found is None else found.n_unreadable,
        "why_not_counted": why,
    }


def _why_not_counted(source: Source) -> str | None:
    """Why inner chunks are not counted; None if counting takes a reasonable time."""
    layout = source.layout
    if not layout.levels:
        return "each chunk is an object of its own"
    if layout.object_codecs:
        return "codecs around whole shards hide their indexes"
    if not isinstance(source.store, LocalStore):
        return "the store is not local"
    if layout.n_objects > _MAX_INDEXES:
        return f"there are more than {_MAX_INDEXES:,} shards"
    return None


def _group_facts(group: Group) -> dict[str, Any]:
    try:
        group = group.as_listed()
        names, why = list(group), None
        groups = group.groups
    except StoreError as error:
        names, groups, why = [], (), error.what
    return {
        "arrays": {name: _child_facts(group, name) for name in names},
        "groups": groups,
        "why_not_listed": why,
        "attributes": group.attrs,
    }


def _child_facts(group: Group, name: str) -> dict[str, Any]:
    """Outline of an array of a group, or why it cannot be read."""
    try:
        return _main_facts(group[name].source.layout)
    except GpushardError as error:
        return {"error": str(error)}
