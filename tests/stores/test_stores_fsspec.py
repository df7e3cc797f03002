"""fsspec's mappings, paths, caches and archives, as their users name them."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import pickle
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from zarr.storage import FsspecStore

import gpushard
from gpushard.errors import NotFoundError, OptionError, StoreError
from gpushard.stores.local.store import LocalStore
from gpushard.stores.resolve import adapt, resolve
from gpushard.stores.zarr.store import ZarrStore
from zarr_oracle import assert_same_bits

VALUES = np.arange(40 * 6, dtype="i4").reshape(40, 6)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    z = zarr.create_group(tmp_path / "data.zarr").create_array(
        "a", shape=(40, 6), chunks=(2, 3), shards=(10, 6), dtype="i4"
    )
    z[...] = VALUES
    return tmp_path / "data.zarr"


@pytest.fixture
def in_memory(written: Path) -> str:
    """Path of the same data in fsspec's file system in memory."""
    fs = fsspec.filesystem("memory")
    for file in written.rglob("*"):
        if file.is_file():
            fs.pipe_file(str(file), file.read_bytes())
    return str(written)


@pytest.fixture
def zipped(written: Path) -> Path:
    path = written.parent / "data.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in written.rglob("*"):
            archive.write(file, file.relative_to(written))
    return path


def test_a_mapping_names_the_directory_of_its_file_system(in_memory, written):
    mapping = fsspec.filesystem("memory").get_mapper(in_memory)
    assert_same_bits(gpushard.open_array(mapping, "a")[...], VALUES)
    assert sorted(gpushard.open_group(mapping)) == ["a"]
    store, path = resolve(fsspec.get_mapper(str(written)), "a")
    assert isinstance(store, LocalStore)
    assert (store.root, path) == (str(written), "a")


def test_a_upath_names_the_directory_of_its_file_system(in_memory, written):
    class MemoryPath:
        """What is used of universal_pathlib's, which is no path of the system."""

        fs = fsspec.filesystem("memory")
        path = f"{in_memory}/"

    class PosixUPath(MemoryPath):
        fs = fsspec.filesystem("file")

    MemoryPath.__module__ = "upath.implementations.memory"
    assert_same_bits(gpushard.open_array(MemoryPath(), "a")[...], VALUES)
    for PosixUPath.path in (f"{written}/", "/"):
        store, _ = resolve(PosixUPath())
        assert isinstance(store, LocalStore)
        assert store.root == str(Path(PosixUPath.path))


def test_paths_of_universal_pathlib_are_understood(in_memory, written):
    upath = pytest.importorskip("upath", reason="universal_pathlib is not installed")
    for path in (upath.UPath(written), upath.UPath(f"memory://{in_memory}")):
        assert_same_bits(gpushard.open_array(path, "a")[...], VALUES)


def test_references_are_named_by_their_path_behind_two_colons(
    written, tmp_path, monkeypatch
):
    """As fsspec and xarray have it: no // stands in such a chain."""
    files = [file for file in written.rglob("*") if file.is_file()]
    refs = {str(file.relative_to(written)): [str(file)] for file in files}
    place = tmp_path / "refs.json"
    place.write_text(json.dumps({"version": 1, "refs": refs}))
    group = gpushard.open_group(f"reference::{place}")
    assert_same_bits(group["a"][...], VALUES)
    # No file system of fsspec has this name.
    (tmp_path / "run::1.zarr").symlink_to(written)
    monkeypatch.chdir(tmp_path)
    assert_same_bits(gpushard.open_array("run::1.zarr/a")[...], VALUES)
    for name in ("run::absent", "file::absent"):
        with pytest.raises(NotFoundError, match=f"no directory '{name}'"):
            gpushard.open_group(name)


@pytest.mark.parametrize("chain", ["zip", "simplecache::zip"])
def test_an_error_of_a_chain_without_slashes_names_its_first_scheme(chain, tmp_path):
    first = chain.partition("::")[0]
    with pytest.raises(StoreError, match=f"cannot open {first}:: URLs: FileNotFound"):
        gpushard.open_array(f"{chain}::{tmp_path}/absent.zip")


