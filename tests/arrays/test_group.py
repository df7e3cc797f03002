"""`open_group`: the arrays of a group by name."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import gpushard
from gpushard.stores.local.store import LocalStore
from range_server import RangeServer
from zarr_oracle import assert_same_bits, quiet_zarr


@pytest.fixture
def place(tmp_path):
    place = tmp_path / "g.zarr"
    root = zarr.create_group(place, attributes={"title": "test"})
    root.create_array("b", shape=(4,), chunks=(2,), dtype="i4")[...] = np.arange(4)
    root.create_array("a", shape=(3, 3), chunks=(2, 2), dtype="u1", attributes={"k": 1})
    below = root.create_group("below", attributes={"level": 1})
    below.create_array("deep", shape=(2,), chunks=(1,), dtype="f8")[...] = [1.5, 2.5]
    below.create_group("deeper").create_array("c", shape=(1,), chunks=(1,), dtype="i1")
    return place


def test_a_group_is_a_mapping_of_its_arrays(place):
    g = gpushard.open_group(place)
    assert list(g) == ["a", "b"]
    assert len(g) == 2
    assert g.attrs == {"title": "test"}
    assert g.path == ""
    assert {name: a.shape for name, a in g.items()} == {"a": (3, 3), "b": (4,)}
    assert_same_bits(g["b"][...], np.arange(4, dtype="i4"))
    assert g["a"].attrs == {"k": 1}
    assert "a" in g
    assert "below" not in g
    assert 3 not in g
    assert "absent" not in g
    assert g.get("absent") is None
    for word in ("a", "b", "below", str(place)):
        assert word in repr(g)


def test_groups_below_are_reached_by_name_and_by_path(place):
    g = gpushard.open_group(place)
    assert g.groups == ("below",)
    below = g.group("below")
    assert (below.path, dict(below.attrs), list(below)) == (
        "below",
        {"level": 1},
        ["deep"],
    )
    assert below.groups == ("deeper",)
    assert_same_bits(below["deep"][...], np.array([1.5, 2.5]))
    assert_same_bits(g["below/deep"][...], np.array([1.5, 2.5]))
    assert g["below/deeper/c"].path == "below/deeper/c"
    assert list(gpushard.open_group(place, "below/deeper")) == ["c"]


def test_an_absent_name_is_a_key_error_with_its_reason(place):
    g = gpushard.open_group(place)
    with pytest.raises(KeyError) as caught:
        g["absent"]
    assert isinstance(caught.value.__cause__, gpushard.NotFoundError)
    with pytest.raises(gpushard.NotFoundError):
        g.group("absent")


def test_a_directory_of_arrays_that_is_no_group_is_told_with_its_arrays(tmp_path):
    for name in ("wind", "rain"):
        zarr.create_array(tmp_path / name, shape=(4,), dtype="i4")
    (tmp_path / "notes").mkdir()
    for opening in (gpushard.open_group, gpushard.open_array):
        with pytest.raises(
            gpushard.NotFoundError, match=r"it has rain, wind: open one"
        ):
            opening(tmp_path)
    with pytest.raises(gpushard.NotFoundError, match="check the address"):
        gpushard.open_group(tmp_path / "notes")


def test_what_is_not_there_is_told_with_what_is_nearest_first(place):
    """By whichever door it was asked for, and in few words."""
    root = zarr.open_group(place)
    for k in range(9):
        root.create_array(f"salinity_{k}", shape=(2,), dtype="i4")
    near = "has salinity_3, salinity_"
    g = gpushard.open_group(place)
    for ask in (
        lambda: g["salinity3"],
        lambda: gpushard.open_array(place, "salinity3"),
        lambda: gpushard.open_array(place / "salinity3"),
        lambda: gpushard.open_group(place, "salinity3"),
        lambda: gpushard.open_array(place, "salinity3/x"),
    ):
        with pytest.raises(gpushard.NotFoundError, match=near) as caught:
            ask()
        assert str(caught.value).count("salinity_") < 9
    with pytest.raises(gpushard.NotFoundError, match="the group 'below' has deep"):
        gpushard.open_array(place, "below/dep")
    with pytest.raises(gpushard.NotFoundError, match="check the address"):
        gpushard.open_array(place / "a", "x")


def test_consolidated_and_older_groups_tell_what_they_have(place, tmp_path):
    consolidate(place)
    with pytest.raises(gpushard.NotFoundError, match=r"the group .below. has deeper"):
        gpushard.open_array(place, "below/deper/c")
    old = zarr.open_group(tmp_path / "old", mode="w", zarr_format=2)
    old.create_array("wind", shape=(2,), dtype="i4")
    with pytest.raises(gpushard.NotFoundError, match="the group there has wind"):
        gpushard.open_array(tmp_path / "old", "win")


def test_a_group_is_no_array_and_an_array_is_no_group(place):
    g = gpushard.open_group(place)
    with pytest.raises(gpushard.MetadataError):
        gpushard.open_array(place)
    with pytest.raises(gpushard.MetadataError):
        gpushard.open_group(place / "a")
    with pytest.raises(gpushard.MetadataError):
        g.group("a")


def test_a_group_is_none_of_the_arrays_of_the_group_above(place):
    plain = gpushard.open_group(place)
    consolidate(place)
    for g in (plain, gpushard.open_group(place)):
        for name in ("below", "below/deeper"):
            assert name not in g
            assert g.get(name) is None
            with pytest.raises(gpushard.NoSuchArrayError, match=r"is a group.*group\("):
                g[name]


def test_an_absent_group_is_told_with_what_there_is(place):
    with pytest.raises(gpushard.NotFoundError, match=r"the group there has .*below"):
        gpushard.open_group(place).group("belwo")


def test_what_is_not_there_is_not_found(place, tmp_path):
    for args in ((tmp_path / "absent",), (tmp_path,), (place, "absent")):
        with pytest.raises(gpushard.NotFoundError):
            gpushard.open_group(*args)


def test_groups_are_opened_from_every_kind_of_store(place):
    objects: dict = {}
    root = zarr.create_group(MemoryStore(objects))
    root.create_array("x", shape=(2,), chunks=(1,), dtype="i4")
    shutil.make_archive(str(place), "zip", place)
    assert list(gpushard.open_group(MemoryStore(objects))) == ["x"]
    assert list(gpushard.open_group(root)) == ["x"]
    assert list(gpushard.open_group(f"{place}.zip")) == ["a", "b"]
    assert list(gpushard.open_group(place.as_uri())) == ["a", "b"]


def consolidate(place) -> None:
    with quiet_zarr():
        zarr.consolidate_metadata(place)


def test_consolidated_metadata_is_used(place):
    consolidate(place)
    for path in place.rglob("zarr.json"):
        if path.parent != place:
            path.unlink()
    g = gpushard.open_group(place)
    assert list(g) == ["a", "b"]
    assert g.groups == ("below",)
    assert_same_bits(g["b"][...], np.arange(4, dtype="i4"))
    assert_same_bits(g["below/deep"][...], np.array([1.5, 2.5]))


def test_a_group_without_consolidated_metadata_is_refused_on_demand(place):
    with pytest.raises(gpushard.OptionError, match="no consolidated metadata"):
        gpushard.open_group(place, use_consolidated=True)


def test_consolidated_metadata_have_the_groups_below_too(place):
    consolidate(place)
    for path in place.rglob("zarr.json"):
        if path.parent != place:
            path.unlink()
    g = gpushard.open_group(place)
    below = g.group("below")
    assert (below.path, below.is_consolidated) == ("below", True)
    assert below.attrs == {"level": 1}
    assert (list(below), below.groups) == (["deep"], ("deeper",))
    assert_same_bits(below["deep"][...], np.array([1.5, 2.5]))
    assert below["deeper/c"].path == "below/deeper/c"
    assert list(below.group("deeper")) == list(g.group("below/deeper")) == ["c"]
    with pytest.raises(gpushard.NotFoundError):
        below.group("a")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_consolidated_metadata_that_are_old_can_be_left_alone(tmp_path, zarr_format):
    root = zarr.create_group(tmp_path, zarr_format=zarr_format)
    below = root.create_group("below")
    with quiet_zarr():
        zarr.consolidate_metadata(tmp_path, "below", zarr_format=zarr_format)
        zarr.consolidate_metadata(tmp_path, zarr_format=zarr_format)
    for group in (root, below):
        group.create_array("new", shape=(2,), chunks=(1,), dtype="i1")[...] = 5
    old = gpushard.open_group(tmp_path, use_consolidated=True)
    assert (list(old), list(old.group("below"))) == ([], [])
    true = gpushard.open_group(tmp_path, use_consolidated=False)
    assert (list(true), list(true.group("below"))) == (["new"], ["new"])
    assert not true.group("below").is_consolidated


@pytest.mark.parametrize("forged", ["", "/", "//"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_consolidated_metadata_have_no_array_in_place_of_the_group(
    tmp_path, forged, zarr_format
):
    root = zarr.create_group(tmp_path, zarr_format=zarr_format)
    root.create_array("a", shape=(2,), chunks=(1,), dtype="i1")
    consolidate(tmp_path)
    path = tmp_path / ("zarr.json" if zarr_format == 3 else ".zmetadata")
    document = json.loads(path.read_text())
    nodes = document.get("consolidated_metadata", document)["metadata"]
    if zarr_format == 3:
        nodes[forged] = nodes["a"]
    else:
        nodes[f"//{forged}.zarray"] = nodes["a/.zarray"]
    path.write_text(json.dumps(document))
    group = gpushard.open_group(tmp_path)
    assert list(group) == ["a"]
    for name in ("", "/", "//", "///"):
        with pytest.raises(KeyError):
            group[name]
        assert name not in group
    assert group["/a/"].path == "a"


def test_a_broken_node_is_refused_under_all_its_names(place):
    consolidate(place)
    path = place / "zarr.json"
    document = json.loads(path.read_text())
    document["consolidated_metadata"]["metadata"]["a"]["node_type"] = "leaf"
    path.write_text(json.dumps(document))
    for name in ("a", "/a", "a/"):
        with pytest.raises(gpushard.MetadataError, match="leaf"):
            gpushard.open_group(place)[name]


def test_what_is_damaged_of_a_consolidated_group_below_is_told_there(place):
    consolidate(place)
    path = place / "zarr.json"
    document = json.loads(path.read_text())
    nodes = document["consolidated_metadata"]["metadata"]
    nodes["below/deep"]["node_type"] = "leaf"
    nodes["below/deeper"]["attributes"] = [1]
    path.write_text(json.dumps(document))
    below = gpushard.open_group(place).group("below")
    assert list(below) == ["deep"]
    with pytest.raises(gpushard.MetadataError, match="leaf"):
        below["deep"]
    with pytest.raises(gpushard.MetadataError, match="attributes"):
        below.group("deeper")


@pytest.mark.parametrize("name", ["..", "a\0b", "n" * 300])
def test_a_name_that_no_file_can_have_is_not_in_a_group(place, name):
    assert name not in gpushard.open_group(place)


def test_an_array_whose_document_cannot_be_read_is_in_a_group_as_among_its_names(
    tmp_path,
):
    zarr.create_group(tmp_path / "g").create_group("below")
    (tmp_path / "outside").touch()
    (tmp_path / "g" / "a").mkdir()
    (tmp_path / "g" / "a" / "zarr.json").symlink_to(tmp_path / "outside")
    for g in (gpushard.open_group(tmp_path / "g") for _ in range(2)):
        assert "a" in g
        assert list(g) == ["a"]
        assert "a" in g


def test_a_name_that_is_absent_is_told_although_the_store_cannot_be_listed(place):
    class Busy(LocalStore):
        def list_children(self, prefix):
            raise gpushard.StoreError("busy")

    g = gpushard.open_group(Busy(place))
    assert g["a"].shape == (3, 3)
    assert "not listed" in repr(g)
    with pytest.raises(KeyError, match="the group has no array 'absent'"):
        g["absent"]
    with pytest.raises(gpushard.StoreError, match=r"busy.*g\.zarr"):
        list(g)
    with pytest.raises(gpushard.StoreError, match=r"busy.*g\.zarr"):
        ".." in g  # noqa: B015


@pytest.mark.network
def test_a_store_that_cannot_list_needs_consolidated_metadata(place):
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    with RangeServer(place) as server:
        g = gpushard.open_group(server.url)
        for ask in (list, len, lambda g: g.groups):
            with pytest.raises(gpushard.StoreError) as caught:
                ask(g)
            assert "consolidate" in str(caught.value)
            assert caught.value.store_url == server.url
        # Names that the caller knows lead to what is there.
        assert_same_bits(g["b"][...], np.arange(4, dtype="i4"))
        assert ("b" in g, "absent" in g) == (True, False)
        assert "not listed" in repr(g.group("below"))
        with pytest.raises(KeyError, match="the group has no array 'absent'"):
            g["absent"]
        consolidate(place)
        g = gpushard.open_group(server.url)
        assert list(g) == ["a", "b"]
        assert_same_bits(g["b"][...], np.arange(4, dtype="i4"))
        assert list(g.group("below")) == ["deep"]


@pytest.mark.parametrize("name", [0, None, b"a"])
def test_what_is_no_name_is_an_error_that_says_so(place, name):
    g = gpushard.open_group(place)
    for ask in (g.__getitem__, g.group):
        with pytest.raises(gpushard.OptionError, match="name is of the wrong kind"):
            ask(name)
    assert name not in g


def test_damaged_group_metadata_is_refused(place):
    path = place / "zarr.json"
    document = json.loads(path.read_text())
    path.write_text("{")
    with pytest.raises(gpushard.MetadataError):
        gpushard.open_group(place)
    path.write_text(json.dumps({**document, "attributes": [1]}))
    with pytest.raises(gpushard.MetadataError) as caught:
        gpushard.open_group(place)
    assert caught.value.json_path == "attributes"
