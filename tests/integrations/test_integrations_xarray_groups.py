"""Which groups xarray's engine opens, and whose consolidated metadata it takes."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import zarr

from entry_points import add_to_xarray
from gpushard.errors import OptionError

xr = pytest.importorskip("xarray", reason="the extra `xarray` is not installed")


@pytest.fixture(scope="module", autouse=True)
def _engine():
    add_to_xarray()


def ours(place, **how):
    return xr.open_dataset(place, engine="gpushard", **how)


def test_consolidated_metadata_are_demanded_or_declined(tmp_path):
    zarr.create_array(
        tmp_path / "a", shape=(2,), dtype="i1", dimension_names=["x"], chunks=(1,)
    )
    zarr.open_group(tmp_path, mode="a")
    for wanted in (None, False):
        assert "a" in ours(tmp_path, consolidated=wanted)
    with pytest.raises(OptionError, match="no consolidated metadata"):
        ours(tmp_path, consolidated=True)
    with pytest.warns(match="Consolidated metadata"):
        zarr.consolidate_metadata(tmp_path)
    zarr.create_array(
        tmp_path / "new", shape=(2,), dtype="i1", dimension_names=["x"], chunks=(1,)
    )
    for wanted, names in ((None, {"a"}), (True, {"a"}), (False, {"a", "new"})):
        assert set(ours(tmp_path, consolidated=wanted)) == names


@pytest.mark.filterwarnings("ignore:Consolidated metadata:UserWarning")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_group_below_is_found_in_the_consolidated_metadata_of_the_root(
    tmp_path, zarr_format
):
    made = xr.Dataset({"a": ("x", np.arange(4.0))})
    made.to_zarr(
        tmp_path, group="b/c", zarr_format=zarr_format, consolidated=False, mode="a"
    )
    with pytest.raises(OptionError, match="no consolidated metadata"):
        ours(tmp_path, group="b/c", consolidated=True)
    zarr.consolidate_metadata(tmp_path)
    shutil.copytree(tmp_path / "b/c/a", tmp_path / "b/c/newer")
    for wanted in (None, True):
        assert list(ours(tmp_path, group="/b/c/", consolidated=wanted)) == ["a"]
    names = ["a", "newer"]
    assert list(ours(tmp_path, group="b/c", consolidated=False)) == names
    assert list(ours(tmp_path / "b", group="c")) == names
    tree = xr.open_datatree(tmp_path, engine="gpushard", group="b", consolidated=True)
    assert list(tree["c"].dataset) == ["a"]


@pytest.mark.parametrize("group", [None, "/", "b", "/b/", "b/c"])
def test_groups_have_the_names_that_they_have_with_other_engines(tmp_path, group):
    made = xr.Dataset({"a": ("x", np.arange(4.0))})
    tree = xr.DataTree.from_dict({"/": made, "/b": made * 2, "/b/c": made * 3})
    tree.to_zarr(tmp_path, zarr_format=2)  # of v3, zarr warns about consolidated ones
    want = xr.open_groups(tmp_path, engine="zarr", group=group)
    got = xr.open_groups(tmp_path, engine="gpushard", group=group)
    assert list(got) == list(want)
    for name, dataset in want.items():
        xr.testing.assert_identical(got[name], dataset)
    below = xr.open_datatree(tmp_path, engine="gpushard", group=group)
    assert below.identical(xr.open_datatree(tmp_path, engine="zarr", group=group))
