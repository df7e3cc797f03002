"""The commands, as a user runs them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import zarr
from typer.testing import CliRunner

import gpushard
from gpushard.cli import app, reading
from gpushard.cli.comparison import Reference
from gpushard.cli.output import printable
from gpushard.cli.summary import Summary
from range_server import RangeServer

SAMPLE = Path(gpushard.__file__).parent / "data" / "eraint.zarr"


def run(*arguments, code=0):
    """Result of `gpushard` with these arguments, once its exit status is checked."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def run_json(*arguments, code=0):
    text = run(*arguments, "--json", code=code).stdout
    return json.loads(text, parse_constant=pytest.fail)


def sentence(result) -> str:
    """The one line of an error, which is all that there is."""
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("gpushard: ")
    assert line.endswith(".")
    return line


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("sample") / "demo.zarr"
    run("sample", path)
    return path


@pytest.fixture
def array(tmp_path) -> Path:
    """Six shards of random bytes, two of them missing."""
    path = tmp_path / "a.zarr"
    stored = zarr.create_array(
        path, shape=(30, 20), shards=(10, 10), chunks=(5, 5), dtype="u1", fill_value=7
    )
    stored[:20] = np.random.default_rng(0).integers(0, 255, (20, 20), np.uint8)
    return path


def corrupt(path: Path) -> None:
    """Flip a bit in the middle of every stored object of an array."""
    for file in (path / "c").rglob("*"):
        if file.is_file():
            data = bytearray(file.read_bytes())
            data[len(data) // 3] ^= 0x10
            file.write_bytes(data)


@pytest.mark.parametrize(
    "command",
    [[sys.executable, "-m", "gpushard"], [Path(sys.executable).parent / "gpushard"]],
    ids=["python -m", "console script"],
)
def test_program_runs_from_a_shell(command, tmp_path):
    if not os.path.exists(command[0]):
        pytest.skip("gpushard is on the path, not installed")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def shell(*arguments):
        return subprocess.run(
            [*command, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    assert shell("sample", "demo.zarr").returncode == 0
    done = shell("read", "demo.zarr/u[0, :, ::-7, 3]", "--out", "u.npy", "--verify")
    assert (done.returncode, done.stderr) == (0, "")
    expected = zarr.open_array(tmp_path / "demo.zarr", path="u")[0, :, :, 3]
    np.testing.assert_array_equal(np.load(tmp_path / "u.npy"), expected[:, ::-7])
    refused = shell("read", "demo.zarr/w")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.count("\n") == 1


def test_help_loads_neither_numpy_nor_rich():
    code = (
        "import sys, gpushard.cli; print({'numpy', 'rich', 'zarr'} & set(sys.modules))"
    )
    output = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert output == "set()\n"


def test_version_is_the_package_version():
    assert run("--version").stdout == f"gpushard {gpushard.__version__}\n"


@pytest.mark.parametrize(
    "arguments", [("info",), ("read",), ("read", "a", "--frobnicate"), ("map", "a")]
)
def test_a_wrong_usage_exits_with_2(arguments):
    assert run(*arguments, code=2).stdout == ""


# sample


def test_sample_is_a_group_of_arrays_that_equal_zarrs(sample):
    group = gpushard.open_group(sample)
    assert list(group) == ["latitude", "level", "longitude", "month", "u", "v", "z"]
    assert group["u"].shards == (1, 3, 244, 480)
    expected = zarr.open_group(sample, mode="r")
    for name, array in group.items():
        assert array[...].tobytes() == expected[name][...].tobytes()
        assert np.unique(array[...]).size > 1


def test_sample_carries_its_attribution(sample):
    attributes = gpushard.open_group(sample).attrs
    assert "ECMWF" in attributes["attribution"]
    assert "Copernicus Climate Change Service" in attributes["attribution"]
    assert "10.1002/qj.828" in attributes["references"]


@pytest.mark.parametrize("document", sorted(SAMPLE.rglob("zarr.json")), ids=str)
def test_sample_documents_are_strict_json(document):
    json.loads(document.read_text(), parse_constant=pytest.fail)


def test_sample_tells_what_to_try_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    facts = run_json("sample", "my demo.zarr")
    files = [path for path in Path("my demo.zarr").rglob("*") if path.is_file()]
    assert facts["nbytes"] == sum(file.stat().st_size for file in files)
    assert facts["next"] == [
        "gpushard info 'my demo.zarr'",
        "gpushard read 'my demo.zarr/u[0, :, 60:120, ::2]' --out u.npy --verify",
    ]
    for command in facts["next"]:
        run(*shlex.split(command)[1:])
    text = run("sample", "again.zarr").stdout
    assert "ECMWF" in text
    assert text.endswith("u.npy --verify\n")


def test_sample_can_be_written_over(sample):
    for file in sample.rglob("*"):
        assert os.access(file, os.W_OK)


def test_sample_refuses_a_directory_with_something_in_it(tmp_path):
    (tmp_path / "mine").touch()
    assert "not empty" in sentence(run("sample", tmp_path, code=2))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_sample_takes_an_empty_directory(tmp_path):
    run("sample", tmp_path)
    assert (tmp_path / "u" / "zarr.json").is_file()


@pytest.mark.parametrize("dest", ["file/below", "file", "s3://bucket/demo.zarr"])
def test_sample_refuses_what_is_no_directory(dest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    sentence(run("sample", dest, code=2))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# info


def test_info_tells_an_arrays_facts(sample):
    facts = run_json("info", sample / "u")
    assert facts["node_type"] == "array"
    assert facts["shape"] == [2, 3, 241, 480]
    assert facts["dimension_names"] == ["month", "level", "latitude", "longitude"]
    assert facts["dtype"] == "int16"
    assert (facts["chunks"], facts["shards"]) == ([1, 1, 61, 120], [1, 3, 244, 480])
    assert (facts["n_shards"], facts["n_stored"]) == (2, 2)
    assert facts["nbytes"] == 2 * 3 * 241 * 480 * 2
    assert facts["stored_nbytes"] == 426277 + 412879
    assert facts["fill_value"] == 0
    assert facts["sharding"] == [
        {
            "chunk_shape": [1, 1, 61, 120],
            "index_location": "end",
            "index_codecs": ["bytes", "crc32c"],
        }
    ]
    assert {codec["codec"] for codec in facts["codecs"]} == {"bytes", "blosc"}
    assert all(codec["library"] for codec in facts["codecs"])
    assert facts["attributes"]["units"] == "m s**-1"


def test_info_tells_people_the_same(sample):
    text = run("info", sample / "u").stdout
    rows = {line[:14].strip(): line[14:].strip() for line in text.splitlines()}
    assert rows["shape"] == "(2, 3, 241, 480)"
    assert rows["shards"] == "(1, 3, 244, 480), 2 in the grid, 2 stored"
    assert rows["size"] == "1,388,160 bytes, 839,156 stored, 1.65 times smaller"
    assert "index at the end (bytes, crc32c)" in rows["codecs"]
    assert "blosc: on the host, " in text


def test_info_counts_missing_shards(array):
    facts = run_json("info", array)
    assert (facts["n_shards"], facts["n_stored"]) == (6, 4)


def test_info_of_an_unsharded_array_has_chunks_only(sample):
    facts = run_json("info", sample / "level")
    assert (facts["chunks"], facts["shards"], facts["sharding"]) == ([3], None, [])
    assert "inner chunks" not in run("info", sample / "level").stdout


def test_info_lists_a_groups_children(sample):
    facts = run_json("info", sample)
    assert facts["node_type"] == "group"
    assert list(facts["arrays"]) == sorted(["u", "v", "z", *COORDINATES])
    assert facts["arrays"]["z"]["shards"] == [1, 3, 244, 480]
    lines = run("info", sample).stdout.splitlines()
    assert lines[0].split() == ["name", "shape", "dtype", "inner", "chunks", "shards"]
    assert lines[5].startswith("u          (2, 3, 241, 480)  int16    (1, 1, 61, 120)")


COORDINATES = ["latitude", "level", "longitude", "month"]


def test_info_lists_groups_and_what_cannot_be_read(tmp_path):
    group = zarr.create_group(tmp_path)
    group.create_group("below")
    group.create_array("odd", shape=(2,), dtype="i4")
    document = json.loads((tmp_path / "odd" / "zarr.json").read_text())
    document["codecs"].append({"name": "no-such-codec"})
    (tmp_path / "odd" / "zarr.json").write_text(json.dumps(document))
    facts = run_json("info", tmp_path)
    assert facts["groups"] == ["below"]
    assert "no-such-codec" in facts["arrays"]["odd"]["error"]
    assert "below/" in run("info", tmp_path).stdout


def test_info_of_an_empty_group_says_so(tmp_path):
    zarr.create_group(tmp_path)
    assert "empty" in run("info", tmp_path).stdout


def test_info_is_strict_json_whatever_the_numbers(tmp_path):
    attributes = {"nan": float("nan"), "limits": [-float("inf"), {"x": float("inf")}]}
    zarr.create_array(tmp_path, shape=(2,), dtype="f4", fill_value=np.nan)
    # Written by hand: zarr 3.1.0 refuses such attributes, later ones write them so.
    document = json.loads((tmp_path / "zarr.json").read_text())
    (tmp_path / "zarr.json").write_text(
        json.dumps(document | {"attributes": attributes})
    )
    facts = run_json("info", tmp_path)
    assert facts["fill_value"] == "NaN"
    assert facts["attributes"] == {
        "nan": "NaN",
        "limits": ["-Infinity", {"x": "Infinity"}],
    }


def test_info_lets_no_control_character_through(tmp_path):
    zarr.create_array(
        tmp_path, shape=(1,), dtype="i1", attributes={"\x1b[2J": "a\x9bb\u202ec"}
    )
    text = run("info", tmp_path).stdout
    assert "\\x1b[2J: a\\x9bb\\u202ec" in text
    assert all(character.isprintable() or character == "\n" for character in text)


def test_printable_keeps_what_people_write():
    assert printable("Größe 温度 [a] 'b'") == "Größe 温度 [a] 'b'"


def test_info_of_nothing_exits_with_2(tmp_path):
    assert "zarr.json" in sentence(run("info", tmp_path, code=2))
    sentence(run("info", tmp_path / "absent", "--json", code=2))


def test_info_of_a_broken_document_exits_with_2(tmp_path):
    (tmp_path / "zarr.json").write_text("{")
    sentence(run("info", tmp_path, code=2))


# read


@pytest.mark.parametrize(
    ("selection", "key"),
    [
        ("", ...),
        ("[...]", ...),
        ("[3]", 3),
        ("[-1, -1]", (-1, -1)),
        ("[25:3:-4, ::3]", (slice(25, 3, -4), slice(None, None, 3))),
        ("[..., ::-1]", (..., slice(None, None, -1))),
        ("[::-1, ::-1]", (slice(None, None, -1), slice(None, None, -1))),
        ("[5:5]", slice(5, 5)),
        ("[0:3:-1, 2]", (slice(0, 3, -1), 2)),
    ],
)
def test_read_writes_what_numpy_selects(array, tmp_path, selection, key):
    out = tmp_path / "x.npy"
    text = run("read", f"{array}{selection}", "--out", out, "--verify").stdout
    expected = zarr.open_array(array, mode="r")[...][key]
    assert np.load(out).dtype == expected.dtype
    np.testing.assert_array_equal(np.load(out), expected)
    assert f"verified: zarr-python reads the same {expected.size:,} elements" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zarr", "x.npy"]


def test_read_of_a_0d_array_takes_ellipsis(tmp_path):
    zarr.create_array(tmp_path / "a", shape=(), dtype="f8", fill_value=2.5)
    facts = run_json(
        "read", f"{tmp_path}/a[...]", "--out", tmp_path / "x.npy", "--verify"
    )
    assert (facts["shape"], facts["verified"]) == ([], True)
    assert np.load(tmp_path / "x.npy") == 2.5


def test_read_in_pieces_gives_the_same(array, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "PIECE_NBYTES", 64)
    whole = zarr.open_array(array, mode="r")[...]
    target = f"{array}[::-1, 3::2]"
    result = run(
        "read", target, "--out", tmp_path / "x.npy", "--verify", "--progress", "--json"
    )
    assert json.loads(result.stdout)["verified"] is True
    assert "bytes" in result.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), whole[::-1, 3::2])
    facts = run_json("read", target)
    assert facts["mean"] == pytest.approx(whole[::-1, 3::2].mean())


def test_progress_is_for_terminals_only(array, monkeypatch):
    monkeypatch.setattr(reading, "PIECE_NBYTES", 64)
    assert run("read", array).stderr == ""


def test_read_without_a_file_sums_up(array):
    whole = zarr.open_array(array, mode="r")[...]
    facts = run_json("read", array)
    assert (facts["min"], facts["max"]) == (whole.min(), whole.max())
    assert facts["mean"] == pytest.approx(whole.mean())
    assert (facts["out"], facts["verified"], facts["nbytes"]) == (None, None, 600)
    text = run("read", array).stdout
    assert text.startswith("uint8 (30, 20), 600 bytes\nmin ")


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        ("f4", [1, np.nan, 3], {"min": 1.0, "max": 3.0, "mean": 2.0, "n_nan": 1}),
        ("f8", [np.nan], {"n_nan": 1}),
        ("i8", [2**62, 1], {"min": 1, "max": 2**62, "mean": 2.0**61, "n_nan": 0}),
        ("?", [True, False], {"min": False, "max": True, "mean": 0.5, "n_nan": 0}),
        ("f2", [60000, 60000], {"min": 60000, "max": 60000, "mean": 6e4, "n_nan": 0}),
        (ml_dtypes.bfloat16, [1, 2], {"min": 1, "max": 2, "mean": 1.5, "n_nan": 0}),
        ("c8", [1j], {}),
        ("U3", ["abc"], {}),
        ("M8[s]", [1], {}),
        ("i4", [], {}),
    ],
)
def test_summary_of_numbers_and_of_nothing_else(dtype, values, expected):
    summary = Summary(np.dtype(dtype))
    for value in values:
        summary.add(np.array([[value]], dtype))
    assert summary.as_dict() == expected