def test_asynchronous_nodes_of_zarr_name_their_places(written):
    opened = asyncio.run(zarr.api.asynchronous.open_array(store=written, path="a"))
    assert_same_bits(gpushard.open_array(opened)[3], VALUES[3])
    group = asyncio.run(zarr.api.asynchronous.open_group(store=written))
    assert sorted(gpushard.open_group(group)) == ["a"]


# "blockcache" leaves files open, which pytest takes for an error of a later test.
@pytest.mark.parametrize("scheme", ["simplecache", "filecache"])
def test_caches_of_fsspec_are_read_and_filled(scheme, written):
    kept = written.parent / "kept"
    how = {scheme: {"cache_storage": str(kept)}}
    url = f"{scheme}::file://{written}"
    a = gpushard.open_array(url, "a", storage_options=how)
    assert_same_bits(a[...], VALUES)
    assert_same_bits(a[::3, 1:4], VALUES[::3, 1:4])
    assert_same_bits(pickle.loads(pickle.dumps(a))[...], VALUES)
    assert len([*kept.iterdir()]) >= 4  # a file for each shard
    mapping = fsspec.get_mapper(url, **how)
    assert_same_bits(gpushard.open_array(mapping, "a")[...], VALUES)


def test_a_cache_over_asynchronous_file_systems_reads_through_the_cache(written):
    """As over s3fs, which zarr reads past the cache or in another event loop."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.implementations.local import LocalFileSystem

    fs = LocalFileSystem()

    class Remote(AsyncFileSystem):
        protocol = "remote"

        async def _info(self, path: str, **_: Any) -> Any:
            assert threading.current_thread().name == "fsspecIO", "another loop"
            return fs.info(path)

        async def _cat_file(self, path, start=None, end=None, **_):
            raise AssertionError("read past the cache")

        async def _get_file(self, path: str, to: str, **_: Any) -> None:
            fs.get_file(path, to)

        async def _ls(self, path: str, detail: bool = True, **_: Any) -> Any:
            return fs.ls(path, detail=detail)

    cache = fsspec.filesystem("simplecache", fs=Remote())
    a = gpushard.open_array(cache.get_mapper(str(written)), "a")
    assert_same_bits(a[...], VALUES)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_reads_an_archive_that_the_parent_was_reading(zipped):
    # In a process of its own: forking one with threads warns since Python 3.12.
    script = """
import os, signal, sys, warnings
import fsspec, gpushard
from gpushard.stores.zarr import one_at_a_time
warnings.simplefilter("ignore")
a = gpushard.open_array(fsspec.filesystem("zip", fo=sys.argv[1]).get_mapper(""), "a")
expected = a[...]
(turn,) = one_at_a_time._locks.values()
turn.lock.acquire()
pid = os.fork()
if pid == 0:
    signal.alarm(5)
    os._exit(0 if (a[...] == expected).all() else 1)
turn.lock.release()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", script, str(zipped)], check=True, timeout=30)


def directory_of(zipped: Path) -> Any:
    """A directory in an archive; zarr makes no store of one by its URL."""
    from fsspec.implementations.dirfs import DirFileSystem

    return DirFileSystem("a", fsspec.filesystem("zip", fo=str(zipped)))


def store_of(kind: str, zipped: Path) -> tuple[Any, str]:
    """What names the archive's array, and its path in that."""
    url = f"zip::file://{zipped}"
    if kind == "url":
        return url, "a"
    if kind == "store":
        return FsspecStore.from_url(url, read_only=True), "a"
    if kind == "mapping of a directory":
        return directory_of(zipped).get_mapper(""), ""
    in_a_loop = AsyncFileSystemWrapper(directory_of(zipped), asynchronous=True)
    return FsspecStore(in_a_loop, path="", read_only=True), ""


