"""An error of a read -> which samples could not be read because of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from gpushard.concatenation import ConcatArray
from gpushard.errors import GpushardError
from gpushard.layout import ArrayLayout
from gpushard.loader.fields import Box, Field
from gpushard.selecting.selection import Ints

_MOST_NAMED = 8

Place = tuple[Field, Box]
"""Elements of one array of a loader."""


def name_samples(
    error: GpushardError, fields: Sequence[Field], samples: Ints, origins: Ints
) -> None:
    """Add to `error` the samples of a read that it is about, and their array.

    `samples` are those of the read, int64, shape (n,); `origins` is where they begin.
    """
    named, _ = _members_of(error, fields)[0]
    about = samples_about(error, fields, origins)
    if about is not None:
        samples = samples[about]
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
    places = places_about(error, fields, error.inner_chunk)
    return touched(places, origins) if places else None


def shard_places(error: GpushardError, fields: Sequence[Field]) -> list[Place]:
    """Where the shard that an error is about lies; empty if that is not known."""
    if error.shard_key is None or not _exact(error, fields):
        return []
    return places_about(error, fields, None)


def places_about(
    error: GpushardError, fields: Sequence[Field], cell: tuple[int, ...] | None
) -> list[Place]:
    """Where the inner chunk `cell` lies, or else the shard that an error is about.

    Several fields may read the same array, and `concat` may have joined it twice.
    """
    places: list[Place] = []
    for named, number in _members_of(error, fields):
        box = _box_of(error, named.members[number].source.layout, cell)
        if box is not None:
            places.append((named, _joined(named, number, box)))
    return places


def touched(places: Iterable[Place], origins: Ints) -> NDArray[np.bool_]:
    """Which of the samples that begin at `origins` have elements of any place."""
    found = np.zeros(len(origins), np.bool_)
    for named, box in places:
        found |= named.touches(origins, box)
    return found


def _box_of(
    error: GpushardError, layout: ArrayLayout, cell: tuple[int, ...] | None
) -> Box | None:
    """Elements of the inner chunk `cell`, or else the shard that an error is about."""
    keys, axes = layout.keys, layout.inner_axes
    if cell is None and error.shard_key is not None:
        key = error.shard_key.removeprefix(layout.key_prefix)
        axes, cell = layout.axes, keys.stored_coordinates(key, layout.ndim)
        if cell and keys.offset:
            cell = tuple(n - by for n, by in zip(cell, keys.offset, strict=True))
    if not cell:
        return None
    firsts = [int(axis.start_of(n)) for axis, n in zip(axes, cell, strict=True)]
    lengths = [int(axis.length_of(n)) for axis, n in zip(axes, cell, strict=True)]
    ends = [n + length for n, length in zip(firsts, lengths, strict=True)]
    # Windows may lie beyond the array, where the last cell may reach, too.
    ends = [min(end, axis.extent) for end, axis in zip(ends, axes, strict=True)]
    return list(zip(firsts, ends, strict=True))


def _joined(named: Field, number: int, box: Box) -> Box:
    """A box of one of the arrays that `concat` joined, in the joined array."""
    if not isinstance(named.array, ConcatArray):
        return box
    axis = named.array.axis
    by = sum(member.shape[axis] for member in named.members[:number])
    return [(n + by, m + by) if d == axis else (n, m) for d, (n, m) in enumerate(box)]


def _members_of(
    error: GpushardError, fields: Sequence[Field]
) -> list[tuple[Field, int]]:
    """Fields with the array that an error is about, and its number in each."""
    members = [(one, n, m.path) for one in fields for n, m in enumerate(one.members)]
    # Arrays of several stores often have the same path, that of the root.
    about = [(one, n) for one, n, path in members if path == error.array_path]
    return _exact(error, fields) or about[:1] or [members[0][:2]]


def _exact(error: GpushardError, fields: Sequence[Field]) -> list[tuple[Field, int]]:
    return [
        (one, n)
        for one in fields
        for n, m in enumerate(one.members)
        if (m.path, m.source.store.url) == (error.array_path, error.store_url)
    ]
