"""Something beside an array was named: the hint tells which arrays there are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import zarr
from zarr.storage import MemoryStore, WrapperStore

import gpushard
from gpushard import metadata

TINY = {"shape": (4,), "chunks": (2,), "dtype": "u1"}


def packed(folder: Path, *, whole: bool) -> str:
    """Zip file of what is in a folder, or of the folder itself."""
    below = {"base_dir": folder.name} if whole else {}
    root = folder.parent if whole else folder
    return shutil.make_archive(str(folder), "zip", root, **below)


def hint(target, opens=gpushard.open_array) -> str:
    with pytest.raises(gpushard.NotFoundError) as caught:
        opens(target)
    return caught.value.hint or ""


@pytest.mark.parametrize("opens", [gpushard.open_array, gpushard.open_group])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_zip_file_of_one_folder_is_told_with_the_path_in_it(
    zarr_format, opens, tmp_path
):
    zarr.create_array(tmp_path / "foo", **TINY, zarr_format=zarr_format)
    file = packed(tmp_path / "foo", whole=True)
    assert hint(file, opens) == f"it has foo: open {file}/foo"
    assert gpushard.open_array(f"{file}/foo").shape == (4,)


def test_a_zip_file_of_folders_in_folders_is_told_with_the_first_node(tmp_path):
    zarr.create_group(tmp_path / "a/b/c").create_array("x", **TINY)
    (tmp_path / "a/__MACOSX").mkdir()
    file = packed(tmp_path / "a", whole=True)
    assert hint(file) == f"it has a/b/c: open {file}/a/b/c"
    assert hint(f"{file}/a") == f"it has b/c: open {file}/a/b/c"
    assert gpushard.open_group(f"{file}/a/b/c")["x"].shape == (4,)


def test_a_zip_file_of_several_arrays_is_told_with_their_names(tmp_path):
    for name in "yx":
        zarr.create_array(tmp_path / "all" / name, **TINY)
    (tmp_path / "all" / "README").touch()
    file = packed(tmp_path / "all", whole=False)
    assert hint(file) == f"it has x, y: open one of these, such as {file}/x"


def test_a_zip_file_of_something_else_has_no_such_hint(tmp_path):
    (tmp_path / "all" / "x").mkdir(parents=True)
    (tmp_path / "all" / "x" / "y.txt").touch()
    assert hint(packed(tmp_path / "all", whole=True)).startswith("check the address")


def test_arrays_in_memory_are_told_by_their_paths():
    store = MemoryStore()
    zarr.create_array(store, name="g/x", **TINY)
    store._store_dict.pop("zarr.json", None)
    store._store_dict.pop("g/zarr.json", None)
    assert hint(store) == "it has g/x: open path='g/x'"
    # Behind a network each look would cost a request.
    assert hint(WrapperStore(store)).startswith("check the address")


def test_a_directory_of_older_arrays_is_told_without_a_group_to_make(tmp_path):
    zarr.create_array(tmp_path / "x", **TINY, zarr_format=2)
    assert hint(tmp_path) == "it has x: open one of these"
    zarr.create_array(tmp_path / "y", **TINY)
    assert hint(tmp_path).startswith("it has x, y: open one of these, or make it a gr")


@pytest.mark.parametrize("is_in_memory", [False, True])
def test_what_is_no_array_in_a_group_is_not_among_those_to_open(is_in_memory, tmp_path):
    target = MemoryStore() if is_in_memory else tmp_path
    root = zarr.create_group(target)
    root.create_array("x", **TINY)
    root.create_group("below")
    if not is_in_memory:
        (tmp_path / "README.md").touch()
        for name in (".git", "notes"):
            (tmp_path / name).mkdir()
    with pytest.raises(gpushard.MetadataError, match="; open below or x"):
        gpushard.open_array(target)
    with pytest.raises(gpushard.NotFoundError) as caught:
        gpushard.open_array(target, "notes")
    assert caught.value.hint == "the group there has below, x"


def test_the_names_in_a_very_large_directory_are_not_looked_at(monkeypatch, tmp_path):
    monkeypatch.setattr(metadata, "_MOST_LOOKED_AT", 1)
    zarr.create_group(tmp_path).create_array("x", **TINY)
    (tmp_path / "notes").mkdir()
    with pytest.raises(gpushard.MetadataError, match="; open notes or x"):
        gpushard.open_array(tmp_path)


def test_names_are_told_although_one_of_them_cannot_be_looked_at(tmp_path):
    zarr.create_group(tmp_path).create_array("x", **TINY)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(gpushard.MetadataError, match=r"; open x\.$"):
        gpushard.open_array(tmp_path)


def test_what_cannot_be_opened_is_not_told_as_what_could_be(tmp_path):
    zarr.create_group(tmp_path / "g").create_array("x", **TINY)
    (tmp_path / "g/out").symlink_to("/")
    (tmp_path / "g/lost").symlink_to("nowhere")
    with pytest.raises(gpushard.NotFoundError, match=r"the group there has x\.$"):
        gpushard.open_array(tmp_path / "g", "out")
    assert hint(tmp_path / "g/lost").startswith("mount or fetch what it leads to")
