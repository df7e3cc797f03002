"""Groups and arrays of the older formats, found in a store."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

import gpushard
from gpushard.cli.description import describe
from gpushard.group import node_at
from gpushard.metadata import group_below, load_array, load_group
from gpushard.options import DEFAULT
from gpushard.stores.local.store import LocalStore
from historic_arrays import (
    ROOT,
    all_chunks,
    draft_document,
    draft_key,
    grouped,
    json_bytes,
)
from range_server import RangeServer
from test_metadata import DocumentStore
from zarr_oracle import assert_same_bits, held, quiet_zarr

VALUES = np.arange(12, dtype="<i4").reshape(3, 4)


@pytest.fixture
def v2_place(tmp_path):
    place = tmp_path / "old.zarr"
    root = zarr.create_group(place, zarr_format=2, attributes={"title": "old"})
    for group, name in ((root, "b"), (root, "a"), (root.create_group("below"), "deep")):
        array = group.create_array(name, shape=(3, 4), chunks=(2, 2), dtype="i4")
        array[...] = VALUES
        array.attrs["name"] = name
    return place


class Noting(LocalStore):
    """Notes the keys that it is asked for together."""

    def __init__(self, root):
        super().__init__(root)
        self.asked = []

    def get(self, key):
        self.asked.append([key])
        return super().get(key)

    def read(self, requests):
        self.asked.append(sorted(request.key for request in requests))
        return super().read(requests)


def test_a_v2_group_lists_its_arrays_and_groups(v2_place):
    g = gpushard.open_group(v2_place)
    assert list(g) == ["a", "b"]
    assert g.groups == ("below",)
    assert g.attrs == {"title": "old"}
    assert g["a"].attrs == {"name": "a"}
    assert_same_bits(g["a"][...], VALUES)
    assert_same_bits(g["below/deep"][...], VALUES)
    assert list(g.group("below")) == ["deep"]
    assert "absent" not in g
    with pytest.raises(KeyError):
        g["absent"]


def test_a_v2_group_lists_nodes_whose_names_begin_like_its_documents(v2_place):
    root = zarr.open_group(v2_place, mode="a")
    root.create_group(".zones").create_array(".z", data=VALUES)
    g = gpushard.open_group(v2_place)
    assert g.groups == (".zones", "below")
    assert list(g.group(".zones")) == [".z"]


@pytest.mark.network
def test_consolidated_v2_metadata_spare_the_listing(v2_place):
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    with RangeServer(v2_place) as server:
        with pytest.raises(gpushard.StoreError, match="consolidate"):
            list(gpushard.open_group(server.url))
        with quiet_zarr():
            zarr.consolidate_metadata(v2_place, zarr_format=2)
        for path in v2_place.rglob(".zarray"):
            path.unlink()
        g = gpushard.open_group(server.url)
        assert list(g) == ["a", "b"]
        assert g.groups == ("below",)
        assert g.attrs == {"title": "old"}
        assert g["below/deep"].attrs == {"name": "deep"}
        assert list(g.group("below")) == ["deep"]
        assert_same_bits(g["a"][...], VALUES)


@pytest.mark.parametrize(
    ("open_one", "path", "first", "then"),
    [
        (gpushard.open_array, "a", ["zarr.json"], [".zarray", ".zattrs"]),
        (gpushard.open_group, "", ["zarr.json", ".zmetadata"], [".zattrs", ".zgroup"]),
    ],
)
def test_a_v2_document_and_its_attributes_are_waited_for_once(
    v2_place, open_one, path, first, then
):
    store = Noting(v2_place / path)
    assert open_one(store).attrs
    assert store.asked == [*([key] for key in first), then]


def test_a_node_of_either_kind_is_found_with_one_look(tmp_path):
    zarr.create_group(tmp_path).create_array("b", shape=(3,), dtype="i4")
    store = Noting(tmp_path)
    assert list(node_at(store, "", DEFAULT)) == ["b"]
    assert store.asked[0] == ["zarr.json"]
    assert ["zarr.json"] not in store.asked[1:]
    store.asked.clear()
    assert node_at(store, "b", DEFAULT).shape == (3,)
    assert store.asked == [["b/zarr.json"]]


def test_of_a_v2_node_of_either_kind_the_v3_document_is_asked_for_once(v2_place):
    store = Noting(v2_place)
    assert list(node_at(store, "", DEFAULT)) == ["a", "b"]
    assert store.asked.count(["zarr.json"]) == 1


def test_hierarchies_around_a_path_are_looked_for_together(tmp_path):
    store = Noting(tmp_path)
    with pytest.raises(gpushard.NotFoundError):
        load_array(store, "x/y/z")
    around = ["x/y/z/zarr.json", "x/y/zarr.json", "x/zarr.json", "zarr.json"]
    assert sorted(around) in store.asked
    assert len(store.asked) == 4  # before, those of Zarr v3 and of v2


def test_a_v2_group_is_no_array_and_a_v2_array_no_group(v2_place):
    with pytest.raises(
        gpushard.MetadataError, match=r"is a group.*open a or b or"
    ) as e:
        gpushard.open_array(v2_place)
    assert e.value.json_path == "node_type"
    with pytest.raises(gpushard.MetadataError, match="an array, not a group"):
        gpushard.open_group(v2_place / "a")
    with pytest.raises(gpushard.NotFoundError):
        gpushard.open_array(v2_place, "absent")
    with pytest.raises(gpushard.NotFoundError):
        gpushard.open_group(v2_place, "absent")


def test_what_is_described_on_the_command_line(v2_place):
    facts = describe(str(v2_place), DEFAULT, advise=False)
    assert facts["node_type"] == "group"
    assert facts["arrays"]["a"]["shape"] == (3, 4)
    facts = describe(str(v2_place / "a"), DEFAULT, advise=False)
    assert (facts["n_shards"], facts["n_stored"]) == (4, 4)


@pytest.mark.parametrize(
    ("documents", "json_path"),
    [
        ({"zarr_consolidated_format": 2}, "zarr_consolidated_format"),
        ({"zarr_consolidated_format": 1}, "metadata"),
        ({"zarr_consolidated_format": 1, "metadata": {}}, "metadata"),
        (
            {"zarr_consolidated_format": 1, "metadata": {".zgroup": 3}},
            "metadata['.zgroup']",
        ),
        (
            {"zarr_consolidated_format": 1, "metadata": {".zarray": {}}},
            "node_type",
        ),
    ],
)
def test_malformed_consolidated_v2_metadata_are_refused(documents, json_path):
    with pytest.raises(gpushard.MetadataError) as caught:
        load_group(DocumentStore({"g/.zmetadata": documents}), "g")
    assert caught.value.json_path == json_path
    assert caught.value.array_path == "g"


def test_consolidated_v2_metadata_may_tell_no_format():
    """As those of Kerchunk's references in Parquet."""
    nodes = {".zgroup": {"zarr_format": 2}, "b/.zgroup": {"zarr_format": 2}}
    group = load_group(DocumentStore({"g/.zmetadata": {"metadata": nodes}}), "g")
    known = group.known
    assert (group.is_consolidated, dict(known.children)) == (True, {"b": "group"})
    assert (group.attributes, known.documents["b"]["attributes"]) == ({}, {})


