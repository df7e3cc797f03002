"""Runs of the command line, and what they are run on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import zarr
from typer.testing import CliRunner

from gpushard.cli import app


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


def write_sample(tmp_path_factory) -> Path:
    """The array group that `gpushard sample` writes, below a directory of its own."""
    path = tmp_path_factory.mktemp("sample") / "demo.zarr"
    run("sample", path)
    return path


def write_shards(path: Path) -> Path:
    """Six shards of random bytes, two of them missing."""
    stored = zarr.create_array(
        path, shape=(30, 20), shards=(10, 10), chunks=(5, 5), dtype="u1", fill_value=7
    )
    stored[:20] = np.random.default_rng(0).integers(0, 255, (20, 20), np.uint8)
    return path
