"""Attributes are read as from a dictionary, and changed by zarr only."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
import zarr

import gpushard

ATTRIBUTES = {"units": "K", "nested": {"a": [1, None]}}
CHANGES = {
    "set": lambda attrs: attrs.__setitem__("x", 1),
    "delete": lambda attrs: attrs.__delitem__("units"),
    "join": lambda attrs: attrs.__ior__({"x": 1}),
    "clear": lambda attrs: attrs.clear(),
    "pop": lambda attrs: attrs.pop("units"),
    "popitem": lambda attrs: attrs.popitem(),
    "setdefault": lambda attrs: attrs.setdefault("x", 1),
    "update": lambda attrs: attrs.update(x=1),
}


@pytest.fixture(params=["array", "group"])
def node(request, tmp_path):
    """An array and a group with the same attributes."""
    if request.param == "group":
        zarr.create_group(tmp_path, attributes=ATTRIBUTES)
        return gpushard.open_group(tmp_path)
    zarr.create_array(tmp_path, shape=(3,), dtype="i4", attributes=ATTRIBUTES)
    return gpushard.open_array(tmp_path, device="cpu")


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_refused_and_says_who_makes_it(node, change):
    with pytest.raises(gpushard.UnsupportedError, match=r"read-only.*with zarr"):
        CHANGES[change](node.attrs)
    assert node.attrs == ATTRIBUTES


def test_they_are_read_and_written_out_like_any_dictionary(node):
    attrs = node.attrs
    assert isinstance(attrs, dict)
    assert attrs["units"] == attrs.get("units") == "K"
    assert json.loads(json.dumps(attrs)) == ATTRIBUTES
    assert attrs | {"x": 1} == {**ATTRIBUTES, "x": 1}


@pytest.mark.parametrize(
    "copied",
    [
        dict,
        dict.copy,
        copy.copy,
        copy.deepcopy,
        lambda a: pickle.loads(pickle.dumps(a)),
    ],
)
def test_a_copy_can_be_changed(node, copied):
    attrs = copied(node.attrs)
    assert type(attrs) is dict
    attrs["x"] = 1
    assert attrs == {**ATTRIBUTES, "x": 1}
    assert node.attrs == ATTRIBUTES
