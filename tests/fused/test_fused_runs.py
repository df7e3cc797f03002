"""Elements chosen by an index that follow one another are taken as one box."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from array_strategies import codec
from fused_cases import (
    FUSED,
    LITTLE,
    VALUES,
    ZSTD,
    blosc,
    need_fast_packages,
    stored,
    watch_sinks,
)
from gpushard.fused.boxes import runs
from selection_strategies import basic_keys
from spec_shards import document, sharding
from zarr_oracle import assert_same_bits, held, write

need_fast_packages()


@st.composite
def indexes(draw):
    """Index of axis 0 made of runs, in any order, which may overlap."""
    pieces = draw(
        st.lists(st.tuples(st.integers(0, 99), st.integers(1, 40)), max_size=6)
    )
    found = [np.arange(first, min(first + n, 100)) for first, n in pieces]
    return np.concatenate([np.empty(0, np.int64), *found])


@given(indexes(), st.data())
def test_runs_are_what_they_are_made_of(inner, data):
    n = len(inner)
    gaps = data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    outer = np.arange(n) + np.cumsum(gaps, dtype=np.int64)
    cell = inner // 32
    starts, length = runs(cell, inner, outer)
    for columns, step in ((inner, 1), (outer, 1), (cell, 0)):
        parts = [
            columns[s] + step * np.arange(k)
            for s, k in zip(starts, length, strict=True)
        ]
        assert np.array_equal(np.concatenate([columns[:0], *parts]), columns)
    for s in starts[1:]:
        before = cell[s - 1], inner[s - 1] + 1, outer[s - 1] + 1
        assert before != (cell[s], inner[s], outer[s])


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    """The same array in memory and in files: read with requests, and directly."""
    made = stored([ZSTD])
    place = made.placed("local", tmp_path_factory.mktemp("runs"))
    in_memory = gpushard.open_array(held(made.objects), options=FUSED)
    return in_memory, gpushard.open_array(place, options=FUSED)


@given(rows=indexes())
def test_any_runs_read_as_numpy_reads_them(arrays, rows):
    for a in arrays:
        assert_same_bits(a.oindex[rows], VALUES[rows])
        assert_same_bits(a.oindex[rows, 5:70], VALUES[rows, 5:70])
        columns = rows[rows < 90]
        assert_same_bits(a.oindex[:, columns], VALUES[:, columns])


def test_long_runs_are_not_left_to_the_plain_way(arrays, monkeypatch):
    seen = watch_sinks(monkeypatch)
    rows = np.r_[64:96, 0:32, 40:60]
    for a in arrays:
        assert_same_bits(a.oindex[rows], VALUES[rows])
    assert seen.n_left == 0


@pytest.fixture(scope="module", params=["lz4", "zstd"])
def in_blocks(request, tmp_path_factory):
    """Two inner chunks of eight Blosc blocks each, and their elements."""
    codecs = [LITTLE, blosc(request.param, "shuffle", 1 << 15)]
    inner = sharding((64, 1024), codecs=codecs)
    values = np.add.outer(np.arange(128) ** 2, np.arange(1024)).astype("i4") % 997
    made = write(
        document((128, 1024), (128, 1024), inner, dtype="int32"), [(..., values)]
    )
    place = made.placed("local", tmp_path_factory.mktemp("blocks"))
    return gpushard.open_array(place, options=FUSED.but(small_read_chunks=9)), values


@given(
    first=st.integers(0, 127),
    steps=st.lists(st.integers(1, 20), max_size=5),
    columns=st.sampled_from([slice(None), slice(1000, None), slice(3, 9)]),
)
def test_rows_of_an_inner_chunk_want_the_blocks_between_them(
    in_blocks, first, steps, columns
):
    a, values = in_blocks
    rows = np.cumsum([first, *steps])
    rows = rows[rows < 128][::-1]
    assert_same_bits(a.oindex[rows, columns], values[rows, columns])


@pytest.fixture(scope="module", params=[(0, 1, 2), (2, 1, 0), (1, 2, 0)], ids=str)
def large_plain(request, tmp_path_factory):
    """Plain inner chunks whose planes lie far apart, and their elements."""
    order = codec("transpose", order=list(request.param))
    inner = sharding((7, 40, 300), codecs=[order, LITTLE])
    values = np.arange(14 * 40 * 600).reshape(14, 40, 600).astype("u2")
    made = write(
        document((14, 40, 600), (14, 40, 600), inner, dtype="uint16"), [(..., values)]
    )
    place = made.placed("local", tmp_path_factory.mktemp("planes"))
    return gpushard.open_array(place, options=FUSED), values


@given(key=basic_keys((14, 40, 600)))
def test_planes_far_apart_are_read_as_numpy_reads_them(large_plain, key):
    a, values = large_plain
    assert_same_bits(a[key], values[key])


def test_planes_that_are_read_alone_leave_nothing_behind_for_others(large_plain):
    a, values = large_plain
    keys = [np.s_[0, ::2], np.s_[::2, ::2, 5:9], np.s_[0, 1::2, 3:70]]
    for got, key in zip(a.read_many(keys), keys, strict=True):
        assert_same_bits(got, values[key])
