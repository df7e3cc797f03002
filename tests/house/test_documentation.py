"""Examples in docstrings, in the README and in docs/ do what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import shutil
import sys
import tomllib
from contextlib import ExitStack
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from inspect import isfunction
from pathlib import Path

import pytest
import zarr
from typer.testing import CliRunner

import gpushard
from benchmarks.loaders.__main__ import INSTALL
from documentation import blocks, pages, run_page
from entry_points import add_to_xarray, add_to_zarr
from gpushard.cli import app
from gpushard.devices import find
from places import DIGITS, ROOT
from range_server import RangeServer
from s3_server import make_bucket, s3_server

MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(gpushard.__path__, "gpushard.")
    if name != "gpushard.__main__"  # it runs the command line
]
PAGES = {page.relative_to(ROOT).as_posix(): page for page in pages()}
# A test file of its own looks closer at what comes out.
ELSEWHERE = {"docs/loader.md"}
RUN = {name for name, page in PAGES.items() if any(b.is_run for b in blocks(page))}


SHAPES = {
    "README.md": {"block": (3, 60, 240), "rows": (2, 1, 241, 10), "points": (2,)},
    "docs/dask.md": {"mean": (3, 241, 480)},
    "docs/xarray.md": {"mean": (241, 480)},
    "docs/zarr.md": {"block": (3, 60, 240)},
}
"""What pages name on their way -> its shape."""
PRINTED = {
    "README.md": "inner chunks  16",
    "docs/dask.md": "((1, 1)",
    "docs/xarray.md": "((1, 1)",
    "docs/start.md": "verified",
    "docs/gpu.md": "done sooner",
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working directory with the data that the examples read."""
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["sample", "demo.zarr"]).exit_code == 0
    shutil.copytree(DIGITS, "mnist.zarr")
    add_to_xarray()
    add_to_zarr()
    # Examples choose pipelines and settings that were not there, and that for good.
    before = deepcopy(zarr.config.config)
    yield tmp_path
    zarr.config.config.clear()
    zarr.config.config.update(before)


@pytest.fixture
def servers(place, monkeypatch):
    """Where the servers that pages name are found; started for who asks."""
    with ExitStack() as running:

        def serve(page):
            text = page.read_text(encoding="utf-8")
            renamed = {}
            if "https://example.org" in text:
                server = running.enter_context(RangeServer(place))
                renamed["https://example.org"] = server.url
            if "s3://bucket" in text:
                endpoint = running.enter_context(s3_server())
                make_bucket(endpoint, monkeypatch)
                _upload(place / "demo.zarr", endpoint)
                renamed["https://s3.example.org"] = endpoint
            return renamed

        yield serve


def _upload(group, endpoint):
    from obstore.store import S3Store

    store = S3Store(
        "bucket",
        endpoint=endpoint,
        access_key_id="test",
        secret_access_key="test",
        region="us-east-1",
        client_options={"allow_http": True},
    )
    for path in group.rglob("*"):
        if path.is_file():
            store.put(path.relative_to(group.parent).as_posix(), path.read_bytes())


@pytest.fixture
def _emulated_gpu(monkeypatch):
    """``device="cuda"`` is the emulated one."""
    from cuda_host.device import EmulatedDevice
    from cuda_host.launch import Kernels
    from cuda_host.standin import load_standin

    device = EmulatedDevice(Kernels(), load_standin())
    monkeypatch.setattr(find, "_cuda_device", lambda process, ordinal: device)


@pytest.fixture
def _cluster_of_threads(monkeypatch):
    """Processes of a cluster take seconds to start; dask's own tests have some."""
    import distributed

    threads = partial(distributed.LocalCluster, processes=False)
    monkeypatch.setattr(distributed, "LocalCluster", threads)


@pytest.mark.network
@pytest.mark.usefixtures("_emulated_gpu", "_cluster_of_threads")
@pytest.mark.parametrize("name", sorted(RUN - ELSEWHERE))
def test_what_a_page_shows_runs(name, servers):
    module, printed = run_page(PAGES[name], servers(PAGES[name]))
    for variable, shape in SHAPES.get(name, {}).items():
        assert module[variable].shape == shape
    assert PRINTED.get(name, "") in printed


def test_every_block_says_what_it_is_and_why_it_does_not_run():
    known = {"", "python", "pycon", "sh", "text", "json", "walk", "yaml"}
    for page in PAGES.values():
        for block in blocks(page):
            assert block.language in known, f"{block.at}: of no known language"
            assert not block.title or not block.is_run, f"{block.at}: {block.title}"
            is_python = re.search(r"^(from|import) |gpushard\.\w+\(", block.text, re.M)
            runs = block.language in ("python", "pycon")
            assert runs or not is_python, f"{block.at}: Python that is not run"


