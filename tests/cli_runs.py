"""Runs of the command line, and what they are run on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
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


def shell(*arguments, **options):
    """A process that runs `gpushard` with these arguments."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "gpushard", *map(str, arguments)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen(command, env=environment, text=True, **options)


def ended(*arguments, **options):
    """Exit status of such a process, and what it printed on stdout and stderr."""
    process = shell(*arguments, **options)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@contextmanager
def pipe_that_nobody_reads():
    """The end to write to of a pipe whose reader has stopped reading."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)


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
