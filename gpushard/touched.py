"""A small selection -> the inner chunks that it touches, one Python object each.

What `grid` and `points` say in columns, in plain integers: for a few inner chunks the
columns would take longer to make than the chunks to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from gpushard.layout import ArrayLayout
from gpushard.selection import (
    AxisSelection,
    IndexAxis,
    Orthogonal,
    Points,
    Selection,
    SliceAxis,
    project_cell,
)

# Index arrays and lists of points up to this length are taken apart in Python.
_FEW_ELEMENTS = 64

Coordinate = tuple[int, ...]


class TouchedChunk(NamedTuple):
    """An inner chunk of which something is wanted.

    Attributes
    ----------
    cell, shard
        Coordinates of the inner chunk and of its stored object in their grids.
    entries
        Its place in the index at each sharding level, from the outside in.
    inside, out
        Index into the inner chunk and into the output (see `output_view`).
    extremes
        Corners of the box that holds all wanted elements: the first and the last
        element of it along each axis, within the inner chunk.
    """

    cell: Coordinate
    shard: Coordinate
    entries: tuple[int, ...]
    inside: tuple[Any, ...]
    out: tuple[Any, ...]
    extremes: tuple[tuple[int, int], ...]


class _Along(NamedTuple):
    """One touched cell of one axis: what of it is wanted and where it lands."""

    cell: int
    inside: slice | list[int]
    out: slice | list[int]
    extremes: tuple[int, int]
    shard: int
    places: tuple[tuple[int, int], ...]


def output_view(selection: Selection, out: NDArray[Any]) -> NDArray[Any]:
    """View of an array of the selection's shape, as `TouchedChunk.out` indexes it."""
    if isinstance(selection, Orthogonal):
        return selection.on_grid(out)
    return out.reshape(-1)


def touched_chunks(
    selection: Selection, layout: ArrayLayout, limit: int
) -> list[TouchedChunk] | None:
    """Inner chunks that a selection touches; None if it is not small.

    Parameters
    ----------
    selection
        What is wanted.
    layout
        The array, its inner chunks all of one shape.
    limit
        Inner chunks that a small selection touches at most.
    """
    if isinstance(selection, Points):
        return _of_points(selection, layout, limit)
    n_chunks = 1
    along: list[list[_Along]] = []
    for d, axis in enumerate(selection.axes):
        cells = _touched_along(axis, layout, d, limit)
        if cells is None:
            return None
        along.append(cells)
        n_chunks *= max(len(cells), 1)
        if n_chunks > limit:
            return None
    touched = [_crossed(cells, layout) for cells in product(*along)]
    gathers = sum([isinstance(axis, IndexAxis) for axis in selection.axes]) > 1
    return [_meshed(chunk) for chunk in touched] if gathers else touched


def _crossed(along: tuple[_Along, ...], layout: ArrayLayout) -> TouchedChunk:
    if not along:
        return TouchedChunk((), (), (0,) * len(layout.levels), (), (...,), ())
    cell, inside, out, extremes, shard, places = zip(*along, strict=True)
    # The ellipsis keeps a 0-d output an array that can be written through.
    return TouchedChunk(
        cell, shard, _entries(places, layout), inside, (*out, ...), extremes
    )


def _meshed(chunk: TouchedChunk) -> TouchedChunk:
    if sum([isinstance(i, list) for i in chunk.inside]) < 2:
        return chunk
    inside, out = _open_mesh(chunk.inside), _open_mesh(chunk.out[:-1])
    return chunk._replace(inside=inside, out=out)


def _touched_along(
    axis: AxisSelection, layout: ArrayLayout, d: int, limit: int
) -> list[_Along] | None:
    if not axis.length:
        return []
    if isinstance(axis, IndexAxis):
        if axis.length > _FEW_ELEMENTS:
            return None
        return list(_cells_of_index(axis, layout, d))
    length = layout.inner_axes[d].cell
    start, step, n_elements, out_start, out_step, _ = axis
    end = start + (n_elements - 1) * step
    first, last = start // length, end // length
    if first == last and out_step > 0:  # most reads: worth saying once more
        start, end = start - first * length, end - first * length
        inside = slice(start, end + 1, step)
        out = slice(out_start, out_start + n_elements)
        return [_Along(first, inside, out, (start, end), *_place(layout, d, first))]
    if last - first >= limit:
        return None
    return list(_cells_of_slice(axis, layout, d, range(first, last + 1)))


