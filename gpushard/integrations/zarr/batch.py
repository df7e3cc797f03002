"""What a read by zarr wants of each chunk -> one `Selection`.

zarr cuts the user's selection along the chunk grid. Here the pieces are joined again,
so that all chunks of a read are planned, fetched and decoded together.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from gpushard.integrations.zarr.lists import (
    ChunkLists,
    Taken,
    count_of,
    places_as_array,
)
from gpushard.integrations.zarr.pieces import (
    AxisPiece,
    Entry,
    add_pieces,
    as_tuple,
    cell_length,
    elements_taken,
    is_of_points,
    places_of,
    unusual,
)
from gpushard.layout import GridAxis
from gpushard.selecting.index_arrays import KEPT_ELEMENTS
from gpushard.selecting.listing import Listing
from gpushard.selecting.selection import (
    AxisSelection,
    IndexAxis,
    Listed,
    Orthogonal,
    ParsedSelection,
    Points,
    SliceAxis,
    crossed,
)


def selection_of(
    entries: Sequence[Entry],
    axes: Sequence[GridAxis],
    out_shape: tuple[int, ...],
    drop_axes: Sequence[int],
) -> ParsedSelection:
    """Selection of everything that `entries` want, each of a different chunk.

    The output has the shape `out_shape`, and lacks the axes `drop_axes` in addition to
    those indexed by a plain integer. Raises `UnsupportedError` if the entries, at least
    one, are neither a part of a grid nor a list of points.
    """
    if len(axes) > 1 and all(is_of_points(entry, len(axes)) for entry in entries):
        return _points(entries, axes, out_shape)
    along: list[dict[int, AxisPiece]] = [{} for _ in axes]
    for entry in entries:
        add_pieces(along, entry, axes, out_shape, drop_axes)
    n_distinct = len({entry.coordinate for entry in entries})
    if not n_distinct == len(entries) == prod(map(len, along)):
        raise unusual("the wanted chunks are no part of a grid")
    joined = [_joined(known, axis) for known, axis in zip(along, axes, strict=True)]
    kept = [axis for axis in joined if not (isinstance(axis, SliceAxis) and axis.drop)]
    if tuple(_length_of(axis) for axis in kept) != out_shape:
        raise unusual("the wanted elements do not fill the output")
    laid = [axis for axis in joined if isinstance(axis, SliceAxis | IndexAxis)]
    if len(laid) < len(joined):
        return crossed(joined)
    return Orthogonal(tuple(laid), out_shape)


def extent_of(selection: ParsedSelection) -> tuple[int, ...]:
    """Shape of the smallest array that has all elements of a selection."""
    if isinstance(selection, Points):
        return tuple(int(c.max(initial=-1)) + 1 for c in selection.coordinates)
    if not isinstance(selection, Listed):
        return tuple(map(_end_of, selection.axes))
    listing = selection.listing
    ends = np.zeros(listing.n_axes, np.int64)
    for number in range(listing.n_blocks):
        along = listing.block(number).coordinates
        np.maximum(ends, [c.max(initial=-1) + 1 for c in along], out=ends)
    if selection.around is None:
        return tuple(ends.tolist())
    around = list(map(_end_of, selection.around.axes))
    around[selection.axis] = int(ends[0])
    return tuple(around)


def _end_of(axis: AxisSelection) -> int:
    if isinstance(axis, IndexAxis):
        return int(axis.element.max(initial=-1)) + 1
    return axis.start + (axis.length - 1) * axis.step + 1


def _points(
    entries: Sequence[Entry], axes: Sequence[GridAxis], out_shape: tuple[int, ...]
) -> Points | Listed:
    taken: list[Taken] = []
    for entry in entries:
        (out_selector,) = as_tuple(entry.out_selection)
        out = places_of(out_selector, prod(out_shape))
        pairs = list(zip(axes, entry.coordinate, strict=True))
        along = tuple(
            elements_taken(selector, cell_length(*pair))
            for selector, pair in zip(entry.chunk_selection, pairs, strict=True)
        )
        if any(count_of(elements) != len(out) for elements in along):
            raise unusual("input and output of a chunk differ in length")
        starts = tuple(int(axis.start_of(at)) for axis, at in pairs)
        taken.append(Taken(starts, along, out))
    n_points = sum(len(one.out) for one in taken)
    if out_shape != (n_points,):
        raise unusual("the wanted points do not fill the output")
    if n_points > KEPT_ELEMENTS:
        return Listed(ChunkLists(taken), out_shape)
    joined = tuple(
        np.concatenate([places_as_array(one.along[d]) + one.starts[d] for one in taken])
        for d in range(len(axes))
    )
    return Points(
        joined, np.concatenate([places_as_array(one.out) for one in taken]), out_shape
    )


def _length_of(axis: AxisSelection | Listing) -> int:
    if isinstance(axis, SliceAxis | IndexAxis):
        return axis.length
    return axis.n_elements


def _joined(known: dict[int, AxisPiece], axis: GridAxis) -> AxisSelection | Listing:
    """Selection along an axis, from what each of its chunks gives."""
    pieces = [(int(axis.start_of(at)), known[at]) for at in sorted(known)]
    ordered = _as_slice(pieces)
    if ordered is not None:
        return ordered
    if any(piece.out is None for _, piece in pieces):
        raise unusual("an axis that is dropped has several elements")
    taken = [
        Taken((start,), (piece.elements,), piece.out)
        for start, piece in pieces
        if piece.out is not None
    ]
    if sum(len(one.out) for one in taken) > KEPT_ELEMENTS:
        return ChunkLists(taken)
    return IndexAxis(
        np.concatenate(
            [places_as_array(one.along[0]) + one.starts[0] for one in taken]
        ),
        np.concatenate([places_as_array(one.out) for one in taken]),
    )


def _as_slice(pieces: Sequence[tuple[int, AxisPiece]]) -> SliceAxis | None:
    """The slice that the pieces of an axis continue one after the other, if any."""
    start, (elements, out, *_) = pieces[0]
    if out is None:
        found = elements if isinstance(elements, range) else places_as_array(elements)
        first = start + int(found[0])
        return SliceAxis(first, 1, 1, drop=True) if len(pieces) == 1 else None
    if not (isinstance(elements, range) and isinstance(out, range)):
        return None
    first = start + (elements[0] if len(elements) else 0)
    step, out_start, length = elements.step, out.start, 0
    for start, (more, out_more, *_) in pieces:
        follows = (
            isinstance(more, range)
            and isinstance(out_more, range)
            and more.step == step > 0
            and out_more.step == 1
            and start + more.start == first + length * step
            and out_more.start == out_start + length
        )
        if not follows:
            return None
        length += len(more)
    return SliceAxis(first, step, length, out_start)
