"""What a user may name a store with, and how stores travel to other processes."""

from __future__ import annotations

import builtins
import os
import pickle
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import LoggingStore, MemoryStore, StorePath, ZipStore

import gpushard
from gpushard.errors import (
    NotFoundError,
    ObjectChangedError,
    StoreError,
    UnsupportedError,
)
from gpushard.options import Options
from gpushard.stores.base import ByteRequest
from gpushard.stores.http.store import HttpStore
from gpushard.stores.local.store import LocalStore
from gpushard.stores.remote import RemoteStore
from gpushard.stores.resolve import address, from_address, resolve
from gpushard.stores.zarr import fsspec_store
from gpushard.stores.zarr.store import ZarrStore
from range_server import RangeServer


def write_array(store: Any, name: str = "g/t") -> Any:
    array = zarr.create_array(
        store, name=name, shape=(20,), shards=(10,), chunks=(5,), dtype="int32"
    )
    array[:] = np.arange(20)
    return array


@pytest.fixture
def group_path(tmp_path: Path) -> Path:
    write_array(tmp_path / "data.zarr")
    return tmp_path / "data.zarr"


def test_path_is_a_local_store_with_the_array_at_its_root(group_path: Path) -> None:
    for target in (
        group_path / "g" / "t",
        f"{group_path}/g/t/",
        str(group_path / "g/t"),
    ):
        store, path = resolve(target)
        assert isinstance(store, LocalStore)
        assert (store.root, path) == (str(group_path / "g" / "t"), "")
        assert store.get("zarr.json") is not None


def test_path_below_a_local_store_stays_a_path(group_path: Path) -> None:
    options = Options(file_handles=3)
    store, path = resolve(group_path, "/g/t/", options)
    assert isinstance(store, LocalStore)
    assert (store.root, path) == (str(group_path), "g/t")
    assert store.options is options


