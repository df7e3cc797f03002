"""Index arrays, masks and coordinates, as users write them -> elements.

Few elements become columns at once. Very many elements stay in the user's arrays
(`listing`) and are read a block at a time.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import SelectionError
from gpushard.selecting.listing import IndexArrays, Listing, TrueElements
from gpushard.selecting.selection import IndexAxis, Ints, Listed, Points

Shape = tuple[int, ...]

# Old releases of NumPy read some lists as if they were tuples.
_TUPLE_HINT = "to index several axes, pass a tuple and not a list"

# Elements whose columns are kept whatever the memory limit is: 5 MiB, as of an axis.
KEPT_ELEMENTS = 1 << 16


def as_array(item: Any) -> NDArray[Any]:
    """The user's index as a NumPy array; raises `SelectionError` if it is none."""
    try:
        return np.asarray(item)
    except (TypeError, ValueError) as error:  # ragged lists, arrays not on the host
        raise SelectionError(
            f"an index cannot be viewed as a NumPy array: {error}"
        ) from None


def index_of(
    item: Any, axis: int, kinds: str = "integer, slice, integer array or mask"
) -> int:
    """Anything that NumPy accepts as an integer, as Python's integer.

    Raises `SelectionError` for anything else; `kinds` says what could stand there.
    """
    if isinstance(item, bool | np.bool_):
        raise SelectionError(f"a boolean is no index for axis {axis}")
    try:
        return operator.index(item)
    except TypeError:
        raise SelectionError(
            f"the index for axis {axis} is no {kinds}", got=repr(item)
        ) from None


def along_axis(item: Any, extent: int, axis: int) -> IndexAxis | Listing:
    """Elements that a 1-D integer array or mask selects along an axis.

    Raises `SelectionError` if it is neither of the two, or does not fit the axis.
    """
    array = _checked(item, extent, axis)
    if array.ndim != 1:
        raise SelectionError(
            f"the index array for axis {axis} has {array.ndim} dimensions",
            expected="1",
            got=array.ndim,
            hint="index with its .ravel() and reshape what was read, or pass vindex one"
            " such array for every axis",
        )
    is_mask = array.dtype == bool
    n_elements = np.count_nonzero(array) if is_mask else array.size
    if n_elements > KEPT_ELEMENTS:
        return TrueElements(array) if is_mask else IndexArrays([array], [extent])
    index = np.flatnonzero(array).astype(np.int64) if is_mask else _wrap(array, extent)
    return IndexAxis(index, np.arange(len(index), dtype=np.int64))


def of_mask(mask: NDArray[Any], shape: Shape) -> Points | Listed:
    """Elements where a mask of the array's own `shape` is true.

    Raises `SelectionError` if the mask has another shape.
    """
    if mask.shape != shape:
        raise SelectionError(
            "the boolean mask has another shape than the array",
            expected=shape,
            got=mask.shape,
        )
    n_points = int(np.count_nonzero(mask))
    if n_points > KEPT_ELEMENTS:
        return Listed(TrueElements(mask), (n_points,))
    along = _true_along(mask)
    coordinates = tuple(c.astype(np.int64, copy=False) for c in along)
    return Points(coordinates, np.arange(n_points, dtype=np.int64), (n_points,))


def _true_along(mask: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Coordinates of the true elements of a mask, one array per axis."""
    if not mask.ndim:  # there is nothing to count along, and NumPy refuses to
        return ()
    if not mask.flags.c_contiguous:  # it would be copied
        return np.nonzero(mask)
    # Along several axes at once, NumPy looks for few true elements 25 times as long.
    return np.unravel_index(np.flatnonzero(mask), mask.shape)


def of_coordinates(items: Sequence[Any], shape: Shape) -> Points | Listed:
    """Elements at coordinates: one integer or integer array per axis, broadcast.

    Raises `SelectionError` if they are out of bounds or do not broadcast.
    """
    given = [
        _checked(item, n, d)
        for d, (item, n) in enumerate(zip(items, shape, strict=True))
    ]
    shapes = [_shape_of(array) for array in given]
    try:
        result: Shape = np.broadcast_shapes(*shapes)
    except ValueError:
        raise SelectionError(
            "coordinate arrays do not broadcast against one another",
            got=f"shapes {shapes}",
            hint="use oindex for all combinations of them",
        ) from None
    n_points = prod(result)
    is_long = n_points > KEPT_ELEMENTS
    # If a mask has very many true elements, it is kept and not their positions.
    spread = [
        array
        if is_long and array.dtype == bool and n_true > KEPT_ELEMENTS
        else np.broadcast_to(_positions(array), result)
        for array, (n_true, *_) in zip(given, [s or (0,) for s in shapes], strict=True)
    ]
    if is_long:
        return Listed(IndexArrays(spread, shape, n_points), result)
    flat = tuple(
        _wrap(np.ascontiguousarray(c).reshape(-1), n)
        for c, n in zip(spread, shape, strict=True)
    )
    return Points(flat, np.arange(n_points, dtype=np.int64), result, scalar=not result)


def _shape_of(array: NDArray[Any]) -> Shape:
    """Shape of coordinates: a mask among them stands for its true elements."""
    if array.dtype == bool:
        return (int(np.count_nonzero(array)),)
    return array.shape


def _positions(array: NDArray[Any]) -> NDArray[Any]:
    """The coordinates, or the positions of the true elements of a mask."""
    return np.flatnonzero(array) if array.dtype == bool else array


def _checked(item: Any, extent: int, axis: int) -> NDArray[Any]:
    """Integer array within the bounds of an axis, or a mask of its length."""
    array = as_array(item)
    if array.dtype == bool:
        if array.shape != (extent,):
            raise SelectionError(
                f"the boolean index for axis {axis} has another length than the axis",
                expected=(extent,),
                got=array.shape,
            )
        return array
    if array.size == 0 and array.dtype == np.float64:  # np.asarray([]) is float64
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise SelectionError(
            f"the index for axis {axis} is no integer, slice, integer array or mask",
            got=f"{type(item).__name__} of {array.dtype}",
            hint=_TUPLE_HINT if array.dtype == object else None,
        )
    if array.size and (array.max() >= extent or array.min() < -extent):
        raise SelectionError(
            f"an index is out of bounds for axis {axis} with {extent} elements",
            got=f"values from {array.min()} to {array.max()}",
            hint=bounds_hint(extent),
        )
    return array


def bounds_hint(n: int) -> str:
    """What to do about an index out of the bounds of an axis with `n` elements."""
    return f"use {-n} to {n - 1}" if n else "only a slice fits an axis without any"


def _wrap(array: NDArray[Any], extent: int) -> Ints:
    """Checked indexes, counted from the start of the axis."""
    index = array.astype(np.int64)
    return np.where(index < 0, index + extent, index)
