"""Which elements xarray takes for missing ones: those that its own engine takes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import zarr

from entry_points import add_to_xarray
from zarr_oracle import assert_same_bits

xr = pytest.importorskip("xarray", reason="the extra `xarray` is not installed")


@pytest.fixture(scope="module", autouse=True)
def _engine():
    add_to_xarray()


def assert_same_as_theirs(place):
    """Compare with xarray's own engine; returns what ours gives."""
    ours = xr.open_dataset(place, engine="gpushard")
    theirs = xr.open_dataset(place, engine="zarr", consolidated=False)
    xr.testing.assert_identical(ours, theirs)
    for name, variable in theirs.variables.items():
        assert ours[name].dtype == variable.dtype
        at, expected = (v.encoding.get("_FillValue") for v in (ours[name], variable))
        np.testing.assert_equal(at, expected)
        assert type(at) is type(expected)
    return ours


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_names_of_dimensions_in_an_attribute_too_do_not_make_an_array_of_zarr_v2(
    tmp_path, dtype
):
    values = np.array([1, np.nan, 3], dtype)
    noted = {"_ARRAY_DIMENSIONS": ["x"]}
    fill = values.dtype.type(-99)
    made = xr.Dataset({"t": ("x", values, noted, {"_FillValue": fill})})
    made.to_zarr(tmp_path, zarr_format=3, consolidated=False)
    stored = zarr.open_array(tmp_path / "t", mode="r")
    assert_same_bits(np.isnan(stored[...]), np.zeros(3, bool))
    t = assert_same_as_theirs(tmp_path).t
    assert "fill_value" in t.encoding
    assert np.isnan(t.values).tolist() == [False, True, False]


def test_an_array_of_zarr_v2_needs_no_attribute_to_be_one(tmp_path):
    group = zarr.create_group(tmp_path, zarr_format=2)
    scalar = {"attributes": {"_ARRAY_DIMENSIONS": []}, "fill_value": None}
    group.create_array("s", shape=(), chunks=(), dtype="i4", **scalar)[...] = 3
    assert "fill_value" not in assert_same_as_theirs(tmp_path).s.encoding
    (tmp_path / "s" / ".zattrs").write_text("{}")
    ours = xr.open_dataset(tmp_path, engine="gpushard")
    assert "fill_value" not in ours.s.encoding


@pytest.mark.parametrize(
    ("dtype", "fill", "n_missing"),
    [
        ("u1", 3.0, 1),
        ("i2", 3.5, 1),
        ("i8", True, 1),
        ("i2", 1e30, 0),
        ("?", 1, 3),
        ("?", 7, 3),
        ("?", 0.0, 1),
    ],
)
def test_fill_values_of_whole_numbers_are_those_that_xarray_makes_of_any_number(
    tmp_path, dtype, fill, n_missing
):
    group = zarr.create_group(tmp_path)
    about = {"attributes": {"_FillValue": fill}, "dimension_names": ["x"]}
    group.create_array("n", data=np.arange(4).astype(dtype), **about)
    n = assert_same_as_theirs(tmp_path).n
    assert int(n.isnull().sum()) == n_missing


@pytest.mark.filterwarnings("ignore:variable .* non-conforming")
@pytest.mark.parametrize("fill", [float("nan"), float("inf")])
def test_no_whole_number_equals_a_fill_value_that_is_none(tmp_path, fill):
    group = zarr.create_group(tmp_path)
    group.create_array("n", data=np.arange(4), dimension_names=["x"])
    path = tmp_path / "n" / "zarr.json"
    document = json.loads(path.read_bytes())
    document["attributes"] = {"_FillValue": fill}  # not every zarr writes it
    path.write_text(json.dumps(document))
    n = xr.open_dataset(tmp_path, engine="gpushard").n
    assert n.values.tolist() == [0, 1, 2, 3]
