"""The transformers that an array's document names, on top of its store."""

from __future__ import annotations

from typing import Any

from gpushard.arguments import instance
from gpushard.errors import NotFoundError
from gpushard.formats import v3_draft
from gpushard.hierarchies.documents import (
    DRAFT_DATA,
    DRAFT_METADATA,
    V3_DOCUMENT,
    decode_document,
    join,
)
from gpushard.options import DEFAULT
from gpushard.stores.key_value import KeyValueStore, key_value_store
from gpushard.transformer.store import ShardedStore


def transformed(store: Any, path: str) -> KeyValueStore:
    """View on `store` in which the chunks of the array at `path` have their own keys.

    The array's document lists the transformers. They are stacked in this order, with
    the first next to the array.

    Raises
    ------
    NotFoundError
        The store has no hierarchy of the draft, or no such array in it.
    MetadataError
        A document is malformed.
    UnsupportedError
        A transformer or its format is unknown, or `store` is.
    OptionError
        `path` is not text.
    """
    below, path = key_value_store(store), instance(path, "path", str).strip("/")
    suffix = v3_draft.parse_root(_document(below, V3_DOCUMENT, path))
    key = f"{join(DRAFT_METADATA, path)}.array{suffix}"
    document = _document(below, key, path)
    layout = v3_draft.parse_array(document, path, join(DRAFT_DATA, path), DEFAULT)
    cells = layout.shards or ()
    for level in layout.levels:
        shape = level.chunk_shape
        below = ShardedStore(
            below,
            [cell // n for cell, n in zip(cells, shape, strict=True)],
            path,
            separator=layout.keys.separator,
            grid_shape=[-(-a // n) for a, n in zip(layout.shape, shape, strict=True)],
        )
        cells = shape
    return below


def _document(store: KeyValueStore, key: str, path: str) -> dict[str, Any]:
    (data,) = store.get_partial_values([(key, (0, None))])
    if data is None:
        raise NotFoundError(f"there is no {key} in the store", array_path=path)
    return decode_document(data, key, path)