def test_infinities_are_summed_up_without_a_warning():
    summary = Summary(np.dtype("f4"))
    summary.add(np.array([np.inf, -np.inf], "f4"))
    assert summary.as_dict()["max"] == np.inf
    assert np.isnan(summary.as_dict()["mean"])


@pytest.mark.parametrize(
    "dtype", ["f2", "c16", "?", "M8[ns]", "<U4", "V3", [("a", "i2"), ("b", "f4")]]
)
@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 spec")
def test_read_verifies_every_kind_of_element(dtype, tmp_path):
    dtype = np.dtype(dtype)
    raw = np.random.default_rng(1).integers(0, 2, 12 * dtype.itemsize, np.uint8)
    values = raw.view(dtype)
    stored = zarr.create_array(tmp_path / "a", shape=(12,), dtype=dtype, chunks=(5,))
    stored[:] = values
    target = f"{tmp_path}/a[::-1]"
    run("read", target, "--out", tmp_path / "x.npy", "--verify")
    assert np.load(tmp_path / "x.npy").tobytes() == values[::-1].tobytes()


def bfloat16_array(path):
    """zarr-python has no bfloat16; its bytes are those of uint16."""
    values = np.arange(6, dtype=ml_dtypes.bfloat16)
    stored = zarr.create_array(path, shape=(6,), dtype="u2", compressors=None)
    stored[:] = values.view("u2")
    document = json.loads((path / "zarr.json").read_text())
    document |= {"data_type": "bfloat16", "fill_value": 0.0}
    (path / "zarr.json").write_text(json.dumps(document))
    return values


