"""Where paths, path objects and file URLs lead, and why some lead to no store."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import zarr

import gpushard
from gpushard.errors import NotFoundError, StoreError
from gpushard.stores.http.store import HttpStore
from gpushard.stores.local.store import LocalStore
from gpushard.stores.resolve import resolve


def test_place_that_does_not_exist_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no directory"):
        resolve(tmp_path / "none")
    (tmp_path / "a.nc").write_bytes(b"CDF")
    with pytest.raises(NotFoundError, match="got a file"):
        resolve(tmp_path / "a.nc")


def test_a_path_that_is_too_long_is_not_found():
    for path in ("a/" * 2500, "a" * 5000, f"{'a/' * 2500}b.zip"):
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


class Named:
    """A path object whose text is for people, as that of `os.DirEntry`."""

    def __init__(self, path: str | bytes, text: str = "<a path>") -> None:
        self._path, self._text = path, text

    def __fspath__(self) -> str | bytes:
        return self._path

    def __str__(self) -> str:
        return self._text


def test_path_objects_are_asked_for_their_path_and_not_for_their_text(
    tmp_path: Path,
) -> None:
    group_path = tmp_path / "data.zarr"
    group_path.mkdir()
    entries = list(os.scandir(tmp_path))
    for target in (*entries, Named(str(group_path)), Named(os.fsencode(group_path))):
        store, path = resolve(target)
        assert isinstance(store, LocalStore)
        assert (store.root, path) == (str(group_path), "")
    made = gpushard.create_array(
        Named(str(group_path / "new")), shape=(2,), chunks=(2,), dtype="i4"
    )
    assert made.shape == (2,)
    assert (group_path / "new" / "zarr.json").is_file()


def test_a_path_object_for_a_url_is_opened_where_the_url_is() -> None:
    store, _ = resolve(Named("/copy", "http://127.0.0.1:1/a.zarr"))
    assert isinstance(store, HttpStore)


@pytest.mark.parametrize("why", [errno.ENOTCONN, errno.EIO, errno.ESTALE])
def test_a_place_that_cannot_be_looked_at_is_not_called_missing(
    why, tmp_path, monkeypatch
):
    """As of a disk that is dying, or a mount whose server is gone."""
    place, stat = tmp_path / "a.zarr", os.stat

    def refuse(path: Any, **how: Any) -> os.stat_result:
        if str(path).startswith(str(place)):
            raise OSError(why, os.strerror(why), str(path))
        return stat(path, **how)

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(StoreError, match=os.strerror(why)) as caught:
        gpushard.open_array(place)
    assert "mounted" in str(caught.value)
    assert str(place) in str(caught.value)


def test_a_directory_is_opened_although_the_first_look_at_it_failed(
    tmp_path, monkeypatch
):
    gpushard.create_array(tmp_path / "a.zarr", shape=(2,), chunks=(2,), dtype="i4")
    place, stat, looks = str(tmp_path / "a.zarr"), os.stat, []

    def failing_once(path: Any, **how: Any) -> os.stat_result:
        looks.append(path)
        if looks.count(place) == 1 and path == place:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return stat(path, **how)

    monkeypatch.setattr(os, "stat", failing_once)
    assert gpushard.open_array(place).shape == (2,)
    assert place in looks


def test_what_is_neither_a_file_nor_a_directory_is_not_called_missing():
    with pytest.raises(gpushard.NotFoundError, match="'/dev/null' is a file"):
        gpushard.open_array("/dev/null")
