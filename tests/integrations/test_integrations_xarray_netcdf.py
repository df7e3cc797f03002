"""xarray's engine, on what the netCDF library writes as Zarr."""

from __future__ import annotations

import json

import numpy as np
import pytest
import zarr

import gpushard
from entry_points import add_to_xarray

xr = pytest.importorskip("xarray", reason="the extra `xarray` is not installed")


@pytest.fixture(scope="module", autouse=True)
def _engine():
    add_to_xarray()


def theirs(stored):
    """What xarray's engine for zarr gives."""
    return xr.open_dataset(stored, engine="zarr", consolidated=False)


def ours(stored):
    return xr.open_dataset(stored, engine="gpushard")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_the_netcdf_library_notes_for_itself_is_no_attribute(
    tmp_path, zarr_format
):
    made = xr.Dataset({"t": ("x", np.arange(3.0))}, attrs={"title": "t"})
    made.to_zarr(tmp_path, zarr_format=zarr_format, consolidated=False)
    group = zarr.open_group(tmp_path)
    for node in (group, group["t"]):
        node.attrs.update({"_NCProperties": "version=2", "_nczarr_attrs": {"a": {}}})
    xr.testing.assert_identical(ours(tmp_path), theirs(tmp_path))
    assert ours(tmp_path).attrs == {"title": "t"}


@pytest.mark.parametrize("key", ["_NCZARR_ARRAY", "_nczarr_array"])
@pytest.mark.parametrize(
    ("place", "member"),
    [
        (".zarray", "dimrefs"),
        (".zattrs", "dimrefs"),
        (".zattrs", "dimension_references"),
    ],
)
@pytest.mark.parametrize("fill_value", [0, None])
def test_dimensions_are_named_as_the_netcdf_library_notes(
    tmp_path, key, place, member, fill_value
):
    values = np.arange(6.0).reshape(2, 3)
    group = zarr.create_group(tmp_path, zarr_format=2)
    attributes = {"units": "K", "_NCZARR_ATTR": {"types": {}}}
    about = {"attributes": attributes, "fill_value": fill_value}
    group.create_array("t", data=values, **about)
    path = tmp_path / "t" / place
    document = json.loads(path.read_bytes())
    document[key] = {member: ["/lat", "/inner/lon"], "storage": "chunked"}
    path.write_text(json.dumps(document))
    t = ours(tmp_path).t
    assert t.dims == ("lat", "lon")
    assert t.attrs == {"units": "K"}
    if (key, place) == ("_NCZARR_ARRAY", ".zarray"):
        xr.testing.assert_identical(ours(tmp_path), theirs(tmp_path))


@pytest.mark.parametrize(
    "note", [3, {}, {"dimrefs": "ab"}, {"dimrefs": ["/x"]}, {"dimrefs": ["/x", 3]}]
)
def test_notes_that_name_no_dimensions_are_left_alone(tmp_path, note):
    group = zarr.create_group(tmp_path, zarr_format=2)
    group.create_array("t", data=np.ones((2, 3)), attributes={"_nczarr_array": note})
    assert gpushard.open_array(tmp_path / "t").dimension_names is None
    with pytest.raises(gpushard.MetadataError, match="name for every dimension"):
        ours(tmp_path)
