"""`gpushard verify`: what is printed, what the exit status is, and what is repaired."""

from __future__ import annotations

import os
import re
import shutil
import sys

import numpy as np
import pytest
import zarr

import gpushard
from cli_runs import run, run_json, sentence, write_shards
from cuda_host.device import EmulatedDevice
from damaged_arrays import emulated
from gpushard.cli import device_comparison, verification
from gpushard.cli.verify_report import finding_text
from gpushard.converting.mark import NAME, ConversionMark
from gpushard.devices.find import FoundDevice
from gpushard.inspection.findings import Finding
from gpushard.options import Options
from gpushard.stores.local.files import FileWriter
from gpushard.stores.resolve import resolve
from gpushard.write_options import WriteOptions
from range_server import RangeServer


@pytest.fixture
def shards(tmp_path):
    return write_shards(tmp_path / "a")


@pytest.fixture
def damaged(shards):
    file = shards / "c/1/0"
    data = bytearray(file.read_bytes())
    data[-9] ^= 1
    file.write_bytes(data)
    return shards


def test_a_whole_array_is_told_with_what_was_not_checked(shards):
    result = run("verify", shards)
    lines = result.stdout.splitlines()
    assert lines[1].split(maxsplit=1) == ["status", "whole, as far as was checked"]
    assert "4 stored of 6 in the grid" in lines[2]
    assert "16 stored, 0 missing" in lines[3]
    assert lines[-1].startswith("NOT checked")
    assert "--decode" in lines[-1]
    assert result.stderr == ""
    assert "NOT checked" not in run("verify", shards, "--decode").stdout


def test_names_that_are_no_text_are_spelled_out_in_the_page(tmp_path):
    group = zarr.create_group(tmp_path / "g")
    for name in ("esc\x1b", os.fsdecode(b"bad\xff")):
        made = group.create_array("a", shape=(2,), chunks=(2,), dtype="i4")
        made[:] = 1
        os.rename(tmp_path / "g" / "a", tmp_path / "g" / name)
    out = tmp_path / "v.html"
    run("verify", tmp_path / "g", "--html", out, code=2)
    assert {r"esc\x1b", r"bad\udcff"} <= set(re.findall(r"[\w\\]+", out.read_text()))


def test_damage_exits_with_1_and_is_told_in_every_form(damaged, tmp_path):
    text = run("verify", damaged, code=1).stdout
    assert "DAMAGED: 1 finding costs 4 inner chunks" in text
    line = text.splitlines()[-1]
    assert line.split()[:4] == ["damage", "index", "c/1/0", "-"]
    page = tmp_path / "report.html"
    facts = run_json("verify", damaged, "--decode", "--html", page, code=1)
    (array,) = facts["arrays"]
    assert (facts["status"], array["status"]) == ("damaged", "damaged")
    (found,) = array["findings"]
    assert (found["kind"], found["shard_key"]) == ("index", "c/1/0")
    assert found["inner_chunk"] is None
    assert found["expected"] != found["got"]
    assert array["counts"]["n_checked_inner_chunks"] == 12
    assert found["got"] in page.read_text()


def test_findings_that_are_left_out_are_counted(shards, tmp_path, monkeypatch):
    for file in shards.glob("c/*/*"):
        file.write_bytes(file.read_bytes()[:-1])
    monkeypatch.setattr(sys.modules["gpushard.cli.verify"], "_MOST_LINES", 3)
    monkeypatch.setattr("gpushard.inspection.findings.MOST_FINDINGS", 3)
    page = tmp_path / "report.html"
    text = run("verify", shards, "--html", page, code=1).stdout
    assert text.endswith("\n... and 1 more: see --json or --html\n")
    assert "Only the first 3 of 4 are listed." in page.read_text()


def test_a_finding_is_told_with_what_is_known_of_it():
    assert finding_text(Finding("index", "c/0", None, 1, "lost")) == "lost"
    known = {"codec": "zstd", "expected": "1", "got": "2", "hint": "do"}
    found = Finding("decode", "c/0", (0,), 1, "lost", **known)
    assert finding_text(found) == "lost (codec zstd, expected 1, got 2); do"


def test_progress_goes_to_stderr_and_data_to_stdout(damaged):
    result = run("verify", damaged, "--progress", "--json", code=1)
    assert result.stdout.startswith("{")
    assert "6 of 6 shards" in result.stderr
    assert re.search(r"[1-9][\d,]* shards/s", result.stderr)
    decoded = run("verify", damaged, "--progress", "--decode", code=1)
    assert re.search(r"\d MB/s", decoded.stderr)
    assert run("verify", damaged, "--json", code=1).stderr == ""


