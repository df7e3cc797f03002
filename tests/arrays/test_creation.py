"""`create_array` makes what zarr's would, or says why not, and then makes nothing."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, GzipCodec, ShardingCodec, ZstdCodec
from zarr.storage import FsspecStore, LocalStore, MemoryStore

import gpushard
from gpushard.creation import opened_or_made
from gpushard.hierarchies import documents
from gpushard.options import Options
from gpushard.stores.resolve import resolve
from gpushard.stores.writers import writer_of
from gpushard.write_options import WriteOptions
from range_server import RangeServer

PLAIN = {"shape": (8, 8), "dtype": "f4", "chunks": (2, 2), "shards": (4, 4)}


def document(place) -> dict:
    return json.loads((place / "zarr.json").read_text())


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"shards": None},
        {"compressors": None},
        {"compressors": ZstdCodec(level=3)},
        {"compressors": [BloscCodec(typesize=4), GzipCodec()]},
        {"shards": {"shape": (4, 4), "index_location": "start"}},
        {"fill_value": 1.5},
        {"dimension_names": ["y", None], "attributes": {"units": "K"}},
        {"chunk_key_encoding": {"name": "v2", "separator": "."}},
        {"shape": 8, "chunks": 2, "shards": 4},
        {"shape": [8, 8], "chunks": [2, 2], "shards": [4, 4]},
        {name: np.array(PLAIN[name]) for name in ("shape", "chunks", "shards")},
    ],
)
def test_the_document_is_the_one_that_zarr_writes(arguments, tmp_path):
    arguments = PLAIN | arguments
    gpushard.create_array(tmp_path / "ours", **arguments)
    shapes = {
        name: (value,) if isinstance(value, int) else tuple(map(int, value))
        for name, value in arguments.items()
        if name in ("shape", "chunks", "shards") and not isinstance(value, dict | None)
    }
    zarr.create_array(tmp_path / "theirs", **arguments | shapes)
    assert document(tmp_path / "ours") == document(tmp_path / "theirs")


def test_the_index_is_little_endian_with_a_checksum_at_the_end(tmp_path):
    gpushard.create_array(tmp_path / "a", **PLAIN)
    (sharding,) = document(tmp_path / "a")["codecs"]
    configuration = sharding["configuration"]
    assert configuration["index_location"] == "end"
    names = [codec["name"] for codec in configuration["index_codecs"]]
    assert names == ["bytes", "crc32c"]
    assert configuration["index_codecs"][0]["configuration"] == {"endian": "little"}


def test_the_strategy_is_not_stored(tmp_path):
    a = gpushard.create_array(tmp_path / "a", **PLAIN, write_strategy="append_only")
    gpushard.create_array(tmp_path / "b", **PLAIN)
    assert document(tmp_path / "a") == document(tmp_path / "b")
    assert a.source.options.write.strategy == "append_only"
    assert Options().write == WriteOptions()


def test_nested_shards_are_made_through_the_serializer(tmp_path):
    a = gpushard.create_array(
        tmp_path / "a",
        shape=(16, 16),
        dtype="i4",
        chunks=(8, 8),
        shards=(16, 16),
        serializer=ShardingCodec(chunk_shape=(4, 4), codecs=[zarr.codecs.BytesCodec()]),
        compressors=None,
    )
    want = np.arange(256, dtype="i4").reshape(16, 16)
    a[...] = want
    a[3:5, 7] = want[3:5, 7] = -1
    assert len(a.source.layout.levels) == 2
    assert np.array_equal(zarr.open_array(tmp_path / "a")[...], want)


def test_what_is_there_is_not_written_over(tmp_path):
    a = gpushard.create_array(tmp_path / "a", **PLAIN)
    a[...] = 1
    for _ in range(2):
        with pytest.raises(gpushard.OptionError, match="overwrite=True"):
            gpushard.create_array(tmp_path / "a", **PLAIN)
    zarr.create_group(tmp_path / "g")
    zarr.create_array(tmp_path / "v2", shape=4, dtype="i4", zarr_format=2)
    for name in ("g", "v2"):
        with pytest.raises(gpushard.OptionError, match="already"):
            gpushard.create_array(tmp_path / name, **PLAIN)
    assert (a[...] == 1).all()


@pytest.mark.parametrize("kind", ["path", "zarr files", "memory", "obstore"])
def test_what_is_there_is_deleted_on_request(kind, tmp_path):
    if kind == "obstore":
        obstore = pytest.importorskip("obstore", reason="obstore is not installed")
        store = obstore.store.MemoryStore()
    else:
        kinds = {"path": tmp_path, "zarr files": LocalStore(tmp_path)}
        store = kinds.get(kind) or MemoryStore()
    beside = gpushard.create_array(store, "beside", **PLAIN)
    beside[...] = 2
    a = gpushard.create_array(store, "a", **PLAIN)
    a[...] = 1
    a = gpushard.create_array(store, "a", **PLAIN, overwrite=True)
    assert (a[...] == 0).all()
    assert (beside[...] == 2).all()


def test_nothing_beyond_a_link_out_of_the_store_is_deleted(tmp_path):
    elsewhere, store = tmp_path / "elsewhere", tmp_path / "store"
    (elsewhere / "deep").mkdir(parents=True)
    (elsewhere / "kept").write_text("kept")
    store.mkdir()
    (store / "a").symlink_to(elsewhere)
    for path in ("a", "a/deep"):
        with pytest.raises(gpushard.StoreError, match="leads out of the store"):
            gpushard.create_array(store, path, **PLAIN, overwrite=True)
    assert {p.name for p in elsewhere.iterdir()} == {"deep", "kept"}


@pytest.mark.parametrize("path", ["..", "../beside", "a/../../beside"])
@pytest.mark.parametrize("kind", ["path", "fsspec"])
def test_nothing_beside_the_store_is_deleted(kind, path, tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "kept").write_text("kept")
    if kind == "fsspec":
        pytest.importorskip("fsspec", reason="fsspec is not installed")
        store = FsspecStore.from_url(f"file://{store}")
    with pytest.raises(gpushard.StoreError, match="no key below the store's root"):
        gpushard.create_array(store, path, **PLAIN, overwrite=True)
    assert (tmp_path / "beside" / "kept").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"shards": (3, 3)}, "zarr makes no such array"),
        ({"shape": np.array(8)}, "zarr makes no such array"),
        ({"dtype": "no type"}, "zarr makes no such array"),
        ({"zz": 2}, "no argument 'zz'.*; choose from shape, .*, storage_options, opt"),
        ({"overwite": True}, r"'overwite' \(array .*\); you may have meant overwrite="),
        ({"chunk": 2}, "no argument 'chunk'.*; you may have meant chunks="),
        ({"index_location": "start"}, "pass shards={'shape': ..., 'index_location'"),
        ({"mode": "w"}, "no argument 'mode'.*; pass overwrite=True"),
        (
            {"shards": {"shape": 4, "index_locaton": "start"}},
            "shards= has no member 'index_locaton'.*may have meant index_location",
        ),
        ({"shards": {"index_location": "start"}}, "needs the member 'shape'"),
        ({"dtype": None}, r"needs the argument 'dtype' \(array '[^']*'\)\.$"),
        ({"chunks": None}, "needs the argument 'chunks'.*; pass chunks='auto'"),
        ({"dtype": "i4", "fill_value": 1.5}, "cannot hold the fill value.*got 1.5"),
        ({"dtype": "S2", "fill_value": b"abc"}, "cannot hold.*one element of .S2"),
        ({"dtype": "U2", "fill_value": "abc"}, "cannot hold the fill value.*'abc'"),
        ({"dtype": "?", "fill_value": 2}, "cannot hold the fill value"),
        ({"dtype": "f4", "fill_value": 1e39}, "cannot hold the fill value.*1e.39"),
        ({"order": "F"}, "no order of elements.*TransposeCodec among the filters"),
        ({"write_strategy": "fast"}, "strategy"),
        ({"write_strategy": "random_write"}, "index_location"),
        ({"attributes": {"a": object()}}, "zarr makes no such array"),
        ({"compressors": {}}, "zarr makes no such array: there is no 'name'"),
    ],
)
def test_impossible_arguments_are_refused_and_nothing_is_made(
    arguments, reason, tmp_path
):
    with pytest.raises(gpushard.OptionError, match=reason):
        gpushard.create_array(tmp_path / "a", **PLAIN | arguments)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        ("f2", 0.1),
        ("f4", np.inf),
        ("f4", 2**24 + 1),
        ("i4", 3.0),
        ("i4", True),
        ("?", 1),
        ("S2", b"a\0"),
        ("U2", np.array(["a"])[0]),
        ("M8[s]", "NaT"),
        ("f4", "NaN"),
    ],
)
def test_fill_values_that_the_data_type_holds_are_taken(dtype, given, tmp_path):
    arguments = PLAIN | {"dtype": dtype, "fill_value": given}
    got = gpushard.create_array(tmp_path / "a", **arguments).fill_value
    np.testing.assert_array_equal(got, np.asarray(given).astype(dtype))


@pytest.mark.parametrize("name", ["shape", "dtype", "chunks"])
def test_what_is_needed_is_asked_for(name, tmp_path):
    arguments = {key: value for key, value in PLAIN.items() if key != name}
    with pytest.raises(gpushard.OptionError, match=name):
        gpushard.create_array(tmp_path / "a", **arguments)


def test_a_refused_creation_takes_nothing_from_others_who_began_to_write(tmp_path):
    """What another process has put there stays; one that comes too late is told."""
    place = tmp_path / "new" / "store"

    def refused_after(others_work):
        with opened_or_made(place, "", Options(), None):
            others_work()
            raise gpushard.OptionError("a creation that is refused")

    began = []
    for work in (
        lambda: began.append(resolve(place)[0]),
        lambda: gpushard.create_array(place.parent / "beside", **PLAIN),
    ):
        with pytest.raises(gpushard.OptionError):
            refused_after(work)
        assert not place.exists()
    assert gpushard.open_array(place.parent / "beside").shape == PLAIN["shape"]
    with pytest.raises(gpushard.StoreError, match="directory is gone"):
        writer_of(began[0]).put("zarr.json", [np.zeros(1, np.uint8)])
    assert not place.exists()
    with pytest.raises(gpushard.OptionError):
        refused_after(lambda: gpushard.create_array(place, **PLAIN))
    assert gpushard.open_array(place).shape == PLAIN["shape"]


def test_a_path_made_of_a_url_makes_no_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(gpushard.OptionError, match="pass a URL as text"):
        gpushard.create_array(Path("s3://bucket/a"), **PLAIN)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "why"), [("file/a", "Not a directory"), ("nul\0", "embedded null")]
)
def test_a_path_of_which_no_directory_can_be_made_is_refused(name, why, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        gpushard.OptionError, match=f"directory cannot be made: .*{why}"
    ):
        gpushard.create_array(tmp_path / name, **PLAIN)


def test_a_disk_that_takes_no_directory_is_an_error_of_the_store(tmp_path, monkeypatch):
    def mkdir(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(gpushard.StoreError, match="cannot be made: Read-only"):
        gpushard.create_array(tmp_path / "a", **PLAIN)


def test_a_path_of_a_zip_file_is_refused(tmp_path):
    (tmp_path / "there.zip").write_bytes(b"")
    (tmp_path / "folder.zip").mkdir()
    for path in ("new.zip", "there.zip", "there.zip/a"):
        for make in (gpushard.create_array, gpushard.rolling.RollingArray.create):
            with pytest.raises(gpushard.UnsupportedError, match="can only be read"):
                make(tmp_path / path, **PLAIN)
    a = gpushard.create_array(tmp_path / "folder.zip", **PLAIN)
    with pytest.raises(gpushard.UnsupportedError, match="can only be read"):
        gpushard.convert(a, tmp_path / "other.ZIP")
    assert {p.name for p in tmp_path.iterdir()} == {"there.zip", "folder.zip"}


def test_reading_loads_nothing_of_the_writer(tmp_path):
    gpushard.create_array(tmp_path / "a", **PLAIN)[...] = 1
    code = (
        f"import sys, gpushard; gpushard.open_array({str(tmp_path / 'a')!r})[...];"
        "assert not [m for m in sys.modules if m.startswith('gpushard.writing')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.network
def test_a_web_server_takes_no_array_and_says_so_in_one_line(tmp_path):
    with (
        RangeServer(tmp_path) as server,
        pytest.raises(gpushard.UnsupportedError, match="cannot be written") as caught,
    ):
        gpushard.create_array(f"{server.url}/new", **PLAIN)
    assert "\n" not in str(caught.value)


def keys_below(place) -> list[str]:
    return sorted(str(p.relative_to(place)) for p in place.rglob("*") if p.is_file())


def test_places_above_an_array_become_groups_as_with_zarr(tmp_path):
    ours, zarrs = tmp_path / "ours", tmp_path / "zarrs"
    gpushard.create_array(ours, "a/b/c", shape=(4,), dtype="u1", chunks=(2,))
    zarr.create_array(zarrs, name="a/b/c", shape=(4,), dtype="u1", chunks=(2,))
    assert keys_below(ours) == keys_below(zarrs)
    assert document(ours) == {"zarr_format": 3, "node_type": "group", "attributes": {}}
    assert list(gpushard.open_group(ours)["a/b/c"].shape) == [4]
    assert gpushard.open_group(ours, "a").groups == ("b",)


def test_groups_above_a_new_array_stay_as_they_are(tmp_path):
    top = zarr.create_group(tmp_path, attributes={"kept": 1})
    top.create_group("a", attributes={"kept": 2})
    gpushard.create_array(tmp_path, "a/b", shape=(4,), dtype="u1", chunks=(2,))
    found = gpushard.open_group(tmp_path)
    assert (found.attrs, found.group("a").attrs) == ({"kept": 1}, {"kept": 2})


def test_a_group_of_zarr_v2_above_a_new_array_stays_one(tmp_path):
    zarr.create_group(tmp_path, zarr_format=2)
    gpushard.create_array(tmp_path, "a", shape=(4,), dtype="u1", chunks=(2,))
    assert keys_below(tmp_path) == [".zattrs", ".zgroup", "a/zarr.json"]


def test_arrays_of_the_prototype_lie_in_groups_of_zarr_v2(tmp_path):
    array = {"shape": (4,), "dtype": "u1", "chunks": (2,), "shards": (4,)}
    gpushard.create_array(tmp_path, "a/b", format="v2-prototype-ii", **array)
    assert keys_below(tmp_path) == [".zgroup", "a/.zgroup", "a/b/.zarray"]
    assert gpushard.open_group(tmp_path).groups == ("a",)


def test_a_creation_that_is_refused_makes_no_group(tmp_path):
    gpushard.create_array(tmp_path / "s/a/b", **PLAIN)
    with pytest.raises(gpushard.OptionError, match="an array or a group already"):
        gpushard.create_array(tmp_path / "s", "a/b", **PLAIN)
    assert keys_below(tmp_path / "s") == ["a/b/zarr.json"]


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("above", ["", "g/a"])
def test_no_array_is_made_below_an_array(above, zarr_format, tmp_path):
    zarr.create_array(
        tmp_path, name=above, shape=(4,), dtype="u1", zarr_format=zarr_format
    )
    before = keys_below(tmp_path)
    path = f"{above}/b/c".strip("/")
    for overwrite in (False, True):
        with pytest.raises(gpushard.OptionError, match="only groups have arrays below"):
            gpushard.create_array(tmp_path, path, **PLAIN, overwrite=overwrite)
    assert keys_below(tmp_path) == before


def test_no_array_is_converted_to_a_place_below_an_array(tmp_path):
    gpushard.create_array(tmp_path / "src", **PLAIN)
    gpushard.create_array(tmp_path / "dst", "a", **PLAIN)
    before = keys_below(tmp_path)
    with pytest.raises(gpushard.OptionError, match="only groups have arrays below"):
        gpushard.convert(tmp_path / "src", tmp_path / "dst", dst_path="a/b")
    assert keys_below(tmp_path) == before


def test_a_broken_document_above_is_no_array(tmp_path):
    (tmp_path / "zarr.json").write_text("{")
    a = gpushard.create_array(tmp_path, "a", **PLAIN)
    a[0, 0] = 1
    assert a[0, 0] == 1


def test_what_may_be_in_the_way_is_asked_for_in_few_batches(monkeypatch):
    """Over a network each batch waits once, whatever the number of documents."""
    asked, batches = documents.asked, []

    def noting(store, requests):
        batches.append({request.key for request in requests})
        return asked(store, requests)

    monkeypatch.setattr(documents, "asked", noting)
    gpushard.create_array(MemoryStore(), "a/b", **PLAIN)
    names = ("zarr.json", ".zarray", ".zgroup")
    above = [f"{place}{name}" for place in ("", "a/") for name in names]
    assert batches == [
        {key for key in above if not key.endswith(".zgroup")},  # an array above it
        {f"a/b/{name}" for name in names},
        set(above),  # groups that exist
    ]
