"""A path or file URL that leads to no store: the error says why it does not."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import zarr

from gpushard.errors import NotFoundError, StoreError
from gpushard.stores.resolve import resolve


def test_place_that_does_not_exist_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no directory"):
        resolve(tmp_path / "none")
    (tmp_path / "a.nc").write_bytes(b"CDF")
    with pytest.raises(NotFoundError, match="got a file"):
        resolve(tmp_path / "a.nc")


def test_a_path_that_is_too_long_is_not_found():
    for path in ("a/" * 5000, "a" * 5000, f"{'a/' * 5000}b.zip"):
        with pytest.raises(NotFoundError, match="no directory"):
            resolve(path)


def test_a_link_that_leads_nowhere_is_called_a_link(tmp_path):
    (tmp_path / "gone").symlink_to("no-such-directory")
    (tmp_path / "round").symlink_to("round")
    for name in ("gone", "round"):
        with pytest.raises(NotFoundError, match=f"symbolic link .*{name}' leads nowhe"):
            resolve(tmp_path / name)


def test_a_path_that_may_not_be_searched_is_not_called_missing(tmp_path, monkeypatch):
    def refused(path: object, **_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "stat", refused)
    with pytest.raises(StoreError, match=r"a' ?: Permission denied; check the permiss"):
        resolve(str(tmp_path / "a"))


def test_a_path_made_of_a_url_says_so() -> None:
    with pytest.raises(NotFoundError, match="pass a URL as text"):
        resolve(Path("http://host/data.zarr"))


def test_malformed_file_url_is_refused():
    with pytest.raises(NotFoundError, match="malformed"):
        resolve("file://[::1")


def test_a_file_url_of_two_slashes_is_not_taken_for_another_place(tmp_path):
    path = tmp_path / "data.zarr"
    path.mkdir()
    assert resolve(f"file://localhost{path}", "g/t")[1] == "g/t"
    with pytest.raises(NotFoundError, match="three slashes"):
        resolve(f"file://data{path}")
    with pytest.raises(NotFoundError, match="three slashes"):
        resolve(f"file://{str(tmp_path).lstrip('/')}")


def test_a_deleted_working_directory_is_named_where_a_path_is_relative(
    tmp_path, monkeypatch
):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for target in (".", "..", zarr.storage.LocalStore("x.zarr")):
        with pytest.raises(NotFoundError, match="working directory was deleted"):
            resolve(target)