def test_a_terminal_shows_the_bar_of_one_array_and_clears_it(tmp_path, monkeypatch):
    group = zarr.create_group(tmp_path / "g")
    for name in ("a", "b", "c"):
        group.create_array(name, shape=(4,), chunks=(2,), dtype="i4")
    log = run("verify", tmp_path / "g", "--progress").stderr
    assert [line.split()[0] for line in log.splitlines()] == ["a", "b", "c"]
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    live = run("verify", tmp_path / "g", "--progress").stderr
    # No bar is drawn above another: the cursor goes up by the one line at the end.
    assert live.count("\x1b[1A") <= 1
    assert live.rstrip().endswith("\x1b[2K")


def test_all_arrays_of_a_group_are_verified_and_what_cannot_be_opened_told(tmp_path):
    group = zarr.create_group(tmp_path / "g")
    write_shards(tmp_path / "g" / "below" / "b")
    zarr.create_group(tmp_path / "g", path="below")
    group.create_array("a", shape=(4,), chunks=(2,), dtype="i4")[...] = 1
    assert [a["array"] for a in run_json("verify", tmp_path / "g")["arrays"]] == [
        "a",
        "below/b",
    ]
    document = tmp_path / "g" / "a" / "zarr.json"
    document.write_text(document.read_text().replace('"bytes"', '"no_such_codec"'))
    result = run("verify", tmp_path / "g", code=2)
    assert "no_such_codec" in result.stdout
    assert "not everything could be verified" in result.stderr


def test_wrong_places_and_devices_exit_with_2(shards, tmp_path):
    assert "no directory" in sentence(run("verify", tmp_path / "none", code=2))
    assert "device" in sentence(run("verify", shards, "--device", "tpu", code=2))
    page = tmp_path / "no" / "page.html"
    result = run("verify", shards, "--html", page, code=2)
    assert "cannot write" in result.stderr
    assert "whole, as far as was checked" in result.stdout  # not lost for that


class _Killed(BaseException):
    """Stands for the end of the process."""


# The write to the file that is cut short: one that leaves no index that verifies.
IN_PLACE = [
    ("append_only", "end", 1),
    ("random_write", "start", 3),
    ("fixed_order", "end", 2),
]


