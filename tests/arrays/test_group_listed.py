"""`open_group`: when a group is listed, and what a listing serves."""

from __future__ import annotations

import shutil
import warnings

import pytest
import zarr

import gpushard
from gpushard.stores.local.store import LocalStore


class Listing(LocalStore):
    """A store that notes what it is asked to list, and counts its reads."""

    asked = ()
    n_reads = 0

    def list_children(self, prefix):
        self.asked += (prefix,)
        return super().list_children(prefix)

    def read(self, requests):
        self.n_reads += 1
        return super().read(requests)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_group_is_listed_only_for_its_names_and_once(tmp_path, zarr_format):
    root = zarr.create_group(tmp_path, zarr_format=zarr_format)
    root.create_array("a", shape=(3,), dtype="u1")
    root.create_group("below").create_array("deep", shape=(2,), dtype="f8")
    (tmp_path / "broken").mkdir()
    name = ".zarray" if zarr_format == 2 else "zarr.json"
    (tmp_path / "broken" / name).write_text("{}")
    store = Listing(tmp_path)
    g = gpushard.open_group(store)
    assert g["a"].shape == (3,)
    assert g.group("below")["deep"].shape == (2,)
    assert all(name in g for name in ("a", "broken", "below/deep"))
    assert "absent" not in g
    assert store.asked == ()
    assert "below" not in g  # as an array it would tell what it has
    store.asked = ()
    for _ in range(2):
        assert (list(g), g.groups) == (["a", "broken"], ("below",))
        assert all(name in g for name in ("a", "broken", "below/deep"))
        assert not any(name in g for name in ("absent", "below"))
        assert "'broken'" in repr(g)
    assert store.asked == ("",)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_array_is_opened_as_it_is_and_not_as_it_was_listed(tmp_path, zarr_format):
    def put(name, dtype):
        root = zarr.open_group(tmp_path, mode="a", zarr_format=zarr_format)
        root.create_array(name, shape=(2,), dtype=dtype, overwrite=True)[...] = 1

    put("a", "i4")
    put("b", "i4")
    g = gpushard.open_group(tmp_path)
    assert list(g) == ["a", "b"]
    put("a", "f4")
    put("c", "u1")
    shutil.rmtree(tmp_path / "b")
    assert [name in g for name in "abc"] == [True, False, True]
    assert g["a"][...].tolist() == g.on_host()["a"][...].tolist() == [1.0, 1.0]
    assert {name: a.dtype for name, a in g.items()} == {"a": "f4", "c": "u1"}
    assert [a.dtype for a in g.values()] == ["f4", "u1"]
    with pytest.raises(gpushard.NotFoundError, match=r"no array 'b'.*; it has a"):
        g["b"]


@pytest.mark.parametrize("look", [repr, lambda g: g.get("b")])
def test_a_look_at_a_group_does_not_hide_arrays_that_come_later(tmp_path, look):
    root = zarr.create_group(tmp_path)
    g = gpushard.open_group(tmp_path)
    look(g)
    root.create_array("b", shape=(2,), dtype="u1")
    assert "b" in g
    assert g["b"].shape == (2,)


def test_many_arrays_are_opened_with_one_listing(tmp_path):
    root = zarr.create_group(tmp_path)
    for name in "abc":
        root.create_array(name, shape=(3,), dtype="u1")
    store = Listing(tmp_path)
    g = gpushard.open_group(store)
    before = store.n_reads
    assert [a.shape for a in g.values()] == [(3,)] * 3
    assert store.asked == ("",)
    assert store.n_reads == before + 1


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_deleted_array_that_consolidated_metadata_list_is_not_fill_value(
    tmp_path, zarr_format
):
    root = zarr.create_group(tmp_path, zarr_format=zarr_format)
    for name in ("a", "kept", "g/deep"):
        root.create_array(name, shape=(3,), chunks=(3,), dtype="u1", fill_value=9)
    with warnings.catch_warnings(action="ignore"):
        zarr.consolidate_metadata(tmp_path)
    shutil.rmtree(tmp_path / "a")
    shutil.rmtree(tmp_path / "g/deep")
    g = gpushard.open_group(tmp_path, device="cpu")
    for name in ("a", "g/deep"):
        with pytest.raises(gpushard.NoSuchArrayError, match="directory was delet"):
            g[name]
        assert name not in g
    with pytest.raises(gpushard.NoSuchArrayError, match="use_consolidated=False"):
        g.group("g")["deep"]
    with pytest.raises(gpushard.NoSuchArrayError, match=f"{tmp_path}/a"):
        dict(g)
    assert g["kept"][2] == 9
    assert "kept" in g
    fresh = gpushard.open_group(tmp_path, device="cpu", use_consolidated=False)
    assert list(fresh) == ["kept"]
    with pytest.raises(gpushard.NoSuchArrayError, match="it has g, kept"):
        fresh["a"]


def test_an_array_that_lies_only_in_consolidated_metadata_is_read_with_objects(
    tmp_path,
):
    root = zarr.create_group(tmp_path, zarr_format=2)
    root.create_array("a", shape=(3,), chunks=(3,), dtype="u1")[:] = 5
    zarr.consolidate_metadata(tmp_path, zarr_format=2)
    (tmp_path / "a/.zarray").unlink()
    assert gpushard.open_group(tmp_path, device="cpu")["a"][:].tolist() == [5, 5, 5]


def test_an_array_of_the_draft_has_no_directory_and_is_there(tmp_path):
    how = {"shape": (4,), "dtype": "u1", "chunks": (2,), "shards": (4,)}
    gpushard.create_array(tmp_path, "a", format="v3-draft-transformer", **how)
    listed = gpushard.open_group(tmp_path, device="cpu").as_listed()
    assert "a" in listed
    assert listed["a"].shape == (4,)
