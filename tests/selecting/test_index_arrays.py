"""Index arrays of several axes: taken where NumPy's reading is clear, else refused."""

from __future__ import annotations

import numpy as np
import pytest

import gpushard
from gpushard.errors import SelectionError

INDEXES = [[[1, -2], [3, 4]], np.zeros((2, 0, 3), int), np.full((1, 1), 8), [[]]]


@pytest.fixture
def line(tmp_path):
    a = gpushard.create_array(tmp_path, shape=(9,), dtype="i4", chunks=(2,), shards=4)
    a[...] = np.arange(9) * 3
    return a


@pytest.mark.parametrize("index", INDEXES)
def test_an_array_of_one_axis_takes_index_arrays_of_any_shape(index, line):
    expected = (np.arange(9) * 3)[np.asarray(index, int)]
    assert line[index].shape == expected.shape
    assert np.array_equal(line[index], expected)
    line[index] = 7
    expected = np.arange(9) * 3
    expected[np.asarray(index, int)] = 7
    assert np.array_equal(line[...], expected)


@pytest.mark.parametrize("index", [[[1, 9]], [[1.5, 2.0]], [[1, -10]]])
def test_what_such_an_index_array_cannot_hold_is_refused(index, line):
    with pytest.raises(SelectionError):
        line[index]


@pytest.mark.parametrize("key", [[[1, 2], [3, 0]], (slice(None), [[1, 2]])])
def test_among_other_axes_it_is_refused_with_a_way_out(key, tmp_path):
    a = gpushard.create_array(tmp_path, shape=(4, 5), dtype="i4", chunks=(2, 2))
    for read in (a.__getitem__, a.oindex.__getitem__):
        with pytest.raises(SelectionError, match=r"has 2 dimensions.*\.ravel\(\)"):
            read(key)
