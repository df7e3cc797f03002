"""Groups with a child of broken metadata: the others are there, and it is named."""

from __future__ import annotations

import json
import os
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
import zarr

import gpushard
from cli_runs import run
from gpushard.hierarchies import documents
from gpushard.options import MAX_DOCUMENT_NBYTES
from gpushard.stores.base import FetchCosts
from gpushard.stores.local.store import LocalStore

BROKEN = ("{", "[1]", '{"zarr_format": 3}', "null")


def grouped(place: Path, zarr_format: Any = 3) -> Path:
    """Group with two arrays and a group with an array."""
    root = zarr.create_group(place, zarr_format=zarr_format)
    for name in ("first", "last", "below/deep"):
        root.create_array(name, shape=(4,), chunks=(2,), dtype="i4")[...] = 1
    return place


def break_listed(place: Path) -> None:
    (place / "first" / "zarr.json").write_text("{")


def break_listed_v2(place: Path) -> None:
    (place / "first" / ".zarray").write_text("{")


def break_attributes_v2(place: Path) -> None:
    (place / "first" / ".zattrs").write_text("[]")


def consolidated(place: Path) -> Any:
    with pytest.warns(UserWarning, match="onsolidated"):
        zarr.consolidate_metadata(place)
    return json.loads((place / "zarr.json").read_text())


def break_consolidated(place: Path) -> None:
    document = consolidated(place)
    document["consolidated_metadata"]["metadata"]["first"] = 5
    (place / "zarr.json").write_text(json.dumps(document))


def break_consolidated_v2(place: Path) -> None:
    zarr.consolidate_metadata(place, zarr_format=2)
    document = json.loads((place / ".zmetadata").read_text())
    document["metadata"]["first/.zarray"] = 5
    (place / ".zmetadata").write_text(json.dumps(document))


BREAKS = {
    "listed": (3, break_listed),
    "consolidated": (3, break_consolidated),
    "listed, v2": (2, break_listed_v2),
    "attributes, v2": (2, break_attributes_v2),
    "consolidated, v2": (2, break_consolidated_v2),
}


@pytest.fixture(params=BREAKS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    zarr_format, damage = BREAKS[request.param]
    place = grouped(tmp_path / "g.zarr", zarr_format)
    damage(place)
    return place


def test_a_broken_child_hides_no_other(place: Path) -> None:
    group = gpushard.open_group(place, device="cpu")
    assert list(group) == ["first", "last"]
    assert group.groups == ("below",)
    assert group["last"][...].tolist() == [1, 1, 1, 1]
    assert group["below/deep"][...].tolist() == [1, 1, 1, 1]
    assert list(group.group("below")) == ["deep"]


def test_a_broken_child_is_named_when_it_is_asked_for(place: Path) -> None:
    group = gpushard.open_group(place, device="cpu")
    for _ in range(2):
        with pytest.raises(gpushard.MetadataError) as caught:
            group["first"]
        assert caught.value.array_path == "first"
        assert f"array '{place.as_uri()}/first'" in str(caught.value)


def test_info_tells_of_a_broken_child_beside_the_others(place: Path) -> None:
    told = json.loads(run("info", str(place), "--json").stdout)
    assert list(told["arrays"]) == ["first", "last"]
    assert "error" in told["arrays"]["first"]
    assert told["arrays"]["last"]["shape"] == [4]


@pytest.mark.parametrize("document", BROKEN)
def test_whatever_a_childs_document_holds_the_others_open(
    tmp_path: Path, document: str
) -> None:
    place = grouped(tmp_path / "g")
    (place / "first" / "zarr.json").write_text(document)
    group = gpushard.open_group(place, device="cpu")
    assert group["last"].shape == (4,)
    with pytest.raises(gpushard.GpushardError) as caught:
        group["first"]
    assert caught.value.array_path == "first"


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_childs_document_of_absurd_size_is_not_read(
    tmp_path: Path, zarr_format: Any
) -> None:
    place = grouped(tmp_path / "g", zarr_format)
    name = ".zarray" if zarr_format == 2 else "zarr.json"
    os.truncate(place / "first" / name, 1 << 40)  # holes
    tracemalloc.start()
    try:
        group = gpushard.open_group(place, device="cpu")
        assert len(group) == 2
        assert tracemalloc.get_traced_memory()[1] < 3 * MAX_DOCUMENT_NBYTES
    finally:
        tracemalloc.stop()
    assert list(group) == ["first", "last"]
    assert group["last"][...].tolist() == [1, 1, 1, 1]
    with pytest.raises(gpushard.StoreError, match="too large"):
        group["first"]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_documents_that_take_much_memory_together_hide_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zarr_format: Any
) -> None:
    root = zarr.create_group(tmp_path / "g", zarr_format=zarr_format)
    for name in "abcd":
        attributes = {"long": "x" * 100_000} if name in "ac" else {}
        root.create_array(name, shape=4, dtype="i4", attributes=attributes)
    # Room for one of the two; short ones do not count.
    monkeypatch.setattr(documents, "MAX_PARSED_NBYTES", 400_000)
    group = gpushard.open_group(tmp_path / "g", device="cpu")
    assert list(group) == ["a", "b", "c", "d"]
    assert set(group._contents.documents) == {"a", "b", "d"}
    assert group["c"].attrs["long"] == "x" * 100_000  # read by itself


