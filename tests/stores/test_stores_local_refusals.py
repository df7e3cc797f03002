"""Local keys, links and files that are refused, and how."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from damaged_arrays import WAYS, on_host, opened
from gpushard.errors import StoreError
from gpushard.stores.base import ByteRequest
from gpushard.stores.local import root as places
from gpushard.stores.local.store import LocalStore
from spec_shards import document, shard_of, sharding
from stored_object import BODY, read_one, write_object


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_object(tmp_path / "data.zarr")


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)


@pytest.mark.parametrize(
    "key",
    [
        "../secret",
        "c/../../secret",
        "/etc/hostname",
        "c//0",
        "c/./0",
        "",
        "c\\0",
        "c\0",
        "\ud800",
    ],
)
def test_keys_that_leave_the_root_are_refused(store: LocalStore, key: str) -> None:
    (Path(store.root).parent / "secret").write_text("secret")
    for ask in (store.get, store.current_version):
        with pytest.raises(StoreError, match="no key below"):
            ask(key)


@pytest.mark.parametrize("prefix", ["..", "c/..", "c\0"])
def test_listing_does_not_leave_the_root(store: LocalStore, prefix: str) -> None:
    with pytest.raises(StoreError):
        store.list_children(prefix)


@pytest.mark.parametrize("is_directory", [False, True])
def test_links_out_of_the_root_are_refused_unless_allowed(
    tmp_path: Path, root: Path, is_directory: bool
) -> None:
    outside = tmp_path / "data.zarr-outside"
    outside.mkdir()
    (outside / "0").write_bytes(b"outside")
    link = root / ("d" if is_directory else "0")
    link.symlink_to(outside if is_directory else outside / "0")
    key = "d/0" if is_directory else "0"
    with pytest.raises(StoreError, match="symbolic link leads out"):
        LocalStore(root).get(key)
    assert LocalStore(root, allow_symlinks_outside=True).get(key) == b"outside"
    if is_directory:
        with pytest.raises(StoreError, match="symbolic link leads out"):
            LocalStore(root).list_children("d")


@pytest.mark.parametrize("allowed", [False, True])
def test_whether_links_may_lead_out_is_fixed_once_a_store_is_made(
    root: Path, allowed: bool
) -> None:
    store = LocalStore(root, allow_symlinks_outside=allowed)
    with pytest.raises(AttributeError):
        store.allow_symlinks_outside = not allowed  # type: ignore[misc]
    for one in (store, pickle.loads(pickle.dumps(store))):
        assert one.allow_symlinks_outside is allowed


def test_links_are_checked_without_proc_too(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readlink = os.readlink

    def read_no_proc(path: str, **kwargs: Any) -> str:
        if os.fspath(path).startswith("/proc/"):
            raise FileNotFoundError(path)
        return readlink(path, **kwargs)

    (tmp_path / "secret").write_text("secret")
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "in").symlink_to(root / "c" / "0")
    monkeypatch.setattr(os, "readlink", read_no_proc)
    assert LocalStore(root).get("in") == BODY
    with pytest.raises(StoreError, match="symbolic link leads out"):
        LocalStore(root).get("out")


def test_links_inside_the_root_and_to_the_root_are_followed(
    tmp_path: Path, root: Path
) -> None:
    (root / "1").symlink_to(root / "c" / "0")
    (tmp_path / "alias").symlink_to(root)
    store = LocalStore(tmp_path / "alias")
    assert store.get("1") == BODY
    assert store.get("c/0") == BODY


@pytest.mark.parametrize("allow", [False, True])
@pytest.mark.parametrize("link", ["c/1", "d", "d/e"])
def test_links_that_lead_nowhere_are_no_missing_objects(
    root: Path, link: str, allow: bool
) -> None:
    """git-annex leaves such links where it has not fetched a file."""
    (root / "d").mkdir(exist_ok=True)
    if link == "d":
        (root / "d").rmdir()
    (root / link).symlink_to("../nowhere")
    store = LocalStore(root, allow_symlinks_outside=allow)
    key = link if link == "c/1" else "d/e/f"
    with pytest.raises(StoreError, match=f"link '{link}' leads nowhere") as caught:
        store.read([ByteRequest(key)])
    assert caught.value.shard_key == key
    assert store.read([ByteRequest(k) for k in ("c/2", "g/h/i", "c/0/1")]) == [None] * 3


@pytest.mark.parametrize("is_known", [False, True])
def test_links_are_seen_where_the_system_looks_only_behind_them(
    root: Path, monkeypatch: pytest.MonkeyPatch, request, is_known: bool
) -> None:
    """As where Docker's older profiles meet a newer C library."""
    access = os.access

    def behind_links(path, mode, *, follow_symlinks=True) -> bool:
        return follow_symlinks and access(path, mode)

    monkeypatch.setattr(os, "access", behind_links)
    known = {behind_links} if is_known else set()
    monkeypatch.setattr(os, "supports_follow_symlinks", known)
    places._look_at_links.cache_clear()
    request.addfinalizer(places._look_at_links.cache_clear)
    (root / "c" / "1").symlink_to("../nowhere")
    with pytest.raises(StoreError, match="link 'c/1' leads nowhere"):
        LocalStore(root).get("c/1")
    assert LocalStore(root).get("c/2") is None


