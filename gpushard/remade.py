"""Tells damaged bytes from those of an array that was made anew since it was opened."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from gpushard.errors import CorruptShardError, GpushardError, naming
from gpushard.layout import ArrayLayout, CodecSpec
from gpushard.metadata import load_array
from gpushard.source import Source

MADE_ANEW = (
    "the array was made anew with other metadata since it was opened: open it again"
)
"""Hint of errors about an array that is another one now."""


def naming_source(source: Source) -> naming:
    """Add the array to errors of a block; and to damage, if it was made anew since."""
    found = partial(_note_if_remade, source)
    return naming(source.store, source.layout.path, found)


def _note_if_remade(source: Source, error: CorruptShardError) -> None:
    """Say in `error` that the bytes may be whole, if the document is another one now.

    Reads the document, and only here: a look before each read would cost a request.
    """
    layout = source.layout
    if error.hint == MADE_ANEW:
        return
    with suppress(GpushardError):
        stored = load_array(source.store, layout.path, source.options)
        if encoding(stored) != encoding(layout):
            error.hint = MADE_ANEW


def encoding(layout: ArrayLayout) -> tuple[Any, ...]:
    """What a change of would have valid bytes refused; a shape alone does not.

    Of codecs only the names: zarr fills in what configurations leave out, and its
    codec pipeline reads arrays by what zarr makes of their documents.
    """
    levels = [
        (level.chunk_shape, level.index_location, _names(level.index_chain.specs))
        for level in layout.levels
    ]
    return (
        layout.dtype,
        layout.chunks,
        layout.shards,
        levels,
        layout.outer_order,
        _names(layout.chain.specs),
        _names(layout.object_codecs),
    )


def _names(specs: Sequence[CodecSpec]) -> list[str]:
    return [spec.name for spec in specs]
