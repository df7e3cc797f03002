"""What zarr wants of chunks, one by one, as one selection of the array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpushard.errors import UnsupportedError
from gpushard.integrations.zarr.batch import selection_of
from gpushard.integrations.zarr.pieces import Entry
from gpushard.layout import GridAxis
from gpushard.selecting.selection import Orthogonal, SliceAxis


def wanted(*entries) -> Any:
    """Selection of entries of a 1D array in chunks of 4: index, place in the output."""
    taken = [Entry((at,), (index,), (place,)) for at, (index, place) in entries]
    n = sum(place.stop - place.start for _, (_, place) in entries)
    return selection_of(taken, [GridAxis(20, 4)], (n,), ())


def test_chunks_that_continue_one_another_are_a_slice():
    found = wanted((1, np.s_[1:4:2, 0:2]), (2, np.s_[1:4:2, 2:4]))
    assert found == Orthogonal((SliceAxis(5, 2, 4),), (4,))


@pytest.mark.parametrize(
    ("entries", "elements"),
    [
        ([(0, np.s_[0:4, 4:8]), (1, np.s_[0:4, 0:4])], [4, 5, 6, 7, 0, 1, 2, 3]),
        ([(0, np.s_[0:3, 0:3]), (1, np.s_[0:4, 3:7])], [0, 1, 2, 4, 5, 6, 7]),
        ([(0, np.s_[0:4:2, 0:2]), (1, np.s_[0:2, 2:4])], [0, 2, 4, 5]),
        ([(0, np.s_[::-1, 0:4])], [3, 2, 1, 0]),
        ([(0, np.s_[0:2, 0:2]), (1, (np.array([3, 1]), slice(2, 4)))], [0, 1, 7, 5]),
    ],
)
def test_chunks_that_do_not_are_read_to_their_own_places(entries, elements):
    (axis,) = wanted(*entries).axes
    found = np.empty(len(elements), int)
    found[axis.out_index] = axis.element
    assert found.tolist() == elements


def test_what_does_not_fit_its_places_is_left_to_zarr():
    with pytest.raises(UnsupportedError, match="differ in length"):
        wanted((0, np.s_[0:3, 0:4]))
    with pytest.raises(UnsupportedError, match="several dimensions"):
        wanted((0, (np.ones((2, 2), int), slice(0, 4))))
    twice = [Entry((at,), (1,), ()) for at in range(2)]
    with pytest.raises(UnsupportedError, match="dropped has several elements"):
        selection_of(twice, [GridAxis(20, 4)], (), ())


ALL, ROW = slice(0, 2), np.arange(2)
HALVES = slice(0, 2), slice(2, 4)


@pytest.mark.parametrize(
    ("entries", "shape", "words"),
    [
        ([Entry((0,), ALL, (ALL, ALL))], (2, 2), "a chunk has another number of axes"),
        ([Entry((0, 0), (ALL, ALL), ALL)], (2, 2), "output has another number of axes"),
        ([Entry((0, 0), (ALL, [0.5]), (ALL, ALL))], (2, 2), "of data type float64"),
        ([Entry((0, 0), (ALL, [2]), (ALL, [0]))], (2, 1), "out of bounds"),
        (
            [
                Entry((0, 0), (ALL, ALL), (ALL, HALVES[0])),
                Entry((0, 1), (ALL, ALL), (HALVES[1], HALVES[1])),
            ],
            (4, 4),
            "one row of the grid differ",
        ),
        (
            [Entry((k, k), (ALL, ALL), (half, half)) for k, half in enumerate(HALVES)],
            (4, 4),
            "no part of a grid",
        ),
        ([Entry((0, 0), (ALL, ALL), (ALL, ALL))], (3, 2), "do not fill the output"),
        ([Entry((0, 0), (ROW, ROW), slice(0, 1))], (2,), "differ in length"),
        ([Entry((0, 0), (ROW, ROW), ALL)], (3,), "points do not fill the output"),
    ],
)
def test_what_zarr_was_never_seen_to_ask_for_is_left_to_it(entries, shape, words):
    with pytest.raises(UnsupportedError, match=words):
        selection_of(entries, [GridAxis(4, 2)] * 2, shape, ())
