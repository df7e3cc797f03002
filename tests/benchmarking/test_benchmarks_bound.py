"""The benchmark's ceilings, and the ratio that they allow."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import data, table
from benchmarks.configs import KIB, MIB, Config
from benchmarks.contenders import floor_memory


def row_with(**walls):
    timed = {n: {"wall_s": w, "cpu_s": [2 * s for s in w]} for n, w in walls.items()}
    return {"codec": "none", "workload": "full", "contenders": timed}


def test_the_bound_is_what_the_ceilings_allow_on_all_cpus():
    ceilings = {"floor_memory": [0.25], "floor_decompress": [0.5]}
    row = row_with(gpushard_cpu=[1.0], zarr_default=[4.0], **ceilings)
    assert table.bound(row, 1) == 4.0
    assert table.bound(row, 2) == 8.0
    assert table.bound(row | {"codec": "zstd"}, 2) == 8.0


def test_who_takes_less_than_a_ceiling_is_the_bound_himself():
    ceilings = {"floor_memory": [0.25], "floor_decompress": [2.0]}
    row = row_with(gpushard_cpu=[1.0], zarr_default=[4.0], **ceilings)
    assert table.bound(row, 1) == 2.0
    kept = row_with(tensorstore_cached=[0.1], gpushard_cached=[0.1])["contenders"]
    both = row | {"contenders": row["contenders"] | kept}
    assert table.bound(both, 1) == pytest.approx(0.05)


def test_there_is_no_bound_without_peers_or_of_what_no_ceiling_decompresses():
    row = row_with(gpushard_cpu=[1.0], zarr_default=[4.0], floor_memory=[0.5])
    assert table.bound(row, 1) == 4.0
    assert table.bound(row | {"codec": "zstd"}, 1) is None
    assert table.bound(row_with(gpushard_cpu=[1.0], floor_memory=[0.5]), 1) is None


def test_the_ceiling_of_memory_writes_large_results_to_the_same_memory(tmp_path):
    config = Config("tiles", 4 * KIB, "none", 16 * MIB)
    path = tmp_path / config.slug
    values = np.arange(2 * MIB).view("uint8").reshape(config.shape)
    np.save(data.raw_path(path), values)
    handle = floor_memory.open_array(path)
    large = floor_memory.read_box(handle, (slice(None),))
    assert floor_memory.read_box(handle, (slice(None, None, -1),)) is large
    np.testing.assert_array_equal(large, values[::-1])
    little = floor_memory.read_box(handle, (slice(9),))
    assert not np.shares_memory(little, floor_memory.read_box(handle, (slice(9),)))