def test_elements_that_npy_cannot_name_are_written_as_bytes(tmp_path):
    values = bfloat16_array(tmp_path / "a")
    result = run("read", tmp_path / "a", "--out", tmp_path / "x.npy")
    assert "view('bfloat16')" in result.stderr
    np.testing.assert_array_equal(
        np.load(tmp_path / "x.npy").view(ml_dtypes.bfloat16), values
    )


def test_what_zarr_cannot_read_is_not_verified(tmp_path):
    bfloat16_array(tmp_path / "a")
    line = sentence(
        run("read", tmp_path / "a", "--out", tmp_path / "x.npy", "--verify", code=2)
    )
    assert "zarr-python cannot read this" in line
    assert not (tmp_path / "x.npy").exists()


@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 spec")
@pytest.mark.filterwarnings("ignore:The codec `vlen-utf8` is currently not part")
def test_strings_are_read_and_compared_but_no_npy(tmp_path):
    stored = zarr.create_array(tmp_path / "a", shape=(3,), dtype=str)
    stored[:] = np.array(["a", "", "long enough"])
    facts = run_json("read", f"{tmp_path}/a[1:]", "--verify")
    assert facts["verified"] is True
    line = sentence(run("read", tmp_path / "a", "--out", tmp_path / "x.npy", code=2))
    assert "fixed size" in line
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_mismatch_exits_with_1_and_leaves_no_file(array, tmp_path, monkeypatch):
    honest = Reference._read

    def read(self, piece):
        expected = honest(self, piece)
        expected[2:4, 1] ^= 1
        return expected

    monkeypatch.setattr(Reference, "_read", read)
    (tmp_path / "x.npy").write_text("old")
    target = f"{array}[29:3:-2, 4:9]"
    result = run("read", target, "--out", tmp_path / "x.npy", "--verify", code=1)
    assert "2 of 65 elements" in result.stderr
    assert "the first at (25, 5): expected " in result.stderr
    assert (tmp_path / "x.npy").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zarr", "x.npy"]
    facts = run_json("read", target, "--verify", code=1)
    assert facts["verified"] is False
    assert facts["mismatch"]["element"] == [25, 5]


