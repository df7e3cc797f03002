"""An interrupted conversion goes on where it was, and only if it is the same one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.storage import FsspecStore, MemoryStore

import gpushard
import interrupted_conversion
from forked import forked
from gpushard.converting.mark import NAME, ConversionMark
from gpushard.stores.local.files import FileWriter
from gpushard.writing.blueprint import Blueprint
from places import ROOT, TESTS

MIB = 1 << 20
SHAPE = (64, 48)
TARGET = {"shards": [8, 12], "chunks": [4, 6]}  # 8 x 4 shards
VALUES = np.arange(64 * 48).reshape(SHAPE) % 97


class InterruptedHereError(Exception):
    """What stops a conversion in mid-way."""


def make_source(place: Path, values=VALUES) -> Path:
    # Some shards of the destination are nothing but fill value.
    values = values.copy()
    values[16:32] = 0
    a = zarr.create_array(place, shape=values.shape, chunks=(8, 12), dtype="i4")
    a[...] = values
    return place


def in_a_process(src, dst, fraction, **options):
    script = TESTS / "interrupted_conversion.py"
    command = [sys.executable, script, src, dst, str(fraction), json.dumps(options)]
    root = str(ROOT)
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": root},
        check=False,
    )


def interrupt(src, dst, fraction, **changes) -> None:
    """Stop a conversion once so much is done."""

    def tell(done: int, total: int) -> None:
        if done >= fraction * total:
            raise InterruptedHereError

    with pytest.raises(InterruptedHereError):
        gpushard.convert(src, dst, progress=tell, **TARGET | changes)


def identities(dst: Path) -> dict[str, tuple[int, int]]:
    """What tells a shard from one that was written anew."""
    shards = [p for p in dst.glob("c/**/*") if p.is_file() and p.name[0] != "."]
    found = {str(p.relative_to(dst)): p.stat() for p in shards}
    return {name: (s.st_ino, s.st_mtime_ns) for name, s in found.items()}


def assert_complete(src, dst) -> None:
    want = gpushard.open_array(src, device="cpu")[...]
    np.testing.assert_array_equal(gpushard.open_array(dst, device="cpu")[...], want)
    assert not (dst / NAME).exists()


@pytest.mark.parametrize("fraction", [0.01, 0.5, 0.8])
def test_a_killed_conversion_goes_on_and_rewrites_no_finished_shard(fraction, tmp_path):
    src, dst = make_source(tmp_path / "src"), tmp_path / "dst"
    options = {"num_threads": 2, **TARGET}
    work = partial(interrupted_conversion.main, str(src), str(dst), fraction, options)
    process = forked(work)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert (dst / NAME).exists()
    before = identities(dst)
    assert 0 < len(before) < 24
    report = gpushard.convert(src, dst, **TARGET).arrays[""]
    assert_complete(src, dst)
    after = identities(dst)
    assert {name: after[name] for name in before} == before
    assert report.n_written == len(after) - len(before) == 24 - len(before)
    assert len(before) <= report.n_resumed < 32


def test_shards_of_fill_value_are_not_done_twice_either(tmp_path, monkeypatch):
    src, dst = make_source(tmp_path / "src"), tmp_path / "dst"
    monkeypatch.setattr("gpushard.converting.mark._INTERVAL_S", 0.0)
    interrupt(src, dst, 0.6, num_threads=1)
    report = gpushard.convert(src, dst, num_threads=1, **TARGET).arrays[""]
    # 20 of 32 tiles were told; the last of them had not been noted as told.
    assert report.n_resumed == 20
    assert report.n_written == 12
    assert_complete(src, dst)


def test_a_shard_is_not_noted_before_it_is_there(tmp_path, monkeypatch):
    src, dst = make_source(tmp_path / "src"), tmp_path / "dst"
    monkeypatch.setattr("gpushard.converting.mark._INTERVAL_S", 0.0)
    put, left = FileWriter.put, [9]

    def full(self, key, pieces):
        left[0] -= "c/" in key
        if left[0] < 0 and "c/" in key:
            raise gpushard.StoreError("the disk is full")
        put(self, key, pieces)

    with monkeypatch.context() as patch:
        patch.setattr(FileWriter, "put", full)
        with pytest.raises(gpushard.StoreError):
            gpushard.convert(src, dst, num_threads=1, **TARGET)
    report = gpushard.convert(src, dst, num_threads=1, verify=True, **TARGET)
    assert report.arrays[""].n_written == 24 - 9
    assert_complete(src, dst)


@pytest.mark.parametrize("late", [ConversionMark, Blueprint])
def test_the_mark_is_there_before_the_array(late, tmp_path, monkeypatch):
    src, dst = make_source(tmp_path / "src"), tmp_path / "dst"

    def stop(*_):
        raise InterruptedHereError

    name = "write" if late is ConversionMark else "put"
    with monkeypatch.context() as patch:
        patch.setattr(late, name, stop)
        with pytest.raises(InterruptedHereError):
            gpushard.convert(src, dst, **TARGET)
    left = None if late is ConversionMark else [NAME]  # None: not even a directory
    assert (os.listdir(dst) if dst.exists() else None) == left
    gpushard.convert(src, dst, **TARGET)
    assert_complete(src, dst)


def test_a_store_that_keeps_everything_is_refused_and_left_alone(tmp_path):
    src, dst = make_source(tmp_path / "src"), MemoryStore()
    dst.supports_deletes = False  # as of a zip file
    with pytest.raises(gpushard.UnsupportedError, match="pack that"):
        gpushard.convert(src, dst, **TARGET)
    assert dst._store_dict == {}


def test_what_a_killed_writer_left_beside_shards_is_gone_afterwards(tmp_path):
    src, dst = make_source(tmp_path / "src"), tmp_path / "dst"
    interrupt(src, dst, 0.5, num_threads=1)
    left = ("c/0/.1.lock", "c/7/.1.lock", "c/7/.1.new")  # done, and to come
    for name in (*left, ".zarr.json.lock"):
        (dst / name).parent.mkdir(exist_ok=True)
        (dst / name).write_bytes(b"x")
    mark = json.loads((dst / NAME).read_text())
    (dst / NAME).write_text(json.dumps(mark | {"done": []}))
    gpushard.convert(src, dst, **TARGET)
    assert_complete(src, dst)
    assert not list(dst.rglob(".*"))


def test_a_conversion_that_is_complete_is_not_begun_again(tmp_path):
    src, dst = make_source(tmp_path / "src"), tmp_path / "dst"
    gpushard.convert(src, dst, **TARGET)
    with pytest.raises(gpushard.GpushardError, match="already"):
        gpushard.convert(src, dst, **TARGET)


def other_shapes(src, dst) -> dict:
    return {"shards": [8, 6]}


def other_codecs(src, dst) -> dict:
    return {"compressors": None}


def other_source(src, dst) -> dict:
    return {"src": make_source(src.with_name("other"), VALUES + 1)}


def source_written_anew(src, dst) -> dict:
    zarr.open_array(src)[0, 0] = 5
    return {}


def other_attributes(src, dst) -> dict:
    zarr.open_array(src).attrs["a"] = 1
    return {}


def changed_destination(src, dst) -> dict:
    document = json.loads((dst / "zarr.json").read_text())
    document["attributes"] = {"a": 1}
    (dst / "zarr.json").write_text(json.dumps(document))
    return {}


@pytest.mark.parametrize(
    "difference",
    [
        other_shapes,
        other_codecs,
        other_source,
        source_written_anew,
        other_attributes,
        changed_destination,
        pytest.param(lambda _, dst: (dst / NAME).write_text("[]") and {}, id="no mark"),
        pytest.param(lambda _, dst: (dst / NAME).write_text("{") and {}, id="cut mark"),
    ],
)
def test_the_rest_of_another_conversion_is_never_taken_for_this_one(
    difference, tmp_path
):
    src, dst = make_source(tmp_path / "src"), tmp_path / "dst"
    interrupt(src, dst, 0.5)
    before = identities(dst)
    arguments = {"src": src, **TARGET, **difference(src, dst)}
    with pytest.raises(gpushard.OptionError, match=r"unfinished|changed|no mark"):
        gpushard.convert(dst=dst, **arguments)
    assert identities(dst) == before
    gpushard.convert(dst=dst, overwrite=True, resume=False, **arguments)
    assert_complete(arguments["src"], dst)
    assert not before.items() & identities(dst).items()


def test_overwriting_goes_on_with_its_own_rest_only(tmp_path):
    src, dst = make_source(tmp_path / "src"), tmp_path / "dst"
    interrupt(src, dst, 0.5, num_threads=1)
    before = identities(dst)
    gpushard.convert(src, dst, overwrite=True, **TARGET)
    assert before.items() <= identities(dst).items()
    interrupt(src, dst, 0.5, num_threads=1, overwrite=True)
    gpushard.convert(src, dst, overwrite=True, **TARGET | {"compressors": None})
    assert_complete(src, dst)


def test_without_resuming_an_unfinished_conversion_is_refused(tmp_path):
    src, dst = make_source(tmp_path / "src"), tmp_path / "dst"
    interrupt(src, dst, 0.5)
    with pytest.raises(gpushard.OptionError, match="unfinished"):
        gpushard.convert(src, dst, resume=False, **TARGET)


def test_a_mark_without_an_array_is_where_a_conversion_begins(tmp_path):
    src, dst = make_source(tmp_path / "src"), tmp_path / "dst"
    interrupt(src, dst, 0.5, num_threads=1)
    (dst / "zarr.json").unlink()
    gpushard.convert(src, dst, **TARGET)
    assert_complete(src, dst)


def test_a_group_goes_on_with_the_array_it_was_at(tmp_path):
    src, dst = tmp_path / "src", tmp_path / "dst"
    zarr.create_group(src)
    for name in ("a", "b", "c"):
        make_source(src / name)
    interrupt(src, dst, 0.5, num_threads=1)
    before = {name: identities(dst / name) for name in ("a", "b", "c")}
    assert len(before["a"]) == 24
    assert 0 < len(before["b"]) < 24
    report = gpushard.convert(src, dst, verify=True, **TARGET).arrays
    assert [report[name].n_written for name in report] == [
        24 - len(before[name]) for name in report
    ]
    assert report["a"].n_resumed == 32
    for name in report:
        assert before[name].items() <= identities(dst / name).items()
        assert_complete(src / name, dst / name)
    assert not list(dst.rglob(".gpushard*"))


def test_an_object_store_is_resumed_as_well(tmp_path):
    obstore = pytest.importorskip("obstore", reason="obstore is not installed")
    src, store = make_source(tmp_path / "src"), obstore.store.MemoryStore()
    interrupt(src, store, 0.5, num_threads=1)
    before = {i["path"]: i["last_modified"] for b in obstore.list(store) for i in b}
    report = gpushard.convert(src, store, **TARGET).arrays[""]
    after = {i["path"]: i["last_modified"] for b in obstore.list(store) for i in b}
    shards = {key for key in before if key.startswith("c/")}
    assert report.n_written == 24 - len(shards)
    assert all(before[key] == after[key] for key in shards)
    assert NAME not in after


def test_the_first_part_of_a_shard_is_not_taken_for_it_in_a_store_of_fsspec(
    tmp_path, monkeypatch
):
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    src, dst = make_source(tmp_path / "src"), tmp_path / "dst"
    store = FsspecStore.from_url(f"local://{dst}", storage_options={"auto_mkdir": True})
    monkeypatch.setattr("gpushard.converting.mark._INTERVAL_S", 0.0)
    interrupt(src, store, 0.4, num_threads=1)
    noted = identities(dst)
    assert 0 < len(noted) < 24
    # Shards to come: one cut off, one of nothing, and one whose end alone is damaged.
    whole = (dst / "c/0/0").read_bytes()
    torn = {"c/6/0": whole[: len(whole) // 2], "c/6/1": b"", "c/7/3": whole[:-1] + b"x"}
    for name, data in torn.items():
        (dst / name).parent.mkdir(exist_ok=True)
        (dst / name).write_bytes(data)
    monkeypatch.setattr("gpushard.converting.mark._INTERVAL_S", 60.0)
    report = gpushard.convert(src, store, num_threads=1, **TARGET).arrays[""]
    assert_complete(src, dst)
    # The last tile was written before it could be told, and noted after.
    kept = noted.items() & identities(dst).items()
    assert len(noted) - 1 <= len(kept) == 24 - report.n_written


@pytest.mark.parametrize(
    ("shards", "source_chunks", "limit"),
    [
        ((512, 512), (512, 512), 8 * MIB),
        # The source's chunks are wide: a tile is many shards.
        ((512, 512), (128, 4096), 24 * MIB),
        # A shard is half of the limit: read in slabs.
        ((2048, 1024), (256, 256), 16 * MIB),
    ],
)
def test_the_peak_of_memory_stays_near_the_limit(
    shards, source_chunks, limit, tmp_path
):
    src = tmp_path / "src"
    a = zarr.create_array(
        src, shape=(4096, 4096), chunks=source_chunks, dtype="f4", compressors=None
    )
    values = np.random.default_rng(0).random((512, 4096), "f4")
    for i in range(0, 4096, 512):  # 64 MiB in all
        a[i : i + 512] = values + i
    options = {"chunks": (128, 128), "memory_limit": limit, "num_threads": 2}
    done = in_a_process(src, tmp_path / "dst", 2, shards=shards, **options)
    assert done.returncode == 0, done.stderr
    grown = json.loads(done.stdout)["grown"]
    # The allocator and the threads' stacks have a share that no limit knows.
    assert grown < limit + 16 * MIB
    assert grown > limit // 8, "a peak that small was not measured"
