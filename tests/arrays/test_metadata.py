"""Metadata documents in a store: finding them, refusing them, listing groups."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest

from asked_store import IN_REQUESTS
from gpushard.errors import (
    GpushardError,
    MetadataError,
    NotFoundError,
    OptionError,
    StoreError,
    UnsupportedError,
)
from gpushard.group import Group
from gpushard.hierarchies.documents import UNLISTED
from gpushard.metadata import load_array, load_group, parse_array
from gpushard.options import DEFAULT
from gpushard.stores.base import Fetched
from places import INTEROP

MANIFEST = json.loads((INTEROP / "manifest.json").read_text())
ARRAY = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
    "chunk_key_encoding": "default",
    "fill_value": 0,
    "codecs": ["bytes"],
}
GROUP = {"zarr_format": 3, "node_type": "group"}


class DocumentStore:
    """Store of JSON documents and raw bytes, with and without listing."""

    url = "memory://documents"
    costs = IN_REQUESTS

    def __init__(self, objects, *, can_list=True):
        self.objects = {
            key: value if isinstance(value, bytes) else json.dumps(value).encode()
            for key, value in objects.items()
        }
        self.can_list = can_list

    def get(self, key):
        return self.objects.get(key)

    def read(self, requests):
        found = [self.objects.get(request.key) for request in requests]
        return [
            None
            if data is None
            else Fetched(np.frombuffer(data, np.uint8), len(data), None)
            for data in found
        ]

    def current_version(self, key):
        return False, None

    def list_children(self, prefix):
        if not self.can_list:
            return None
        below = f"{prefix}/" if prefix else ""
        keys = [key[len(below) :] for key in self.objects if key.startswith(below)]
        return sorted({key.partition("/")[0] for key in keys})


class FileStore(DocumentStore):
    def __init__(self, root):
        self.root = root

    def get(self, key):
        path = self.root / key
        return path.read_bytes() if path.is_file() else None


def sample_layout(sample):
    store = FileStore(INTEROP / sample["path"])
    return load_array(store, sample.get("array_path", ""))


@pytest.mark.parametrize("name", sorted(MANIFEST["valid"]))
def test_every_valid_sample_has_the_shape_and_type_of_its_manifest(name):
    sample = MANIFEST["valid"][name]
    layout = sample_layout(sample)
    assert list(layout.shape) == sample["shape"]
    expected = np.load(INTEROP / sample["expected"], allow_pickle=False)
    assert layout.dtype == expected.dtype.newbyteorder("=")
    assert layout.fill_value.shape == ()
    assert layout.fill_value.dtype == layout.dtype
    assert bool(layout.levels) == (layout.shards is not None)


@pytest.mark.parametrize(
    "name", [name for name in sorted(MANIFEST["corrupt"]) if name.startswith("md-")]
)
def test_corrupt_metadata_is_refused_at_open_where_the_manifest_says(name):
    sample = MANIFEST["corrupt"][name]
    if sample["open_want"] == "error":
        with pytest.raises((MetadataError, UnsupportedError)):
            sample_layout(sample)
        return
    # Both outcomes are right; any other exception is not.
    with contextlib.suppress(GpushardError):
        sample_layout(sample)


@pytest.mark.parametrize(
    "name",
    [name for name in sorted(MANIFEST["corrupt"]) if not name.startswith("md-")],
)
def test_corrupt_shards_do_not_keep_an_array_from_opening(name):
    layout = sample_layout(MANIFEST["corrupt"][name])
    assert layout.levels


def test_a_gigantic_index_is_refused_at_open():
    with pytest.raises(UnsupportedError, match="index is too large") as caught:
        sample_layout(MANIFEST["corrupt"]["md-index-gigantic"])
    assert caught.value.json_path == "codecs[0].configuration.chunk_shape"


def test_an_array_below_the_root_keeps_its_path():
    layout = load_array(DocumentStore({"a/b/zarr.json": ARRAY}), "/a/b/")
    assert layout.path == "a/b"
    assert layout.key_prefix + layout.keys.key((1,)) == "a/b/c/1"


def test_an_absent_array_is_not_found():
    with pytest.raises(NotFoundError, match=r"a/zarr\.json in memory://documents"):
        load_array(DocumentStore({"zarr.json": GROUP}), "a")


def test_a_group_opened_as_an_array_names_what_lies_below():
    objects = {"g/zarr.json": GROUP, "g/temperature/zarr.json": ARRAY}
    with pytest.raises(MetadataError, match=r"is a group, not an array.*temperature"):
        load_array(DocumentStore(objects), "g")


def test_a_group_opened_as_an_array_names_a_few_of_many_arrays_below():
    objects = {f"g/a{k}/zarr.json": ARRAY for k in range(9)}
    with pytest.raises(MetadataError) as caught:
        load_array(DocumentStore({"g/zarr.json": GROUP} | objects), "g")
    first_eight = " or ".join(f"a{k}" for k in range(8))
    assert caught.value.hint == f"open {first_eight} or ..."


def test_a_group_that_cannot_list_still_says_that_it_is_a_group():
    store = DocumentStore({"zarr.json": GROUP}, can_list=False)
    with pytest.raises(MetadataError, match="root of the store is a group"):
        load_array(store, "")


def test_a_store_that_fails_to_list_does_not_hide_that_it_is_a_group():
    class Failing(DocumentStore):
        def list_children(self, prefix):
            raise StoreError("no permission to list")

    with pytest.raises(MetadataError, match="is a group, not an array"):
        load_array(Failing({"zarr.json": GROUP}), "")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no valid JSON"),
        (b"{", "no valid JSON"),
        (b"\xff\xfe\x00", "no valid JSON"),
        (b'{"shape": ' + b"1" * 5000 + b"}", "no valid JSON"),
        (b"[" * 200_000 + b"]" * 200_000, "nested too deep"),
        (b"[]", "wrong type"),
        (b"3", "wrong type"),
    ],
)
def test_a_malformed_document_is_a_metadata_error(data, reason):
    with pytest.raises(MetadataError, match=reason) as caught:
        load_array(DocumentStore({"a/zarr.json": data}), "a")
    assert caught.value.array_path == "a"


def test_nan_tokens_in_attributes_are_read():
    document = json.dumps({**ARRAY, "attributes": {"x": float("nan")}})
    assert "NaN" in document
    layout = load_array(DocumentStore({"zarr.json": document.encode()}), "")
    assert np.isnan(layout.attributes["x"])


@pytest.mark.parametrize(
    ("changes", "error", "json_path"),
    [
        ({"zarr_format": 2}, MetadataError, "chunks"),
        ({"zarr_format": 4}, MetadataError, "zarr_format"),
        ({"zarr_format": True}, MetadataError, "zarr_format"),
        ({"zarr_format": "3"}, MetadataError, "zarr_format"),
        ({"zarr_format": "https://draft"}, UnsupportedError, "zarr_format"),
        ({"node_type": "table"}, MetadataError, "node_type"),
        ({"node_type": None}, MetadataError, "node_type"),
        ({"node_type": "group"}, MetadataError, "node_type"),
    ],
)
def test_what_is_no_v3_array_is_refused(changes, error, json_path):
    with pytest.raises(error) as caught:
        parse_array({**ARRAY, **changes}, "here")
    assert caught.value.json_path == json_path
    assert caught.value.array_path == "here"


def test_a_listed_group_knows_its_children_and_their_documents():
    store = DocumentStore(
        {
            "g/zarr.json": {**GROUP, "attributes": {"title": "t"}},
            "g/x/zarr.json": ARRAY,
            "g/x/c/0": b"data",
            "g/sub/zarr.json": GROUP,
            "g/sub/y/zarr.json": ARRAY,
            "g/README": b"no node",
        }
    )
    group = load_group(store, "g")
    assert group.path == "g"
    assert group.attributes == {"title": "t"}
    assert group.looked_up().children == {"sub": "group", "x": "array"}
    assert group.looked_up().documents["x"] == ARRAY
    assert not group.is_consolidated


def test_consolidated_metadata_needs_no_listing_and_knows_deeper_nodes():
    consolidated = {
        "kind": "inline",
        "must_understand": False,
        "metadata": {"x": ARRAY, "sub": GROUP, "sub/y": ARRAY},
    }
    document = {**GROUP, "consolidated_metadata": consolidated}
    group = load_group(DocumentStore({"zarr.json": document}, can_list=False), "")
    assert group.known.children == {"x": "array", "sub": "group"}
    assert parse_array(group.known.documents["sub/y"], "sub/y").shape == (4,)
    assert group.is_consolidated


@pytest.mark.parametrize("documents", [{"zarr.json": GROUP}, {".zgroup": {}}])
def test_a_demand_for_consolidated_metadata_is_refused_without_a_listing(
    documents, monkeypatch
):
    store = DocumentStore(documents)
    monkeypatch.setattr(store, "list_children", lambda _: pytest.fail("listed"))
    with pytest.raises(OptionError, match="no consolidated metadata"):
        load_group(store, "", use_consolidated=True)


def test_null_consolidated_metadata_means_none():
    document = {**GROUP, "consolidated_metadata": None}
    group = load_group(DocumentStore({"zarr.json": document, "x/zarr.json": ARRAY}), "")
    assert group.looked_up().children == {"x": "array"}
    assert not group.is_consolidated


def test_a_group_in_a_store_that_cannot_list_asks_for_consolidated_metadata():
    store = DocumentStore({"g/zarr.json": GROUP}, can_list=False)
    document = load_group(store, "g")
    assert document.looked_up() == UNLISTED
    group = Group(store, document, "cpu", DEFAULT)
    with pytest.raises(StoreError, match=r"cannot list.*consolidate") as caught:
        list(group)
    assert caught.value.array_path == "g"


@pytest.mark.parametrize(
    ("changes", "error", "json_path"),
    [
        ({"attributes": 3}, MetadataError, "attributes"),
        ({"consolidated_metadata": []}, MetadataError, "consolidated_metadata"),
        (
            {"consolidated_metadata": {"metadata": None}},
            MetadataError,
            "consolidated_metadata.metadata",
        ),
        ({"future": {}}, UnsupportedError, "future"),
        ({"node_type": "array"}, MetadataError, "node_type"),
    ],
)
def test_a_malformed_group_is_refused_with_its_json_path(changes, error, json_path):
    with pytest.raises(error) as caught:
        load_group(DocumentStore({"g/zarr.json": {**GROUP, **changes}}), "g")
    assert caught.value.json_path == json_path
    assert caught.value.array_path == "g"


def test_a_node_that_is_neither_array_nor_group_is_not_taken_for_an_array():
    store = DocumentStore({"zarr.json": {**GROUP, "node_type": "table"}})
    with pytest.raises(MetadataError, match="this is no group"):
        load_group(store, "")


def test_a_group_member_that_need_not_be_understood_is_ignored():
    document = {**GROUP, "future": {"must_understand": False}}
    group = load_group(DocumentStore({"zarr.json": document}), "")
    assert group.looked_up().children == {}


def test_a_broken_child_document_is_kept_apart_and_named():
    store = DocumentStore({"zarr.json": GROUP, "x/zarr.json": b"{"})
    found = load_group(store, "").looked_up()
    assert (found.children, found.documents) == ({"x": "array"}, {})
    with pytest.raises(MetadataError, match="no valid JSON") as caught:
        load_array(store, "x")
    assert caught.value.array_path == "x"
    assert (
        caught.value.hint == "restore it from a copy, or make the array or group again"
    )


def test_a_page_in_place_of_a_document_is_told():
    store = DocumentStore({"zarr.json": b"\n <!DOCTYPE html><html>Log in</html>"})
    for load in (load_array, load_group):
        with pytest.raises(MetadataError, match=r"no valid JSON.*it is a web page"):
            load(store, "")


@pytest.mark.parametrize(
    ("child", "json_path"),
    [
        ([], "consolidated_metadata.metadata['x']"),
        ({"node_type": "?"}, "consolidated_metadata.metadata['x'].node_type"),
    ],
)
def test_a_malformed_child_in_consolidated_metadata_is_kept_apart(child, json_path):
    document = {**GROUP, "consolidated_metadata": {"metadata": {"x": child}}}
    group = load_group(DocumentStore({"zarr.json": document}), "")
    assert group.known.children == {"x": "array"}
    assert group.known.broken["x"].json_path == json_path
