"""Hypothesis strategies for the pure layers: axes, layouts, keys, selections.

Strategies of an axis are made once: to make one takes longer than to draw from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from gpushard.layout import (
    ArrayLayout,
    ChunkKeys,
    CodecChain,
    CodecSpec,
    GridAxis,
    ShardLevel,
)
from gpushard.planning.axes import Projected
from gpushard.planning.blocks import ShardBlock
from gpushard.selecting.expressions import basic, orthogonal, points
from gpushard.selecting.selection import Orthogonal, Selection, SliceAxis

_PLAIN = CodecChain((), CodecSpec("bytes", {"endian": "little"}), ())


def pieces_of(planned) -> list[ShardBlock]:
    """Columns over all inner chunks of a plan, or of one of its parts."""
    return [piece for block in planned.blocks() for piece in block.pieces()]


def shapes(max_ndim=3, max_side=8):
    """Array shapes, 0-d and axes of length 0 among them."""
    return st.lists(st.integers(0, max_side), max_size=max_ndim).map(tuple)


@st.composite
def grid_axes(draw, extent, unit=1, *, may_be_rectilinear=True):
    """Axis of `extent` whose cells all have a multiple of `unit` for a length."""
    if not (may_be_rectilinear and draw(st.booleans())):
        return GridAxis(extent, unit * draw(st.integers(1, max(1, extent // unit + 1))))
    ends = [0]
    while ends[-1] < extent:
        ends.append(ends[-1] + unit * draw(st.integers(1, max(1, extent // unit))))
    return GridAxis(extent, 0, np.array(ends, np.int64))


def grids(shape):
    """One `GridAxis` a dimension."""
    return st.tuples(*(grid_axes(extent) for extent in shape))


@st.composite
def layouts(draw, max_ndim=3, max_side=14, max_levels=3):
    """Layouts of arrays that exist nowhere: all that a planner looks at."""
    shape = draw(shapes(max_ndim, max_side))
    n_levels = draw(st.integers(0, max_levels))
    lengths = [(1,) * len(shape)]
    for _ in range(n_levels):
        times = [draw(st.integers(1, 3)) for _ in shape]
        lengths.append(tuple(n * k for n, k in zip(lengths[-1], times, strict=True)))
    # The innermost inner chunk comes last, and every level divides the one above.
    chunk_shapes = lengths[:0:-1]
    outermost = chunk_shapes[0] if chunk_shapes else lengths[0]
    axes = tuple(
        draw(grid_axes(n, unit)) for n, unit in zip(shape, outermost, strict=True)
    )
    levels = tuple(
        ShardLevel(
            chunk_shape,
            tuple(draw(st.permutations(range(len(shape))))),
            "end",
            _PLAIN,
            0,
        )
        for chunk_shape in chunk_shapes
    )
    return make_layout(shape, axes, levels)


def make_layout(shape, axes, levels=(), dtype="int32"):
    """Layout with the given grid and sharding levels, of plain elements."""
    dtype = np.dtype(dtype)
    return ArrayLayout(
        path="",
        shape=tuple(shape),
        dtype=dtype,
        data_type_json=dtype.name,
        fill_value=np.zeros((), dtype),
        fill_value_json=0,
        axes=tuple(axes),
        levels=tuple(levels),
        chain=_PLAIN,
        outer_order=tuple(range(len(shape))),
        object_codecs=(),
        keys=ChunkKeys("default", "/"),
        chunks=None,
        shards=None,
        attributes={},
        dimension_names=None,
    )


def make_level(chunk_shape, axis_order=None):
    """Sharding level with inner chunks of `chunk_shape`."""
    order = tuple(range(len(chunk_shape))) if axis_order is None else axis_order
    return ShardLevel(tuple(chunk_shape), tuple(order), "end", _PLAIN, 0)


@cache
def slices(extent):
    """Slices of any step, with bounds inside and outside of the axis."""
    bound = st.none() | st.integers(-extent - 3, extent + 3)
    small, any_step = (
        st.sampled_from([2, 3, -1, -2]),
        st.integers(-extent - 2, extent + 2),
    )
    step = st.none() | small | any_step.filter(bool)
    return st.builds(slice, bound, bound, step)


@st.composite
def basic_keys(draw, shape):
    """Keys that NumPy takes as basic indexing: integers, slices, ellipsis, newaxis."""
    n_given = draw(st.integers(0, len(shape)))
    n_front = draw(st.integers(0, n_given))
    has_ellipsis = (n_given < len(shape) and n_front < n_given) or draw(st.booleans())
    if not has_ellipsis:
        n_front = n_given
    behind = n_given - n_front
    extents = (*shape[:n_front], *(shape[-behind:] if behind else ()))
    items = [draw(_integers_and_slices(n)) for n in extents]
    if has_ellipsis:
        items.insert(n_front, Ellipsis)
    for _ in range(draw(st.integers(0, 2))):
        items.insert(draw(st.integers(0, len(items))), None)
    if len(items) == 1 and draw(st.booleans()):
        return items[0]
    return tuple(items)


def _integers(extent):
    return st.integers(-extent, extent - 1)


@cache
def _integers_and_slices(extent):
    return _integers(extent) | slices(extent) if extent else slices(extent)


@cache
def index_lists(extent, max_size=10):
    """Integer arrays of one dimension: unordered, repeated, negative, empty."""
    if not extent:
        return st.just(np.empty(0, np.int64))
    dtypes = st.sampled_from(["int64", "int32", "int16"])
    values = st.lists(_integers(extent), max_size=max_size)
    return st.builds(np.array, values, dtype=dtypes)


@cache
def masks(shape):
    """Boolean arrays of `shape`."""
    n = prod(shape)
    return st.lists(st.booleans(), min_size=n, max_size=n).map(
        lambda bits: np.array(bits, bool).reshape(shape)
    )


@st.composite
def orthogonal_keys(draw, shape):
    """One selector an axis: an integer, a slice, integers, or a mask."""
    return tuple(draw(_selectors(extent)) for extent in shape)


@cache
def _selectors(extent):
    kinds = [slices(extent), index_lists(extent), masks((extent,))]
    return st.one_of(*kinds, *([_integers(extent)] if extent else []))


@st.composite
def point_keys(draw, shape, max_points=12):
    """Coordinates for every axis that broadcast against one another."""
    result = draw(st.lists(st.integers(0, 3), max_size=2).map(tuple))
    if 0 in shape:
        result = (0,)
    items: list[Any] = []
    for extent in shape:
        own = tuple(1 if n and draw(st.booleans()) else n for n in result)
        n = prod(own)
        values = draw(
            st.lists(_integers(extent), min_size=n, max_size=n)
            if extent
            else st.just([])
        )
        array = np.array(values, np.int64).reshape(own)
        items.append(int(array) if own == () and draw(st.booleans()) else array)
    return tuple(items)


def numbered(shape, dtype="int32"):
    """Array of `shape` in which every element differs."""
    return np.arange(1, prod(shape) + 1).astype(dtype).reshape(shape)


@dataclass(frozen=True)
class Landing:
    """What one touched cell of one axis gives, and where it lands."""

    cell: int
    inside: np.ndarray
    out: np.ndarray


def landings(projection: Projected) -> list[Landing]:
    """The columns of a projection spelled out, element by element."""
    found = []
    position = np.arange(projection.n_cells)
    in_start, length, out_start = projection.takings(position)
    for i, cell in enumerate(projection.cell_at(position).tolist()):
        if projection.members is None:
            nth = np.arange(length[i])
            inside = in_start[i] + nth * projection.step
            out = out_start[i] + nth * projection.out_step
        else:
            bounds, in_index, out_index = projection.members
            run = slice(int(bounds[i]), int(bounds[i + 1]))
            inside, out = in_index[run], out_index[run]
        found.append(Landing(cell, inside, out))
    return found


def elements_of(axis) -> list[int]:
    """Elements of an `AxisSelection`, each at its place in the output."""
    if isinstance(axis, SliceAxis):
        places = [axis.out_start + i * axis.out_step for i in range(axis.length)]
        elements = [axis.start + i * axis.step for i in range(axis.length)]
        return [e for _, e in sorted(zip(places, elements, strict=True))]
    return axis.element[np.argsort(axis.out_index)].tolist()


def expected_of(selection: Orthogonal, array: np.ndarray) -> np.ndarray:
    """What the selection of `array` gives, element lists crossed by NumPy."""
    crossed = array[np.ix_(*(np.array(elements_of(a), int) for a in selection.axes))]
    return crossed.reshape(selection.shape)


@st.composite
def selections(draw, shape):
    """Selections as `a[...]`, `oindex`, `vindex` and masks make them."""
    kind = draw(st.sampled_from(["basic", "orthogonal", "points", "mask"]))
    if kind == "basic":
        return basic(draw(basic_keys(shape)), shape)
    if kind == "orthogonal":
        return orthogonal(draw(orthogonal_keys(shape)), shape)
    if kind == "points" or not shape:
        return points(draw(point_keys(shape)), shape)
    return points(draw(masks(shape)), shape)


def result_of(selection: Selection, array: np.ndarray) -> np.ndarray:
    """What a selection of `array` gives."""
    if isinstance(selection, Orthogonal):
        return expected_of(selection, array)
    out = np.empty(selection.n_points, array.dtype)
    out[selection.out_index] = array[selection.coordinates]
    return out.reshape(selection.shape)


def whole_chunk(layout, coordinate, array, beyond=-1):
    """Inner chunk of `array` at `coordinate`, elements beyond the edge included."""
    starts = [
        int(a.start_of(c)) for a, c in zip(layout.inner_axes, coordinate, strict=True)
    ]
    lengths = [
        int(a.length_of(c)) for a, c in zip(layout.inner_axes, coordinate, strict=True)
    ]
    stored = array[tuple(slice(s, s + n) for s, n in zip(starts, lengths, strict=True))]
    chunk = np.full(lengths, beyond, array.dtype)
    chunk[tuple(map(slice, stored.shape))] = stored
    return chunk
