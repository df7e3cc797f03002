"""The program, its version and its help, and `gpushard sample`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

import gpushard
from cli_runs import run, run_json, sentence, write_sample
from gpushard.cli.output import _padded_lines, _wrapped_lines

SAMPLE = Path(gpushard.__file__).parent / "data" / "eraint.zarr"


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Path:
    return write_sample(tmp_path_factory)


def in_a_shell(command, cwd):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    options = {"capture_output": True, "text": True, "check": False}
    return subprocess.run(command, cwd=cwd, env=environment, **options)


def test_the_console_script_is_the_program(tmp_path):
    script = Path(sys.executable).parent / "gpushard"
    if not script.exists():
        pytest.skip("gpushard is on the path, not installed")
    assert in_a_shell([script, "sample", "demo.zarr"], tmp_path).returncode == 0
    assert (tmp_path / "demo.zarr/u/zarr.json").exists()
    assert in_a_shell([script, "frobnicate"], tmp_path).returncode == 2


def test_program_runs_from_a_shell(tmp_path):
    def shell(*arguments):
        return in_a_shell([sys.executable, "-m", "gpushard", *arguments], tmp_path)

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


def test_info_on_files_loads_nothing_that_only_others_need(sample):
    code = (
        "import sys\n"
        "from gpushard.cli.description import describe\n"
        "from gpushard.options import DEFAULT\n"
        f"describe({str(sample / 'u')!r}, DEFAULT, advise=False)\n"
        "print({'asyncio', 'zarr', 'gpushard.converting'} & set(sys.modules))"
    )
    output = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert output == "set()\n"


def test_a_table_for_a_program_has_the_lines_that_rich_makes_where_there_is_room(
    monkeypatch,
):
    monkeypatch.setenv("COLUMNS", "1000")
    rows = [("name", "größe"), ("日本", "x" * 100, "y"), ("", "ﬁ"), ("a" * 30, "", "z")]
    with_rich = [line.rstrip() for line in _wrapped_lines(rows)]
    assert [line.rstrip() for line in _padded_lines(rows)] == with_rich
    assert len(with_rich) == len(rows)


def test_help_has_no_sentence_cut_off():
    assert "..." not in run("--help").stdout.replace("[ARGS]...", "")


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
        "gpushard map 'my demo.zarr/u'",
        "gpushard verify 'my demo.zarr'",
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


@pytest.mark.parametrize("dest", ["file/below", "file", "", "s3://bucket/demo.zarr"])
def test_sample_refuses_what_is_no_directory(dest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    line = sentence(run("sample", dest, code=2))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert "remove this one" not in line
