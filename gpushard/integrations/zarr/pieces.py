"""An entry of zarr's batch -> what its chunk gives along each axis of the array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpushard.errors import UnsupportedError
from gpushard.integrations.zarr.lists import Elements, count_of, places_as_array
from gpushard.layout import GridAxis
from gpushard.selecting.selection import Ints

_INTEGERS = (int, np.integer)


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
        The parts of zarr's indexes of the chunk and of the output; None if `out` is.
    """

    elements: Elements
    out: range | Ints | None
    selector: Any
    out_selector: Any

    def came_from(self, selector: Any, out_selector: Any) -> bool:
        """Whether the piece was made of these very selectors."""
        return self.selector is selector and self.out_selector is out_selector


def add_pieces(
    along: Sequence[dict[int, AxisPiece]],
    entry: Entry,
    axes: Sequence[GridAxis],
    out_shape: tuple[int, ...],
    drop_axes: Sequence[int],
) -> None:
    """Add to `along`, for each axis, what one entry wants; see `selection_of`.

    `along` has the pieces of earlier entries by the place in the grid. zarr makes most
    entries of selectors that all those of a row share.

    Raises `UnsupportedError` if zarr is not known to make such indexes, or such ones
    beside those of earlier entries.
    """
    selectors = as_tuple(entry.chunk_selection)
    if len(selectors) != len(axes):
        raise unusual("the index of a chunk has another number of axes")
    outs = as_tuple(entry.out_selection)
    n_outs = 0
    for d, selector in enumerate(selectors):
        out_selector, length = None, 1
        if not (isinstance(selector, _INTEGERS) or d in drop_axes):
            if n_outs == min(len(outs), len(out_shape)):
                raise _other_output()
            out_selector, length = outs[n_outs], out_shape[n_outs]
            n_outs += 1
        at = entry.coordinate[d]
        known = along[d].get(at)
        if known is not None and known.came_from(selector, out_selector):
            continue
        piece = _piece(cell_length(axes[d], at), selector, out_selector, length)
        if not are_equal(along[d].setdefault(at, piece), piece):
            raise unusual("chunks of one row of the grid differ in what is wanted")
    if not len(outs) == n_outs == len(out_shape):
        raise _other_output()


def _piece(length: int, selector: Any, out_selector: Any, out_length: int) -> AxisPiece:
    elements = elements_taken(selector, length)
    out = None if out_selector is None else places_of(out_selector, out_length)
    if count_of(elements) != (1 if out is None else len(out)):
        raise unusual("input and output of a chunk differ in length")
    return AxisPiece(elements, out, selector, out_selector)


def _other_output() -> UnsupportedError:
    return unusual("the index of the output has another number of axes")


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
