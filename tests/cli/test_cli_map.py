"""`gpushard map`: figures, characters, and pictures of a shard."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from time import perf_counter
from xml.etree import ElementTree

import numpy as np
import pytest
import zarr
from zarr.codecs import ShardingCodec

from cli_runs import run, run_json, sentence
from gpushard import Options
from gpushard.cli import mapping, output
from gpushard.cli.map_marks import colour
from gpushard.stores.local.store import LocalStore
from places import ROOT
from spec_shards import index_of, sharding


def gapped(path, n=4, gap=6, *, crc=True) -> None:
    """A shard of `n` one-byte inner chunks laid down backwards, with gaps between."""
    zarr.create_array(
        path, shape=(n,), shards=(n,), chunks=(1,), dtype="u1", compressors=None
    )
    starts = (gap + 1) * np.arange(n)[::-1] + gap
    entries = np.stack([starts, np.ones(n, int)], axis=1).astype("<u8")
    entries[1 if n > 1 else 0] = 2**64 - 1
    payload = bytearray(n * (gap + 1))
    index = entries.tobytes()
    from crc32c import crc32c

    (path / "c").mkdir(exist_ok=True)
    (path / "c" / "0").write_bytes(
        bytes(payload) + index + struct.pack("<I", crc32c(index))
    )


@pytest.fixture
def path(tmp_path):
    gapped(tmp_path / "a")
    return tmp_path / "a"


class Counted:
    """How many objects a store was asked for."""

    def __init__(self, monkeypatch):
        self.n = 0
        read = LocalStore.read

        def counted(store, requests):
            self.n += len(requests)
            return read(store, requests)

        monkeypatch.setattr(LocalStore, "read", counted)


def long_array(path, stored):
    made = zarr.create_array(
        path, shape=(5000,), shards=(2,), chunks=(1,), dtype="u1", fill_value=9
    )
    for at in stored:
        made[at] = 1
    return path


def test_a_shard_that_is_named_is_the_only_one_asked_for(tmp_path, monkeypatch):
    path = long_array(tmp_path / "a", [4000])
    counted = Counted(monkeypatch)
    assert run_json("map", path, "--shard", "2000")["shard"] == "c/2000"
    assert counted.n <= 2


def test_the_first_shard_is_found_at_little_cost(tmp_path, monkeypatch):
    path = long_array(tmp_path / "a", [0, 4000])
    counted = Counted(monkeypatch)
    assert run_json("map", path)["shard"] == "c/0"
    assert counted.n <= 3


def test_a_stored_shard_is_looked_for_among_so_many_only(tmp_path, monkeypatch):
    path = long_array(tmp_path / "a", [4000])
    monkeypatch.setattr(LocalStore, "list_keys", lambda *_: None)
    assert run_json("map", path)["shard"] == "c/2000"
    monkeypatch.setattr(mapping, "_MOST_FILES", 2000)
    line = sentence(run("map", path, code=2))
    assert "none of the first 2,000 shards" in line
    assert "--shard" in line
    monkeypatch.setattr(mapping, "_MOST_FILES", 2001)
    assert run_json("map", path)["shard"] == "c/2000"


def test_a_stored_shard_is_listed_wherever_it_lies(tmp_path, monkeypatch):
    path = long_array(tmp_path / "a", [4000])
    monkeypatch.setattr(mapping, "_MOST_FILES", 1000)
    counted = Counted(monkeypatch)
    assert run_json("map", path)["shard"] == "c/2000"
    assert counted.n < 1010
    (tmp_path / "a" / "c" / "2000").unlink()
    assert "no shard of the array is stored" in sentence(run("map", path, code=2))


def test_figures_are_those_of_the_shard(path):
    facts = run_json("map", path)
    assert (facts["shard"], facts["nbytes"]) == ("c/0", 4 * 7 + 68)
    assert (facts["n_stored"], facts["n_missing"]) == (3, 1)
    assert facts["payload_nbytes"] == 3
    assert facts["unused_nbytes"] == 4 * 6 + 1
    assert facts["n_gaps"] == 3
    assert facts["gaps"][0] == {"offset": 0, "nbytes": 6}
    assert facts["indexes"] == [{"offset": 28, "nbytes": 68}]
    assert facts["inner_chunks"][0] == {
        "coordinate": [0],
        "state": "stored",
        "offset": 27,
        "nbytes": 1,
        "place": 2,
    }
    assert facts["inner_chunks"][1]["state"] == "missing"
    assert facts["inner_chunks"][1]["offset"] is None
    assert [row["place"] for row in facts["inner_chunks"]] == [2, None, 1, 0]
    last = {"coordinate": [3], "state": "stored", "offset": 6, "nbytes": 1, "place": 0}
    assert facts["inner_chunks"][3] == last
    assert facts["order"] == "other"


def test_the_terminal_shows_each_kind_without_colour(path):
    result = run("map", path)
    rows = result.stdout.splitlines()
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
    strip = "".join(rows[rows.index("bytes") + 1 : rows.index("grid") - 1])
    assert set(strip) >= {"·", "I"}
    assert set(strip) & {"█", "▓"}
    assert rows[rows.index("grid") + 1] == "██□□████"


@pytest.mark.parametrize("columns", [20, 80, 120])
def test_the_legend_is_cut_between_its_signs_and_no_wider_than_a_terminal(
    columns, path, monkeypatch
):
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = run("map", path).stdout.splitlines()
    (begin,) = (n for n, row in enumerate(rows) if row.startswith("█▓ inner"))
    legend = rows[begin:]
    signs = [sign for row in legend for sign in row.split("   ")]
    assert signs == [
        "█▓ inner chunks, one after the other",
        "I index",
        "· unused",
        "▒ some missing",
        "□ missing",
        "X damaged",
    ]
    assert all(len(row) <= columns or "   " not in row for row in legend)
    assert len(legend) == {20: 5, 80: 2, 120: 1}[columns]


def test_terminals_without_such_characters_get_others(path):
    root = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-m", "gpushard", "map", path],
        env=os.environ | {"PYTHONPATH": root, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )
    lines = done.stdout.decode("ascii").splitlines()
    assert lines[lines.index("grid") + 1] == "##oo####"


def test_a_store_that_tells_no_sizes_is_asked_for_all_of_the_shard(path, tmp_path):
    packed = tmp_path / "a.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for file in path.rglob("*"):
            if file.is_file():
                archive.write(file, file.relative_to(path))
    want, got = run_json("map", path), run_json("map", packed)
    assert {**got, "url": None} == {**want, "url": None}


def test_json_is_printed_as_rows_are_made_and_reads_as_if_printed_at_once(
    path, monkeypatch
):
    n_made: list[int] = []
    printed: list[str] = []

    def rows():
        for k in range(10_000):
            n_made.append(k)
            yield {"place": k, "nested": {"x": [1, None]}}

    def echo(text, *, nl):
        assert not nl
        printed.append(text)
        assert len(n_made) <= 2_000 * len(printed)

    monkeypatch.setattr(output.typer, "echo", echo)
    facts = {"a": {"b": [], "c": float("inf")}, "rows": rows(), "none": iter(())}
    output.print_json(facts)
    expected = {"a": {"b": [], "c": "Infinity"}, "rows": [*rows()], "none": []}
    assert "".join(printed) == json.dumps(expected, indent=2) + "\n"
    told = mapping.open_map(str(path), None, Options()).as_dict()
    for name in ("inner_chunks", "indexes", "gaps"):
        assert isinstance(told[name], Iterator)


def test_orders_are_named(tmp_path):
    for name, expected in (("z", "morton"), ("c", "c")):
        z = zarr.create_array(
            tmp_path / name, shape=(8, 8), dtype="u1",
            shards=(8, 8) if name == "z" else (1, 8),
            chunks=(2, 2) if name == "z" else (1, 2),
        )  # fmt: skip
        z[...] = 1
        assert run_json("map", tmp_path / name)["order"] == expected


def test_inner_chunks_that_share_bytes_are_counted(path):
    index = index_of([(0, 9), (4, 3), (0, 9), (16, 2)])
    (path / "c/0").write_bytes(bytes(20) + index)
    assert "1 overlapping, 1 equal ranges" in run("map", path).stdout


def test_svg_is_well_formed_and_labels_every_piece(path, tmp_path):
    out = tmp_path / "map.svg"
    run("map", path, "--out", out)
    root = ElementTree.parse(out).getroot()
    labels = [e.text for e in root.iter("{http://www.w3.org/2000/svg}title")]
    assert any("inner chunk (0,), bytes 27 to 28 (1), 1.00 to 1" in t for t in labels)
    assert any("missing: reads as the fill value" in t for t in labels)
    assert any(t.startswith("unused, bytes 0 to 6") for t in labels)
    assert any(t.startswith("index, bytes 28 to 96") for t in labels)


def test_a_nested_shard_that_is_missing_is_drawn(tmp_path):
    nested = sharding((2,), codecs=[sharding((1,))])
    z = zarr.create_array(
        tmp_path / "a", shape=(6,), chunks=(6,), dtype="u1", fill_value=0,
        serializer=ShardingCodec.from_dict(nested), compressors=None,
    )  # fmt: skip
    z[:2] = z[5:] = 1
    out = tmp_path / "map.svg"
    lines = run("map", tmp_path / "a", "--out", out).stdout
    assert "3 stored of 6 within the array, 3 missing" in lines
    root = ElementTree.parse(out).getroot()
    labels = [e.text for e in root.iter("{http://www.w3.org/2000/svg}title")]
    missing = [text for text in labels if "a nested shard" in text]
    assert missing == ["a nested shard that is missing or damaged"] * 2
    rows = run("map", tmp_path / "a").stdout.splitlines()
    assert rows[rows.index("grid") + 1] == "████□□□□□□██"


def test_svg_of_an_array_with_a_control_character_in_its_name_is_well_formed(
    path, tmp_path
):
    odd = tmp_path / "esc\x1b[31m"
    path.rename(odd)
    out = tmp_path / "map.svg"
    run("map", odd, "--out", out)
    texts = ElementTree.parse(out).getroot().itertext()
    assert any(r"esc\x1b[31m" in text for text in texts)


def test_png_is_a_png(path, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    out = tmp_path / "map.png"
    run("map", path, "--out", out)
    data = out.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert width > 900
    assert height > 100
    at = data.index(b"IDAT")
    assert len(set(zlib.decompressobj().decompress(data[at + 4 :]))) > 3


@pytest.mark.parametrize("name", ["a$\\frac{1$", os.fsdecode(b"a\xff"), "日本"])
def test_a_png_takes_any_name(name, path, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    odd = path.rename(tmp_path / name)
    run("map", odd, "--out", tmp_path / "map.png")


def test_large_shards_are_drawn_in_cells(tmp_path):
    gapped(tmp_path / "a", 100_000, 3)
    started = perf_counter()
    for ending in ("svg", "html"):
        out = tmp_path / f"map.{ending}"
        text = run("map", tmp_path / "a", "--out", out).stdout
        assert "99,999 stored" in text
        assert out.stat().st_size < 3_000_000
        assert out.read_text().count('class="mark') < 10_000
    assert len(run("map", tmp_path / "a").stdout) < 20_000
    assert perf_counter() - started < 20


@pytest.mark.parametrize("name", ["c/0", "0"])
def test_a_shard_is_named_by_key_or_coordinate(path, name):
    assert run_json("map", path, "--shard", name)["shard"] == "c/0"


@pytest.mark.parametrize("name", ["c/1", "x", "", "c/0/0", "-0", "9" * 5000])
def test_a_shard_that_the_grid_has_not_is_refused(path, name):
    assert "no such shard" in sentence(run("map", path, "--shard", name, code=2))


def test_a_picture_may_have_the_longest_name_that_there_is(path, tmp_path):
    out = tmp_path / f"{'m' * 251}.svg"
    run("map", path, "--out", out)
    assert out.read_text().startswith("<svg")


def test_an_array_without_elements_is_told_to_have_no_shard(tmp_path):
    zarr.create_array(tmp_path, shape=(0, 3), chunks=(1, 1), dtype="u1")
    line = sentence(run("map", tmp_path, "--shard", "0,0", code=2))
    assert "expected no key, because the array has no elements" in line


def test_missing_and_damaged_shards_are_told(tmp_path):
    z = zarr.create_array(
        tmp_path / "a", shape=(8,), shards=(4,), chunks=(1,), dtype="u1"
    )
    z[4:] = 1
    assert run_json("map", tmp_path / "a")["shard"] == "c/1"
    missing = run("map", tmp_path / "a", "--shard", "c/0", code=2)
    assert "fill value" in sentence(missing)
    file = tmp_path / "a/c/1"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert "checksum" in sentence(run("map", tmp_path / "a", code=1))
    file.unlink()
    assert "no shard" in sentence(run("map", tmp_path / "a", code=2))


def test_a_damaged_entry_is_drawn_and_exits_with_1(path):
    file = path / "c/0"
    data = bytearray(file.read_bytes())
    from crc32c import crc32c

    data[-20:-12] = b"\xfe" * 8
    data[-4:] = struct.pack("<I", crc32c(bytes(data[-68:-4])))
    file.write_bytes(data)
    result = run("map", path, code=1)
    assert "██□□██XX" in result.stdout
    assert "verify" in result.stderr


def test_other_kinds_of_files_are_refused(path, tmp_path):
    said = sentence(run("map", path, "--out", tmp_path / "map.pdf", code=2))
    assert ".svg" in said


def test_shades_run_from_dark_to_bright():
    bright = [sum(colour(at / 10)) for at in range(11)]
    assert bright == sorted(bright)
    assert colour(0) != colour(1)
