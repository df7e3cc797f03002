"""Writes to very many listed elements, for a few shards at a time.

Columns over all elements would take many times the memory of the user's arrays. Each
shard is still written only once; if it has too many elements, they are processed by
inner chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod

import numpy as np

from gpushard.layout import ArrayLayout, GridAxis
from gpushard.selecting.listing import TrueElements
from gpushard.selecting.portions import Group, groups_of
from gpushard.selecting.selection import IndexAxis, Listed, Orthogonal, Selection
from gpushard.source import Source
from gpushard.writing.regions import (
    Box,
    Cell,
    InPortions,
    Part,
    Scattered,
)
from gpushard.writing.shard import Region

# Bytes per element while shards are written, besides 16 for each of its coordinates.
_ELEMENT_NBYTES = 96
_LEAST_ELEMENTS = 1 << 14
# Portions are cut by a number for each shard of the grid.
_MOST_SHARDS = 1 << 62


def can_be_cut(source: Source) -> bool:
    """Whether one int64 can number the shards of an array."""
    return prod(axis.n_cells for axis in source.layout.axes) < _MOST_SHARDS


def listed_cells(
    source: Source, listed: Listed, n_at_once: int
) -> Iterator[tuple[Cell, Part]]:
    """Stored objects to write, each with its part.

    Parameters
    ----------
    source
        The array, for which `can_be_cut` is true.
    listed
        Where in it.
    n_at_once
        Objects that are written at the same time.

    Raises
    ------
    SelectionError
        The user changed an index array or a mask meanwhile.
    """
    layout = source.layout
    if layout.ndim == 1:
        listed = listed._replace(around=None)
    nbytes = _ELEMENT_NBYTES + 16 * listed.listing.n_axes
    # Those of a group that is cut, and of the objects that were cut from those before.
    share = source.options.memory_limit // 2 // (n_at_once + 1)
    most = max(share // nbytes, _LEAST_ELEMENTS)
    for group in groups_of(listed, layout, most, _inner_axes(layout)):
        if group.is_split and listed.around is None:
            are_distinct = isinstance(listed.listing, TrueElements)
            yield _in_portions(source, group, are_distinct=are_distinct)
        else:
            yield from _part(_joined(group, listed)).cells(layout.axes)


def _inner_axes(layout: ArrayLayout) -> tuple[GridAxis, ...]:
    """Grid of the outermost inner chunks, into which a shard is cut."""
    if not layout.levels:
        return layout.axes
    pairs = zip(layout.shape, layout.levels[0].chunk_shape, strict=True)
    return tuple(GridAxis(extent, cell) for extent, cell in pairs)


def _joined(group: Group, listed: Listed) -> Selection:
    """All portions of a group as one selection.

    A split group has several portions, along one axis, in one row of shards.
    """
    first, *others = group.portions()
    if not others:
        return first
    along = [
        taken
        for one in (first, *others)
        if isinstance(one, Orthogonal)
        and isinstance(taken := one.axes[listed.axis], IndexAxis)
    ]
    joined = IndexAxis(
        np.concatenate([taken.element for taken in along]),
        np.concatenate([taken.out_index for taken in along]),
    )
    assert isinstance(first, Orthogonal)  # noqa: S101 - of points none are joined
    axes = (*first.axes[: listed.axis], joined, *first.axes[listed.axis + 1 :])
    return first._replace(axes=axes)


def _part(selection: Selection) -> Box | Scattered:
    if isinstance(selection, Orthogonal):
        return Box(selection.axes)
    return Scattered(selection.coordinates, selection.out_index)


def _in_portions(
    source: Source, group: Group, *, are_distinct: bool
) -> tuple[Cell, Part]:
    """The single object of a group of several portions."""
    axes = source.layout.axes
    ((cell, _),) = _part(next(group.portions())).cells(axes)
    extents = Region.of_object(source, cell).extents
    portions = partial(_portions, source, group)
    return cell, InPortions(portions, extents, group.n_elements, are_distinct)


def _portions(source: Source, group: Group) -> Iterator[Scattered]:
    """Portions of one object, in its own coordinates."""
    for selection in group.portions():
        for _, part in _part(selection).cells(source.layout.axes):
            assert isinstance(part, Scattered)  # noqa: S101 - a group of points
            yield part
