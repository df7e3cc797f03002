"""Random selections for Hypothesis, by NumPy's rules."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray


@st.composite
def slices(draw: st.DrawFn, extent: int) -> slice:
    """Any slice: bounds absent, negative or beyond the end, steps of both signs."""
    bound = st.none() | st.integers(-extent - 2, extent + 2)
    step = st.none() | st.integers(1, 4) | st.integers(-4, -1)
    return slice(draw(bound), draw(bound), draw(step))


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
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        key.insert(draw(st.integers(0, len(key))), None)
    return key[0] if len(key) == 1 and draw(st.booleans()) else tuple(key)


def _one(extent: int) -> st.SearchStrategy[Any]:
    if not extent:
        return slices(extent)
    return st.integers(-extent, extent - 1) | slices(extent)


def _indexes(extent: int) -> st.SearchStrategy[Any]:
    """Index array of one axis: any order, repeats, negative ones."""
    values = st.integers(-extent, extent - 1)
    indexes = st.lists(values, max_size=9) if extent else st.just([])
    return indexes.map(lambda v: np.array(v, np.int64))


@st.composite
def orthogonal_keys(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """One selector an axis: integer, slice, index array or mask."""
    return tuple(
        draw(
            _one(n)
            | _indexes(n)
            | st.lists(st.booleans(), min_size=n, max_size=n).map(
                lambda v: np.array(v, bool)
            )
        )
        for n in shape
    )


def take_orthogonal(full: NDArray[Any], key: tuple[Any, ...]) -> NDArray[Any]:
    """What `key` selects, one axis after the other, by NumPy."""
    for axis in reversed(range(len(key))):
        full = full[(slice(None),) * axis + (key[axis],)]
    return full


@st.composite
def point_keys(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Coordinates for every axis of an array that has elements."""
    n_points = draw(st.integers(0, 12))
    as_table = n_points and n_points % 2 == 0 and draw(st.booleans())
    result = (n_points // 2, 2) if as_table else (n_points,)
    key: list[Any] = []
    for n in shape:
        one = st.integers(-n, n - 1)
        many = st.lists(one, min_size=n_points, max_size=n_points)
        key.append(np.array(draw(many), np.int64).reshape(result))
    # Coordinates may also be broadcast.
    if len(shape) > 1 and draw(st.booleans()):
        key[0] = draw(st.integers(-shape[0], shape[0] - 1))
    return tuple(key)


@st.composite
def masks(draw: st.DrawFn, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Mask of the array's shape, of any density."""
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    return rng.random(shape) < draw(st.sampled_from([0.0, 0.1, 0.6, 1.0]))