@pytest.mark.parametrize(
    "kind", ["url", "store", "mapping of a directory", "store of a directory"]
)
def test_archives_are_read_by_one_thread_at_a_time(kind, zipped, monkeypatch):
    """Threads get bytes of other places from zipfile, in about half of all reads."""
    from fsspec.implementations.zip import ZipFileSystem

    at_once: list[int] = []
    running: set[int] = set()
    cat_file = ZipFileSystem.cat_file

    def noting(self: Any, *where: Any, **options: Any) -> bytes:
        running.add(threading.get_ident())
        at_once.append(len(running))
        time.sleep(0.001)  # others begin, if they may
        try:
            return cat_file(self, *where, **options)
        finally:
            running.discard(threading.get_ident())

    monkeypatch.setattr(ZipFileSystem, "cat_file", noting)
    arrays = [gpushard.open_array(*store_of(kind, zipped)) for _ in range(2)]
    arrays.append(pickle.loads(pickle.dumps(arrays[0])))
    with ThreadPoolExecutor(3) as threads:
        for read in threads.map(lambda a: a[...], arrays):
            assert_same_bits(read, VALUES)
    assert max(at_once) == 1
    assert len(at_once) > 3 * 4


@pytest.mark.parametrize("scheme", ["zip", "simplecache::zip"])
def test_a_url_names_the_place_inside_of_an_archive(scheme, zipped):
    a = gpushard.open_array(f"{scheme}://a::file://{zipped}")
    assert_same_bits(a[...], VALUES)
    group = gpushard.open_group(f"{scheme}://::file://{zipped}")
    assert sorted(group) == ["a"]


def test_arrays_of_an_archive_share_a_turn_after_others_of_it_are_gone(zipped):
    from gpushard.stores.zarr import one_at_a_time

    first, second = [fsspec.get_mapper(f"zip::file://{zipped}") for _ in range(2)]
    others = gpushard.open_array(first, "a")
    a = gpushard.open_array(second, "a")
    del first, others
    gc.collect()
    before = set(one_at_a_time._locks.values())
    again = gpushard.open_array(second, "a")
    assert set(one_at_a_time._locks.values()) == before
    assert_same_bits(again[...], a[...])


def test_a_directory_of_an_archive_shares_the_turn_of_the_archive(zipped):
    from gpushard.stores.zarr import one_at_a_time

    fs = directory_of(zipped)
    a = gpushard.open_array(fs.fs.get_mapper(""), "a")
    before = set(one_at_a_time._locks.values())
    assert before
    both = AsyncFileSystemWrapper(fs.fs, asynchronous=True)
    for inner in (
        AsyncFileSystemWrapper(fs, asynchronous=True),
        type(fs)("a", both, asynchronous=True),
    ):
        opened = gpushard.open_array(FsspecStore(inner, path="", read_only=True))
        assert set(one_at_a_time._locks.values()) == before
        assert_same_bits(opened[3:5], a[3:5])


def test_other_stores_of_fsspec_stay_as_they_are(in_memory):
    store = FsspecStore.from_url(f"memory://{in_memory}")
    adapted = adapt(store, gpushard.Options())
    assert isinstance(adapted, ZarrStore)
    assert adapted.zarr_store is store


def test_a_directory_of_an_asynchronous_file_system_stays_as_it_is():
    pytest.importorskip("aiohttp", reason="fsspec's own client of web servers needs it")
    from fsspec.implementations.dirfs import DirFileSystem

    behind = fsspec.filesystem("http", asynchronous=True)
    below = DirFileSystem("http://host.invalid/a", behind, asynchronous=True)
    store = FsspecStore(below, path="", read_only=True)
    adapted = adapt(store, gpushard.Options())
    assert isinstance(adapted, ZarrStore)
    assert adapted.zarr_store is store


def test_s3fs_names_of_settings_are_understood():
    pytest.importorskip("obstore", reason="URLs need obstore (extra `remote`)")
    from gpushard.stores.remote import RemoteStore

    how = {
        "key": "k",
        "secret": "s",
        "requester_pays": True,
        "client_kwargs": {"endpoint_url": "http://host:1", "region_name": "here"},
    }
    store, _ = resolve("s3://bucket/x", storage_options=how)
    assert isinstance(store, RemoteStore)
    config = store.object_store.config
    told = {name.removeprefix("aws_"): value for name, value in config.items()}
    assert told["endpoint"] == told.get("endpoint_url", "http://host:1")
    assert told["region"] == "here"
    assert told["request_payer"] in (True, "true")
    with pytest.raises(OptionError, match="client_kwargs"):
        resolve("s3://bucket/x", storage_options={"client_kwargs": "no"})
