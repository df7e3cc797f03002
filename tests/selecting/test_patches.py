"""Many patches of an array, read as one part of a plan."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np
import pytest
import zarr
from hypothesis import assume, given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

import gpushard
from array_strategies import stored_arrays
from fused_cases import (
    CHAINS,
    FUSED,
    PLAIN,
    VALUES,
    assert_all_fused,
    need_fast_packages,
    watch_sinks,
)
from fused_cases import stored as stored_by
from gpushard.fetching import pieces
from gpushard.loader.windows import Cut
from gpushard.planning import patches
from gpushard.planning.plan import plan_read
from gpushard.reading.read import execute
from gpushard.reading.results import host_job
from gpushard.report import Tally
from gpushard.selecting.patches import Patches
from loader_data import stored
from zarr_oracle import assert_same_bits, held

# zarr 3.1 says so wherever one of numcodecs' codecs is made.
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in")

SERIES = np.arange(5000, dtype="u2")


@st.composite
def windows(draw, shape):
    """Windows along the first axes of an array, and where they begin."""
    n_axes = draw(st.integers(1, len(shape)))
    window = tuple(draw(st.integers(1, 7)) for _ in range(n_axes))
    lead = draw(st.integers(-3, 3))
    places = [st.integers(-4, extent + 2) for extent in shape[:n_axes]]
    origins = draw(st.lists(st.tuples(*places), max_size=12))
    cut = Cut(shape, window, lead, drop=False)
    return cut, np.array(origins, np.int64).reshape(-1, n_axes)


def read(array, cut, origins, tally=None):
    """Samples, as a loader reads them."""
    shape = (len(origins), *cut.sample_shape)
    out = np.full(shape, array.fill_value, array.dtype)
    laid = cut.patches(origins)
    assert laid.is_whole or prod(laid.patches.shape) == out.size
    outs = [out.reshape(laid.patches.shape)]
    execute([host_job(array.source, [laid.patches], outs, tally or Tally())])
    return out


def sliced(values, fill_value, cut, origins):
    """Samples, each a slice of NumPy's."""
    shape = (len(origins), *cut.sample_shape)
    out = np.full(shape, fill_value, values.dtype)
    for sample, origin in zip(out, origins.tolist(), strict=True):
        first = [origin[0] + cut.lead, *origin[1:]]
        inside = [
            slice(max(f, 0), max(f + n, 0))
            for f, n in zip(first, cut.window, strict=True)
        ]
        found = values[tuple(inside)]
        at = [
            slice(max(-f, 0), max(-f, 0) + n)
            for f, n in zip(first, found.shape, strict=False)
        ]
        sample[tuple(at)] = found
    return out


@pytest.mark.parametrize("options", [PLAIN, FUSED], ids=["plain", "compiled"])
@given(stored_arrays(), st.data())
def test_patches_of_any_array_are_its_slices(options, written, data):
    assume(written.full.ndim)
    array = gpushard.open_array(held(written.objects), options=options)
    cut, origins = data.draw(windows(array.shape))
    want = sliced(written.full, array.fill_value, cut, origins)
    assert_same_bits(read(array, cut, origins), want)


@pytest.mark.parametrize("chain", ["raw", "zstd", "lz4", "blosc lz4 shuffle 0"])
def test_patches_in_files_are_read_by_the_compiled_loops(chain, monkeypatch, tmp_path):
    need_fast_packages()
    seen = watch_sinks(monkeypatch)
    array = gpushard.open_array(
        stored_by(CHAINS[chain]).placed("local", tmp_path), options=FUSED
    )
    cut = Cut(array.shape, (20, 13), drop=False)
    origins = np.random.default_rng(1).integers(-9, 100, (60, 2))
    assert_same_bits(read(array, cut, origins), sliced(VALUES, 0, cut, origins))
    assert_all_fused(seen)


@given(cuts=st.sets(st.integers(1, 29), max_size=3).map(sorted), data=st.data())
def test_arrays_in_a_row_serve_all_of_a_patch_together(cuts, data):
    values = np.arange(30 * 4).reshape(30, 4)
    cut, origins = data.draw(windows(values.shape))
    laid = cut.patches(origins).patches
    got = np.full(laid.shape, -1)
    bounds = [0, *cuts, 30]
    for start, stop in pairwise(bounds):
        mine = laid.within(0, start, stop)
        if mine is None:
            continue
        first, length, out_first = (
            np.stack([np.broadcast_to(c, mine.n_patches) for c in columns], axis=1)
            for columns in (mine.first, mine.length, mine.out_first)
        )
        assert (length > 0).all()
        for a, n, b in zip(first, length, out_first, strict=True):
            here = tuple(map(slice, b, b + n))
            assert (got[here] == -1).all()  # each element comes once
            got[here] = values[start:stop][tuple(map(slice, a, a + n))]
    assert np.array_equal(got.reshape(-1), sliced(values, -1, cut, origins).reshape(-1))


