"""Wheel and sdist are whole, and the oldest lane runs what pyproject.toml promises."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

ROOT = Path(__file__).parents[1]
# What other tests may leave beside the files meanwhile; git ignores it, too.
LEFT_BY_RUNS = {"__pycache__", ".hypothesis"}


def build(target: str, directory: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d"]
    subprocess.run([*command, str(directory)], cwd=ROOT, check=True)
    (built,) = directory.iterdir()
    return built


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