@pytest.mark.parametrize(("strategy", "location", "n_calls"), IN_PLACE)
def test_repair_brings_the_last_published_shard_back(
    strategy, location, n_calls, tmp_path, monkeypatch
):
    write = WriteOptions(strategy=strategy, max_unused_fraction=1)
    a = gpushard.create_array(
        tmp_path / "a", shape=(16,), dtype="u4", chunks=(4,), compressors=None,
        shards={"shape": (8,), "index_location": location},
        options=Options(write=write),
    )  # fmt: skip
    a[...] = want = np.arange(1, 17, dtype="u4")
    file = tmp_path / "a/c/1"
    published = file.read_bytes()
    pwrite, left = os.pwrite, [n_calls]

    def cut_off(fd, data, offset):
        left[0] -= 1
        if not left[0]:
            pwrite(fd, bytes(data)[: len(data) // 2], offset)
            raise _Killed
        return pwrite(fd, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", cut_off)
        with pytest.raises(_Killed):
            a[9:15] = 7
    torn = run_json("verify", tmp_path / "a", code=1)["arrays"][0]
    assert [(f["kind"], f["shard_key"]) for f in torn["findings"]] == [("torn", "c/1")]
    assert "--repair" in torn["findings"][0]["hint"]
    repaired = run_json("verify", tmp_path / "a", "--repair", "--decode")["arrays"][0]
    assert (repaired["status"], repaired["restored"]) == ("whole", ["c/1"])
    assert file.read_bytes() == published
    np.testing.assert_array_equal(gpushard.open_array(tmp_path / "a")[...], want)
    again = run_json("verify", tmp_path / "a", "--repair")["arrays"][0]
    assert again["restored"] == []


def test_what_cannot_be_repaired_is_told_beside_all_else_that_is_verified(tmp_path):
    for name in "ab":
        write_shards(tmp_path / "g" / name)
    zarr.open_group(tmp_path / "g", mode="a")
    torn = tmp_path / "g/a/c/1/0"
    torn.write_bytes(torn.read_bytes()[:-1])
    torn.with_name(".0.undo").write_bytes(b"junk")
    first, second = run_json("verify", tmp_path / "g", "--repair", code=1)["arrays"]
    (finding,) = first["findings"]
    assert (finding["kind"], finding["shard_key"]) == ("torn", "a/c/1/0")
    assert re.match("the note .* is damaged: .*'rewrite'", finding["hint"])
    assert (second["array"], second["status"]) == ("b", "whole")


def test_repair_leaves_damage_that_no_write_has_noted(damaged):
    before = (damaged / "c/1/0").read_bytes()
    facts = run_json("verify", damaged, "--repair", code=1)
    assert facts["arrays"][0]["restored"] == []
    assert (damaged / "c/1/0").read_bytes() == before


def test_repair_writes_nothing_where_no_write_has_left_a_note(tmp_path, monkeypatch):
    path = write_shards(tmp_path / "a")
    (path / "c/0/0").unlink()
    (path / "c/0/0").mkdir()  # which writers refuse
    monkeypatch.setattr(FileWriter, "locked", lambda _, key: pytest.fail(key))
    (facts,) = run_json("verify", path, "--repair", code=2)["arrays"]
    assert [f["shard_key"] for f in facts["findings"]] == ["c/0/0"]


def test_a_device_is_held_against_the_host(damaged, monkeypatch):
    device = EmulatedDevice(*emulated(), seed=3)
    monkeypatch.setattr(verification, "find_device", lambda name: FoundDevice(device))
    (array,) = run_json("verify", damaged, "--device", "cuda", code=1)["arrays"]
    assert [found["kind"] for found in array["findings"]] == ["index"]
    assert array["checks"][-1]["what"] == "device"
    assert any("scatter" in what for _, _, what in device.log)
    on_host = device_comparison._on_host

    def wrong(result):
        values = on_host(result).copy()
        values[7, 3] ^= 1
        return values

    monkeypatch.setattr(device_comparison, "_on_host", wrong)
    (array,) = run_json("verify", damaged, "--device", "cuda", code=1)["arrays"]
    found = array["findings"][-1]
    assert (found["kind"], found["shard_key"]) == ("device", "c/0/0")
    assert found["inner_chunk"] == [1, 0]
    assert "1 elements" in found["message"]
    assert "(7, 3)" in found["message"]
    assert (array["n_findings"], array["n_damaged_inner_chunks"]) == (2, 4 + 1)


def test_a_group_without_arrays_is_not_called_whole(tmp_path):
    zarr.create_group(tmp_path / "g").create_group("below")
    result = run("verify", tmp_path / "g", code=2)
    assert result.stderr == "gpushard: nothing was verified: no array is there.\n"
    assert run_json("verify", tmp_path / "g", code=2)["status"] == "unverified"


def test_a_group_is_told_array_by_array_and_in_all(damaged, tmp_path):
    lines = run("verify", damaged, code=1).stdout.splitlines()
    assert lines[0] == f"array         {damaged}"
    shutil.copytree(damaged, tmp_path / "g/a")
    zarr.open_group(tmp_path / "g", mode="a").create_array(
        "b", shape=(2,), dtype="i1", chunks=(1,)
    )
    lines = run("verify", tmp_path / "g", code=1).stdout.splitlines()
    assert lines[0] == "array         a"
    assert lines.index("array         b") == lines.index("") + 1
    assert lines[-2] == ""
    assert lines[-1].startswith(f"{tmp_path / 'g'}: Damaged: 1 of 2 arrays, in ")
    run("verify", tmp_path / "g", "--html", tmp_path / "v.html", code=1)
    assert "Damaged: 1 of 2 arrays, in " in (tmp_path / "v.html").read_text()


def test_one_thing_that_could_not_be_verified_is_told_in_the_singular(tmp_path):
    zarr.create_group(tmp_path / "g")
    (tmp_path / "g" / "round").symlink_to(tmp_path / "g" / "round")
    result = run("verify", tmp_path / "g", code=2)
    assert "1 thing could not be verified" in result.stdout


@pytest.mark.parametrize("below", ["", "b/c"])
def test_an_unfinished_conversion_is_not_called_whole(shards, tmp_path, below):
    source, target = tmp_path / "g", tmp_path / "new" / below
    shutil.copytree(shards, source / "a")
    zarr.open_group(source, mode="a")
    for one, place in ((source, target), (source / "a", target / "a")):
        shutil.rmtree(target, ignore_errors=True)
        gpushard.convert(source, target)
        assert run_json("verify", target)["status"] == "whole"
        mark = ConversionMark(resolve(str(place))[0], NAME, "", "", np.zeros(6, bool))
        mark.write()
        found = run_json("verify", target, code=2)
        assert found["status"] == "unverified", one
        (finding,) = [f for told in found["arrays"] for f in told["findings"]]
        assert (finding["kind"], finding["shard_key"]) == ("unfinished", NAME)
        assert "repeat the conversion" in run("verify", target, code=2).stdout


@pytest.mark.network
def test_a_server_that_refuses_the_name_of_a_mark_has_none(shards):
    with RangeServer(shards) as server:
        server.statuses[NAME] = 403
        facts = run_json("verify", server.url)
    assert facts["status"] == "whole"
    assert NAME in {request.key for request in server.requests}
