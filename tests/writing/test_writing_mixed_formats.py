"""No array is made where other formats would hide it, or where it hides others."""

from __future__ import annotations

import json

import pytest
import zarr

import gpushard
from historic_arrays import ROOT

DRAFT, PROTOTYPE = "v3-draft-transformer", "v2-prototype-ii"
ARRAY = {"shape": (4, 4), "dtype": "i4", "chunks": (2, 2), "shards": (4, 4)}


def new(place, path, **changes):
    return gpushard.create_array(place, path, device="cpu", **ARRAY, **changes)


def files_below(place):
    found = (path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): path.read_bytes() for path in found}


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_no_array_of_the_draft_is_made_below_a_group_of_another_format(
    zarr_format, tmp_path
):
    zarr.create_group(tmp_path, zarr_format=zarr_format)
    before = files_below(tmp_path)
    with pytest.raises(gpushard.OptionError, match="another format"):
        new(tmp_path, "a", format=DRAFT)
    assert files_below(tmp_path) == before


def test_a_hierarchy_whose_documents_are_named_otherwise_is_not_written(tmp_path):
    root = {**ROOT, "metadata_key_suffix": ".txt"}
    (tmp_path / "zarr.json").write_text(json.dumps(root))
    with pytest.raises(gpushard.OptionError, match="names its documents otherwise"):
        new(tmp_path, "a", format=DRAFT)
    assert files_below(tmp_path).keys() == {"zarr.json"}


@pytest.mark.parametrize("format_name", ["v3", PROTOTYPE])
@pytest.mark.parametrize("overwrite", [False, True])
def test_other_formats_do_not_hide_arrays_of_the_draft(
    format_name, overwrite, tmp_path
):
    new(tmp_path, "g/a", format=DRAFT)[...] = 7
    before = files_below(tmp_path)
    with pytest.raises(gpushard.OptionError, match="a hierarchy of the draft"):
        new(tmp_path, "g/b", format=format_name, overwrite=overwrite)
    assert files_below(tmp_path) == before
    assert gpushard.open_array(tmp_path, "g/a", device="cpu")[3, 3] == 7


@pytest.mark.parametrize("format_name", ["v3", PROTOTYPE, DRAFT])
@pytest.mark.parametrize("place", ["g/b", "c", "meta/root/c"])
def test_a_path_into_a_hierarchy_of_the_draft_makes_nothing_hidden(
    format_name, place, tmp_path, monkeypatch
):
    new(tmp_path, "g/a", format=DRAFT)[...] = 7
    before = files_below(tmp_path)
    with pytest.raises(gpushard.OptionError, match="a hierarchy of the draft"):
        new(tmp_path / place, "", format=format_name)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(gpushard.OptionError, match="a hierarchy of the draft"):
        new(place, "x", format=format_name)
    assert files_below(tmp_path) == before
    assert gpushard.open_array(tmp_path / "g/a", device="cpu")[3, 3] == 7


def test_a_directory_named_as_the_documents_of_the_draft_is_no_hierarchy(tmp_path):
    zarr.create_group(tmp_path)
    new(tmp_path / "meta", "root/a")
    assert new(tmp_path / "meta/b", "").shape == (4, 4)


@pytest.mark.parametrize("name", ["", "x"])
def test_nothing_is_converted_to_a_path_in_a_hierarchy_of_the_draft(name, tmp_path):
    new(tmp_path / "dst", "g/a", format=DRAFT)[...] = 7
    new(tmp_path / "src", "x")
    before = files_below(tmp_path)
    with pytest.raises(gpushard.OptionError, match="a hierarchy of the draft"):
        gpushard.convert(tmp_path / "src" / name, tmp_path / "dst/g/b")
    assert files_below(tmp_path) == before


def test_nothing_is_converted_into_a_hierarchy_of_the_draft(tmp_path):
    new(tmp_path / "dst", "g/a", format=DRAFT)[...] = 7
    new(tmp_path / "src", "x")
    before = files_below(tmp_path)
    with pytest.raises(gpushard.OptionError, match="a hierarchy of the draft"):
        gpushard.convert(tmp_path / "src", tmp_path / "dst", dst_path="g/b")
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("above", ["", "g/a"])
def test_no_array_of_the_draft_is_made_below_another_one(above, tmp_path):
    new(tmp_path, above, format=DRAFT)
    before = files_below(tmp_path)
    with pytest.raises(gpushard.OptionError, match="only groups have arrays below"):
        new(tmp_path, f"{above}/b/c", format=DRAFT)
    assert files_below(tmp_path) == before
