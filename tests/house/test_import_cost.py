"""`import gpushard` is cheap: NumPy, the standard library and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

import gpushard

PACKAGE = Path(gpushard.__file__).parent
FORBIDDEN = {
    "cupy",
    "dask",
    "kvikio",
    "matplotlib",
    "ml_dtypes",
    "numba",
    "numcodecs",
    "obstore",
    "rich",
    "torch",
    "typer",
    "xarray",
    "zarr",
}


def modules_after(statement: str) -> set[str]:
    """Names in sys.modules of a fresh interpreter that ran `statement`."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    output = subprocess.check_output([sys.executable, "-c", code], text=True)
    return set(json.loads(output))


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.fixture(scope="module")
def after_gpushard() -> set[str]:
    return modules_after("import gpushard")


def test_import_pulls_in_nothing_heavier_than_numpy(after_gpushard):
    assert packages(after_gpushard) & FORBIDDEN == set()
    loaded = packages(after_gpushard) - packages(modules_after("import numpy"))
    assert loaded - set(sys.stdlib_module_names) == {"gpushard"}


def test_import_loads_less_than_importing_zarr(after_gpushard):
    """The clock is no judge on a busy runner; what is not loaded costs nothing."""
    own = {name for name in after_gpushard if name.startswith("gpushard")}
    after_zarr = modules_after("import zarr")
    assert after_gpushard - own <= after_zarr
    assert len(after_gpushard) < len(after_zarr)


def test_a_read_of_local_files_loads_no_other_codec_and_no_network(tmp_path):
    values = np.arange(64 * 64, dtype="f4").reshape(64, 64)
    made = zarr.create_array(
        tmp_path, shape=(64, 64), chunks=(8, 8), shards=(32, 32), dtype="f4"
    )
    made[...] = values
    read = f"gpushard.open_array({str(tmp_path)!r}, device='cpu')"
    loaded = modules_after(f"import gpushard\na = {read}\na[5], a[3, 2], a[...]")
    assert packages(loaded) & FORBIDDEN == set()
    assert loaded & {"ssl", "http.client", "multiprocessing", "numpy.ma"} == set()


def test_a_read_on_the_host_loads_nothing_for_devices_or_older_formats():
    array = str(PACKAGE / "data/eraint.zarr/u")
    loaded = modules_after(
        f"import gpushard\ngpushard.open_array({array!r}, device='cpu')[0]"
    )
    unneeded = ("devices.base", "devices.kernels", "formats.v2", "moving.watch")
    unneeded += ("hierarchies.draft", "hierarchies.v2", "writing", "loader")
    assert loaded & {f"gpushard.{name}" for name in unneeded} == set()


def test_no_module_holds_a_large_constant():
    code = (
        "import sys, gpushard\n"
        "from gpushard.codecs import blosc_frame\n"
        "from gpushard.array import open_array\n"
        "print(max(sys.getsizeof(v) for n, m in sys.modules.items()\n"
        "    if n.startswith('gpushard') for v in vars(m).values()\n"
        "    if isinstance(v, (bytes, str))))"
    )
    greatest = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert int(greatest) < 100_000


@pytest.mark.parametrize("name", sorted(gpushard.__all__))
def test_every_public_name_resolves(name):
    assert getattr(gpushard, name) is not None
    assert name in dir(gpushard)


def test_completion_offers_nothing_but_public_names():
    offered = {name for name in dir(gpushard) if not name.startswith("__")}
    assert offered == {*gpushard.__all__, "errors", "rolling", "transformer"}


def test_an_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = gpushard.no_such_name


@pytest.mark.parametrize("name", sorted(gpushard.__all__))
def test_no_module_takes_the_place_of_a_public_name(name):
    """Importing a module binds its name in the package, over what was there."""
    assert not (PACKAGE / f"{name}.py").exists()
    assert not (PACKAGE / name).exists()


NAMED = [
    "errors.GpushardError",
    "rolling.RollingArray",
    "rolling.RollingView",
    "transformer.ShardedStore",
]
# Each in a process that has imported nothing else.
EACH_ALONE = f"""
import os, gpushard
for name in {NAMED}:
    if os.fork() == 0:
        module, _, of = name.partition(".")
        found = getattr(getattr(gpushard, module), of).__name__
        print(found, module in dir(gpushard), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_modules_with_public_names_are_reached_without_an_import():
    printed = subprocess.check_output([sys.executable, "-c", EACH_ALONE], text=True)
    assert printed.splitlines() == [f"{n.partition('.')[2]} True" for n in NAMED]
