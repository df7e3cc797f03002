"""Real data sets, read completely and in parts, against zarr-python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

import gpushard
from gpushard import Options
from places import DIGITS
from zarr_oracle import assert_same_bits, quiet_zarr

# What `gpushard sample` writes is read where it is packaged.
WEATHER = Path(gpushard.__file__).parent / "data" / "eraint.zarr"
COORDINATES = ("month", "level", "latitude", "longitude")
ARRAYS = [
    *(WEATHER / name for name in ("u", "v", "z", *COORDINATES)),
    DIGITS / "images",
    DIGITS / "labels",
]


def by_zarr(place: Path) -> np.ndarray:
    with quiet_zarr():
        return np.asarray(zarr.open_array(place, mode="r")[...])


def name_of(place: Path) -> str:
    return f"{place.parent.name}/{place.name}"


@pytest.mark.parametrize("place", ARRAYS, ids=name_of)
def test_every_array_equals_what_zarr_reads(place):
    a = gpushard.open_array(place)
    assert_same_bits(a[...], by_zarr(place))
    assert a.explain().n_missing_inner_chunks == 0


@pytest.mark.parametrize(
    "options", [Options(), Options(threads=4, batch_nbytes=10_000)]
)
@pytest.mark.parametrize("place", [WEATHER / "u", DIGITS / "images"], ids=name_of)
def test_slices_equal_those_of_what_zarr_reads(place, options):
    full = by_zarr(place)
    a = gpushard.open_array(place, options=options)
    rng = np.random.default_rng(7)
    for _ in range(30):
        ends = [np.sort(rng.integers(0, n + 1, 2)).tolist() for n in full.shape]
        key = tuple(slice(i, j, int(rng.integers(1, 9))) for i, j in ends)
        assert_same_bits(a[key], full[key])
        backwards = tuple(slice(None, None, -s.step) for s in key)
        assert_same_bits(a[backwards], full[backwards])


def test_a_map_of_one_level_is_read_from_its_inner_chunks_alone():
    a = gpushard.open_array(WEATHER, "u")
    report = a.explain(np.s_[1, 2])
    assert (report.n_shards, report.n_inner_chunks) == (1, 16)
    assert_same_bits(a[1, 2], by_zarr(WEATHER / "u")[1, 2])


def test_a_shuffled_batch_of_samples_equals_numpys():
    images = gpushard.open_array(DIGITS / "images")
    labels = gpushard.open_array(DIGITS / "labels")
    rows = np.random.default_rng(1).permutation(10_000)[:256]
    assert_same_bits(images.oindex[rows], by_zarr(DIGITS / "images")[rows])
    assert_same_bits(labels.oindex[rows], by_zarr(DIGITS / "labels")[rows])


def test_the_groups_name_their_arrays_and_attributes():
    weather = gpushard.open_group(WEATHER)
    assert set(weather) == {"u", "v", "z", *COORDINATES}
    assert weather["u"].dimension_names == COORDINATES
    assert weather["u"].attrs["units"] == "m s**-1"
    assert weather["u"].chunks == (1, 1, 61, 120)
    assert weather["u"].shards == (1, 3, 244, 480)
    assert set(gpushard.open_group(DIGITS)) == {"images", "labels"}
