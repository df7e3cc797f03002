"""Index expressions, as users write them -> `Selection`.

`basic` follows NumPy's rules for ``a[...]``, `orthogonal` and `points` zarr's for
``oindex`` and ``vindex``; if the key lists very many elements, these two return a
`Listed`. `blocks` counts in cells of the chunk grid, and `hyperslab` is netCDF's
``(start, count, stride)``.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import SelectionError
from gpushard.layout import GridAxis
from gpushard.selecting.index_arrays import (
    Shape,
    along_axis,
    as_array,
    bounds_hint,
    index_of,
    of_coordinates,
    of_mask,
)
from gpushard.selecting.listing import Listing
from gpushard.selecting.selection import (
    AxisSelection,
    Listed,
    Orthogonal,
    ParsedSelection,
    Points,
    SliceAxis,
    crossed,
    whole_axes,
)


def basic(key: Any, shape: Shape) -> ParsedSelection:
    """Selection of ``a[key]`` for an array of `shape`, with NumPy's result shape.

    Integers, slices with any step, ellipsis and new axes; one boolean array of the
    array's own shape; integer arrays for every axis; or one integer or boolean array
    of one dimension where NumPy's result equals the orthogonal one.

    Raises
    ------
    SelectionError
        The key does not fit `shape`, or mixes arrays in a way that NumPy and
        orthogonal indexing read differently.
    """
    items = _as_tuple(key)
    n_structural = n_ellipses = 0
    for item in items:
        if item is Ellipsis:
            n_ellipses += 1
        elif item is not None:
            n_structural += 1
            is_plain = type(item) is int or type(item) is slice
            if not is_plain and (isinstance(item, bool) or not isinstance(item, int)):
                return _advanced(items, shape)
    n_whole = len(shape) - n_structural
    if n_ellipses > 1 or n_whole < 0:
        _expand(tuple(i for i in items if i is not None), len(shape))
    return _basic(items, shape, n_whole, n_ellipses > 0)


def _basic(
    items: tuple[Any, ...], shape: Shape, n_whole: int, has_ellipsis: bool
) -> Orthogonal:
    """Selection of integers, slices, new axes and at most one ellipsis."""
    axes: list[AxisSelection] = []
    result: list[int] = []
    new_axes: list[int] = []
    for item in items if has_ellipsis else (*items, ...):
        at = len(axes)
        if item is None:
            new_axes.append(len(result))
            result.append(1)
        elif item is ...:
            axes += whole_axes(shape)[at : at + n_whole]
            result += shape[at : at + n_whole]
        elif isinstance(item, slice):
            axes.append(_slice_axis(item, shape[at], at))
            result.append(axes[at].length)
        else:
            axes.append(_integer_axis(item, shape[at], at))
    scalar = not result and not has_ellipsis
    return Orthogonal(tuple(axes), tuple(result), tuple(new_axes), scalar)


def orthogonal(key: Any, shape: Shape) -> Orthogonal | Listed:
    """Selection of ``a.oindex[key]``: the cross product of one selector per axis.

    A selector is an integer (its axis is dropped), a slice, or an integer or boolean
    array of one dimension. Raises `SelectionError` if one does not fit its axis.
    """
    items = _expand(key, len(shape))
    return crossed(
        [
            _axis_selection(item, n, d)
            for d, (item, n) in enumerate(zip(items, shape, strict=True))
        ]
    )


def points(key: Any, shape: Shape) -> Points | Listed:
    """Selection of ``a.vindex[key]``: a boolean mask, or coordinates for every axis.

    Coordinates are integers or integer arrays, broadcast against one another. Raises
    `SelectionError` if the key is neither, is out of bounds, or does not broadcast.
    """
    items = _as_tuple(key)
    if len(items) == 1:
        mask = as_array(items[0]) if not isinstance(items[0], slice) else None
        if mask is not None and mask.dtype == bool:
            return of_mask(mask, shape)
    if len(items) != len(shape) or any(_is_structural(i) for i in items):
        raise SelectionError(
            "vindex takes one boolean mask of the array's shape or one integer array"
            " per dimension",
            expected=f"{len(shape)} integer arrays",
            got=f"{len(items)} selectors",
            hint="use oindex to combine arrays with slices",
        )
    return of_coordinates(items, shape)


def blocks(key: Any, axes: Sequence[GridAxis]) -> Orthogonal:
    """Selection of ``a.blocks[key]``: whole cells of the chunk grid, by coordinates.

    An integer takes one cell and keeps its axis; a slice takes a run of cells. Raises
    `SelectionError` if a coordinate is out of bounds, or a slice has a step.
    """
    items = _expand(key, len(axes))
    selected: list[AxisSelection] = []
    for d, (item, axis) in enumerate(zip(items, axes, strict=True)):
        if isinstance(item, slice):
            first, stop, step = _slice_indices(item, axis.n_cells, d)
            if step != 1:
                raise SelectionError(
                    f"block slices have no step (axis {d})", expected="step 1", got=step
                )
        else:
            first = index_of(item, d, "integer or slice")
            first = _wrapped(first, axis.n_cells, d, ("block", "blocks"))
            stop = first + 1
        if stop <= first:
            selected.append(SliceAxis(0, 1, 0))
            continue
        start = int(axis.start_of(first))
        end = int(axis.start_of(stop - 1)) + int(axis.length_of(stop - 1))
        selected.append(SliceAxis(start, 1, min(end, axis.extent) - start))
    return Orthogonal(tuple(selected), tuple(s.length for s in selected))


def hyperslab(
    start: Sequence[int], count: Sequence[int], stride: Sequence[int] | None = None
) -> tuple[slice, ...]:
    """Slices that take netCDF's hyperslab ``(start, count, stride)``.

    Parameters
    ----------
    start, count, stride
        First element, number of elements and distance along each dimension, in
        elements; the stride is 1 where it is not given.

    Returns
    -------
    tuple of slice
        One slice per dimension, clipped to the array as NumPy clips slices. The stop is
        ``start + (count - 1) * stride + 1``, just behind the last element taken, so a
        stride never reaches into an inner chunk without wanted elements.

    Raises
    ------
    SelectionError
        The sequences hold no integers or differ in length, or a value is negative or a
        stride is 0.

    Examples
    --------
    >>> hyperslab([10, 0], [3, 4], [2, 1])
    (slice(10, 15, 2), slice(0, 4, 1))
    """
    try:
        given = start, count, [1] * len(start) if stride is None else stride
        starts, counts, strides = ([operator.index(n) for n in each] for each in given)
    except TypeError:
        raise SelectionError(
            "start, count and stride are sequences, with an integer per dimension",
            got=f"{start!r}, {count!r} and {stride!r}",
        ) from None
    lengths = len(starts), len(counts), len(strides)
    if len(set(lengths)) != 1:
        raise SelectionError(
            "start, count and stride differ in length",
            got=f"{lengths[0]}, {lengths[1]} and {lengths[2]}",
        )
    if any(
        s < 0 or n < 0 or t < 1 for s, n, t in zip(starts, counts, strides, strict=True)
    ):
        raise SelectionError(
            "a hyperslab cannot begin, count or step like this",
            expected="start and count at least 0, stride at least 1",
            got=f"{starts}, {counts} and {strides}",
        )
    return tuple(
        slice(s, s + (n - 1) * t + 1 if n else s, t)
        for s, n, t in zip(starts, counts, strides, strict=True)
    )


def _as_tuple(key: Any) -> tuple[Any, ...]:
    return cast("tuple[Any, ...]", key) if isinstance(key, tuple) else (key,)


def _slice_axis(item: Any, extent: int, axis: int) -> SliceAxis:
    start, stop, step = _slice_indices(item, extent, axis)
    length = len(range(start, stop, step))
    if length < 2:  # such a step counts for nothing, and need not fit an int64
        return SliceAxis(start, 1, length)
    if step > 0:
        return SliceAxis(start, step, length)
    return SliceAxis(start + (length - 1) * step, -step, length, length - 1, -1)


def _slice_indices(item: Any, extent: int, axis: int) -> tuple[int, int, int]:
    try:
        return item.indices(extent)
    except (TypeError, ValueError) as error:
        raise SelectionError(
            f"bad slice for axis {axis}: {error}",
            got=str(item),
            hint="use integers, and a step other than 0",
        ) from None


def _integer_axis(integer: int, extent: int, axis: int) -> SliceAxis:
    # Most are wrapped already, and a call counts in the smallest reads.
    first = integer if 0 <= integer < extent else _wrapped(integer, extent, axis)
    return SliceAxis(first, 1, 1, 0, 1, True)


def _wrapped(
    index: int, n: int, axis: int, what: tuple[str, str] = ("index", "elements")
) -> int:
    """Index along an axis of `n` elements or blocks, counted from the start."""
    wrapped = index + n if index < 0 else index
    if not 0 <= wrapped < n:
        one, all_of_them = what
        raise SelectionError(
            f"{one} {index} is out of bounds for axis {axis} with {n} {all_of_them}",
            hint=bounds_hint(n),
        )
    return wrapped


def _axis_selection(item: Any, extent: int, axis: int) -> AxisSelection | Listing:
    if isinstance(item, slice):
        return _slice_axis(item, extent, axis)
    if as_array(item).ndim == 0:
        return _integer_axis(index_of(item, axis), extent, axis)
    return along_axis(item, extent, axis)


def _expand(key: Any, ndim: int) -> tuple[Any, ...]:
    """Key as a tuple of `ndim` selectors, ellipsis and missing ones filled in."""
    items = _as_tuple(key)
    if any(i is None for i in items):
        raise SelectionError("new axes go only into a[...], beside integers and slices")
    ellipses = [k for k, i in enumerate(items) if i is Ellipsis]
    if len(ellipses) > 1:
        raise SelectionError("an index can have only one ellipsis")
    n_given = len(items) - len(ellipses)
    if n_given > ndim:
        raise SelectionError(
            "too many indices", expected=f"at most {ndim}", got=n_given
        )
    at = ellipses[0] if ellipses else len(items)
    rest = items[at + 1 :] if ellipses else ()
    return (*items[:at], *[slice(None)] * (ndim - n_given), *rest)


def _is_structural(item: Any) -> bool:
    return item is None or item is Ellipsis or isinstance(item, slice)


def _advanced(items: tuple[Any, ...], shape: Shape) -> ParsedSelection:
    """Selection of ``a[key]`` where the key has more than integers and slices."""
    items = tuple(_plain(item) for item in items)
    advanced = [k for k, i in enumerate(items) if not _is_structural(i)]
    arrays = [k for k in advanced if as_array(items[k]).ndim > 0]
    if len(items) == 1 and np.ndim(items[0]) == len(shape) != 1:
        mask = np.asarray(items[0])
        if mask.dtype == bool:
            return of_mask(mask, shape)
    if not arrays:
        given = _expand(tuple(i for i in items if i is not None), len(shape))
        for axis, item in enumerate(given):
            if not isinstance(item, slice):
                index_of(item, axis)
        return basic(items, shape)
    is_of_axes = as_array(items[arrays[0]]).ndim > 1
    if len(advanced) == len(items) == len(shape) and (len(shape) > 1 or is_of_axes):
        return points(items, shape)
    adjacent = advanced[-1] - advanced[0] == len(advanced) - 1
    _refuse_masks_of_axes((as_array(items[k]) for k in arrays), shape)
    if len(arrays) == 1 and adjacent:
        return orthogonal(items, shape)
    raise SelectionError(
        "this mix of arrays, integers and slices is read differently by NumPy and by"
        " orthogonal indexing",
        hint="say which you mean with oindex or vindex",
    )


def _refuse_masks_of_axes(arrays: Iterable[NDArray[Any]], shape: Shape) -> None:
    for mask in arrays:
        if mask.dtype == bool and mask.ndim > 1:
            raise SelectionError(
                "a boolean mask of several axes has another shape than the array",
                expected=str(shape),
                got=str(mask.shape),
                hint="take masks of one axis each with oindex, or mask what was read",
            )


def _plain(item: Any) -> Any:
    """Anything that NumPy accepts as an integer, as Python's integer."""
    if _is_structural(item) or as_array(item).ndim > 0:
        return item
    if as_array(item).dtype == bool:  # NumPy 2.0 only warns of its own as an index
        return item
    try:
        return operator.index(item)
    except TypeError:
        return item
