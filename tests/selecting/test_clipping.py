"""What a selection over concatenated arrays takes of each array."""

from __future__ import annotations

import numpy as np
import pytest

from gpushard.selecting import clipping, expressions
from gpushard.selecting.clipping import shares_of
from gpushard.selecting.patches import Patches, parts_of
from gpushard.selecting.selection import IndexAxis, Orthogonal, Points
from zarr_oracle import assert_same_bits


@pytest.mark.parametrize("axis", [0, 1])
def test_points_at_the_ends_of_arrays_are_of_one_array_each(axis):
    along, other = np.array([4, 5, 6, 0, 13, 5]), np.arange(6)
    coordinates = (along, other) if axis == 0 else (other, along)
    points = Points(coordinates, np.arange(6), (6,))
    starts = np.array([0, 5, 6, 9, 14])
    found = dict(shares_of(points, axis, starts))
    assert list(found) == [0, 1, 2, 3]
    assert found[2].coordinates[axis].tolist() == [0]
    placed = [
        (one.out_index, one.coordinates, starts[number])
        for number, one in found.items()
    ]
    places = np.concatenate([out_index for out_index, _, _ in placed])
    assert sorted(places) == list(range(6))
    for out_index, own, start in placed:
        assert_same_bits(own[axis] + start, along[out_index])
        assert_same_bits(own[1 - axis], other[out_index])


def test_an_array_without_a_listed_element_takes_no_part():
    elements, places = np.array([1, 8]), np.arange(2)
    points = Points((elements,), places, (2,))
    rows = Orthogonal((IndexAxis(elements, places),), (2,))
    for selection in (points, rows):
        shares = shares_of(selection, 0, np.array([0, 5, 8, 9]))
        assert [number for number, _ in shares] == [0, 2]


def test_a_read_of_few_of_many_arrays_looks_at_no_others(monkeypatch):
    looked_at = []

    def noted(axis, start, stop):
        looked_at.append(start)
        return clipped_as_ever(axis, start, stop)

    clipped_as_ever = clipping._clipped
    monkeypatch.setattr(clipping, "_clipped", noted)
    starts = np.arange(1001) * 10
    for key, homes in ((5007, [500]), (slice(9999, 9985, -5), [998, 999])):
        selection = expressions.basic(key, (10_000,))
        assert [number for number, _ in shares_of(selection, 0, starts)] == homes
    rows = expressions.orthogonal(([77, 9001, 70],), (10_000,))
    assert [number for number, _ in shares_of(rows, 0, starts)] == [7, 900]
    assert looked_at == [5000, 9980, 9990, 70, 9000]


def test_patches_are_of_the_arrays_that_they_reach_into():
    starts = np.array([0, 4, 4, 9, 20, 21])
    columns = [np.array([2, 8]), np.array([5]), np.array([0, 5])]
    patches = Patches(2, *((column,) for column in columns), (10,))
    parts = dict(parts_of(patches, 0, starts))
    assert {n: part.first[0].tolist() for n, part in parts.items()} == {
        0: [2],
        2: [0, 4],
        3: [0],
    }
    same = Patches(2, (np.array([1]),), (np.array([2, 3]),), (np.array([0, 5]),), (8,))
    parts = dict(parts_of(same, 0, np.array([0, 2, 3, 9, 9])))
    assert {n: part.length[0].tolist() for n, part in parts.items()} == {
        0: [1, 1],
        1: [1, 1],
        2: [1],
    }