def test_mismatches_of_all_pieces_are_counted(array, monkeypatch):
    monkeypatch.setattr(reading, "PIECE_NBYTES", 64)
    honest = Reference._read
    monkeypatch.setattr(Reference, "_read", lambda *args: honest(*args) ^ 1)
    facts = run_json("read", array, "--verify", code=1)
    assert facts["mismatch"]["n_elements"] == 600
    assert facts["mismatch"]["element"] == [0, 0]


def test_negative_zero_is_not_zero(tmp_path, monkeypatch):
    zarr.create_array(tmp_path, shape=(2,), dtype="f4", fill_value=0.0)
    monkeypatch.setattr(Reference, "_read", lambda *_: np.array([0.0, -0.0], "f4"))
    assert run_json("read", tmp_path, "--verify", code=1)["mismatch"]["element"] == [1]


def test_another_data_type_is_a_mismatch(tmp_path, monkeypatch):
    zarr.create_array(tmp_path, shape=(2,), dtype="i4", fill_value=0)
    monkeypatch.setattr(Reference, "_read", lambda *_: np.zeros(2, "u4"))
    mismatch = run_json("read", tmp_path, "--verify", code=1)["mismatch"]
    assert (mismatch["element"], mismatch["n_elements"]) == (None, 2)


def test_damage_exits_with_1_and_leaves_no_file(array, tmp_path):
    corrupt(array)
    line = sentence(run("read", array, "--out", tmp_path / "x.npy", code=1))
    assert "shard 'c/" in line
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]