def _cells_of_slice(
    axis: SliceAxis, layout: ArrayLayout, d: int, cells: Sequence[int]
) -> Iterator[_Along]:
    inner = layout.inner_axes[d]
    for cell in cells:
        start, length, out_start = project_cell(axis, inner, cell)
        if length <= 0:
            continue
        last = start + (length - 1) * axis.step
        if axis.out_step > 0:
            out = slice(out_start, out_start + length)
        else:
            stop = out_start - length
            out = slice(out_start, None if stop < 0 else stop, -1)
        inside = slice(start, last + 1, axis.step)
        yield _Along(cell, inside, out, (start, last), *_place(layout, d, cell))


def _cells_of_index(axis: IndexAxis, layout: ArrayLayout, d: int) -> Iterator[_Along]:
    length = layout.inner_axes[d].cell
    members: dict[int, tuple[list[int], list[int]]] = {}
    pairs = zip(axis.element.tolist(), axis.out_index.tolist(), strict=True)
    for element, out_index in pairs:
        cell, within = divmod(element, length)
        inside, out = members.setdefault(cell, ([], []))
        inside.append(within)
        out.append(out_index)
    for cell, (inside, out) in members.items():
        extremes = min(inside), max(inside)
        where = _place(layout, d, cell)
        if len(inside) > 1:
            yield _Along(cell, inside, out, extremes, *where)
            continue
        # One element is a slice: no gathering, and no crossing with other arrays.
        one, there = slice(inside[0], inside[0] + 1), slice(out[0], out[0] + 1)
        yield _Along(cell, one, there, extremes, *where)


def _place(
    layout: ArrayLayout, d: int, cell: int
) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Stored object of a cell; per sharding level, where it is and how many there are.

    Both along axis `d`.
    """
    outer, levels = layout.axes[d], layout.levels
    if not levels:
        return cell, ()
    start = cell * layout.inner_axes[d].cell
    if outer.boundaries is None:
        parent = outer.cell
        shard, offset = divmod(start, parent)
    else:
        shard = int(outer.cell_at(start))
        offset = start - int(outer.start_of(shard))
        parent = int(outer.length_of(shard))
    places: list[tuple[int, int]] = []
    for level in levels:
        length = level.chunk_shape[d]
        places.append((offset // length, parent // length))
        offset, parent = offset % length, length
    return shard, tuple(places)


def _entries(
    places: Sequence[tuple[tuple[int, int], ...]], layout: ArrayLayout
) -> tuple[int, ...]:
    """Place in the index of each level, from the places along each axis."""
    entries: list[int] = []
    for k, level in enumerate(layout.levels):
        entry = 0
        for axis in level.axis_order:
            coordinate, per_parent = places[axis][k]
            entry = entry * per_parent + coordinate
        entries.append(entry)
    return tuple(entries)


def _of_points(
    selection: Points, layout: ArrayLayout, limit: int
) -> list[TouchedChunk] | None:
    if selection.n_points > _FEW_ELEMENTS:
        return None
    lengths = [axis.cell for axis in layout.inner_axes]
    members: dict[Coordinate, list[int]] = {}
    points = list(zip(*[c.tolist() for c in selection.coordinates], strict=True))
    if not selection.coordinates:
        points = [()] * selection.n_points
    for k, point in enumerate(points):
        cell = tuple([i // n for i, n in zip(point, lengths, strict=True)])
        members.setdefault(cell, []).append(k)
        if len(members) > limit:
            return None
    out_index = selection.out_index.tolist()
    return [
        _with_points(
            cell, [points[k] for k in mine], [out_index[k] for k in mine], layout
        )
        for cell, mine in members.items()
    ]


def _with_points(
    cell: Coordinate,
    points: Sequence[Coordinate],
    out: list[int],
    layout: ArrayLayout,
) -> TouchedChunk:
    where = [_place(layout, d, c) for d, c in enumerate(cell)]
    along = (
        [
            [i - c * axis.cell for i in column]
            for column, c, axis in zip(
                zip(*points, strict=True), cell, layout.inner_axes, strict=True
            )
        ]
        if cell
        else []
    )
    return TouchedChunk(
        cell,
        tuple([shard for shard, _ in where]),
        _entries([places for _, places in where], layout),
        tuple(along),
        (out,),
        tuple([(min(column), max(column)) for column in along]),
    )


def _open_mesh(index: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cross product of slices and lists (NumPy would pair the lists)."""
    mesh: Any = np.ix_  # its stubs know no mixed arguments
    return mesh(*[_listed(i) for i in index])


def _listed(index: slice | list[int]) -> Any:
    if isinstance(index, list):
        return index
    part = cast("slice[int, int | None, int | None]", index)
    return np.arange(part.start, -1 if part.stop is None else part.stop, part.step or 1)
