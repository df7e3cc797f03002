"""Local paths with ``..`` behind a symbolic link lead where the system goes."""

from __future__ import annotations

from pathlib import Path

import pytest
import zarr

import gpushard
from gpushard.stores.local.store import LocalStore


def put(place, value):
    zarr.create_array(place, shape=(3,), dtype="i4")[...] = value


@pytest.fixture
def link(tmp_path, monkeypatch):
    """A relative link to ``far/inside``; the directory above its target is ``far``."""
    (tmp_path / "far/inside").mkdir(parents=True)
    (tmp_path / "near").mkdir()
    (tmp_path / "near/link").symlink_to(tmp_path / "far/inside")
    monkeypatch.chdir(tmp_path / "near")
    return Path("link")


@pytest.mark.parametrize("start", ["", "absolute", "~", "file://"])
def test_dots_behind_a_link_lead_above_its_target(link, start, tmp_path, monkeypatch):
    put(tmp_path / "near/a.zarr", 1)
    put(tmp_path / "far/a.zarr", 2)
    monkeypatch.setenv("HOME", str(tmp_path))
    near = f"{tmp_path}/near/"
    before = {"": "", "absolute": near, "~": "~/near/", "file://": f"file://{near}"}
    assert gpushard.open_array(f"{before[start]}link/../a.zarr", device="cpu")[0] == 2


def test_what_is_made_there_is_found_there(link, tmp_path):
    put(tmp_path / "near/a.zarr", 1)
    put(tmp_path / "near/b.zarr", 1)
    new = link / ".." / "a.zarr"
    made = gpushard.create_array(
        new, shape=(3,), dtype="i4", chunks=(3,), overwrite=True, device="cpu"
    )
    made[...] = 2
    gpushard.convert(new, link / ".." / "b.zarr", overwrite=True)
    for name in ("a.zarr", "b.zarr"):
        assert zarr.open_array(tmp_path / "far" / name)[0] == 2
        assert zarr.open_array(tmp_path / "near" / name)[0] == 1


def test_so_does_a_zip_file(link, tmp_path):
    for where, value in (("near", 1), ("far", 2)):
        with zarr.storage.ZipStore(tmp_path / where / "a.zip", mode="w") as store:
            put(store, value)
    a = gpushard.open_array(link / ".." / "a.zip", device="cpu")
    assert a[0] == 2


def test_a_path_without_such_dots_keeps_its_links(link, tmp_path):
    put(tmp_path / "far/inside/a.zarr", 3)
    for path in ("link/a.zarr", "../near/link/a.zarr"):
        assert gpushard.open_array(path, device="cpu")[0] == 3
        store = LocalStore(path, gpushard.Options())
        assert store.url == (tmp_path / "near/link/a.zarr").as_uri()