@pytest.mark.parametrize(
    "selection",
    ["[30]", "[0, 0, 0]", "[a]", "[]", "[..., ...]", "[::0]", "[None]", "[[1, 2]]"],
)
def test_a_wrong_selection_exits_with_2(array, selection):
    sentence(run("read", f"{array}{selection}", code=2))


def test_reading_a_group_exits_with_2_and_names_its_arrays(sample):
    assert "open latitude or level" in sentence(run("read", sample, code=2))


@pytest.mark.parametrize("out", [".", "absent/x.npy", "file/x.npy"])
def test_a_file_that_cannot_be_written_exits_with_2(array, out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert "cannot write" in sentence(run("read", array, "--out", out, code=2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zarr", "file"]


def test_a_full_disk_exits_with_2(array, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    line = sentence(run("read", array, "--out", tmp_path / "x.npy", code=2))
    assert "No space left on device" in line
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]


def test_too_little_memory_exits_with_2(array, monkeypatch):
    def fail(*_args, **_options):
        raise MemoryError("Unable to allocate 1 EiB")

    monkeypatch.setattr(reading, "run", fail)
    assert "1 EiB" in sentence(run("read", array, code=2))


def test_debug_shows_the_traceback(array):
    assert "Traceback" not in run("read", f"{array}[99]", code=2).stderr
    shown = run("read", f"{array}[99]", "--debug", code=2).stderr
    assert "Traceback" in shown
    assert shown.splitlines()[-1].startswith("gpushard: index 99 is out of bounds")


@pytest.mark.network
def test_read_over_http_is_verified_through_the_same_connection(sample, tmp_path):
    with RangeServer(sample) as server:
        facts = run_json(
            "read", f"{server.url}/u[1, 0, ::60, 7]", "--out", tmp_path / "x.npy",
            "--verify",
        )  # fmt: skip
        assert facts["verified"] is True
        info = run_json("info", f"{server.url}/u")
        assert (info["n_shards"], info["n_stored"]) == (2, None)
    expected = zarr.open_array(sample, path="u")[1, 0, ::60, 7]
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), expected)


def test_read_from_a_zip_file_is_verified(tmp_path):
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
        zarr.create_array(store, data=np.arange(10), chunks=(5,))
    assert run_json("read", f"{tmp_path}/a.zip[::-3]", "--verify")["max"] == 9