def test_the_first_screen_has_the_commands_that_need_nothing_installed():
    first_screen = (ROOT / "README.md").read_text("utf-8").splitlines()[:42]
    commands = {" ".join(line.split()[:2]) for line in first_screen}
    assert {"./dev demo", "./dev test"} <= commands


def test_examples_are_there_and_most_of_them_run():
    found = [b for page in PAGES.values() for b in blocks(page)]
    python = [b for b in found if b.language in ("python", "pycon")]
    assert len(python) >= 30
    assert sum(b.is_run for b in python) >= 0.8 * len(python)


def test_every_public_function_is_called_in_an_example():
    functions = {n for n in gpushard.__all__ if isfunction(getattr(gpushard, n))}
    assert len(functions) >= 9
    shown = [b.text for page in PAGES.values() for b in blocks(page) if b.is_run]
    called = set(re.findall(r"gpushard\.(\w+)\(", "".join(shown)))
    assert functions - called - {"hyperslab"} == set()  # its docstring shows it


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = PROJECT["optional-dependencies"]
# In a block that needs several GPUs.
NOT_BY_PIP = {"docs/dask.md": {"dask_cuda"}}


def distributions(requirements) -> set[str]:
    return {re.match(r"[\w-]+", text)[0].lower() for text in requirements}


def told_to_install(text: str) -> set[str]:
    """What a page's readers have, if they run its ``pip install`` commands."""
    told = distributions(PROJECT["dependencies"])
    for command in re.findall(r"pip install ([^`\n#]+)", text):
        for word in command.replace("'", "").split():
            extras = re.fullmatch(r"\.\[(.*)\]", word)
            names = extras[1].split(",") if extras else []
            told |= distributions(r for name in names for r in OPTIONAL[name])
            told.add(word.lower())
    return told


def imported(code: str) -> set[str]:
    """Packages that code imports, beside gpushard and Python's own."""
    named = set(re.findall(r"^ *(?:from|import) (\w+)", code, re.M))
    return named - {*sys.stdlib_module_names, "gpushard"}


@pytest.mark.parametrize("name", sorted(RUN))
def test_a_page_says_how_to_install_what_its_examples_need(name):
    code = "".join(b.text for b in blocks(PAGES[name]) if b.language == "python")
    needed = imported(code) - NOT_BY_PIP.get(name, set())
    if ".to_dask(" in code or "chunks={}" in code:
        needed.add("dask")
    told = told_to_install(PAGES[name].read_text("utf-8"))
    assert {module.replace("_", "-") for module in needed} <= told


def test_the_page_of_the_benchmarks_installs_every_loader():
    code = (ROOT / "benchmarks/loaders/contenders.py").read_text("utf-8")
    needed = imported(code) - {"benchmarks"}
    assert {"torch", "annbatch", "xbatcher", "tensorstore"} <= needed
    page = PAGES["docs/benchmarks.md"].read_text("utf-8")
    assert needed <= told_to_install(page)
    assert INSTALL in page


def test_scripts_say_how_to_install_what_they_import():
    for script in (ROOT / "examples").glob("*.py"):
        code = script.read_text("utf-8")
        assert imported(code) <= told_to_install(code), script.name


def test_pages_install_from_a_checkout_as_nothing_is_released():
    assert "dev" in gpushard.__version__
    for name in RUN:
        text = PAGES[name].read_text("utf-8")
        assert not re.search(r"pip install '?gpushard", text), name


def test_every_page_that_something_names_is_there():
    places = ("gpushard", "kernels", "tests", "benchmarks", "examples", "docs", ".")
    kinds = ("*.py", "*.md", "*.cu", "*.cuh")
    named = {
        (path.relative_to(ROOT).as_posix(), page)
        for place in places
        for kind in kinds
        for path in (ROOT.glob(kind) if place == "." else (ROOT / place).rglob(kind))
        for page in re.findall(r"docs/[\w/.-]+\.md", path.read_text("utf-8"))
    }
    assert len(named) > 100
    assert {(who, page) for who, page in named if not (ROOT / page).is_file()} == set()


@pytest.mark.usefixtures("place")
def test_examples_in_docstrings_run():
    n_examples = 0
    for name in ["gpushard", *MODULES]:
        if name.startswith("gpushard.fused.") and find_spec("numba") is None:
            continue  # the oldest lane has not the extra `fast`
        module = importlib.import_module(name)
        # To look through all that a module has takes far longer than its examples.
        if ">>> " not in Path(str(module.__file__)).read_text("utf-8"):
            continue
        names = {"gpushard": gpushard}
        results = doctest.testmod(module, extraglobs=names, raise_on_error=True)
        n_examples += results.attempted
    assert n_examples >= 20
