"""xarray's points: the same elements whether they are listed or picked from a grid."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

import gpushard
from entry_points import add_to_xarray
from strategies import slices
from zarr_oracle import assert_same_bits, quiet_zarr

xr = pytest.importorskip("xarray", reason="the extra `xarray` is not installed")

from xarray.core import indexing  # noqa: E402 - only where it is

from gpushard.integrations import xarray_points  # noqa: E402 - as above
from gpushard.integrations.xarray_arrays import LazyArray  # noqa: E402 - as above
from gpushard.integrations.xarray_points import read_points  # noqa: E402 - as above
from gpushard.reading import surrounded  # noqa: E402 - as above

VALUES = np.arange(8 * 60 * 60, dtype="i4").reshape(8, 60, 60)
DEFAULTS = gpushard.Options()


@pytest.fixture(scope="module", autouse=True)
def _engine():
    add_to_xarray()


def stored(values, chunks, shards=None):
    store = MemoryStore({})
    z = zarr.create_array(
        store, shape=values.shape, chunks=chunks, shards=shards, dtype=values.dtype
    )
    z[...] = values
    return store


MAPS = stored(VALUES, (4, 6, 6), (8, 30, 30))
FEW = np.arange(120).reshape(4, 5, 6)
MAP = LazyArray(gpushard.open_array(MAPS, device="cpu"))
LAZY = LazyArray(gpushard.open_array(stored(FEW, (2, 2, 3)), device="cpu"))


@st.composite
def keys(draw):
    """For each axis a slice or an array; arrays have the same number of dimensions."""
    shape = draw(st.lists(st.integers(0, 3), min_size=1, max_size=2))
    key = []
    for n in (4, 5, 6):
        if draw(st.booleans()) and draw(st.booleans()):
            key.append(draw(slices(n)))
            continue
        own = [m if draw(st.booleans()) else 1 for m in shape]
        size = prod(own)
        places = st.lists(st.integers(0, n - 1), min_size=size, max_size=size)
        given = np.array(draw(places), "i8").reshape(own)
        # xarray hands out arrays that it has broadcast.
        key.append(
            np.broadcast_to(given, shape).copy() if draw(st.booleans()) else given
        )
    return tuple(key)


def expected_of(values, key):
    """As NumPy has it once all arrays stand before all slices."""
    order = sorted(range(values.ndim), key=lambda d: isinstance(key[d], slice))
    return values.transpose(order)[tuple(key[d] for d in order)]


@pytest.mark.parametrize("as_grid", [False, True, None])
@given(keys())
def test_points_are_those_of_numpy_whichever_way_they_are_read(as_grid, key):
    expected = expected_of(FEW, key)
    if as_grid and not expected.size:  # there is nothing to pick from
        return
    with pytest.MonkeyPatch.context() as patch:
        if as_grid is not None:
            patch.setattr(xarray_points, "_is_quicker_as_grid", lambda *_: as_grid)
        assert_same_bits(LAZY[indexing.VectorizedIndexer(key)], expected)


def sizes_read(y, x, options=DEFAULTS):
    """Numbers of elements that are read for the time series at points."""
    array = gpushard.open_array(MAPS, device="cpu", options=options)
    read, sizes = gpushard.Array.read, []

    def noted(self, selection):
        found = read(self, selection)
        sizes.append(found.size)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpushard.Array, "read", noted)
        found = read_points(array, (slice(None), y, x))
    assert_same_bits(found, np.moveaxis(VALUES[:, y, x], 0, -1))
    return sizes


def test_stations_are_listed():
    """A grid around them would have nearly all rows and columns."""
    rng = np.random.default_rng(0)
    y, x = rng.permutation(60)[:20], rng.permutation(60)[:20]
    assert sizes_read(y, x) == [8 * 20]


# Points of a map whose rows are oblique: a grid around them has three rows more.
OBLIQUE, ALONG = np.meshgrid(np.arange(40), np.arange(20), indexing="ij")
OBLIQUE += ALONG // 5
GRID_SIZE = 8 * 43 * 20


@pytest.mark.parametrize("step", [1, 7])
def test_a_map_on_another_grid_is_picked_from_a_grid(step):
    y, x = OBLIQUE[::step], ALONG[::step]
    n_rows = len(np.unique(y))
    assert sizes_read(y, x) == [8 * n_rows * 20]


def test_of_what_xarray_has_broadcast_one_part_is_looked_through(monkeypatch):
    """All elements along each axis took longer than to read them as points."""
    different, sizes = xarray_points._different, []

    def noted(numbers, end):
        sizes.append(numbers.size)
        return different(numbers, end)

    monkeypatch.setattr(xarray_points, "_different", noted)
    lazy = xr.Variable(tuple("tyx"), indexing.LazilyIndexedArray(MAP))
    y, x = (xr.Variable(("a", "b"), indices) for indices in (OBLIQUE, ALONG))
    found = lazy.isel(y=y, x=x).values
    assert_same_bits(np.ascontiguousarray(found), VALUES[:, OBLIQUE, ALONG])
    assert max(sizes) == OBLIQUE.size
    assert sum(sizes) < 8 * OBLIQUE.size


@pytest.mark.parametrize(
    ("n_points", "n_maps", "least", "is_asked"),
    [
        (3600, 1, 3599, False),
        (3599, 1, 3598, True),  # fewer than one in eight elements
        (3600, 1, 3600, True),  # no long list
        (3600, 8, 3599, True),  # of a time series each
    ],
)
def test_dense_points_are_picked_by_the_read_unless_they_repeat(
    monkeypatch, n_points, n_maps, least, is_asked
):
    asked = []
    monkeypatch.setattr(
        xarray_points, "_is_quicker_as_grid", lambda *_: asked.append(True)
    )
    monkeypatch.setattr(surrounded, "KEPT_ELEMENTS", least)
    rng = np.random.default_rng(0)
    y, x = rng.integers(0, 60, (2, n_points, 1))
    times = np.arange(n_maps) if n_maps > 1 else rng.integers(0, 8, (n_points, 1))
    found = MAP[indexing.VectorizedIndexer((times.reshape(-1, n_maps), y, x))]
    assert_same_bits(np.ascontiguousarray(found), VALUES[times, y, x])
    assert bool(asked) == is_asked


@pytest.mark.parametrize("as_grid", [False, True])
def test_one_point_listed_again_and_again_is_as_many_elements(monkeypatch, as_grid):
    monkeypatch.setattr(xarray_points, "_is_quicker_as_grid", lambda *_: as_grid)
    key = tuple(np.full((2, 3), n) for n in (1, 4, 5))
    assert_same_bits(LAZY[indexing.VectorizedIndexer(key)], FEW[key])


def test_a_grid_that_exceeds_the_memory_limit_is_not_read():
    limits = [gpushard.Options(memory_limit=4 * GRID_SIZE - n) for n in (0, 1)]
    sizes = [sizes_read(OBLIQUE, ALONG, each) for each in limits]
    assert sizes == [[GRID_SIZE], [8 * OBLIQUE.size]]


def test_damage_beside_the_points_of_a_map_does_not_hinder_them(tmp_path):
    z = zarr.create_array(
        tmp_path, shape=VALUES.shape, chunks=(8, 6, 6), dtype=VALUES.dtype
    )
    z[...] = VALUES
    (tmp_path / "c/0/7/0").write_bytes(b"damaged")  # in the grid, but of no point
    array = gpushard.open_array(tmp_path, device="cpu")
    found = read_points(array, (slice(None), OBLIQUE, ALONG))
    assert_same_bits(found, np.moveaxis(VALUES[:, OBLIQUE, ALONG], 0, -1))
    (tmp_path / "c/0/0/0").write_bytes(b"damaged")
    with pytest.raises(gpushard.CorruptShardError, match="c/0/0/0"):
        read_points(array, (slice(None), OBLIQUE, ALONG))


@pytest.mark.parametrize(
    "indexers",
    [
        {"x": slice(2, 2, -1)},
        {"x": slice(1, 3, -1), "t": [3, 1, 1]},
        {"x": slice(1, 3, -2), "t": xr.DataArray([[0, 1]]), "y": 2},
    ],
    ids=["alone", "beside an array", "beside points"],
)
def test_an_empty_slice_backwards_is_no_elements(tmp_path, indexers):
    """xarray's own engine raises an IndexError."""
    ds = xr.Dataset({"v": (("t", "y", "x"), VALUES[:, :5, :6])})
    with quiet_zarr():
        ds.to_zarr(tmp_path / "d", zarr_format=3, consolidated=False)
    lazy = xr.open_dataset(tmp_path / "d", engine="gpushard")
    xr.testing.assert_identical(lazy.isel(indexers).load(), ds.isel(indexers))
