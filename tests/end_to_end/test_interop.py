"""Samples that other writers made, and damaged ones, against what is known of them.

``manifest.json`` says of every sample what a reader has to make of it.
"""

from __future__ import annotations

import json
import pickle
import resource
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zarr.storage import ZipStore

import gpushard
from places import INTEROP
from zarr_oracle import assert_same_bits, held

MANIFEST: dict[str, Any] = json.loads((INTEROP / "manifest.json").read_text())
VALID, CORRUPT = sorted(MANIFEST["valid"]), sorted(MANIFEST["corrupt"])
MIB = 1024**2


def expected_of(entry: dict[str, Any]) -> np.ndarray:
    return np.load(INTEROP / entry["expected"])


def objects_below(path: Path) -> dict[str, bytes]:
    files = (file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def some_keys(shape: tuple[int, ...]) -> list[Any]:
    """A few selections that any array of the shape allows."""
    return [
        tuple(slice(n // 3, n - n // 4) for n in shape),
        tuple(slice(None, None, -2) for _ in shape),
        tuple(n // 2 if n else slice(None) for n in shape),
        (Ellipsis, *(slice(1, None, 3) for _ in shape[-1:])),
    ]


# Valid samples


@pytest.mark.parametrize("name", VALID)
def test_a_valid_sample_has_the_elements_that_its_writer_stored(name):
    entry = MANIFEST["valid"][name]
    want = expected_of(entry)
    a = gpushard.open_array(INTEROP / entry["path"])
    assert a.shape == tuple(entry["shape"])
    # NumPy's files know no bfloat16: such elements are compared as they lie in memory.
    if entry.get("compare") == "bits":
        got = a[...]
        assert got.dtype.itemsize == want.dtype.itemsize
        assert_same_bits(got.view(want.dtype), want)
        return
    assert a.dtype == np.dtype(entry["dtype"]).newbyteorder("=")
    assert_same_bits(a[...], want)
    for key in some_keys(a.shape):
        assert_same_bits(a[key], want[key])


@pytest.mark.parametrize("name", VALID)
def test_a_valid_sample_reads_alike_from_every_store(name, tmp_path):
    path = INTEROP / MANIFEST["valid"][name]["path"]
    want = gpushard.open_array(path)[...]
    objects = objects_below(path)
    zipped = tmp_path / "sample.zip"
    with zipfile.ZipFile(zipped, "w") as archive:
        for key, data in objects.items():
            archive.writestr(key, data)
    key = some_keys(want.shape)[0]
    for store in (held(objects), ZipStore(zipped, mode="r"), zipped):
        a = gpushard.open_array(store)
        assert_same_bits(a[...], want)
        assert_same_bits(a[key], want[key])


def test_the_samples_cover_what_they_were_made_for():
    tags = {tag for entry in MANIFEST["valid"].values() for tag in entry["tags"]}
    assert {"codec", "dtype", "endian", "nested", "repacked", "stream"} <= tags
    assert {"transpose", "fill", "missing", "index", "keys", "order"} <= tags


# Damaged samples


def slices_of(text: str) -> tuple[slice, ...]:
    return tuple(slice(*map(int, part.split(":"))) for part in text.split(","))


def outcome(name: str, key: Any) -> tuple[str, gpushard.GpushardError | None]:
    """What a read of a damaged sample gives: ok, wrong or error."""
    entry = MANIFEST["corrupt"][name]
    try:
        got = gpushard.open_array(INTEROP / entry["path"])[key]
    except gpushard.GpushardError as error:
        return "error", error
    same = np.array_equal(got, expected_of(entry)[key])
    return ("ok" if same else "wrong"), None


@pytest.mark.parametrize("part", ["full", "damaged", "same_shard", "other_shard"])
@pytest.mark.parametrize("name", CORRUPT)
def test_a_damaged_sample_gives_right_elements_or_a_named_error(name, part):
    entry = MANIFEST["corrupt"][name]
    key = ... if part == "full" else slices_of(entry[part])
    wanted = entry["full"] if part in ("full", "damaged") else entry[f"{part}_want"]
    got, error = outcome(name, key)
    assert got in wanted.split("_or_"), str(error)
    if error is not None:
        assert_tells(error, is_in_shard=entry["cls"] != "metadata")


def assert_tells(error: gpushard.GpushardError, *, is_in_shard: bool) -> None:
    text = str(error)
    assert text.endswith(".")
    assert "\n" not in text
    assert len(text) < 600
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), text)
    if is_in_shard:
        assert error.shard_key == "c/0/0"
        assert error.shard_key in text


# Classes of damage that lie in one inner chunk, which the error has to name.
LOCAL = ("bomb", "codec stream", "size mismatch", "index")


@pytest.mark.parametrize(
    "name", [n for n in CORRUPT if MANIFEST["corrupt"][n]["cls"] in LOCAL]
)
def test_the_error_names_the_damaged_inner_chunk(name):
    key = slices_of(MANIFEST["corrupt"][name]["damaged"])
    for wanted in (key, ..., (5, 5)):
        got, error = outcome(name, wanted)
        if got == "error":
            assert error.inner_chunk == (0, 0)
            assert isinstance(error, gpushard.CorruptShardError)


@pytest.mark.parametrize(
    "name", [n for n in CORRUPT if "open_want" in MANIFEST["corrupt"][n]]
)
def test_bad_metadata_is_refused_when_the_array_is_opened(name):
    entry = MANIFEST["corrupt"][name]
    got, error = outcome_of_opening(INTEROP / entry["path"])
    assert got in entry["open_want"].split("_or_")
    if error is not None:
        assert isinstance(error, gpushard.MetadataError | gpushard.UnsupportedError)
        assert error.json_path or "JSON" in error.what


def outcome_of_opening(place: Path) -> tuple[str, gpushard.GpushardError | None]:
    try:
        gpushard.open_array(place)
    except gpushard.GpushardError as error:
        return "error", error
    return "ok", None


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
@pytest.mark.parametrize(
    "name",
    ["zstd-bomb-1GiB", "md-index-gigantic", "ix-nbytes-2p62-start", "md-deep-json"],
)
def test_a_bomb_takes_no_memory(name):
    outcome("ix-duplicate-range", ...)  # what is loaded once is loaded
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome(name, ...)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) * 1024 < 64 * MIB


# Formats of before version 3 was final


@pytest.mark.parametrize(
    ("family", "name"),
    [(f, n) for f, known in MANIFEST["legacy"].items() for n in known["arrays"]],
)
def test_a_historic_sample_has_the_elements_that_its_writer_stored(family, name):
    entry = MANIFEST["legacy"][family]["arrays"][name]
    want = expected_of(entry)
    path = entry.get("array_path", "")
    objects = objects_below(INTEROP / entry["path"])
    for store in (INTEROP / entry["path"], held(objects)):
        a = gpushard.open_array(store, path)
        assert a.shape == tuple(entry["shape"])
        assert a.dtype == np.dtype(entry["dtype"]).newbyteorder("=")
        assert_same_bits(a[...], want)
        for key in some_keys(a.shape):
            assert_same_bits(a[key], want[key])
