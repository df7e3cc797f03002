"""A read as zarr hands it to a codec pipeline, one entry a chunk -> one `Selection`.

zarr has cut the user's selection along the chunk grid. Its pieces are put together
again, so that all chunks of a read are planned, fetched and decoded as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpushard.errors import UnsupportedError
from gpushard.integrations.zarr_lists import (
    ChunkLists,
    Elements,
    Taken,
    as_array,
    count_of,
)
from gpushard.layout import ChunkKeys, GridAxis
from gpushard.selecting.index_arrays import KEPT_ELEMENTS
from gpushard.selecting.listing import Listing
from gpushard.selecting.selection import (
    AxisSelection,
    IndexAxis,
    Ints,
    Listed,
    Orthogonal,
    Points,
    SliceAxis,
    Wanted,
    crossed,
)


class Entry(NamedTuple):
    """What is wanted of one chunk (of one shard, where the array has shards).

    Attributes
    ----------
    coordinate
        The chunk's in the chunk grid.
    chunk_selection, out_selection
        NumPy index of the wanted elements in the chunk, and in the output.
    """

    coordinate: tuple[int, ...]
    chunk_selection: Any
    out_selection: Any


class _Piece(NamedTuple):
    """What one chunk gives along one axis."""

    elements: Elements
    out: range | Ints | None  # None: the output does not have the axis


def split_key(key: str, keys: ChunkKeys, ndim: int) -> tuple[str, tuple[int, ...]]:
    """Path of the array and coordinate of the chunk that a store's `key` is made of.

    Raises
    ------
    UnsupportedError
        The key is none of a chunk.
    """
    n_parts = ndim + 1 if keys.kind == "default" else max(ndim, 1)
    parts = key.split("/")
    if keys.separator == "/":
        path, name = parts[:-n_parts], parts[-n_parts:]
    else:
        path, name = parts[:-1], parts[-1].split(".")
    numbers = name[len(name) - ndim :]
    if len(numbers) == ndim and all(number.isdecimal() for number in numbers):
        coordinate = tuple(map(int, numbers))
        prefix = "/".join(path)
        if key == (f"{prefix}/" if prefix else "") + keys.key(coordinate):
            return prefix, coordinate
    raise UnsupportedError("zarr asks for an object that is no chunk", got=repr(key))


def selection_of(
    entries: Sequence[Entry],
    axes: Sequence[GridAxis],
    out_shape: tuple[int, ...],
    drop_axes: Sequence[int],
) -> Wanted:
    """Selection that all `entries` together make.

    Parameters
    ----------
    entries
        At least one, each of another chunk.
    axes
        The chunk grid.
    out_shape
        Shape of the output.
    drop_axes
        Axes of the array that the output does not have, beside those indexed by a
        plain integer.

    Raises
    ------
    UnsupportedError
        They are no part of a grid and no list of points.
    """
    if len(axes) > 1 and all(_is_points(entry, len(axes)) for entry in entries):
        return _points(entries, axes, out_shape)
    along: list[dict[int, _Piece]] = [{} for _ in axes]
    for entry in entries:
        pieces = _pieces(entry, axes, out_shape, drop_axes)
        for known, at, piece in zip(along, entry.coordinate, pieces, strict=True):
            if not _same(known.setdefault(at, piece), piece):
                raise _unusual("chunks of one row of the grid differ in what is wanted")
    n_distinct = len({entry.coordinate for entry in entries})
    if not n_distinct == len(entries) == prod(map(len, along)):
        raise _unusual("the wanted chunks are no part of a grid")
    joined = [_joined(known, axis) for known, axis in zip(along, axes, strict=True)]
    kept = [axis for axis in joined if not (isinstance(axis, SliceAxis) and axis.drop)]
    if tuple(_length_of(axis) for axis in kept) != out_shape:
        raise _unusual("the wanted elements do not fill the output")
    laid = [axis for axis in joined if isinstance(axis, SliceAxis | IndexAxis)]
    if len(laid) < len(joined):
        return crossed(joined)
    return Orthogonal(tuple(laid), out_shape)


def extent_of(selection: Wanted) -> tuple[int, ...]:
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


def grown_irregularly() -> UnsupportedError:
    """Error for chunks that zarr has appended to a grid, and are not known."""
    return UnsupportedError(
        "a rectilinear axis has grown since the array was opened",
        hint="open the array again",
    )


def _unusual(what: str) -> UnsupportedError:
    return UnsupportedError(f"this read is of an unknown kind: {what}")


def _is_points(entry: Entry, ndim: int) -> bool:
    """Whether NumPy takes the index of a chunk for a list of points."""
    selectors = entry.chunk_selection
    return (
        isinstance(selectors, tuple)
        and len(selectors) == ndim
        and all(isinstance(s, np.ndarray) and s.ndim == 1 for s in selectors)
    )


def _points(
    entries: Sequence[Entry], axes: Sequence[GridAxis], out_shape: tuple[int, ...]
) -> Points | Listed:
    taken: list[Taken] = []
    for entry in entries:
        (out_selector,) = _as_tuple(entry.out_selection)
        out = _places(out_selector, prod(out_shape))
        pairs = list(zip(axes, entry.coordinate, strict=True))
        along = tuple(
            _elements(selector, _cell_length(*pair))
            for selector, pair in zip(entry.chunk_selection, pairs, strict=True)
        )
        if any(count_of(elements) != len(out) for elements in along):
            raise _unusual("input and output of a chunk differ in length")
        starts = tuple(int(axis.start_of(at)) for axis, at in pairs)
        taken.append(Taken(starts, along, out))
    n_points = sum(len(one.out) for one in taken)
    if out_shape != (n_points,):
        raise _unusual("the wanted points do not fill the output")
    if n_points > KEPT_ELEMENTS:
        return Listed(ChunkLists(taken), out_shape)
    joined = tuple(
        np.concatenate([as_array(one.along[d]) + one.starts[d] for one in taken])
        for d in range(len(axes))
    )
    return Points(
        joined, np.concatenate([as_array(one.out) for one in taken]), out_shape
    )


def _pieces(
    entry: Entry,
    axes: Sequence[GridAxis],
    out_shape: tuple[int, ...],
    drop_axes: Sequence[int],
) -> list[_Piece]:
    """What one entry wants along each axis."""
    selectors = _as_tuple(entry.chunk_selection)
    if len(selectors) != len(axes):
        raise _unusual("the index of a chunk has another number of axes")
    is_kept = [
        not (isinstance(s, int | np.integer) or d in drop_axes)
        for d, s in enumerate(selectors)
    ]
    out_selectors = _as_tuple(entry.out_selection)
    if not len(out_selectors) == sum(is_kept) == len(out_shape):
        raise _unusual("the index of the output has another number of axes")
    outs = iter(zip(out_selectors, out_shape, strict=True))
    pieces: list[_Piece] = []
    for d, (axis, at) in enumerate(zip(axes, entry.coordinate, strict=True)):
        elements = _elements(selectors[d], _cell_length(axis, at))
        out = _places(*next(outs)) if is_kept[d] else None
        if count_of(elements) != (1 if out is None else len(out)):
            raise _unusual("input and output of a chunk differ in length")
        pieces.append(_Piece(elements, out))
    return pieces


def _as_tuple(selection: Any) -> tuple[Any, ...]:
    return selection if isinstance(selection, tuple) else (selection,)


def _cell_length(axis: GridAxis, at: int) -> int:
    """Length of a cell; that of a regular axis goes on beyond the array's end."""
    if axis.boundaries is not None and at >= axis.n_cells:
        raise grown_irregularly()
    return int(axis.length_of(at))


