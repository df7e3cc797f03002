"""Shapes that are left open are the source's, or of a size that suits."""

from __future__ import annotations

import pytest

from gpushard import OptionError
from gpushard.converting.shapes import along_axes, chunk_shape, shard_shape


def test_a_shape_that_is_asked_for_is_of_whole_numbers_one_for_each_axis():
    assert along_axes(3, "chunks", 2) == along_axes([3, 3], "chunks", 2) == (3, 3)
    for asked in (1.5, "ab", [2, None], [2], [2, 0]):
        with pytest.raises(OptionError, match="chunks does not fit the array"):
            along_axes(asked, "chunks", 2)


@pytest.mark.parametrize(
    ("shape", "itemsize", "known", "shards", "expected"),
    [
        ((365, 721, 1440), 4, (1, 721, 1440), None, (1, 721, 1440)),
        ((365, 721, 1440), 4, (10, 721, 1440), None, (10, 91, 180)),
        ((365, 721, 1440), 4, None, None, (46, 46, 90)),
        ((100,), 8, None, None, (100,)),
        ((1 << 22,), 1, None, None, (1 << 20,)),
        ((100, 100), 8, (30, 40), (60, 60), (30, 30)),
        ((), 8, (), None, ()),
        ((0, 5), 8, None, None, (1, 5)),
        ((100,), 8, (7,), (10**24,), (5,)),
        ((100,), 8, (70,), (64,), (64,)),
        ((1 << 24,), 1, (1 << 23,), (1 << 21,), (1 << 21,)),
        ((100,), 8, (40,), (69,), (23,)),
        ((100,), 8, (10,), (49,), (7,)),
        ((100,), 8, (2,), (36,), (2,)),
    ],
)
def test_inner_chunks_left_open_are_the_sources_or_a_fitting_size(
    shape, itemsize, known, shards, expected
):
    got = chunk_shape(shape, itemsize, known, shards)
    assert got == expected


@pytest.mark.parametrize(
    ("shape", "itemsize", "chunks", "known", "expected"),
    [
        ((365, 721, 1440), 4, (1, 721, 1440), None, (16, 721, 1440)),
        ((100, 100), 8, (10, 10), None, (100, 100)),
        ((10**5, 10**5), 8, (100, 100), None, (1600, 3200)),
        ((10**9,), 8, (1 << 20,), None, (1 << 23,)),
        ((100, 100), 8, (10, 10), (20, 50), (20, 50)),
        ((100, 100), 8, (10, 10), (25, 50), (100, 100)),
        ((), 8, (), None, ()),
    ],
)
def test_shards_left_open_are_the_sources_or_near_64_mib(
    shape, itemsize, chunks, known, expected
):
    assert shard_shape(shape, itemsize, chunks, known) == expected
