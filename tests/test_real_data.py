"""Real data sets, read completely and in parts, against zarr-python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

import gpushard
from array_strategies import assert_same_bits, quiet_zarr
from gpushard import Options

REAL = Path(__file__).parent / "data" / "real"
ARRAYS = [
    *(f"eraint.zarr/{name}" for name in "uvz"),
    *(f"eraint.zarr/{name}" for name in ("month", "level", "latitude", "longitude")),
    "mnist.zarr/images",
    "mnist.zarr/labels",
]


def by_zarr(name: str) -> np.ndarray:
    with quiet_zarr():
        return np.asarray(zarr.open_array(REAL / name, mode="r")[...])


@pytest.mark.parametrize("name", ARRAYS)
def test_every_array_equals_what_zarr_reads(name):
    a = gpushard.open_array(REAL / name)
    assert_same_bits(a[...], by_zarr(name))
    assert a.explain().n_missing_inner_chunks == 0


@pytest.mark.parametrize(
    "options", [Options(), Options(threads=4, batch_nbytes=10_000)]
)
@pytest.mark.parametrize("name", ["eraint.zarr/u", "mnist.zarr/images"])
def test_slices_equal_those_of_what_zarr_reads(name, options):
    full = by_zarr(name)
    a = gpushard.open_array(REAL / name, options=options)
    rng = np.random.default_rng(7)
    for _ in range(30):
        ends = [np.sort(rng.integers(0, n + 1, 2)).tolist() for n in full.shape]
        key = tuple(slice(i, j, int(rng.integers(1, 9))) for i, j in ends)
        assert_same_bits(a[key], full[key])
        backwards = tuple(slice(None, None, -s.step) for s in key)
        assert_same_bits(a[backwards], full[backwards])


def test_a_map_of_one_level_is_read_from_its_inner_chunks_alone():
    a = gpushard.open_array(REAL / "eraint.zarr", "u")
    report = a.explain(np.s_[1, 2])
    assert (report.n_shards, report.n_inner_chunks) == (1, 16)
    assert_same_bits(a[1, 2], by_zarr("eraint.zarr/u")[1, 2])


def test_a_shuffled_batch_of_samples_equals_numpys():
    images = gpushard.open_array(REAL / "mnist.zarr/images")
    labels = gpushard.open_array(REAL / "mnist.zarr/labels")
    rows = np.random.default_rng(1).permutation(10_000)[:256]
    assert_same_bits(images.oindex[rows], by_zarr("mnist.zarr/images")[rows])
    assert_same_bits(labels.oindex[rows], by_zarr("mnist.zarr/labels")[rows])


def test_the_groups_name_their_arrays_and_attributes():
    weather = gpushard.open_group(REAL / "eraint.zarr")
    assert set(weather) == {"u", "v", "z", "month", "level", "latitude", "longitude"}
    assert weather["u"].dimension_names == ("month", "level", "latitude", "longitude")
    assert weather["u"].attrs["units"] == "m s**-1"
    assert np.isnan(weather["u"].attrs["_FillValue"])
    assert weather["u"].chunks == (1, 1, 61, 120)
    assert weather["u"].shards == (1, 3, 244, 480)
    assert set(gpushard.open_group(REAL / "mnist.zarr")) == {"images", "labels"}