def _elements(selector: Any, length: int) -> Elements:
    """Elements of an axis of `length` that one selector of a NumPy index takes."""
    if isinstance(selector, slice):
        return range(*selector.indices(length))
    array = np.asarray(selector)
    if array.ndim == 0 and array.dtype.kind in "iu":
        return range(int(array), int(array) + 1)
    if array.size != max(array.shape, default=1):
        raise _unusual("an axis has an index of several dimensions")
    if array.dtype == bool:
        return array.reshape(-1)
    if array.dtype.kind not in "iu":
        raise _unusual(f"an index is of data type {array.dtype}")
    elements = array.reshape(-1).astype(np.int64, copy=False)
    if elements.size and not 0 <= elements.min() <= elements.max() < length:
        raise _unusual("an index is out of bounds")
    return elements


def _places(selector: Any, length: int) -> range | Ints:
    """As `_elements`, of the output."""
    elements = _elements(selector, length)
    return elements if isinstance(elements, range) else as_array(elements)


def _length_of(axis: AxisSelection | Listing) -> int:
    if isinstance(axis, SliceAxis | IndexAxis):
        return axis.length
    return axis.n_elements


def _same(one: _Piece, other: _Piece) -> bool:
    """Whether two pieces are equal; zarr makes most of the same objects."""
    return all(
        a is b or (a is not None and b is not None and _equal(a, b))
        for a, b in zip(one, other, strict=True)
    )


def _equal(one: Elements, other: Elements) -> bool:
    if isinstance(one, range) or isinstance(other, range) or one.dtype != other.dtype:
        return np.array_equal(as_array(one), as_array(other))
    return np.array_equal(one, other)


def _joined(known: dict[int, _Piece], axis: GridAxis) -> AxisSelection | Listing:
    """Selection along an axis, from what each of its chunks gives."""
    pieces = [(int(axis.start_of(at)), known[at]) for at in sorted(known)]
    ordered = _as_slice(pieces)
    if ordered is not None:
        return ordered
    if any(piece.out is None for _, piece in pieces):
        raise _unusual("an axis that is dropped has several elements")
    taken = [
        Taken((start,), (piece.elements,), piece.out)
        for start, piece in pieces
        if piece.out is not None
    ]
    if sum(len(one.out) for one in taken) > KEPT_ELEMENTS:
        return ChunkLists(taken)
    return IndexAxis(
        np.concatenate([as_array(one.along[0]) + one.starts[0] for one in taken]),
        np.concatenate([as_array(one.out) for one in taken]),
    )


def _as_slice(pieces: Sequence[tuple[int, _Piece]]) -> SliceAxis | None:
    """The slice that the pieces of an axis continue one after the other, if any."""
    start, (elements, out) = pieces[0]
    if out is None:
        first = start + int(as_array(elements)[0])
        return SliceAxis(first, 1, 1, drop=True) if len(pieces) == 1 else None
    if not (isinstance(elements, range) and isinstance(out, range)):
        return None
    first = start + (elements[0] if len(elements) else 0)
    step, out_start, length = elements.step, out.start, 0
    for start, (more, out_more) in pieces:
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