@pytest.mark.parametrize("key", ["a/.zarray", "a/.zattrs"])
def test_a_malformed_v2_document_names_the_array(key):
    objects = {"a/.zarray": {"zarr_format": 2}, "a/.zattrs": {}, key: b"{"}
    with pytest.raises(gpushard.MetadataError, match="no valid JSON") as caught:
        load_array(DocumentStore(objects), "a")
    assert caught.value.array_path == "a"


def draft_objects(*paths):
    objects = {"zarr.json": json_bytes(ROOT)}
    shards = grouped(all_chunks(VALUES, (2, 2)), (1, 2))
    document = json_bytes(draft_document(VALUES, (2, 2), (1, 2)))
    for path in paths:
        objects[f"meta/root/{path}.array.json"] = document
        for at, data in shards.items():
            objects[f"data/root/{path}/{draft_key(at)}"] = data
    return objects


def test_a_draft_group_lists_its_arrays_and_groups():
    objects = draft_objects("a", "below/deep/b", "c")
    attributes = json_bytes({"attributes": {"k": 1}})
    objects["meta/root/below.group.json"] = attributes
    objects["meta/root/empty.group.json"] = attributes
    objects["meta/root/c.group.json"] = attributes  # an array stays one
    g = gpushard.open_group(held(objects))
    assert list(g) == ["a", "c"]
    assert g.groups == ("below", "empty")
    assert g.group("below").attrs == {"k": 1}
    assert g.group("below").groups == ("deep",)
    assert list(g.group("empty")) == []
    assert_same_bits(g["a"][...], VALUES)
    assert_same_bits(g["below/deep/b"][...], VALUES)
    assert "absent" not in g


