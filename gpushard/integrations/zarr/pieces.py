"""An entry of zarr's batch -> what its chunk gives along each axis of the array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpushard.errors import UnsupportedError
from gpushard.integrations.zarr.lists import Elements, count_of, places_as_array
from gpushard.layout import GridAxis
from gpushard.selecting.selection import Ints


class Entry(NamedTuple):
    """What is wanted of one chunk (of one shard, if the array has shards).

    Its coordinate in the chunk grid, and the NumPy index of the wanted elements in the
    chunk and in the output.
    """

    coordinate: tuple[int, ...]
    chunk_selection: Any
    out_selection: Any


class AxisPiece(NamedTuple):
    """What one chunk gives along one axis, and the selectors that say so.

    Attributes
    ----------
    elements
        Elements of the axis that are wanted, from the start of the chunk.
    out
        Where they land; None if the output does not have the axis.
    selector, out_selector
        The parts of zarr's indexes of the chunk and of the output.
    """

    elements: Elements
    out: range | Ints | None
    selector: Any
    out_selector: Any


def repeats(entry: Entry, along: Sequence[dict[int, AxisPiece]]) -> bool:
    """Whether an entry has the very selectors of earlier ones along each axis.

    zarr makes one for each row of the grid, and most of its entries of these. `along`
    has the pieces of the earlier entries: for each axis, by the place in the grid.
    """
    selectors, outs = entry.chunk_selection, entry.out_selection
    if type(selectors) is not tuple or type(outs) is not tuple:
        return False
    n_outs = 0
    for pieces, at, selector in zip(along, entry.coordinate, selectors, strict=False):
        piece = pieces.get(at)
        if piece is None or piece.selector is not selector:
            return False
        if piece.out is not None:
            if n_outs == len(outs) or piece.out_selector is not outs[n_outs]:
                return False
            n_outs += 1
    return len(selectors) == len(along) and n_outs == len(outs)


def pieces_of(
    entry: Entry,
    axes: Sequence[GridAxis],
    out_shape: tuple[int, ...],
    drop_axes: Sequence[int],
) -> list[AxisPiece]:
    """What one entry wants along each axis; see `selection_of`.

    Raises `UnsupportedError` if zarr is not known to make such indexes.
    """
    selectors = as_tuple(entry.chunk_selection)
    if len(selectors) != len(axes):
        raise unusual("the index of a chunk has another number of axes")
    is_kept = [
        not (isinstance(s, int | np.integer) or d in drop_axes)
        for d, s in enumerate(selectors)
    ]
    out_selectors = as_tuple(entry.out_selection)
    if not len(out_selectors) == sum(is_kept) == len(out_shape):
        raise unusual("the index of the output has another number of axes")
    outs = iter(zip(out_selectors, out_shape, strict=True))
    pieces: list[AxisPiece] = []
    for d, (axis, at) in enumerate(zip(axes, entry.coordinate, strict=True)):
        elements = elements_taken(selectors[d], cell_length(axis, at))
        out_selector, length = next(outs) if is_kept[d] else (None, 1)
        out = places_of(out_selector, length) if is_kept[d] else None
        if count_of(elements) != (1 if out is None else len(out)):
            raise unusual("input and output of a chunk differ in length")
        pieces.append(AxisPiece(elements, out, selectors[d], out_selector))
    return pieces


def as_tuple(selection: Any) -> tuple[Any, ...]:
    """The selectors of a NumPy index, one for each axis."""
    return selection if isinstance(selection, tuple) else (selection,)


def cell_length(axis: GridAxis, at: int) -> int:
    """Length of a cell, not cut at the array's end."""
    if axis.boundaries is not None and at >= axis.n_cells:
        raise grown_irregularly()
    return int(axis.length_of(at))


def elements_taken(selector: Any, length: int) -> Elements:
    """Elements of an axis of `length` that one selector of a NumPy index takes."""
    if isinstance(selector, slice):
        return range(*selector.indices(length))
    array = np.asarray(selector)
    if array.ndim == 0 and array.dtype.kind in "iu":
        return range(int(array), int(array) + 1)
    if array.size != max(array.shape, default=1):
        raise unusual("an axis has an index of several dimensions")
    if array.dtype == bool:
        return array.reshape(-1)
    if array.dtype.kind not in "iu":
        raise unusual(f"an index is of data type {array.dtype}")
    elements = array.reshape(-1).astype(np.int64, copy=False)
    if elements.size and not 0 <= elements.min() <= elements.max() < length:
        raise unusual("an index is out of bounds")
    return elements


def places_of(selector: Any, length: int) -> range | Ints:
    """As `elements_taken`, for the output."""
    elements = elements_taken(selector, length)
    return elements if isinstance(elements, range) else places_as_array(elements)


def is_of_points(entry: Entry, ndim: int) -> bool:
    """Whether NumPy takes the index of a chunk for a list of points."""
    selectors = entry.chunk_selection
    return (
        isinstance(selectors, tuple)
        and len(selectors) == ndim
        and all(isinstance(s, np.ndarray) and s.ndim == 1 for s in selectors)
    )


def are_equal(one: AxisPiece, other: AxisPiece) -> bool:
    """Whether two pieces give the same elements to the same places."""
    if one.out is None or other.out is None:
        return one.out is other.out and _equal(one.elements, other.elements)
    return _equal(one.elements, other.elements) and _equal(one.out, other.out)


def _equal(one: Elements, other: Elements) -> bool:
    if isinstance(one, range) and isinstance(other, range):
        return one == other
    if isinstance(one, range) or isinstance(other, range) or one.dtype != other.dtype:
        one, other = places_as_array(one), places_as_array(other)
    return one.shape == other.shape and bool((one == other).all())


def grown_irregularly() -> UnsupportedError:
    """Error for chunks that were appended to a grid after the array was opened."""
    return UnsupportedError(
        "a rectilinear axis has grown since the array was opened",
        hint="open the array again",
    )


def unusual(what: str) -> UnsupportedError:
    """Error for a read that zarr has not been seen to make."""
    return UnsupportedError(f"this read is of an unknown kind: {what}")
