"""Examples in docstrings and in the README do what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gpushard
from gpushard.cli import app

README = Path(__file__).parents[1] / "README.md"
MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(gpushard.__path__, "gpushard.")
    if name != "gpushard.__main__"  # it runs the command line
]


@pytest.fixture
def demo(tmp_path, monkeypatch):
    """A working directory with the sample that the examples read."""
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["sample", "demo.zarr"]).exit_code == 0


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.M | re.S)


@pytest.mark.usefixtures("demo")
def test_examples_in_docstrings_run():
    n_examples = 0
    for name in ["gpushard", *MODULES]:
        module = importlib.import_module(name)
        names = {"gpushard": gpushard}
        results = doctest.testmod(module, extraglobs=names, raise_on_error=True)
        n_examples += results.attempted
    assert n_examples >= 4


@pytest.mark.usefixtures("demo")
def test_the_example_of_the_readme_runs(capsys):
    names = {}
    for block in blocks("python"):
        exec(block, names)
    assert names["block"].shape == (3, 60, 240)
    assert names["rows"].shape == (2, 1, 241, 10)
    assert names["points"].shape == (2,)
    assert "inner chunks" in capsys.readouterr().out


@pytest.mark.usefixtures("demo")
def test_the_commands_of_the_readme_run():
    commands = [
        shlex.split(line, comments=True)
        for block in blocks("sh")
        for line in block.splitlines()
        if line.startswith("gpushard ") and " sample " not in line
    ]
    assert len(commands) >= 2
    for _, *arguments in commands:
        run = subprocess.run(
            [sys.executable, "-m", "gpushard", *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
    assert "verified" in run.stdout