def test_patches_within_a_part_of_an_axis_keep_their_other_axes():
    columns = [(np.arange(4) + 10 * d, np.full(4, d + 2)) for d in range(3)]
    first, length = zip(*columns, strict=True)
    whole = Patches(4, first, length, first, (50, 50, 50))
    part = whole.within(1, 12, 99)
    assert part.n_patches == 4
    assert part.first[1].tolist() == [0, 0, 0, 1]
    assert part.length[1].tolist() == [1, 2, 3, 3]
    assert part.out_first[1].tolist() == [12, 12, 12, 13]
    for d in (0, 2):
        assert part.first[d] is whole.first[d]
        assert part.length[d] is whole.length[d]
        assert part.out_first[d] is whole.out_first[d]


@given(data=st.data(), portion=st.integers(1, 5))
def test_patches_are_cut_alike_however_many_at_a_time(data, portion):
    layout = stored(np.zeros((30, 9), "u1"), (4, 5), (8, 10)).source.layout
    cut, origins = data.draw(windows((30, 9)))
    laid = cut.patches(origins).patches
    (whole,) = plan_read(layout, [laid]).parts
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patches, "_PORTION", portion)
        (some,) = plan_read(layout, [laid]).parts
    n = whole.n_boxes
    for name in ("in_first", "length", "out_first"):
        for a, b in zip(getattr(whole, name), getattr(some, name), strict=True):
            assert np.array_equal(np.broadcast_to(a, n), np.broadcast_to(b, n))
    assert np.array_equal(whole.cell, some.cell)
    assert np.array_equal(whole.bounds, some.bounds)


def test_an_inner_chunk_is_wanted_once_by_all_windows():
    array = stored(SERIES, (100,), (700,))
    cut, origins = Cut(array.shape, (250,), drop=False), np.arange(0, 4750, 30)[:, None]
    tally = Tally()
    assert np.array_equal(
        read(array, cut, origins, tally), SERIES[origins + np.arange(250)]
    )
    assert tally.counts["n_inner_chunks"] == 50


def test_of_plain_elements_only_those_in_windows_are_read():
    values, store = np.arange(1 << 20, dtype="u4"), MemoryStore()
    zarr.create_array(store, data=values, chunks=values.shape, compressors=None)
    array = gpushard.open_array(store)
    cut, tally = Cut(array.shape, (100,), drop=False), Tally()
    origins = np.arange(0, 1 << 20, 1 << 17)[::-1, None]
    want = values[origins + np.arange(100)]
    assert np.array_equal(read(array, cut, origins, tally), want)
    assert tally.counts["payload_nbytes"] == want.nbytes


@pytest.mark.parametrize("options", [PLAIN, FUSED], ids=["plain", "compiled"])
def test_many_windows_are_read_some_inner_chunks_at_a_time(options, monkeypatch):
    monkeypatch.setattr(pieces, "_MOST_BOXES", 7)
    array = stored(SERIES, (100,), (1500,))
    array = gpushard.open_array(array.source.store, options=options)
    cut, origins = Cut(array.shape, (9,), drop=False), np.arange(0, 4990, 9)[:, None]
    want = SERIES[origins + np.arange(9)]
    assert np.array_equal(read(array, cut, origins), want)


def test_columns_of_windows_count_against_the_memory_limit():
    array = stored(SERIES, (100,), (700,))
    origins = np.random.default_rng(2).integers(0, 4990, (5000, 1))
    laid = Cut(array.shape, (9,), drop=False).patches(origins).patches
    job = host_job(array.source, [laid], [np.empty(laid.shape, "u2")], Tally())
    (part,) = job.plan.parts
    assert part.nbytes > 16 * 5000
    most = part.nbytes + pieces._BOX_NBYTES * part.n_boxes
    assert most <= pieces.columns_nbytes(job.source, job.plan) < 2 * most


def test_boxes_that_are_laid_out_together_are_few(monkeypatch):
    monkeypatch.setattr(pieces, "_MOST_BOXES", 9)
    array = stored(SERIES, (100,), (5000,))
    first = np.array([*range(20), 120, 150, 320, 440, 460, *range(500, 520)])
    laid = Cut(array.shape, (9,), drop=False).patches(first[:, None]).patches
    job = host_job(array.source, [laid], [np.empty(laid.shape, "u2")], Tally())
    (part,) = job.plan.parts
    cut = [some for block in part.blocks() for some in pieces.cut_rows(job, block, 1)]
    assert [np.diff(part.bounds)[c.position[0]].tolist() for c in cut] == [
        [20],
        [2, 1, 2],
        [20],
    ]


@pytest.mark.parametrize("options", [PLAIN, FUSED], ids=["plain", "compiled"])
def test_windows_over_missing_inner_chunks_are_filled(options):
    store = MemoryStore()
    z = zarr.create_array(store, shape=(40,), chunks=(5,), dtype="i4", fill_value=7)
    z[12:20] = 1
    array = gpushard.open_array(store, options=options)
    first = np.arange(0, 36, 2)[:, None]
    laid = Cut(array.shape, (4,), drop=False).patches(first).patches
    out = np.full(laid.shape, -1, "i4")
    execute([host_job(array.source, [laid], [out], Tally())])
    assert np.array_equal(out.reshape(-1, 4), z[...][first + np.arange(4)])


def test_windows_of_nothing_are_no_patches():
    laid = Cut((4, 0), (2,), drop=False).patches(np.arange(3)[:, None])
    assert laid.patches.n_patches == 0
    assert laid.patches.shape == (6, 0)
