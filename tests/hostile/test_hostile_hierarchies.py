"""Groups and grids without an end: walked in little memory, or refused by name."""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.storage import LoggingStore

import gpushard
from asked_store import put
from cli_runs import run_json
from gpushard.converting.nodes import nodes_at
from gpushard.converting.tiles import slabs, tiles
from gpushard.inspection.verify import verify_array
from gpushard.integrations.xarray import GpushardBackend
from gpushard.layout import in_c_order
from gpushard.metadata import parse_array
from gpushard.options import DEFAULT
from gpushard.stores.local.store import LocalStore
from gpushard.stores.resolve import resolve
from spec_shards import LITTLE, document
from zarr_oracle import held

GROUP = json.dumps({"zarr_format": 3, "node_type": "group"})


@pytest.mark.parametrize("counts", [(), (3,), (2, 3, 4), (2, 0, 5), (0, 2**62)])
@pytest.mark.parametrize("most_held", [1, 5, 1 << 16])
def test_grids_are_walked_in_c_order(monkeypatch, counts, most_held):
    monkeypatch.setattr("gpushard.layout._HELD_CELLS", most_held)
    shape = counts if 0 not in counts else (0,)
    assert list(in_c_order(counts)) == list(np.ndindex(*shape))


def test_grids_of_any_size_are_walked_in_little_memory():
    layout = parse_array(document((2**62, 4), (1, 2), LITTLE), "", DEFAULT)
    assert list(islice(layout.coordinates(), 3)) == [(0, 0), (0, 1), (1, 0)]
    assert next(tiles(layout, (2, 1))) == (range(2), range(1))
    long = slice(0, 2**62)
    assert list(islice(slabs((long,), (2,)), 2)) == [(slice(0, 2),), (slice(2, 4),)]


@pytest.mark.parametrize("shape", [(0, 2**62), (2**62, 0)])
def test_an_array_without_elements_is_verified_and_converted_at_once(tmp_path, shape):
    place = put(tmp_path / "a", document(shape, (1, 1), LITTLE))
    source = gpushard.open_array(place, device="cpu").source
    assert verify_array(source, decodes=True).status == "whole"
    gpushard.convert(place, tmp_path / "b", shards=(4, 4), chunks=(2, 2))
    assert gpushard.open_array(tmp_path / "b", device="cpu").shape == shape


def test_nothing_is_made_of_an_array_of_more_shards_than_there_are_bytes(tmp_path):
    place = put(tmp_path / "a", document((2**62, 1), (1, 1), LITTLE))
    with pytest.raises(gpushard.errors.HostMemoryError):
        gpushard.convert(place, tmp_path / "b", shards=(4, 1), chunks=(2, 1))
    assert not (tmp_path / "b").exists()


def grouped(place: Path) -> Path:
    root = zarr.create_group(place)
    root.create_array("x", shape=(4,), chunks=(2,), dtype="i4")[...] = 1
    root.create_group("below").create_array("y", shape=(4,), dtype="i4")[...] = 2
    return place


@pytest.mark.parametrize("leads", ["up", "across"])
def test_links_in_a_circle_are_an_error_of_the_group_that_they_make(tmp_path, leads):
    place = grouped(tmp_path / "g")
    if leads == "up":
        for name in ("one", "two"):  # each of the two leads to both, without an end
            (place / name).symlink_to(".")
        circles = ["one", "two"]
    else:
        zarr.create_group(place / "other")
        (place / "below" / "to").symlink_to("../other")
        (place / "other" / "to").symlink_to("../below")
        circles = ["below/to/to", "other/to/to"]
    with pytest.raises(gpushard.StoreError, match="round in a circle"):
        gpushard.convert(place, tmp_path / "c")
    found = {
        array["array"]: array["status"]
        for array in run_json("verify", place, code=2)["arrays"]
    }
    assert found["x"] == found["below/y"] == "whole"
    for path in circles:
        assert found[path] not in ("whole", "damaged")
    store = LocalStore(place, allow_symlinks_outside=True)
    with pytest.raises(gpushard.StoreError, match="round in a circle"):
        store.list_children(circles[0])


def test_a_link_to_a_group_beside_it_is_a_group(tmp_path):
    place = grouped(tmp_path / "g")
    (place / "again").symlink_to("below")
    group = gpushard.open_group(place, device="cpu")
    assert group.group("again")["y"][...].tolist() == [2, 2, 2, 2]


def converted_groups(place):
    return nodes_at(*resolve(place, "", DEFAULT, None), DEFAULT).groups


@pytest.mark.parametrize(
    "groups", [converted_groups, GpushardBackend().open_groups_as_dict]
)
def test_groups_deeper_than_python_calls_are_walked(groups, tmp_path):
    depth, place = 500, tmp_path
    for _ in range(depth):
        (place / "zarr.json").write_text(GROUP)
        place /= "g"
        place.mkdir()
    most_calls = sys.getrecursionlimit()
    sys.setrecursionlimit(depth)
    try:
        assert len(groups(tmp_path)) == depth
    finally:
        sys.setrecursionlimit(most_calls)


def test_a_name_that_leads_out_costs_no_other_of_a_store_whose_requests_have_a_price():
    x = json.dumps(document((4,), (2,), LITTLE))
    objects = {"zarr.json": GROUP, "x/zarr.json": x, "a\\b/zarr.json": x}
    store = LoggingStore(held({key: text.encode() for key, text in objects.items()}))
    group = gpushard.open_group(store, device="cpu")
    assert sorted(group) == ["a\\b", "x"]
    assert group["x"].shape == (4,)
    with pytest.raises(gpushard.StoreError, match="no key below"):
        group["a\\b"]
