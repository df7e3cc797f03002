"""Writes to very many listed elements, for a few shards at a time.

Columns over all elements would take many times the memory of the user's arrays. Each
shard is still written only once; if it has too many elements, they are processed by
inner chunk, and those of an inner chunk that has too many, one portion after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod

from gpushard.layout import ArrayLayout, GridAxis
from gpushard.selecting.listing import TrueElements
from gpushard.selecting.portions import groups_of
from gpushard.selecting.selection import Listed
from gpushard.selecting.sorting_out import Room
from gpushard.source import Source
from gpushard.writing.regions import Cell, InPortions, Part

# Bytes per element while shards are written, besides 16 for each of its coordinates.
_ELEMENT_NBYTES = 96
_LEAST_ELEMENTS = 1 << 14
# A part is looked at to tell whether it covers its region, and to copy its values.
_PASSES = 4
# Portions are cut by a number for each shard of the grid.
_MOST_SHARDS = 1 << 62


def can_be_cut(source: Source) -> bool:
    """Whether one int64 can number the shards of an array."""
    return prod(axis.n_cells for axis in source.layout.axes) < _MOST_SHARDS


def n_columns_at_once(source: Source, listed: Listed) -> int:
    """Stored objects of which the least columns fit at the same time; at least one."""
    least_nbytes = _LEAST_ELEMENTS * _element_nbytes(listed)
    return max(1, _room(source) // least_nbytes - 1)


def _room(source: Source) -> int:
    """Memory of the columns of all objects that are written, and of the next."""
    return source.options.memory_limit // 2


def listed_cells(
    source: Source, listed: Listed, n_at_once: int
) -> Iterator[tuple[Cell, Part]]:
    """Stored objects to write, each with its part.

    `can_be_cut` must be true of the array. If the user changed an index array or a mask
    meanwhile, that is a `SelectionError`.
    """
    # Those of a group that is cut, and of the objects that were cut from those before.
    share = _room(source) // (n_at_once + 1)
    # Rounded up, so that as many elements as a power of two fit as many bytes.
    most = max(-(-share // _element_nbytes(listed)), _LEAST_ELEMENTS)
    parts = written_parts(listed, source.layout, most, n_kept=n_at_once)
    return parts.cells(source.layout.axes)


def _element_nbytes(listed: Listed) -> int:
    """Memory that each listed element takes while it is written."""
    return _ELEMENT_NBYTES + 16 * listed.listing.n_axes


def written_parts(
    listed: Listed, layout: ArrayLayout, most: int, n_kept: int = 1
) -> InPortions:
    """All listed elements, at most `most` of them at a time.

    The elements of `n_kept` shards may be kept while those of the next are gathered.
    """
    if layout.ndim == 1:
        listed = listed._replace(around=None)
    room = Room(_element_nbytes(listed), n_kept, _PASSES)
    groups = partial(groups_of, listed, layout, most, _grids(layout), room)
    return InPortions(
        groups,
        portions=lambda: (p for group in groups() for p in group.portions()),
        n_elements=listed.listing.n_elements,
        origin=(0,) * layout.ndim,
        extents=layout.shape,
        around=None if listed.around is None else listed.around.axes,
        axis=listed.axis,
        are_distinct=isinstance(listed.listing, TrueElements),
    )


def _grids(layout: ArrayLayout) -> list[tuple[GridAxis, ...]]:
    """Grids of the inner chunks at each level, into which a shard is cut."""
    return [
        tuple(map(GridAxis, layout.shape, level.chunk_shape)) for level in layout.levels
    ]
