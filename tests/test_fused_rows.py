"""Rows in any order, laid over inner chunks by the compiled loop and by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from fused_cases import FUSED
from gpushard import Loader
from gpushard.fused import rows as fused_rows
from gpushard.fused.choice import compiled_loops
from gpushard.fused.rows import laid_rows
from gpushard.layout import GridAxis
from gpushard.loader import windows
from gpushard.loader.windows import rows_of_all
from gpushard.selecting.selection import IndexAxis, LaidElements, project

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

N_ROWS = 200
VALUES = np.arange(96 * 256, dtype="i4").reshape(96, 256)


@pytest.fixture(scope="module", autouse=True)
def path(tmp_path_factory):
    """Array of `VALUES`, whose first read has the loops loaded."""
    path = tmp_path_factory.mktemp("rows") / "array.zarr"
    made = gpushard.create_array(
        path, shape=VALUES.shape, dtype="i4", shards=(32, 256), chunks=(8, 256)
    )
    made[...] = VALUES
    assert np.array_equal(gpushard.open_array(path, options=FUSED)[...], VALUES)
    assert compiled_loops() is not None
    return path


def as_numpy(rows, axis):
    """Projection of sorted rows, which needs no loops."""
    order = np.argsort(rows)
    return project(IndexAxis(rows[order], order), axis)


def columns(projection):
    """All columns of a projection, as lists."""
    members = projection.members
    return [c.tolist() for c in (*projection[:4], *members)], projection[4:6]


def shuffled(seed, n):
    """`n` different rows in random order."""
    return np.random.default_rng(seed).permutation(N_ROWS)[:n]


seeds, counts = st.integers(0, 2**32), st.integers(60, N_ROWS)


@given(seed=seeds, n=counts, length=st.integers(1, N_ROWS + 1))
def test_rows_in_any_order_are_laid_as_numpy_lays_them(seed, n, length):
    rows, axis = shuffled(seed, n), GridAxis(N_ROWS, length)
    assert columns(laid_rows(rows, axis)) == columns(as_numpy(rows, axis))


@given(seed=seeds, n=counts, length=st.sampled_from([1, 7, 8, 300]))
def test_rows_that_come_twice_are_left_to_numpy(seed, n, length):
    rows = shuffled(seed, n)
    rows = np.append(rows, rows[seed % n])
    assert laid_rows(rows, GridAxis(N_ROWS, length)) is None


@pytest.mark.parametrize(
    ("rows", "extent", "length", "is_laid"),
    [
        ([7, 8, 23], 24, 8, True),  # 24 places, as many as the loop takes for 3 rows
        ([7, 9, 23], 27, 9, False),
        ([7, 0, 23], 27, 9, True),
        ([24, 0, 2], 25, 1, False),  # 25 cells
        ([23, 0, 2], 24, 1, True),
        ([1 << 62, 0, 2], (1 << 63) - 1, 1 << 62, False),  # 2**63 places
    ],
)
def test_rows_that_lie_far_apart_are_left_to_numpy(rows, extent, length, is_laid):
    laid = laid_rows(np.array(rows), GridAxis(extent, length))
    assert (laid is not None) == is_laid


@pytest.mark.parametrize(
    ("change", "axis"),
    [
        ({}, GridAxis(N_ROWS, 8)),
        ({}, GridAxis(N_ROWS, 0, np.array([0, 90, N_ROWS]))),
        ({"element": np.arange(60)}, GridAxis(N_ROWS, 7)),
        ({"out_index": np.arange(60)[::-1]}, GridAxis(N_ROWS, 7)),
    ],
    ids=["other cells", "cells of any length", "other rows", "other places"],
)
def test_rows_laid_before_are_laid_anew_if_anything_differs(change, axis):
    rows, place, grid = shuffled(3, 60), np.arange(60), GridAxis(N_ROWS, 7)
    laid: Any = laid_rows(rows, grid)
    selection = IndexAxis(rows, place, LaidElements(rows, place, 7, laid))
    assert project(selection, grid) is laid
    other = selection._replace(**change)
    assert columns(project(other, axis)) == columns(
        project(other._replace(laid=None), axis)
    )


def test_without_the_loops_rows_are_sorted(monkeypatch):
    monkeypatch.setattr(fused_rows, "compiled_loops", lambda: None)
    rows = np.array([3, 1, 2])
    (axis,) = rows_of_all(rows, (4,), GridAxis(4, 2)).axes
    assert isinstance(axis, IndexAxis)
    assert axis.laid is None
    assert axis.element.tolist() == [1, 2, 3]


@pytest.mark.parametrize("block", [None, "chunk"])
def test_a_loader_gives_the_same_samples_with_and_without_the_loop(
    block, path, monkeypatch
):
    array = gpushard.open_array(path, options=FUSED)
    options = {"batch_size": 16, "shuffle": True, "block": block, "return_index": True}

    def epoch():
        with Loader(array, **options) as loader:
            return [(batch.copy(), index.copy()) for batch, index in loader]

    laid, found = windows.laid_rows, []
    monkeypatch.setattr(
        windows, "laid_rows", lambda *given: found.append(laid(*given)) or found[-1]
    )
    fast = epoch()
    assert found
    assert None not in found
    monkeypatch.setattr(windows, "laid_rows", lambda *_: None)
    for (batch, index), (want, wanted) in zip(fast, epoch(), strict=True):
        assert np.array_equal(index, wanted)
        assert np.array_equal(batch, want)
        assert np.array_equal(batch, VALUES[index])
