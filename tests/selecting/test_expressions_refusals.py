"""Index expressions that do not fit: each is refused with the reason."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from gpushard.errors import SelectionError
from gpushard.layout import GridAxis
from gpushard.selecting.expressions import basic, blocks, orthogonal, points

SHAPE = (4, 5)
RAGGED = [[1], [2, 3]]
BASIC_REFUSALS = [
    (4, "index 4 is out of bounds for axis 0 with 4 elements.*use -4 to 3"),
    (-5, "index -5 is out of bounds for axis 0 with 4 elements"),
    (10**30, "out of bounds for axis 0"),
    ((0, 5), "index 5 is out of bounds for axis 1 with 5 elements"),
    ((..., 5), "index 5 is out of bounds for axis 1 with 5 elements"),
    ([0, 4], "axis 0 with 4 elements: got values from 0 to 4.*use -4 to 3"),
    (
        ([0], [-6]),
        "out of bounds for axis 1 with 5 elements: got values from -6.*use -5 to 4",
    ),
    ([2**63], "out of bounds for axis 0"),
    ([2**70], "the index for axis 0 is no integer"),
    (1.0, "the index for axis 0 is no integer, slice, integer array or mask: got 1.0"),
    ((1, "a"), "the index for axis 1 is no integer.*: got 'a'"),
    ((None, ..., "a"), "the index for axis 1 is no integer"),
    ({1: 2}, "the index for axis 0 is no integer"),
    ([1.5], "the index for axis 0 is no integer.*: got list of float64"),
    (np.array(["a"]), "the index for axis 0 is no integer"),
    (True, "a boolean is no index for axis 0"),
    (np.True_, "a boolean is no index for axis 0"),
    ((0, False), "a boolean is no index for axis 1"),
    (np.array(True), "the index for axis 0 is no integer"),
    ((..., ...), "only one ellipsis"),
    ((..., 0, ..., "a"), "only one ellipsis"),
    ((1, 2, 3), "too many indices: expected at most 2, got 3"),
    ((slice(None),) * 3, "too many indices: expected at most 2, got 3"),
    ((None, 1, 2, 3), "too many indices: expected at most 2, got 3"),
    ((None, ..., 0, ...), "only one ellipsis"),
    ([0, slice(None)], "pass a tuple and not a list"),
    ((0, slice(None, None, 0)), r"bad slice for axis 1.*slice\(None, None, 0\)"),
    (slice(None, None, 0), "bad slice.*step cannot be zero"),
    (slice("a"), "bad slice.*integers or None"),
    (slice(1.5, None), "bad slice.*integers or None"),
    (RAGGED, "cannot be viewed as a NumPy array"),
    ((RAGGED, 0), "cannot be viewed as a NumPy array"),
    ([True, False], r"boolean index for axis 0.*expected \(4,\), got \(2,\)"),
    (np.ones((4, 4), bool), r"mask has another shape.*expected \(4, 5\), got \(4, 4\)"),
    (np.ones((4, 5, 1), bool), r"mask.*expected \(4, 5\), got \(4, 5, 1\)"),
    ((np.ones((4, 5), bool), None), "mask of several axes"),
    ((slice(None), np.ones((5, 5), bool)), r"mask of several axes.*got \(5, 5\)"),
    (([0, 1], [0, 1, 2]), r"do not broadcast.*got shapes \[\(2,\), \(3,\)\]"),
    (np.zeros((2, 2), int), r"has 2 dimensions.*\.ravel\(\)"),
    ((None, [0, 1]), "new axes go only into"),
]


def refused(function, key, where, said):
    with pytest.raises(SelectionError, match=said) as caught:
        function(key, where)
    message = str(caught.value)
    assert message.endswith(".")
    assert "expected None" not in message
    assert "got None" not in message
    assert str(pickle.loads(pickle.dumps(caught.value))) == message


@pytest.mark.parametrize(("key", "said"), BASIC_REFUSALS)
def test_a_basic_key_that_does_not_fit_is_refused_with_the_reason(key, said):
    refused(basic, key, SHAPE, said)


@pytest.mark.parametrize(
    "key",
    [
        ([0, 1], slice(None), 0),
        ([0, 1], slice(None), [0, 1]),
        ([0, 1], [0, 1]),
        (0, ..., [0, 1]),
    ],
)
def test_arrays_that_numpy_and_oindex_read_differently_are_refused(key):
    refused(basic, key, (2, 2, 2), "read differently.*; say which you mean with oindex")


@pytest.mark.parametrize("key", [0, 1.5, np.array(0), (None, 0)])
def test_a_0d_array_takes_no_index(key):
    refused(basic, key, (), "too many indices: expected at most 0, got 1")


def test_an_axis_without_elements_takes_no_integer():
    refused(basic, 0, (0, 3), "index 0 is out of bounds for axis 0.*only a slice fits")
    refused(basic, [0], (0, 3), "out of bounds for axis 0 with 0 elements")


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (4, "index 4 is out of bounds for axis 0"),
        ([4], "out of bounds for axis 0 with 4 elements: got values from 4 to 4"),
        (1.5, "the index for axis 0 is no integer"),
        (True, "a boolean is no index for axis 0"),
        ("x", "the index for axis 0 is no integer"),
        (([0], ["x"]), "the index for axis 1 is no integer"),
        ([0.5], "the index for axis 0 is no integer"),
        (RAGGED, "cannot be viewed as a NumPy array"),
        (None, "new axes go only into"),
        ((..., ...), "only one ellipsis"),
        ((0, 0, 0), "too many indices"),
        (slice(None, None, 0), "bad slice"),
        ([True, False], r"boolean index for axis 0.*expected \(4,\), got \(2,\)"),
        (np.ones(SHAPE, bool), r"expected \(4,\), got \(4, 5\)"),
        (np.zeros((2, 2), int), "has 2 dimensions.*pass vindex"),
    ],
)
def test_an_orthogonal_key_that_does_not_fit_is_refused_with_the_reason(key, said):
    refused(orthogonal, key, SHAPE, said)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (([0], [5]), "out of bounds for axis 1 with 5 elements"),
        (([0],), "vindex takes one boolean mask.*got 1 selectors"),
        (([0], slice(None)), "vindex takes.*use oindex"),
        (([0], None), "vindex takes"),
        (..., "vindex takes"),
        (slice(None), "vindex takes"),
        (([0], [0.5]), "the index for axis 1 is no integer"),
        (([0, 1], [0, 1, 2]), "do not broadcast"),
        (np.ones(4, bool), r"mask has another shape.*expected \(4, 5\), got \(4,\)"),
        (RAGGED, "cannot be viewed as a NumPy array"),
        ((RAGGED, 0), "cannot be viewed as a NumPy array"),
        ((True, 0), "boolean index for axis 0"),
    ],
)
def test_points_that_do_not_fit_are_refused_with_the_reason(key, said):
    refused(points, key, SHAPE, said)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ([0], r"the index for axis 0 is no integer or slice: got \[0\]"),
        (2, "block 2 is out of bounds for axis 0 with 2 blocks"),
        (-3, "block -3 is out of bounds for axis 0 with 2 blocks"),
        ((0, 3), "block 3 is out of bounds for axis 1 with 3 blocks.*use -3 to 2"),
        (slice(None, None, 2), r"no step \(axis 0\): expected step 1, got 2"),
        ((0, slice(None, None, -1)), r"no step \(axis 1\)"),
        (slice(None, None, 0), "bad slice"),
        (slice("a"), "bad slice"),
        (1.5, "the index for axis 0 is no integer"),
        (True, "a boolean is no index"),
        ([0, 1], "the index for axis 0 is no integer"),
        ((0, 0, 0), "too many indices"),
        (None, "new axes go only into"),
        ((..., ...), "only one ellipsis"),
    ],
)
def test_blocks_that_do_not_fit_are_refused_with_the_reason(key, said):
    refused(blocks, key, (GridAxis(4, 2), GridAxis(5, 2)), said)
