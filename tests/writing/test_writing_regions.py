"""What covers a region: only then is it written without reading it."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import zarr

import gpushard
import strategies as sts
from gpushard.layout import GridAxis
from gpushard.options import MIB
from gpushard.selecting.expressions import points
from gpushard.selecting.selection import IndexAxis, Listed
from gpushard.writing.listed import written_parts
from gpushard.writing.regions import Box, Scattered
from tiny_bounds import tiny_bounds

CORNER = [(3, 4), (4, 3), (3, 3), (4, 4)]


@pytest.mark.parametrize(
    ("listed", "is_whole"),
    [
        ([0, 1, 2, 3, 4, 5], True),
        ([5, 3, 1, 0, 2, 4, 4, 0], True),
        ([0, 1, 2, 3, 4], False),
        ([0, 1, 2, 3, 4, 4], False),
        ([0, 1, 2, 3, 4, 4, 1], False),
    ],
)
def test_points_cover_a_region_if_they_list_each_of_its_elements(listed, is_whole):
    rows, columns = np.unravel_index(np.array(listed), (2, 3))
    part = Scattered((rows, columns), np.arange(len(listed)))
    assert part.covers((2, 3)) == is_whole


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize(
    ("listed", "is_whole"),
    [(CORNER, True), ([*CORNER, CORNER[0]], True), ([*CORNER[:3], CORNER[0]], False)],
)
def test_portions_cover_an_inner_chunk_as_far_as_it_lies_in_the_array(
    listed, is_whole, most
):
    axes = GridAxis(5, 3), GridAxis(5, 3)
    layout = sts.make_layout((5, 5), axes)
    with tiny_bounds():
        selection = points(tuple(np.array(listed).T), (5, 5))
        assert isinstance(selection, Listed)
        ((cell, part),) = written_parts(selection, layout, most).cells(axes)
        assert cell == (1, 1)
        assert part.covers((2, 2)) == is_whole


@pytest.mark.parametrize("write", ["points", "mask", "empty mask"])
def test_points_without_axes_are_the_only_element(write, tmp_path):
    a = gpushard.create_array(tmp_path / "a", shape=(), dtype="i4", chunks=())
    if write == "points":
        a.vindex[()] = 3
    else:
        a[write == "mask"] = 3
    want = 0 if write == "empty mask" else 3
    assert zarr.open_array(tmp_path / "a")[()] == want


def test_values_that_index_arrays_name_are_copied_a_mebibyte_at_a_time():
    few, many = (IndexAxis(np.arange(n), np.arange(n)) for n in (3, 1 << 18))
    for axes in ((few, many), (many, few)):
        counts = [
            prod(part.length for part in box.axes) for box in Box(axes)._pieces(8)
        ]
        assert sum(counts) == 3 << 18
        assert len(counts) == 7  # cut along the longer one
        assert 8 * max(counts) <= MIB
