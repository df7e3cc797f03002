"""Blocks of samples along several axes, against what a list of all samples says."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from gpushard.layout import GridAxis
from gpushard.loader import places as places_module
from gpushard.loader.order import Shuffling
from gpushard.loader.sample_grid import SampleGrid
from gpushard.options import MIB


@st.composite
def axes(draw):
    extent = draw(st.integers(1, 9))
    if draw(st.booleans()):
        return GridAxis(extent, draw(st.integers(1, extent + 2)))
    bounds = draw(st.sets(st.integers(1, max(extent - 1, 1)), max_size=4))
    return GridAxis(extent, 0, np.array(sorted({0, extent} | bounds)))


grids = st.lists(axes(), min_size=1, max_size=3).map(lambda a: SampleGrid(tuple(a)))


def places(grid):
    """Place of each sample, and the cell it lies in: two arrays of (n, n_axes)."""
    at = np.stack(np.unravel_index(np.arange(grid.n), grid.counts), axis=1)
    cells = [axis.cell_at(at[:, d]) for d, axis in enumerate(grid.axes)]
    return at, np.stack(cells, axis=1)


@given(grid=grids)
def test_blocks_hold_every_sample_once_in_stored_order(grid):
    _, cells = places(grid)
    block = np.ravel_multi_index(tuple(cells.T), grid.block_counts)
    every = np.arange(grid.n_blocks)
    expected = [np.flatnonzero(block == b) for b in every]
    assert np.array_equal(grid.of_blocks(every), np.concatenate(expected))
    assert grid.block_sizes(every).tolist() == [len(samples) for samples in expected]
    backwards = grid.of_blocks(every[::-1])
    assert np.array_equal(backwards, np.concatenate(expected[::-1]))


@given(grid=grids, data=st.data())
def test_a_read_ends_where_the_largest_blocks_do_that_end_near_enough(grid, data):
    position = data.draw(st.integers(0, grid.n))
    last = data.draw(st.integers(0, grid.n))
    at, cells = places(grid)
    found = grid.end(position, last)
    if position in (0, grid.n):
        assert found == position
        return
    for d in range(len(grid.axes)):
        mark = np.column_stack([at[:, :d], cells[:, d]])
        changes = np.flatnonzero((mark[1:] != mark[:-1]).any(axis=1)) + 1
        borders = np.append(changes, grid.n)
        expected = borders[np.searchsorted(borders, position)]
        if expected <= last:
            break
    assert found == expected


@given(grid=grids, mixed=st.integers(1, 4), seed=st.integers(0, 99))
def test_groups_of_blocks_along_several_axes_are_mixed(grid, mixed, seed):
    shuffling = Shuffling(grid=grid, shuffle=True, buffer_blocks=mixed, seed=seed)
    order = shuffling.order(0)
    samples = order.at(np.arange(grid.n))
    assert np.array_equal(np.sort(samples), np.arange(grid.n))
    _, cells = places(grid)
    start = 0
    while start < grid.n:
        stop = order.cut(start + 1, start + 1)
        assert len(np.unique(cells[samples[start:stop]], axis=0)) <= mixed
        start = stop


def test_the_order_of_blocks_along_several_axes_is_the_same_in_every_version():
    """Found with the first version: a stored state would resume wrongly otherwise."""
    grid = SampleGrid((GridAxis(2, 1), GridAxis(3, 2)))
    order = Shuffling(grid=grid, shuffle=True, buffer_blocks=2, seed=2).order(1)
    assert order.at(np.arange(6)).tolist() == GOLDEN


GOLDEN = [4, 3, 5, 2, 0, 1]


def volume(place, shape, **changes):
    how = {"chunks": (16,) * 3, "shards": (32,) * 3, "dtype": "u1", "device": "cpu"}
    return gpushard.create_array(place, shape=shape, **how | changes)


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "block": "chunk"}])
def test_patches_of_a_large_volume_take_no_memory_for_a_layer_of_it(tmp_path, options):
    cells = {"chunks": (64,) * 3, "shards": (64, 512, 512)}
    a = volume(tmp_path, (64, 4096, 4096), **cells)  # all of it missing: 1 GiB
    tracemalloc.start()
    try:
        with gpushard.Loader(
            a, batch_size=2, window=(64,) * 3, prefetch_factor=0, **options
        ) as loader:
            for _, batch in zip(range(80), loader, strict=False):
                assert batch.shape == (2, 64, 64, 64)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200 * MIB


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "block": "chunk"}])
def test_inner_chunks_as_long_as_the_array_are_read_in_parts_that_fit_the_memory(
    tmp_path, monkeypatch, options
):
    """As where an array is stored for those who read one place at all times."""
    monkeypatch.setattr(places_module, "usable_memory_nbytes", lambda: 1280 * MIB)
    cells = {"chunks": (4096, 4096), "shards": (4096, 1 << 18)}
    a = volume(tmp_path, (4096, 1 << 18), **cells)  # all of it missing: 1 GiB
    tracemalloc.start()
    try:
        with gpushard.Loader(a, batch_size=32, prefetch_factor=0, **options) as loader:
            sizes = [len(batch) for _, batch in zip(range(20), loader, strict=False)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sizes == [32] * 20
    assert peak < 250 * MIB  # two loads of 80, and what reads of them take


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True, "block": "shard", "buffer_blocks": 2},
        {"shuffle": True, "block": "chunk", "buffer_blocks": 3},
    ],
)
def test_patches_of_blocks_decode_each_inner_chunk_once(tmp_path, options):
    values = np.random.default_rng(3).integers(0, 255, (40, 48, 70), "u1")
    a = volume(tmp_path, values.shape)
    a[...] = values
    a = gpushard.open_array(
        tmp_path, device="cpu", options=gpushard.Options(chunk_cache_nbytes=0)
    )
    how = {"batch_size": 3, "window": (8, 4, 8), "return_index": True}
    with gpushard.Loader(a, **how, **options) as loader:
        seen = np.concatenate([check(values, *pair) for pair in loader])
        amplification = loader.stats()["read_amplification"]
    assert np.array_equal(np.sort(seen), np.arange(5 * 12 * 8))
    # The last windows are cut off, which the inner chunks decoded for others are not.
    assert amplification < 1.1 * a.size / (40 * 48 * 64)


def check(values, batch, index):
    """The index, where each patch of the batch is what `values` have there."""
    at = np.stack(np.unravel_index(index, (5, 12, 8)), 1) * (8, 4, 8)
    for patch, (i, j, k) in zip(batch, at.tolist(), strict=True):
        assert np.array_equal(patch, values[i : i + 8, j : j + 4, k : k + 8])
    return index


def test_blocks_follow_the_first_array_that_has_windows_along_an_axis(tmp_path):
    rows = volume(tmp_path / "r", 64, chunks=(16,), shards=(32,))
    cube = volume(tmp_path / "c", (64, 64), chunks=(16, 16), shards=(32, 32))
    with gpushard.Loader(
        {"rows": rows, "cube": cube},
        batch_size=4,
        window={"rows": 4, "cube": (4, 8)},
        shuffle=True,
        block="chunk",
        buffer_blocks=1,
        return_index=True,
    ) as loader:
        index = np.concatenate([batch["index"] for batch in loader])
    assert np.array_equal(np.sort(index), np.arange(16 * 8))
    groups = index.reshape(-1, 4 * 2)  # windows of an inner chunk of both
    assert len({tuple(np.unique(g // 8 // 4)) for g in groups}) == 4
    assert all(len(np.unique(g % 8 // 2)) == 1 for g in groups)


def test_blocks_along_a_later_axis_do_not_begin_where_a_lead_does(tmp_path):
    a = volume(tmp_path, (64, 64), chunks=(16, 16), shards=(32, 32))
    with gpushard.Loader(
        {"now": a, "before": a},
        batch_size=4,
        window=(4, 8),
        lead={"now": 0, "before": -8},
        shuffle=True,
        block="chunk",
        buffer_blocks=1,
        return_index=True,
    ) as loader:
        index = np.concatenate([batch["index"] for batch in loader])
    rows, columns = 8 + index // 8 * 4, index % 8 * 8
    cell = rows // 16 * 4 + columns // 16
    assert np.array_equal(np.sort(index), np.arange(14 * 8))
    assert np.count_nonzero(np.diff(cell)) == len(np.unique(cell)) - 1