def test_a_draft_group_is_no_array_and_a_draft_array_no_group():
    store = held(draft_objects("a", "below/b"))
    for path in ("", "below"):
        with pytest.raises(gpushard.MetadataError, match="is a group") as caught:
            gpushard.open_array(store, path)
        assert caught.value.json_path == "node_type"
    with pytest.raises(gpushard.MetadataError, match="an array, not a group"):
        gpushard.open_group(store, "a")
    for opened in (gpushard.open_array, gpushard.open_group):
        with pytest.raises(gpushard.NotFoundError, match="meta/root/absent"):
            opened(store, "absent")


def test_a_draft_group_has_no_consolidated_metadata():
    with pytest.raises(gpushard.OptionError, match="no consolidated metadata"):
        gpushard.open_group(held(draft_objects("a")), use_consolidated=True)


def test_a_draft_array_is_read_from_a_store_that_cannot_list():
    objects = draft_objects("a")
    assert load_array(DocumentStore(objects, can_list=False), "a").shape == (3, 4)
    with pytest.raises(gpushard.NotFoundError):
        load_array(DocumentStore(objects, can_list=False), "b")
    with pytest.raises(gpushard.StoreError, match="cannot list"):
        load_group(DocumentStore(objects, can_list=False), "")


class Forbidding(DocumentStore):
    """A store that lets nobody read at its root."""

    def read(self, requests):
        if any(request.key == "zarr.json" for request in requests):
            raise gpushard.StoreError("forbidden")
        return super().read(requests)


def test_a_draft_hierarchy_is_read_below_a_place_that_may_not_be_read():
    objects = {f"h/{key}": data for key, data in draft_objects("a").items()}
    store = Forbidding(objects)
    assert load_array(store, "h/a").shape == (3, 4)
    assert list(load_group(store, "h").contents.children) == ["a"]
    with pytest.raises(gpushard.StoreError, match="forbidden"):
        load_array(store, "i/a")


@pytest.mark.parametrize(
    ("changes", "error", "json_path"),
    [
        ({"zarr_format": "https://other"}, "UnsupportedError", "zarr_format"),
        ({"metadata_encoding": "x"}, "UnsupportedError", "metadata_encoding"),
        ({"extensions": [{}]}, "UnsupportedError", "extensions[0]"),
        ({"metadata_key_suffix": 3}, "MetadataError", "metadata_key_suffix"),
    ],
)
def test_another_draft_is_refused(changes, error, json_path):
    objects = {**draft_objects("a"), "zarr.json": json_bytes({**ROOT, **changes})}
    for load in (load_array, load_group):
        with pytest.raises(getattr(gpushard, error)) as caught:
            load(DocumentStore(objects), "a")
        assert caught.value.json_path == json_path
        assert caught.value.array_path == "a"


def test_only_groups_of_consolidated_metadata_are_groups_below():
    nodes = {".zgroup": {"zarr_format": 2}, "b/a/.zarray": {"zarr_format": 2}}
    nodes["b/.zgroup"] = {"zarr_format": 2, "of another writer": 1}
    group = load_group(DocumentStore({"g/.zmetadata": {"metadata": nodes}}), "g")
    below = group_below(group, "b")
    assert below is not None
    assert (below.path, dict(below.known.children)) == ("g/b", {"a": "array"})
    assert group_below(group, "b/a") is group_below(group, "c") is None
