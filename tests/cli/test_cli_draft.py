"""Commands on hierarchies in the draft of Zarr v3, whose arrays have no directory."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import zarr

import gpushard
from cli_runs import run, run_json, sentence
from places import INTEROP

VALUES = np.arange(48, dtype="i4").reshape(8, 6)
SAMPLES = INTEROP / "legacy" / "v3draft"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Hierarchy ``d.zarr`` in the current directory."""
    monkeypatch.chdir(tmp_path)
    for path in ("a", "g/b", "g/h/c"):
        made = gpushard.create_array(
            "d.zarr", path, format="v3-draft-transformer",
            shape=(8, 6), chunks=(2, 3), shards=(4, 6), dtype="i4",
        )  # fmt: skip
        made[...] = VALUES
    return tmp_path / "d.zarr"


@pytest.mark.parametrize("place", ["d.zarr", "d.zip/d.zarr"])
def test_each_command_takes_an_array_by_its_path_in_the_hierarchy(place, root):
    shutil.make_archive("d", "zip", ".", "d.zarr")
    for path in ("a", "g/b", "g/h/c/"):
        url = f"{place}/{path}"
        assert run_json("info", url)["shape"] == [8, 6]
        assert run_json("verify", url, "--decode")["status"] == "whole"
        assert run_json("read", f"{url}[1, 2:4]")["max"] == 9
        key = f"data/root/{path.strip('/')}/c1/0"
        mapped = run_json("map", url, "--shard", "1,0")["shard"]
        assert mapped in (key, f"d.zarr/{key}")
    run("convert", f"{place}/g/b", "new.zarr")
    assert np.array_equal(zarr.open_array("new.zarr", mode="r")[...], VALUES)
    run("bench", f"{place}/a", "--mib", 1)


def test_groups_and_whole_hierarchies_are_shown_and_verified(root):
    top = run_json("info", "d.zarr")
    assert ([*top["arrays"]], top["groups"]) == (["a"], ["g"])
    below = run_json("info", root.as_uri() + "/g")
    assert ([*below["arrays"]], below["groups"]) == (["b"], ["h"])
    for place, arrays in (("d.zarr", ["a", "g/b", "g/h/c"]), ("d.zarr/g/h", ["g/h/c"])):
        verified = run_json("verify", place, "--repair")["arrays"]
        assert [one["array"] for one in verified] == arrays
        assert {one["status"] for one in verified} == {"whole"}


@pytest.mark.parametrize("command", ["read", "map", "bench"])
def test_commands_for_one_array_say_what_a_group_of_the_draft_has(command, root):
    assert "'g' is a group, not an array" in sentence(run(command, "d.zarr/g", code=2))
    assert "open b or h" in sentence(run(command, "d.zarr/g", code=2))


@pytest.mark.parametrize("command", ["info", "read", "verify", "map", "bench"])
def test_what_the_hierarchy_does_not_have_is_told_with_what_it_has(command, root):
    told = sentence(run(command, "d.zarr/g/nope", code=2))
    assert "no meta/root/g/nope.array.json" in told
    assert "the group 'g' has b, h" in told
    for inside in ("meta", "data/root/g/b"):
        told = sentence(run(command, f"d.zarr/{inside}", code=2))
        assert f"it is a part of '{root}', which has " in told


def test_a_path_that_leads_nowhere_is_in_no_hierarchy_of_another_format(tmp_path):
    zarr.create_group(tmp_path / "g").create_array(
        "meta/roots", shape=(1,), chunks=(1,), dtype="u1"
    )
    assert "no directory" in sentence(run("info", tmp_path / "g/x", code=2))
    (tmp_path / "meta" / "root").mkdir(parents=True)
    assert "no directory" in sentence(run("info", tmp_path / "x", code=2))


@pytest.mark.parametrize("name", [p.name for p in SAMPLES.iterdir() if p.is_dir()])
def test_samples_of_others_are_taken_by_their_path(name):
    assert run_json("verify", SAMPLES / name / "arr", "--decode")["status"] == "whole"
    shape = run_json("info", SAMPLES / name / "arr")["shape"]
    assert run_json("read", SAMPLES / name / "arr")["shape"] == shape
