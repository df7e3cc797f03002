"""`gpushard convert` does what `gpushard.convert` does, and says what it did."""

from __future__ import annotations

import errno
import json
import os
import re

import numpy as np
import pytest

import gpushard
from asked_store import put
from cli_runs import run, run_json, sentence, write_sample, write_shards
from spec_shards import LITTLE, document, sharding


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    return write_sample(tmp_path_factory)


def inner_codecs(place) -> list[dict]:
    (sharding,) = json.loads((place / "zarr.json").read_text())["codecs"]
    return sharding["configuration"]["codecs"]


def test_an_array_is_converted_and_verified(sample, tmp_path):
    dst = tmp_path / "u"
    shapes = ["--shards", "1,1,120,240", "--chunks", "(1, 1, 60, 60)"]
    result = run("convert", sample / "u", dst, *shapes, "--verify")
    assert "verified bit for bit" in result.stdout
    assert "36 of (1, 1, 120, 240)" in result.stdout
    assert result.stderr == ""
    a, want = (gpushard.open_array(p, device="cpu") for p in (dst, sample / "u"))
    np.testing.assert_array_equal(a[...], want[...])
    assert (a.shards, a.chunks) == ((1, 1, 120, 240), (1, 1, 60, 60))


def test_a_group_is_converted_and_told_as_json(sample, tmp_path):
    facts = run_json("convert", sample, tmp_path / "all")
    assert facts["verified"] is False
    assert facts["arrays"]["u"]["n_written"] == facts["arrays"]["u"]["n_shards"]
    group = gpushard.open_group(tmp_path / "all", device="cpu")
    assert set(facts["arrays"]) == set(group)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", []),
        ("zstd:7", [("zstd", {"level": 7, "checksum": False})]),
        ("gzip", [("gzip", {"level": 5})]),
        ("blosc-lz4:1", [("blosc", {"cname": "lz4", "clevel": 1})]),
        ("blosc", [("blosc", {"cname": "zstd", "clevel": 5})]),
        (
            '[{"name": "gzip", "configuration": {"level": 1}}]',
            [("gzip", {"level": 1})],
        ),
    ],
)
def test_codecs_are_named_shortly_or_in_json(text, expected, tmp_path):
    src = write_shards(tmp_path / "src")
    run("convert", src, tmp_path / "dst", "--compressors", text, "--chunks", "5")
    first, *others = inner_codecs(tmp_path / "dst")
    assert first["name"] == "bytes"
    for codec, (name, configuration) in zip(others, expected, strict=True):
        assert codec["name"] == name
        assert codec["configuration"].items() >= configuration.items()


