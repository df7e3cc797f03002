"""Random selections for Hypothesis, by NumPy's rules.

Strategies of an axis are made once: to make one takes longer than to draw from it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

_STEPS = st.none() | st.integers(1, 4) | st.integers(-4, -1)
_DENSITIES = st.sampled_from([0.0, 0.1, 0.6, 1.0])
_NEW_AXES = st.sampled_from([0, 0, 0, 1, 2])


@cache
def slices(extent: int) -> st.SearchStrategy[slice]:
    """Any slice: bounds absent, negative or beyond the end, steps of both signs."""
    bound = st.none() | st.integers(-extent - 2, extent + 2)
    return st.tuples(bound, bound, _STEPS).map(lambda parts: slice(*parts))


@st.composite
def basic_keys(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """NumPy's basic indexing: integers, slices, an ellipsis and new axes."""
    n_given = draw(st.integers(0, len(shape)))
    n_first = draw(st.integers(0, n_given))
    has_ellipsis = n_first < n_given or draw(st.booleans())
    key: list[Any] = [draw(_one(n)) for n in shape[:n_first]]
    if has_ellipsis:
        n_last = n_given - n_first
        last = shape[len(shape) - n_last :]
        key += [Ellipsis, *(draw(_one(n)) for n in last)]
    for _ in range(draw(_NEW_AXES)):
        key.insert(draw(st.integers(0, len(key))), None)
    return key[0] if len(key) == 1 and draw(st.booleans()) else tuple(key)


@cache
def _one(extent: int) -> st.SearchStrategy[Any]:
    if not extent:
        return slices(extent)
    return st.integers(-extent, extent - 1) | slices(extent)


@cache
def _selectors(extent: int) -> st.SearchStrategy[Any]:
    """Integer, slice, mask, or index array: any order, repeats, negative ones."""
    values = st.integers(-extent, extent - 1)
    indexes = st.lists(values, max_size=9) if extent else st.just([])
    mask = st.lists(st.booleans(), min_size=extent, max_size=extent)
    return (
        _one(extent)
        | indexes.map(lambda v: np.array(v, np.int64))
        | mask.map(lambda v: np.array(v, bool))
    )


def orthogonal_keys(shape: tuple[int, ...]) -> st.SearchStrategy[tuple[Any, ...]]:
    """One selector an axis: integer, slice, index array or mask."""
    return st.tuples(*map(_selectors, shape))


def take_orthogonal(full: NDArray[Any], key: tuple[Any, ...]) -> NDArray[Any]:
    """What `key` selects, one axis after the other, by NumPy."""
    for axis in reversed(range(len(key))):
        full = full[(slice(None),) * axis + (key[axis],)]
    return full


@cache
def _places(extent: int, n: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(-extent, extent - 1), min_size=n, max_size=n)


@st.composite
def point_keys(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Coordinates for every axis of an array that has elements."""
    n_points = draw(st.integers(0, 12))
    as_table = n_points and n_points % 2 == 0 and draw(st.booleans())
    result = (n_points // 2, 2) if as_table else (n_points,)
    key: list[Any] = [
        np.array(draw(_places(n, n_points)), np.int64).reshape(result) for n in shape
    ]
    # Coordinates may also be broadcast.
    if len(shape) > 1 and draw(st.booleans()):
        key[0] = draw(st.integers(-shape[0], shape[0] - 1))
    return tuple(key)


@st.composite
def masks(draw: st.DrawFn, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Mask of the array's shape, of any density."""
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    return rng.random(shape) < draw(_DENSITIES)
