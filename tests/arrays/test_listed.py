"""Sparse arrays: what a store lists is looked at, and nothing else is asked for."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import zarr
from fsspec.implementations.cached import SimpleCacheFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from zarr.storage import FsspecStore, MemoryStore, WrapperStore, ZipStore

import gpushard
from gpushard.inspection.verify import verify_array
from gpushard.listed import coordinate_of, each_of, listed_coordinates
from gpushard.moving.watch import watched
from gpushard.stores import base
from gpushard.stores.local import store as local
from gpushard.stores.zarr import fsspec_store
from gpushard.stores.zarr import listing as zarr_listing
from gpushard.stores.zarr.store import ZarrStore
from gpushard.writing.maintenance import repair_shards
from zarr_oracle import held

STORED = [(0, 0), (0, 7), (39, 0), (39, 39), (5, 20)]


def sparse(place, n=40, **given) -> zarr.Array:
    """Array of `n` by `n` shards of 2 x 2 inner chunks, of which five are stored."""
    form = {"chunks": (2, 2), "shards": (4, 4), "dtype": "u2", "fill_value": 0} | given
    z = zarr.create_array(place, shape=(4 * n, 4 * n), **form)
    for i, k in STORED:
        z[4 * i : 4 * i + 4, 4 * k : 4 * k + 4] = 1 + i
    return z


def source_of(place, path="", **options):
    options = gpushard.Options(**options)
    return gpushard.open_array(place, path, options=options).source


@pytest.fixture
def asked(monkeypatch):
    """Coordinates of the objects that a verification has asked for."""
    found: list[tuple[int, ...]] = []
    from gpushard.inspection.contents import contents_of

    def noted(source, some, *most):
        found.extend(some)
        return contents_of(source, some, *most)

    monkeypatch.setattr("gpushard.inspection.verify.contents_of", noted)
    return found


def keys_of(root: Path, prefix="") -> list[Sequence[str]]:
    listing = local.LocalStore(root).list_keys(prefix)
    assert listing is not None
    return [*listing]


def objects_of(root: Path) -> dict[str, bytes]:
    files = (f for f in root.rglob("*") if f.is_file())
    return {f.relative_to(root).as_posix(): f.read_bytes() for f in files}


def zipped(root: Path) -> ZipStore:
    name = shutil.make_archive(str(root.parent / "packed"), "zip", root)
    return ZipStore(name, mode="r")


def of_fsspec(root: Path) -> FsspecStore:
    fs = MemoryFileSystem()
    fs.rm("/listed", recursive=True) if fs.exists("/listed") else None
    for key, data in objects_of(root).items():
        fs.pipe(f"/listed/{key}", data)
    return FsspecStore.from_url("memory://listed", read_only=True)


def of_obstore(root: Path):
    obstore = pytest.importorskip("obstore", reason="the extra `remote` is missing")
    store = obstore.store.MemoryStore()
    for key, data in objects_of(root).items():
        obstore.put(store, key, data)
    return store


STORES = {
    "files": lambda root: root,
    "memory": lambda root: held(objects_of(root)),
    "wrapped": lambda root: WrapperStore(held(objects_of(root))),
    "zip": zipped,
    "fsspec": of_fsspec,
    "obstore": of_obstore,
}


def test_of_a_hundred_million_shards_only_those_are_read_that_are_stored(
    tmp_path, asked
):
    sparse(tmp_path / "a", n=10_000)
    told = []
    source = source_of(tmp_path / "a")
    result = verify_array(source, progress=lambda n, _: told.append(n))
    assert sorted(asked) == sorted(STORED)
    assert (result.status, sum(told)) == ("whole", 10**8)
    counts = result.counts
    assert (counts["n_shards"], counts["n_missing_shards"]) == (10**8, 10**8 - 5)
    assert counts["n_inner_chunks"] == 5 * 4


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("encoding", ["default", "v2"])
def test_every_store_that_lists_is_asked_for_nothing_else(
    kind, encoding, tmp_path, asked
):
    keys = {"name": encoding, "separator": "." if encoding == "v2" else "/"}
    root = tmp_path / "a"
    sparse(root, chunk_key_encoding=keys)
    result = verify_array(source_of(STORES[kind](root)), decodes=True)
    assert sorted(asked) == sorted(STORED)
    assert (result.status, result.counts["n_checked_inner_chunks"]) == ("whole", 20)
    assert result.counts["n_missing_shards"] == 1595


def test_a_small_grid_is_asked_for_at_once(tmp_path):
    zarr.create_array(tmp_path / "a", shape=(1000,), chunks=(1,), dtype="u1")
    zarr.create_array(tmp_path / "b", shape=(1001,), chunks=(1,), dtype="u1")
    assert listed_coordinates(source_of(tmp_path / "a")) is None
    found = listed_coordinates(source_of(tmp_path / "b"))
    assert found is not None
    assert list(each_of(found)) == []


def test_objects_outside_the_grid_are_no_shards(tmp_path, asked):
    root = tmp_path / "a"
    sparse(root, n=40)
    for key in (
        "c/40/0",
        "c/00/1",
        "c/0",
        "c/-1/0",
        "c/1/1/1",
        "c/1/x",
        "d/1/1",
        "c/+1/1",
    ):
        path = root / key
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"else")
    (root / "c" / "3" / ".9.lock").parent.mkdir()
    (root / "c" / "3" / "8.tmp").touch()
    result = verify_array(source_of(root))
    # A directory is asked for where an object should be.
    assert set(asked) == {*STORED, (1, 1)}
    assert [f.kind for f in result.findings] == ["unreadable"]
    assert result.counts["n_shards"] == 1600
    assert result.counts["n_unread_shards"] == 1


def test_numbers_that_no_coordinate_has_are_no_shards():
    objects = {}
    sparse(objects, n=40)
    store = held({"c/" + "1" * 5000 + "/0": b"", f"c/{2**63}/0": b""})
    store._store_dict.update(objects)
    found = listed_coordinates(source_of(store))
    assert found is not None
    assert list(each_of(found)) == sorted(STORED)
    layout = source_of(store).layout
    assert coordinate_of(layout, "c/3/2") == (3, 2)
    assert coordinate_of(layout, "c/03/2") is None
    assert coordinate_of(layout, "x/c/3/2") is None


def test_what_a_listing_cannot_show_is_asked_for(tmp_path, asked):
    root = tmp_path / "a"
    sparse(root)
    (root / "c" / "7").symlink_to(tmp_path / "not-mounted")
    with pytest.raises(gpushard.StoreError, match="'c/7' leads nowhere"):
        verify_array(source_of(root))
    assert (7, 0) in asked


def test_a_link_to_a_directory_is_followed(tmp_path, asked):
    root = tmp_path / "a"
    sparse(root)
    (root / "c" / "39").rename(root / "moved")
    (root / "c" / "39").symlink_to(root / "moved")
    assert verify_array(source_of(root)).counts["n_missing_shards"] == 1595
    assert sorted(asked) == sorted(STORED)


def test_links_in_a_circle_are_a_store_error(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "up").symlink_to(tmp_path)
    with pytest.raises(gpushard.StoreError, match="circle"):
        keys_of(tmp_path)


class Unlisted(WrapperStore[MemoryStore]):
    @property
    def supports_listing(self):
        return False


class Failing(WrapperStore[MemoryStore]):
    async def list_prefix(self, prefix):
        yield f"{prefix}zarr.json"
        raise RuntimeError("lost")


class Empty(WrapperStore[MemoryStore]):
    async def list_prefix(self, prefix):
        for _ in prefix:
            yield "x/y"


class Substituting(WrapperStore[MemoryStore]):
    """Answers with more than the store below it has."""

    async def get(self, key, prototype, byte_range=None):
        key = "c/0/0" if key == "c/8/8" else key
        return await super().get(key, prototype, byte_range)


@pytest.mark.parametrize("kind", [Unlisted, Failing, Empty, Substituting])
def test_stores_that_do_not_list_all_that_they_have_are_asked(kind, tmp_path, asked):
    sparse(tmp_path / "g/a")
    store = kind(held(objects_of(tmp_path / "g")))
    if kind is Substituting:
        store = kind(held(objects_of(tmp_path / "g/a")))
    result = verify_array(source_of(store, "" if kind is Substituting else "a"))
    assert len(asked) == 1600
    n_stored = 6 if kind is Substituting else 5
    assert result.counts["n_missing_shards"] == 1600 - n_stored


def test_more_keys_than_may_be_held_are_not_listed(tmp_path, monkeypatch):
    sparse(tmp_path / "a")
    monkeypatch.setattr("gpushard.listed._LEAST_LISTED", 5)
    assert listed_coordinates(source_of(tmp_path / "a")) is not None
    assert listed_coordinates(source_of(tmp_path / "a", memory_limit=64)) is None


def test_rolling_arrays_check_each_missing_shard_against_their_window(tmp_path):
    sparse(tmp_path / "a")
    source = source_of(tmp_path / "a")
    layout = source.layout.over((0, 1), source.layout.shape)
    store = watched(source.store, layout, gpushard.options.DEFAULT)
    assert isinstance(store, base.ListingStore)
    assert store.list_keys("") is None
    found = listed_coordinates(replace(source, layout=layout))
    assert found is not None
    assert list(each_of(found)) == [(0, 6), (5, 19), (39, 38)]


def test_a_write_that_was_cut_off_is_told_where_nothing_was_stored(tmp_path):
    root = tmp_path / "a"
    sparse(root)
    (root / "c" / "20").mkdir()
    (root / "c" / "20" / ".3.undo").write_bytes(b"")
    (found,) = verify_array(source_of(root)).findings
    assert (found.kind, found.shard_key) == ("note", "c/20/3")


def test_repairs_look_at_what_is_listed(tmp_path, monkeypatch):
    sparse(tmp_path / "a", n=10_000)
    seen = []

    def noted(_, key):
        seen.append(key)
        return False

    writer = "gpushard.writing.maintenance.FileWriter.has_remains"
    monkeypatch.setattr(writer, noted)
    repair_shards(source_of(tmp_path / "a"))
    assert sorted(seen) == sorted(f"c/{i}/{k}" for i, k in STORED)


def test_file_systems_forget_what_they_listed_before():
    class Remembering(MemoryFileSystem):
        n_forgotten = 0

        def invalidate_cache(self, path=None):
            self.n_forgotten += 1

    fs = Remembering(skip_instance_cache=True)
    assert fsspec_store.lists_anew(fs)
    assert fs.n_forgotten == 1
    cache = SimpleCacheFileSystem(fs=fs, cache_storage="TMP")
    assert not fsspec_store.lists_anew(cache)
    http = pytest.importorskip("fsspec.implementations.http").HTTPFileSystem
    assert not fsspec_store.lists_anew(http(asynchronous=True))


@pytest.mark.parametrize("n", [0, 3])
def test_names_are_listed_some_at_a_time(n, tmp_path, monkeypatch):
    monkeypatch.setattr("gpushard.stores.local.root._LISTED_AT_ONCE", 2)
    for i in range(n):
        (tmp_path / "d").mkdir(exist_ok=True)
        (tmp_path / "d" / str(i)).touch()
    listing = keys_of(tmp_path)
    assert max(map(len, listing), default=0) <= 2
    want = {"d", "d/0", "d/1", "d/2"} if n else set()
    assert {key for keys in listing for key in keys} == want
    assert keys_of(tmp_path, "none") == []
    assert len(listing) == (3 if n else 0)


def test_files_are_listed_where_the_document_lies_elsewhere(tmp_path, asked):
    a = gpushard.create_array(
        tmp_path, "a", format="v3-draft-transformer",
        shape=(4000,), chunks=(1,), shards=(2,), dtype="u1",
    )  # fmt: skip
    a[7] = 1
    assert verify_array(source_of(tmp_path, "a")).counts["n_missing_shards"] == 1999
    assert asked == [(3,)]


def test_a_listing_of_a_zarr_store_that_is_left_early_is_ended(monkeypatch):
    monkeypatch.setattr(zarr_listing, "_KEYS_AT_ONCE", 1)
    listings, ended = [], []

    class Noting(MemoryStore):
        def list_prefix(self, prefix):
            listings.append(self._listed())  # which keeps it from the collector
            return listings[0]

        async def _listed(self):
            try:
                yield "a"
                yield "b"
            finally:
                ended.append(True)

    keys = ZarrStore(Noting()).list_keys("")
    assert next(keys) == ["a"]
    keys.close()
    assert ended == [True]


def test_a_class_that_changes_nothing_lists_what_its_base_lists():
    class Named(MemoryStore):
        pass

    class Wrapping(WrapperStore):
        pass

    for store in (Named(), Wrapping(Named())):
        assert zarr_listing.lists_all(store)
