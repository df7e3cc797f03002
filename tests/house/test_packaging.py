"""Wheel and sdist are whole, and the oldest lane runs what pyproject.toml promises."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from built_packages import LOOPS, ROOT, build, wheel_with_loops

# What other tests may leave beside the files meanwhile; git ignores it, too.
LEFT_BY_RUNS = {"__pycache__", ".hypothesis"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    return build("sdist", tmp_path_factory.mktemp("sdist"))


def files_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_one_pure_wheel_serves_every_platform(wheel):
    assert wheel.name.endswith("-py3-none-any.whl")


def test_wheel_holds_every_file_of_the_package(wheel):
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "gpushard").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "gpushard/py.typed" in package
    assert package <= files_in(wheel)


def test_wheel_holds_the_kernels_as_package_data(wheel):
    kernels = {
        f"gpushard/{path.relative_to(ROOT).as_posix()}"
        for path in (ROOT / "kernels").rglob("*")
        if path.is_file()
    }
    assert kernels
    assert kernels <= files_in(wheel)


READS = """
import sys
sys.modules["numba"] = sys.modules["llvmlite"] = None  # not installed
import numpy as np
import zarr
import gpushard
from gpushard.fused import choice
from gpushard.fused.code import machine_code
assert machine_code.SHIPPED.is_relative_to(sys.argv[1])
values = np.arange(400 * 300, dtype="f4").reshape(400, 300)
zarr.create_array(sys.argv[2], data=values, chunks=(16, 16), shards=(160, 160))
options = gpushard.Options(compile_nbytes=1)
a = gpushard.open_array(sys.argv[2], device="cpu", options=options)
assert (a[3:399, ::2] == values[3:399, ::2]).all()
assert choice.are_loaded()
"""


@pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64",
    reason="the loops are shipped for Linux on x86-64",
)
def test_wheel_reads_by_compiled_loops_without_a_compiler(tmp_path):
    pytest.importorskip("numba", reason="wheels are built with it")
    wheel = wheel_with_loops()
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert LOOPS in archive.namelist()
        archive.extractall(tmp_path / "installed")
    places = str(tmp_path / "installed"), str(tmp_path / "a")
    told = {"PYTHONPATH": places[0], "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", READS, *places]
    subprocess.run(command, cwd=tmp_path, env=os.environ | told, check=True)
    assert not (tmp_path / "gpushard").exists()  # no folder for code that is kept


def required(call: str, *, libc: str = "glibc", is_free: int = 0) -> str:
    """What the build backend asks for with such a C library and Python."""
    program = (
        "import platform, sys, sysconfig, build_backend as b;"
        f"platform.libc_ver = lambda: ({libc!r}, '');"
        f"sysconfig.get_config_var = {{'Py_GIL_DISABLED': {is_free}}}.get;"
        "sys.version_info = (3, 13);"
        f"print(b.{call}())"
    )
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def test_wheels_are_built_with_the_compiler_and_checkouts_without():
    assert "numba" in required("get_requires_for_build_wheel")
    assert "numba" not in required("get_requires_for_build_editable")


@pytest.mark.parametrize("how", [{"libc": ""}, {"libc": "musl"}, {"is_free": 1}])
def test_a_compiler_that_has_no_wheels_is_not_asked_for(how):
    assert "numba" not in required("get_requires_for_build_wheel", **how)


def test_wheel_is_built_without_loops_where_no_compiler_is(tmp_path):
    # Compilers write to the descriptor, in any encoding.
    (tmp_path / "numba.py").write_text(
        "import os\nos.write(2, b'\\xff')\nraise ImportError('it refuses this NumPy')"
    )
    (tmp_path / "wheel").mkdir()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d"]
    done = subprocess.run(
        [*command, str(tmp_path / "wheel")],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert "without compiled loops: " in done.stderr + done.stdout
    (wheel,) = (tmp_path / "wheel").iterdir()
    assert LOOPS not in files_in(wheel)


def test_wheel_holds_the_licence(wheel):
    names = files_in(wheel)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_sdist_holds_what_its_own_dev_and_tests_read(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"dev", "pyproject.toml", "ARCHITECTURE.md", ".python-version"} <= names
    assert "benchmarks/__main__.py" in names
    for directory in ("gpushard", "kernels", "tests", "docs", "examples", ".ci"):
        wanted = {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / directory).rglob("*")
            if path.is_file() and LEFT_BY_RUNS.isdisjoint(path.parts)
        }
        assert wanted
        assert wanted <= names, directory


def test_oldest_lane_runs_the_floor_of_every_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    doors = [*extras["remote"], *extras["xarray"], *extras["dask"]]
    promised = [each.replace("[array]", "") for each in project["dependencies"] + doors]
    floors = dict(requirement.split(">=") for requirement in promised)
    lines = (ROOT / ".ci" / "oldest.txt").read_text().splitlines()
    lane = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert floors.keys() <= lane.keys()
    for name, floor in floors.items():
        assert f"{lane[name]}.".startswith(f"{floor}."), name


def test_benchmarks_come_with_what_makes_reads_fast():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "gpushard[fast]" in project["optional-dependencies"]["bench"]


def test_oldest_lane_installs_nothing_that_only_the_newest_needs(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        required = Metadata.from_email(archive.read(name)).requires_dist or []

    def brings(extra):
        markers = {"extra": extra, "python_version": "3.11", "sys_platform": "linux"}
        taken = [each for each in required if each.marker and "extra" in str(each)]
        return {each.name for each in taken if each.marker.evaluate(markers)}

    newest = set.union(*map(brings, ("docs", "fast", "fuzz", "plots")))
    assert {"numba", "atheris", "mkdocs-material", "matplotlib"} <= newest
    assert newest <= brings("test-newest")
    assert newest & brings("test") == set()
    assert brings("test") <= brings("test-newest")
