"""`gpushard doctor`."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

import gpushard
from cli_runs import run
from gpushard.devices import find


@pytest.fixture(autouse=True)
def _without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    find._usable_gpu.cache_clear()
    yield
    find._usable_gpu.cache_clear()


def test_doctor_tells_versions_and_the_device_with_its_reason():
    done = run("doctor", "--json")
    assert done.exit_code == 0
    facts = json.loads(done.stdout)
    assert facts["gpushard"] == gpushard.__version__
    assert facts["library"]["numpy"] == np.__version__
    assert facts["device"] == "cpu"
    assert "CuPy is not installed" in facts["why"]
    assert set(facts["gpu"]) == {"cupy", "nvcomp", "kvikio", "gds", "driver"}
    assert set(facts["compiled loops"]) == {"numba", "blosc2", "cffi"}


def test_doctor_tells_the_same_in_a_table():
    done = run("doctor")
    assert done.exit_code == 0
    lines = dict(line.split("  ", 1) for line in done.stdout.splitlines())
    assert lines["device"].strip() == "cpu"
    assert "CuPy is not installed" in lines["why"]
    assert np.__version__ in lines["library numpy"]