def test_relative_and_home_paths_are_understood(
    group_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(group_path.parent)
    monkeypatch.setenv("HOME", str(group_path.parent))
    for target in ("data.zarr", "./data.zarr", "~/data.zarr"):
        store, _ = resolve(target)
        assert isinstance(store, LocalStore)
        assert store.root == str(group_path)


def test_file_url_is_a_local_store(tmp_path: Path) -> None:
    write_array(tmp_path / "a b%20ü.zarr")
    store, path = resolve((tmp_path / "a b%20ü.zarr").as_uri(), "g/t")
    assert isinstance(store, LocalStore)
    assert (store.root, path) == (str(tmp_path / "a b%20ü.zarr"), "g/t")
    again, _ = resolve(store.url)
    assert isinstance(again, LocalStore)
    assert again.root == store.root


def test_zip_file_is_read_through_zarr(tmp_path: Path) -> None:
    zipped = ZipStore(tmp_path / "a.zip", mode="w")
    array = write_array(zipped)
    zipped.close()
    assert array.shape == (20,)
    store, path = resolve(str(tmp_path / "a.zip"), "g/t")
    assert isinstance(store, ZarrStore)
    assert path == "g/t"
    assert store.get("g/t/zarr.json") is not None
    assert store.get("g/t/c/0") is not None


def test_zarr_objects_bring_their_store_and_path(group_path: Path) -> None:
    memory = MemoryStore()
    array = write_array(memory)
    group = zarr.open_group(memory, path="g", mode="r")
    for target, path, expected in (
        (array, "", "g/t"),
        (group, "t", "g/t"),
        (group, "", "g"),
        (StorePath(memory, "g"), "t", "g/t"),
        (memory, "g/t", "g/t"),
    ):
        store, found = resolve(target, path)
        assert isinstance(store, ZarrStore)
        assert found == expected
        assert store.get("g/t/zarr.json") is not None
    array = zarr.open_array(group_path, path="g/t", mode="r")
    store, found = resolve(array)
    assert isinstance(store, LocalStore)
    assert (store.root, found) == (str(group_path), "g/t")


def test_dictionary_of_buffers_is_a_memory_store() -> None:
    objects: dict[str, Any] = {}
    write_array(MemoryStore(objects))
    store, _ = resolve(objects)
    assert store.get("g/t/c/0") is not None


def test_stores_with_versions_are_unwrapped_and_wrappers_are_not(
    group_path: Path,
) -> None:
    inner = zarr.storage.LocalStore(group_path)
    assert isinstance(resolve(inner)[0], LocalStore)
    assert isinstance(resolve(LoggingStore(inner))[0], ZarrStore)


def test_obstore_stores_are_read_without_zarr() -> None:
    reason = "obstore is not installed"
    obstores = pytest.importorskip("obstore.store", reason=reason)
    memory = obstores.MemoryStore()
    wrapped = zarr.storage.ObjectStore(memory)
    write_array(wrapped)
    for target in (memory, wrapped):
        store, _ = resolve(target)
        assert isinstance(store, RemoteStore)
        (fetched,) = store.read([ByteRequest("g/t/c/0", -16)])
        assert fetched is not None
        assert fetched.version is not None
        assert store.list_children("g") == ["t", "zarr.json"]


@pytest.mark.parametrize("kind", ["files", "memory"])
def test_obstore_without_a_server_answers_ranges_that_have_no_bytes(
    kind: str, tmp_path: Path
) -> None:
    obstores = pytest.importorskip("obstore.store", reason="obstore is not installed")
    made = {
        "files": lambda: obstores.LocalStore(tmp_path),
        "memory": obstores.MemoryStore,
    }
    target = made[kind]()
    target.put("c/0", b"abc")
    target.put("c/1", b"")
    store, _ = resolve(target)
    spans = [("c/0", 3, 5), ("c/0", 7, None), ("c/1", 0, 1), ("c/1", 0, None)]
    answers = store.read([ByteRequest(*span) for span in spans])
    assert [a and (a.data.tobytes(), a.object_nbytes) for a in answers] == [
        *[(b"", 3)] * 2,
        *[(b"", 0)] * 2,
    ]


def test_obstore_on_local_files_notices_a_replaced_file(tmp_path: Path) -> None:
    reason = "obstore is not installed"
    obstores = pytest.importorskip("obstore.store", reason=reason)
    write_array(tmp_path / "data.zarr")
    store, path = resolve(obstores.LocalStore(tmp_path / "data.zarr"), "g/t")
    key = f"{path}/c/0"
    (fetched,) = store.read([ByteRequest(key, -16)])
    assert fetched is not None
    (again,) = store.read([ByteRequest(key, 0, 4, fetched.version)])
    assert again is not None
    assert not store.costs.prefers_whole_objects
    (tmp_path / "new").write_bytes(b"x" * 100)
    (tmp_path / "new").replace(tmp_path / "data.zarr" / key)
    with pytest.raises(ObjectChangedError):
        store.read([ByteRequest(key, 0, 4, fetched.version)])


def test_own_store_is_taken_as_it_is(group_path: Path) -> None:
    own = LocalStore(group_path)
    assert resolve(own, "g/t") == (own, "g/t")


@pytest.mark.network
def test_http_url_is_a_store_of_a_web_server(group_path: Path) -> None:
    with RangeServer(group_path.parent) as server:
        store, path = resolve(f"{server.url}/data.zarr", "g/t")
        assert isinstance(store, HttpStore)
        assert path == "g/t"
        assert store.get("g/t/zarr.json") is not None


def test_fsspec_reads_the_other_schemes(tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    write_array(f"memory://{tmp_path}")
    store, path = resolve(f"memory://{tmp_path}", "g/t")
    assert isinstance(store, ZarrStore)
    assert store.get(f"{path}/zarr.json") is not None
    with pytest.raises(UnsupportedError, match="nonsense"):
        resolve("nonsense://x/y")


def test_fsspec_reads_chains_of_file_systems(tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    write_array(tmp_path / "data.zarr")
    store, path = resolve(f"simplecache::file://{tmp_path}/data.zarr", "g/t")
    assert isinstance(store, ZarrStore)
    assert store.get(f"{path}/zarr.json") is not None
    (tmp_path / "a::b").mkdir()
    assert isinstance(resolve(tmp_path / "a::b")[0], LocalStore)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def import_without_obstore(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "obstore":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", import_without_obstore)
    with pytest.raises(UnsupportedError, match=r"pip install 'gpushard\[remote\]'"):
        resolve("s3://bucket/data.zarr")


@pytest.fixture
def no_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fsspec", "fsspec.core", "fsspec.registry"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("no_fsspec")
@pytest.mark.parametrize(
    ("url", "told"),
    [
        (
            "htp://host/x",
            "gpushard itself reads no htp:// URLs, and fsspec is not installed; you may"
            " have meant http:// or https://; if fsspec knows it, run: pip install"
            " fsspec.",
        ),
        (
            "sftp://host/x",
            "sftp:// URLs are read by fsspec, which is not installed; run: pip install"
            " 'fsspec[sftp]'.",
        ),
        (
            "zip::http://host/x.zip",
            "zip::http:// URLs are read by fsspec, which is not installed; run: pip"
            " install 'fsspec[http]'.",
        ),
    ],
)
def test_without_fsspec_a_url_says_what_to_type_or_to_install(
    url: str, told: str
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        gpushard.open_array(url)
    assert str(caught.value).replace(f" (array '{url}')", "") == told


@pytest.mark.usefixtures("no_fsspec")
def test_without_fsspec_a_chain_of_local_files_says_what_to_install() -> None:
    with pytest.raises(NotFoundError, match="zip:: URLs, run: pip install fsspec"):
        resolve("zip::/data/x.zip")


def test_an_unknown_scheme_names_those_like_it() -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    for url in ("htp://host/x", "zip://a::htp://host/x"):
        with pytest.raises(UnsupportedError, match=r"have meant http:// or https://"):
            resolve(url)
    with pytest.raises(UnsupportedError, match="check the URL's spelling"):
        resolve("nonsense://x/y")


def test_a_file_system_whose_package_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = pytest.importorskip("fsspec.registry", reason="fsspec is not installed")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(registry._registry, "s3", raising=False)
    with pytest.raises(UnsupportedError, match=r"pip install 'fsspec\[s3\]'"):
        resolve("zip::s3://bucket/x.zip")


def test_every_extra_of_fsspec_that_is_named_exists() -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    known = metadata("fsspec").get_all("Provides-Extra")
    assert {*fsspec_store._EXTRAS.values()} <= {*(known or ())}


@pytest.mark.parametrize("target", [None, 7, b"data.zarr", object()])
def test_anything_else_is_refused_in_one_sentence(target: object) -> None:
    with pytest.raises(UnsupportedError, match="cannot tell which store"):
        resolve(target)


def test_settings_without_a_url_are_refused(group_path: Path) -> None:
    for target in (MemoryStore(), group_path, str(group_path)):
        with pytest.raises(UnsupportedError, match="storage_options belong to a URL"):
            resolve(target, storage_options={"anon": True})


# --------------------------------------------------------------------------- addresses


def test_store_travels_to_another_process_by_its_address(group_path: Path) -> None:
    sent = address(resolve(group_path)[0])
    script = """
import pickle, sys
from gpushard.stores.resolve import from_address
sent = pickle.load(sys.stdin.buffer)
assert from_address(sent).get("g/t/c/0")
"""
    subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(sent), check=True, timeout=60
    )


@pytest.mark.network
def test_every_kind_of_store_with_an_address_comes_back(tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    memory = MemoryStore()
    write_array(memory)
    write_array(tmp_path / "data.zarr")
    with RangeServer(tmp_path / "data.zarr") as server:
        for target in (memory, tmp_path / "data.zarr", server.url):
            sent = address(resolve(target)[0])
            again = from_address(pickle.loads(pickle.dumps(sent)))
            assert again.get("g/t/c/0") is not None


def test_store_that_cannot_leave_the_process_has_no_address() -> None:
    reason = "obstore is not installed"
    obstores = pytest.importorskip("obstore.store", reason=reason)
    with pytest.raises(UnsupportedError, match="opened by another process"):
        address(resolve(obstores.MemoryStore())[0])


def test_local_paths_need_neither_zarr_nor_obstore(group_path: Path) -> None:
    script = """
import sys
from gpushard.stores.resolve import resolve
assert resolve(sys.argv[1])[0].get("g/t/zarr.json")
heavy = {"zarr", "obstore", "fsspec", "numcodecs"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", script, str(group_path)], check=True)


def test_path_that_leaves_the_store_is_refused_when_it_is_read(
    group_path: Path,
) -> None:
    store, path = resolve(group_path / "g", "../g/t")
    with pytest.raises(StoreError, match="no key below"):
        store.get(f"{path}/zarr.json")
    assert os.path.isfile(group_path / "g" / path / "zarr.json")


def test_a_setting_that_obstore_refuses_is_told_with_the_address():
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    with pytest.raises(StoreError, match=r"s3://bucket/x: .*nonsense"):
        resolve("s3://me:secret@bucket/x", storage_options={"nonsense": 1})


def test_an_array_inside_a_zip_file_is_named_by_one_path(tmp_path):
    path = tmp_path / "data.zip"
    with zarr.storage.ZipStore(path, mode="w") as writable:
        group = zarr.create_group(writable)
        group.create_array("deep/u", data=np.arange(4))
    store, inside = resolve(f"{path}/deep/u")
    assert inside == "deep/u"
    assert store.get("deep/u/zarr.json")
    assert resolve(path)[1] == ""
    assert resolve(f"{path}/deep", "u")[1] == "deep/u"


def test_an_empty_path_is_not_the_current_directory(tmp_path, monkeypatch):
    zarr.create_array(tmp_path / "a", data=np.arange(4))
    monkeypatch.chdir(tmp_path)
    for open_one in (gpushard.open_array, gpushard.open_group):
        with pytest.raises(gpushard.OptionError, match=r"is empty; pass '\.' for the"):
            open_one("")
    assert gpushard.open_array(".", "a").shape == (4,)
