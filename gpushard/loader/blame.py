"""An error of a read -> which samples could not be read because of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import GpushardError
from gpushard.layout import ArrayLayout
from gpushard.loader.fields import Box, Field
from gpushard.selecting.selection import Ints

_MOST_NAMED = 8


def name_samples(
    error: GpushardError, fields: Sequence[Field], samples: Ints, origins: Ints
) -> None:
    """Add to `error` the samples of a read that it is about, and their array.

    `samples` are those of the read, int64, shape (n,); `origins` is where they begin.
    """
    named = _field_of(error, fields)
    touched = samples_about(error, fields, origins)
    if touched is not None:
        samples = samples[touched]
    shown = np.sort(samples)[:_MOST_NAMED].tolist()
    more = "" if len(samples) <= _MOST_NAMED else f" and {len(samples) - len(shown)}"
    which = ", ".join(map(str, shown)) + (f"{more} more" if more else "")
    noun = "sample" if len(samples) == 1 else "samples"
    error.add_note(f"while a loader read {noun} {which} of {named.name}")


def samples_about(
    error: GpushardError, fields: Sequence[Field], origins: Ints
) -> NDArray[np.bool_] | None:
    """Which samples need the inner chunk or shard that an error is about.

    bool, shape (n,), for samples that begin at `origins`; None if that is not known.
    """
    named = _field_of(error, fields)
    if len(named.members) != 1:
        return None
    box = _box_of(error, named.members[0].source.layout)
    return None if box is None else named.touches(origins, box)


def _box_of(error: GpushardError, layout: ArrayLayout) -> Box | None:
    """Elements of the inner chunk, or else the shard, that an error is about."""
    keys, cell = layout.keys, error.inner_chunk
    axes = layout.inner_axes
    if cell is None and error.shard_key is not None:
        key = error.shard_key.removeprefix(layout.key_prefix)
        axes, cell = layout.axes, keys.stored_coordinates(key, layout.ndim)
        if cell and keys.offset:
            cell = tuple(n - by for n, by in zip(cell, keys.offset, strict=True))
    if not cell:
        return None
    firsts = [int(axis.start_of(n)) for axis, n in zip(axes, cell, strict=True)]
    lengths = [int(axis.length_of(n)) for axis, n in zip(axes, cell, strict=True)]
    return [(n, n + length) for n, length in zip(firsts, lengths, strict=True)]


def _field_of(error: GpushardError, fields: Sequence[Field]) -> Field:
    members = [(one, m) for one in fields for m in one.members]
    about = [(one, m) for one, m in members if m.path == error.array_path]
    # Arrays of several stores often have the same path, that of the root.
    exact = [(one, m) for one, m in about if m.source.store.url == error.store_url]
    return (exact or about or members)[0][0]
