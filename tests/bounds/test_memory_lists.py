"""A read of many listed elements takes no more than its output and the memory limit."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import zarr

from damaged_arrays import on_host, opened
from gpushard.options import KIB, MIB
from gpushard.reading import rounds, surrounded
from gpushard.selecting import index_arrays

SIDE = 512
N = SIDE * SIDE
LIMIT = 8 * MIB
VALUES = (np.arange(N) % 251).astype("u1")
RNG = np.random.default_rng(11)
# Of arrays in a row, in eight shards or in one, and of a square one.
KEYS = {
    "ascending": ("eight", np.arange(N)),
    "descending": ("one", np.arange(N, dtype="i4")[::-1]),
    "in any order": ("one", RNG.integers(-N, N, N)),
    "mask": ("eight", np.ones(N, bool)),
    "points": ("square", (RNG.integers(-SIDE, SIDE, N), RNG.integers(0, SIDE, N))),
    "mask of all": ("square", np.ones((SIDE, SIDE), bool)),
    "mesh": ("square", (np.arange(SIDE)[:, np.newaxis], np.arange(SIDE, dtype="u2"))),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    place = tmp_path_factory.mktemp("lists")
    for name, shape, shards, chunks in (
        ("eight", (N,), (N // 8,), (4 * KIB,)),
        ("one", (N,), (N,), (4 * KIB,)),
        ("square", (SIDE, SIDE), (256, 256), (64, 64)),
    ):
        kept = {"shards": shards, "chunks": chunks, "compressors": None}
        made = zarr.create_array(place / name, shape=shape, dtype="u1", **kept)
        made[...] = VALUES.reshape(shape)
    return place


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("way", ["plain", "compiled", "device"])
def test_listed_elements_stay_within_the_memory_limit(way, key, root):
    name, chosen = KEYS[key]
    values = VALUES.reshape(SIDE, SIDE) if name == "square" else VALUES
    expected = values[chosen]
    a = opened(root / name, way, memory_limit=LIMIT)
    index = a.vindex if name == "square" else a.oindex
    index[([0, 1],) * a.ndim]  # what is loaded once
    tracemalloc.start()
    try:
        found = index[chosen]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(on_host(found), expected)
    assert peak < expected.nbytes + LIMIT


@pytest.mark.parametrize(("limit", "most"), [(4096, 13), (1024, 2), (2**16, 333)])
def test_columns_along_other_axes_count_against_the_memory_limit(
    limit, most, root, monkeypatch
):
    """Of eight rows they take 768 bytes; a quarter of the limit is left at least."""
    monkeypatch.setattr(index_arrays, "KEPT_ELEMENTS", 3)
    monkeypatch.setattr(rounds, "_LEAST_ELEMENTS", 1)
    monkeypatch.setattr(surrounded, "_MOST_ROW_NBYTES", 7)  # these have 8
    seen: list[int] = []
    real = rounds.groups_of

    def groups_of(listed: Any, layout: Any, most: int, **kept: Any) -> Any:
        seen.append(most)
        return real(listed, layout, most, **kept)

    monkeypatch.setattr(rounds, "groups_of", groups_of)
    rows, columns = np.arange(8), np.tile(np.arange(SIDE), 4)
    a = opened(root / "square", "plain", memory_limit=limit)
    found = a.oindex[rows, columns]
    expected = VALUES.reshape(SIDE, SIDE)[np.ix_(rows, columns)]
    np.testing.assert_array_equal(found, expected)
    assert seen == [most]