@pytest.mark.parametrize("is_consolidated", [False, True])
def test_a_group_whose_document_takes_much_memory_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_consolidated: bool
) -> None:
    document: dict[str, Any] = {"zarr_format": 3, "node_type": "group"}
    document["attributes"] = {"long": "x" * 100_000}
    if is_consolidated:
        document["consolidated_metadata"] = {"kind": "inline", "metadata": {}}
    (tmp_path / "zarr.json").write_text(json.dumps(document))
    monkeypatch.setattr(documents, "MAX_PARSED_NBYTES", 200_000)
    told = "consolidate fewer" if is_consolidated else "shorten its attributes"
    with pytest.raises(gpushard.LimitError, match=told):
        gpushard.open_group(tmp_path, device="cpu")


def lead_out(place: Path, document: str) -> None:
    outside = place.parent / "outside"
    outside.mkdir()
    (outside / document).write_text((place / "last" / document).read_text())
    (place / "evil").symlink_to(outside)


def lead_round(place: Path, document: str) -> None:
    del document
    (place / "evil").symlink_to("evil")


def make_directory(place: Path, document: str) -> None:
    (place / "evil" / document).mkdir(parents=True)


@pytest.mark.parametrize("make", [lead_out, lead_round, make_directory])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_child_that_is_no_object_of_the_store_hides_no_other(
    tmp_path: Path, make: Any, zarr_format: Any
) -> None:
    place = grouped(tmp_path / "g", zarr_format)
    make(place, ".zarray" if zarr_format == 2 else "zarr.json")
    group = gpushard.open_group(place, device="cpu")
    assert (list(group), group.groups) == (["evil", "first", "last"], ("below",))
    assert group["last"][...].tolist() == [1, 1, 1, 1]
    with pytest.raises(gpushard.StoreError) as caught:
        group["evil"]
    assert f"{place.as_uri()}/evil'" in str(caught.value)
    told = json.loads(run("info", str(place), "--json").stdout)
    assert "evil" in told["arrays"]["evil"]["error"]


@pytest.mark.parametrize("name", ["..", ".", "a\\b"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_member_of_a_zip_file_that_leads_out_hides_no_other(
    tmp_path: Path, name: str, zarr_format: Any
) -> None:
    place = grouped(tmp_path / "g", zarr_format)
    document = ".zarray" if zarr_format == 2 else "zarr.json"
    with zipfile.ZipFile(tmp_path / "g.zip", "w") as file:
        for path in place.rglob("*"):
            file.write(path, path.relative_to(place))
        file.writestr(f"{name}/{document}", (place / "last" / document).read_text())
    group = gpushard.open_group(tmp_path / "g.zip", device="cpu")
    assert sorted(group) == sorted([name, "first", "last"])
    assert group["last"][...].tolist() == [1, 1, 1, 1]
    with pytest.raises(gpushard.StoreError, match="no key below the store's root"):
        group[name]


def test_a_store_whose_requests_have_a_price_is_not_asked_for_each_child(
    tmp_path: Path,
) -> None:
    asked: list[int] = []

    class Failing(LocalStore):
        costs = FetchCosts(0, 1, 1, prefers_whole_objects=True)

        def read(self, requests: Any) -> Any:
            asked.append(len(requests))
            raise gpushard.StoreError("busy")

    with pytest.raises(gpushard.StoreError, match="busy"):
        list(gpushard.open_group(Failing(grouped(tmp_path / "g")), device="cpu"))
    assert asked == [3]


def test_a_child_that_was_repaired_opens(tmp_path: Path) -> None:
    place = grouped(tmp_path / "g")
    good = (place / "first" / "zarr.json").read_text()
    break_listed(place)
    group = gpushard.open_group(place, device="cpu")
    (place / "first" / "zarr.json").write_text(good)
    assert group["first"].shape == (4,)


def test_a_broken_group_below_is_named(tmp_path: Path) -> None:
    place = grouped(tmp_path / "g")
    (place / "below" / "zarr.json").write_text("{")
    group = gpushard.open_group(place, device="cpu")
    assert list(group) == ["below", "first", "last"]
    with pytest.raises(gpushard.MetadataError) as caught:
        group.group("below")
    assert caught.value.array_path == "below"


def test_a_group_that_is_converted_misses_no_broken_child(tmp_path: Path) -> None:
    place = grouped(tmp_path / "g")
    break_listed(place)
    with pytest.raises(gpushard.MetadataError) as caught:
        gpushard.convert(place, tmp_path / "c")
    assert caught.value.array_path == "first"
