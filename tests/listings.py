"""Strategies for listings, with what NumPy makes of the same index arrays and masks."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np
from hypothesis import strategies as st

from gpushard.selecting.listing import IndexArrays, TrueElements
from strategies import masks


def strided(array, turn):
    """The same elements, in memory that is not contiguous where `turn` says so."""
    if not turn:
        return array
    apart = np.zeros((*array.shape, 2), array.dtype)
    apart[..., 1] = array
    return np.asfortranarray(apart)[..., 1]


def crossed(key, array):
    """What ``oindex[key]`` means, by NumPy's own cross product."""
    along = [
        np.flatnonzero(k)
        if isinstance(k, np.ndarray) and k.dtype == bool
        else np.atleast_1d(np.arange(n)[k])
        for k, n in zip(key, array.shape, strict=True)
    ]
    dropped = tuple(d for d, k in enumerate(key) if isinstance(k, int))
    return array[np.ix_(*along)].squeeze(dropped)


@st.composite
def listings(draw):
    """What makes a listing, and its coordinates along each axis as NumPy has them."""
    extents = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple))
    turn = draw(st.booleans())
    if draw(st.booleans()):
        mask = draw(masks(extents))
        return partial(TrueElements, strided(mask, turn)), np.nonzero(mask)
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple))
    dtype = draw(st.sampled_from(["i8", ">i8", "i4", "i1"]))
    arrays = []
    for e in extents:  # each the same along some axes, as NumPy broadcasts it
        own = tuple(draw(st.sampled_from([1, n])) for n in shape)
        values = st.lists(
            st.integers(-e, e - 1), min_size=prod(own), max_size=prod(own)
        )
        made = strided(np.array(draw(values), dtype).reshape(own), turn)
        arrays.append(np.broadcast_to(made, shape))
    wrapped = [np.arange(e)[a.ravel()] for e, a in zip(extents, arrays, strict=True)]
    return partial(IndexArrays, arrays, extents), wrapped


def same(block, coordinates, out_index):
    """Whether a block has these columns."""
    np.testing.assert_array_equal(block.out_index, out_index)
    for mine, theirs in zip(block.coordinates, coordinates, strict=True):
        assert mine.dtype == np.int64
        np.testing.assert_array_equal(mine, theirs)