@pytest.mark.parametrize("way", WAYS)
def test_a_shard_behind_a_link_that_leads_nowhere_is_never_filled(
    tmp_path: Path, way: str
) -> None:
    shard = shard_of(b"ab", b"cd")
    meta = document((12,), (4,), sharding((2,)), fill_value=9)
    (tmp_path / "zarr.json").write_text(json.dumps(meta))
    (tmp_path / "c").mkdir()
    (tmp_path / "fetched").write_bytes(shard)
    (tmp_path / "c" / "0").symlink_to("../fetched")
    a = opened(tmp_path, way)
    want = [*b"abcd", *[9] * 8]
    assert on_host(a[...]).tolist() == want
    (tmp_path / "fetched").unlink()
    for key in (np.s_[...], np.s_[1], np.s_[::-5]):
        for errors in ("raise", "fill"):
            with pytest.raises(StoreError, match="leads nowhere"):
                a.read(key, errors=errors)
    assert on_host(a[4:]).tolist() == want[4:]
    (tmp_path / "fetched").write_bytes(shard)
    assert on_host(a[...]).tolist() == want


def test_a_directory_that_is_moved_after_a_file_of_it_was_opened_is_gone(
    root: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def moved(_: int, path: str) -> str:
        root.rename(root.with_name("elsewhere"))
        return path.replace(root.name, "elsewhere")

    monkeypatch.setattr(places, "path_of", moved)
    with pytest.raises(StoreError, match="directory is gone"):
        read_one(store)


@pytest.mark.parametrize("way", WAYS)
def test_an_array_whose_store_is_gone_is_never_filled(tmp_path: Path, way: str) -> None:
    """As when a disk is unmounted under a process."""
    root, away = tmp_path / "a.zarr", tmp_path / "away"
    (root / "c").mkdir(parents=True)
    meta = document((12,), (4,), sharding((2,)), fill_value=9)
    (root / "zarr.json").write_text(json.dumps(meta))
    (root / "c" / "0").write_bytes(shard_of(b"ab", b"cd"))
    a = opened(root, way)
    want = on_host(a[...]).tolist()
    store = pickle.dumps(LocalStore(root))
    root.rename(away)
    with pytest.raises(StoreError, match="directory is gone"):
        pickle.loads(store).read([ByteRequest("c/1")])
    for key in (np.s_[4:], np.s_[9], np.s_[...]):
        for errors in ("raise", "fill"):
            with pytest.raises(StoreError, match="directory is gone"):
                a.read(key, errors=errors)
    root.touch()  # a file has taken its place
    for key in (np.s_[4:], np.s_[9], np.s_[...]):
        with pytest.raises(StoreError, match="directory is gone"):
            a.read(key)
    root.unlink()
    away.rename(root)
    assert on_host(a[...]).tolist() == want


def test_a_store_that_never_was_has_no_objects(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "later")
    assert store.read([ByteRequest("c/0")]) == [None]
    (tmp_path / "later" / "c").mkdir(parents=True)
    assert store.read([ByteRequest("c/0")]) == [None]
    shutil.rmtree(tmp_path / "later")
    with pytest.raises(StoreError, match="directory is gone"):
        store.read([ByteRequest("c/0")])
    with pytest.raises(StoreError, match="directory is gone"):
        store.list_children("c")


def test_circle_of_links_is_a_store_error(store: LocalStore, root: Path) -> None:
    (root / "a").symlink_to(root / "b")
    (root / "b").symlink_to(root / "a")
    with pytest.raises(StoreError, match="circle"):
        store.get("a")


def test_directory_in_place_of_a_shard_is_a_store_error(store: LocalStore) -> None:
    with pytest.raises(StoreError, match="expected a regular file, got a directory"):
        store.read([ByteRequest("c")])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no fifos")
def test_fifo_in_place_of_a_shard_does_not_block(store: LocalStore, root: Path) -> None:
    os.mkfifo(root / "c" / "1")
    with pytest.raises(StoreError, match="special file"):
        store.read([ByteRequest("c/1")])


def test_denied_permission_is_one_sentence(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Planted, because a superuser is never denied.
    def deny(path: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "open", deny)
    with pytest.raises(StoreError, match="Permission denied") as caught:
        read_one(store)
    assert str(caught.value) == (
        f"cannot read from {store.url}: Permission denied (shard 'c/0'); "
        "check the permissions of the file and its directories."
    )


def test_failing_disk_is_a_store_error(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int, buffers: Any, offset: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(StoreError, match="Input/output error"):
        read_one(store)


def test_messages_call_only_shards_shards(store: LocalStore, root: Path) -> None:
    (root / "zarr.json").mkdir()
    with pytest.raises(StoreError, match=r"'zarr\.json' in file://") as caught:
        store.get("zarr.json")
    assert caught.value.shard_key is None