def test_what_was_typed_reaches_the_conversion(tmp_path, monkeypatch):
    given = {}

    def asked(*_, **arguments):
        given.update(arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(gpushard, "convert", asked, raising=False)
    src = write_shards(tmp_path / "src")
    typed = "--memory 3 --threads 2 --no-resume --shards 20 --chunks 2,5 --verify"
    run("convert", src, tmp_path / "dst", *typed.split(), code=130)
    assert given["memory_limit"] == 3 << 20
    assert (given["num_threads"], given["resume"], given["verify"]) == (2, False, True)
    assert (given["shards"], given["chunks"]) == (20, (2, 5))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--shards", "a,b"], "--shards is no shape"),
        (["--shards", ""], "shards does not fit the array"),
        (["--chunks", "0"], ""),
        (["--compressors", "zst"], "unknown codec"),
        (["--compressors", "zstd:x"], "no such level"),
        (["--compressors", "zstd:--5"], "no such level"),
        (["--compressors", "zstd:" + "9" * 5000], "no such level"),
        (["--filters", "zstd"], "--filters is no list of filters"),
        (["--compressors", "[{"], "no valid JSON"),
        (["--compressors", "[" * 100_000], "no valid JSON"),
        (["--memory", "1", "--shards", "30000", "--chunks", "10000"], ""),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(arguments, said, tmp_path):
    src = write_shards(tmp_path / "src")
    assert said in sentence(run("convert", src, tmp_path / "dst", *arguments, code=2))


def test_a_source_that_is_not_there_is_told_with_what_is(sample, tmp_path):
    for source in (sample.parent, sample / "nothing", tmp_path / "sampel"):
        known = sentence(run("info", source, code=2))
        assert sentence(run("convert", source, tmp_path / "out", code=2)) == known
    assert f"it has {sample.name}: open one" in sentence(
        run("convert", sample.parent, tmp_path / "out", code=2)
    )


def test_progress_goes_to_stderr(tmp_path):
    src = write_shards(tmp_path / "src")
    result = run("convert", src, tmp_path / "dst", "--progress", "--json")
    json.loads(result.stdout)
    assert "bytes" in result.stderr


def test_what_is_there_is_overwritten_on_request_only(tmp_path):
    src, dst = write_shards(tmp_path / "src"), tmp_path / "dst"
    run("convert", src, dst)
    assert "already" in sentence(run("convert", src, dst, code=2))
    run("convert", src, dst, "--overwrite", "--verify")


def test_what_is_asked_for_in_vain_is_told_of_the_destination(tmp_path):
    src, dst = write_shards(tmp_path / "src"), tmp_path / "dst"
    line = sentence(
        run("convert", src, dst, "--chunks", "3,5", "--shards", "10,10", code=2)
    )
    assert "dst" in line
    assert "src" not in line
    assert "expected along each axis a multiple of (3, 5), got shards (10, 10)" in line
    odd = '{"name": "no_such_codec"}'
    line = sentence(run("convert", src, dst, "--compressors", odd, code=2))
    assert "dst" in line
    assert "zarr.create_array" not in line
    assert "gpushard convert --help" in line


def test_hints_are_in_the_words_of_the_command_line(tmp_path):
    src, dst = write_shards(tmp_path / "src"), tmp_path / "dst"
    run("convert", src, dst)
    occupied = sentence(run("convert", src, dst, code=2))
    assert "give --overwrite to delete" in occupied
    (dst / "zarr.json").unlink()
    (dst / ".gpushard-convert.json").write_text("[]")
    marked = sentence(run("convert", src, dst, code=2))
    assert "give --overwrite and --no-resume" in marked
    small = ("--memory", "1", "--shards", "30000", "--chunks", "10000")
    limited = sentence(run("convert", src, tmp_path / "d2", *small, code=2))
    assert "raise --memory" in limited
    (enough,) = re.findall(r"which are (\d+) MiB", limited)
    run("convert", src, tmp_path / "d2", "--memory", enough, *small[2:])
    for line in (occupied, marked, limited):
        assert "=" not in line


def test_an_index_too_large_for_the_limit_names_the_option_that_raises_it(tmp_path):
    n = 1 << 18
    meta = document((n,), (n,), sharding((1,), index_codecs=[LITTLE]))
    src = put(tmp_path / "src", meta, c_0=b"\xff" * 16 * n)
    small = ("--memory", "1", "--shards", "4096", "--chunks", "4096")
    line = sentence(run("convert", src, tmp_path / "dst", *small, code=2))
    assert "shard index" in line
    assert line.endswith("raise --memory.")


def test_an_interrupted_command_says_how_to_go_on(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("gpushard.converting.convert.convert", interrupted)
    monkeypatch.setattr(gpushard, "convert", interrupted, raising=False)
    src = write_shards(tmp_path / "src")
    assert "repeat" in sentence(run("convert", src, tmp_path / "dst", code=130))


def test_a_library_that_finds_too_many_files_open_is_no_defect(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(gpushard, "convert", refuse, raising=False)
    src = write_shards(tmp_path / "src")
    told = sentence(run("convert", src, tmp_path / "dst", code=2))
    assert "too many files are open; raise the limit" in told


def test_a_source_that_is_damaged_fails_with_its_own_status(tmp_path):
    src = write_shards(tmp_path / "src")
    shard = src / "c/0/0"
    shard.write_bytes(shard.read_bytes()[:-3])
    sentence(run("convert", src, tmp_path / "dst", code=1))


def test_a_refused_conversion_leaves_no_directory_but_those_it_found(sample, tmp_path):
    (tmp_path / "there").mkdir()
    for dst in ("there", "there/new/dst", "other"):
        run("convert", sample / "u", tmp_path / dst, "--shards", "8,13", code=2)
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_a_destination_that_cannot_be_written_is_the_one_that_is_named(sample):
    line = sentence(run("convert", sample / "u", "https://nowhere.invalid/x", code=2))
    assert "cannot be written to (array 'https://nowhere.invalid/x')" in line
    assert str(sample) not in line
