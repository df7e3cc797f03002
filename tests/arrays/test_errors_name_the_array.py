"""Whatever goes wrong once an array is open, the error says with which array."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.codecs import GzipCodec
from zarr.storage import MemoryStore

import gpushard
from cli_runs import run
from gpushard import Options
from gpushard.fused import opening

BOTH = pytest.mark.parametrize("n", [0, 8])


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """Group with arrays of four kinds of chunks, and one of metadata only."""
    place = tmp_path_factory.mktemp("written")
    root = zarr.create_group(place)
    values = np.arange(8 * 6, dtype="i4").reshape(8, 6)
    kinds = {
        "sharded": {"chunks": (2, 3), "shards": (4, 6)},
        "raw": {"chunks": (4, 6), "compressors": None},
        "zipped": {"chunks": (4, 6), "compressors": GzipCodec()},
    }
    for name, kind in kinds.items():
        root.create_array(name, shape=(8, 6), dtype="i4", **kind)[...] = values
    return place


@pytest.fixture
def place(written, tmp_path) -> Path:
    """A copy of it, for each test to change."""
    return shutil.copytree(written, tmp_path / "g")


def opened(place: Path, name: str, n: int = 8) -> gpushard.Array:
    return gpushard.open_array(place, name, options=Options(small_read_chunks=n))


def assert_named(error: gpushard.GpushardError, place: Path, name: str) -> None:
    assert error.array_path == name
    assert f"{place}/{name}'" in str(error), str(error)


def read_only(shape) -> np.ndarray:
    array = np.empty(shape, "i4")
    array.flags.writeable = False
    return array


@BOTH
@pytest.mark.parametrize("name", ["sharded", "raw"])
@pytest.mark.parametrize(
    "read",
    [
        lambda a: a[99],
        lambda a: a[0, 0, 0],
        lambda a: a[..., ...],
        lambda a: a["x"],
        lambda a: a[True],
        lambda a: a[::0],
        lambda a: a[[0, 99]],
        lambda a: a[[0], :, [1]],
        lambda a: a[[[0], [1, 2]]],
        lambda a: a.oindex[[99]],
        lambda a: a.oindex[[[0]]],
        lambda a: a.oindex[None],
        lambda a: a.oindex[np.ones(3, bool)],
        lambda a: a.vindex[[99], [0]],
        lambda a: a.vindex[[0]],
        lambda a: a.vindex[[0, 1], [0, 1, 2]],
        lambda a: a.vindex[np.ones((3, 3), bool)],
        lambda a: a.blocks[9],
        lambda a: a.blocks[::2],
        lambda a: a.explain(99),
        lambda a: a.read(99),
        lambda a: a.read_many([0, 99]),
        lambda a: a.read_many([0, 1], out=[None]),
        lambda a: a.read(errors="ignore"),
        lambda a: a.read_many([0], errors="ignore"),
        lambda a: a.read(dtype="no such type"),
        lambda a: a.read(dtype="?"),
        lambda a: a.read(out=np.empty(3)),
        lambda a: a.read(out=read_only((8, 6))),
        lambda a: a.read(out=[1, 2]),
        lambda a: a.read(stream=object()),
        lambda a: a.read(memory_limit=0),
    ],
)
def test_what_is_asked_wrongly(place, name, n, read):
    with pytest.raises(gpushard.GpushardError) as caught:
        read(opened(place, name, n))
    assert_named(caught.value, place, name)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:7])


def spoil(path: Path) -> None:
    path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])


def spoil_index(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9] + b"\x55" * 9)


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def lead_outside(path: Path) -> None:
    elsewhere = path.parents[3].parent / "elsewhere"
    shutil.move(path, elsewhere)
    path.symlink_to(elsewhere)


DAMAGE = [truncate, spoil, make_directory, lead_outside]


@BOTH
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("sharded", spoil_index),
        *(("sharded", damage) for damage in DAMAGE),
        *(("zipped", damage) for damage in DAMAGE),
        *(("raw", damage) for damage in DAMAGE if damage is not spoil),
    ],
)
@pytest.mark.parametrize(
    "read", [lambda a: a[...], lambda a: a[0, 0], lambda a: a.vindex[[0], [0]]]
)
def test_what_is_stored_wrongly(place, name, n, damage, read):
    damage(place / name / "c" / "0" / "0")
    with pytest.raises(gpushard.GpushardError) as caught:
        read(opened(place, name, n))
    assert_named(caught.value, place, name)
    assert caught.value.shard_key == f"{name}/c/0/0"


@BOTH
@pytest.mark.parametrize("name", ["sharded", "raw", "zipped"])
def test_a_store_that_fails(place, name, n, monkeypatch):
    a = opened(place, name, n)

    def fail(_requests):
        raise gpushard.StoreError("the store is on fire")

    monkeypatch.setattr(a.source.store, "read", fail)
    # Or else the loops open the files of an unsharded array, and ask no store.
    monkeypatch.setattr(opening, "file_calls", lambda: None)
    for read in (lambda: a[...], lambda: a[0, 0], lambda: a.oindex[[0]]):
        with pytest.raises(gpushard.StoreError) as caught:
            read()
        assert_named(caught.value, place, name)


class Bound(MemoryStore):
    """A store that stays in its process."""

    def __reduce__(self):
        raise TypeError("it holds a socket")


def test_an_array_that_cannot_be_pickled():
    objects: dict = {}
    zarr.create_array(MemoryStore(objects), name="m", shape=(3,), dtype="i4")
    a = gpushard.open_array(Bound(objects), "m")
    with pytest.raises(gpushard.UnsupportedError) as caught:
        pickle.dumps(a)
    assert caught.value.array_path == "m"
    assert "memory://" in str(caught.value)


def test_a_device_that_is_not_there(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    for device in ("cuda", "cuda:1", "tpu"):
        for target in (place, str(place)):
            with pytest.raises(gpushard.UnsupportedError) as caught:
                gpushard.open_array(target, "raw", device=device)
            assert_named(caught.value, place, "raw")
        with pytest.raises(gpushard.UnsupportedError) as caught:
            gpushard.open_group(place, device=device)
        assert f"(group '{place}')" in str(caught.value)


def test_an_array_of_a_group_that_cannot_be_opened(place):
    g = gpushard.open_group(place)
    document = place / "raw" / "zarr.json"
    document.write_text(document.read_text().replace("int32", "int31"))
    for group in (g, gpushard.open_group(place)):
        try:
            group["raw"]
        except gpushard.GpushardError as error:
            assert_named(error, place, "raw")
    with pytest.raises(gpushard.GpushardError) as caught:
        gpushard.open_group(place)["raw"]
    assert_named(caught.value, place, "raw")
    with pytest.raises(gpushard.NotFoundError) as caught:
        g.group("absent")
    assert_named(caught.value, place, "absent")


def spoil_document(group: Path) -> None:
    document = json.loads((group / "zarr.json").read_text())
    document["attributes"] = 3
    (group / "zarr.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("", lambda g: gpushard.open_group(g)["absent"]),
        ("", lambda g: gpushard.open_group(g)["below"]),
        ("", lambda g: gpushard.open_group(g, use_consolidated=True)),
        ("", gpushard.open_array),
        ("absent", lambda g: gpushard.open_group(g, "absent")),
        ("absent", lambda g: gpushard.open_group(g).group("absent")),
        ("below", lambda g: gpushard.open_array(g, "below")),
        ("spoilt", lambda g: gpushard.open_group(g, "spoilt")),
        ("spoilt", lambda g: gpushard.open_group(g).group("spoilt")),
        ("spoilt", lambda g: gpushard.convert(g, g.parent / "dst")),
    ],
)
def test_what_is_about_a_group(place, name, ask):
    for below in ("below", "spoilt"):
        zarr.create_group(place / below)
    spoil_document(place / "spoilt")
    with pytest.raises(gpushard.GpushardError) as caught:
        ask(place)
    where = f"{place.as_uri()}/{name}".rstrip("/")
    assert f"(group '{where}'" in str(caught.value)
    assert caught.value.node_type == "group"


def test_an_array_in_place_of_a_group(place):
    g = gpushard.open_group(place)
    for ask in (lambda: gpushard.open_group(place, "raw"), lambda: g.group("raw")):
        with pytest.raises(gpushard.MetadataError, match="this is an array") as caught:
            ask()
        assert f"(array '{place.as_uri()}/raw'" in str(caught.value)


@pytest.mark.parametrize("selection", ["[9]", "[0, 0, 0]", "[a]", "[::0]", "[1:2:3:4]"])
def test_the_command_line(place, selection):
    said = run("read", f"{place}/raw{selection}", code=2).stderr
    assert f"{place}/raw'" in said


def test_the_command_line_about_damage(place):
    truncate(place / "raw" / "c" / "0" / "0")
    assert f"{place}/raw'" in run("read", f"{place}/raw", code=1).stderr


def test_a_destination_that_is_taken_is_what_the_error_names(tmp_path):
    zarr.create_group(tmp_path / "src")
    for name in ("src", "dst"):
        zarr.create_array(tmp_path / name / "a", shape=(4,), dtype="i4")
    with pytest.raises(gpushard.OptionError, match="already") as raised:
        gpushard.convert(tmp_path / "src", tmp_path / "dst")
    assert "dst" in str(raised.value)
    assert "src" not in str(raised.value)
