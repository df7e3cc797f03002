"""Wheels and sdists of this checkout; that with the compiled loops is built once.

Run as ``python tests/built_packages.py`` it keeps that wheel's loops for all processes
of the tests: to compile them takes half a minute, and longer if numba optimises each
function by itself, as in a process that reads.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from cuda_host.build import CACHE, only_one
from gpushard.fused.code import kept_code, loading, machine_code
from places import ROOT

LOOPS = "gpushard/fused/code/loops.bin"


def build(target: str, directory: Path, *, with_loops: bool = False) -> Path:
    """A wheel or sdist; to compile the loops takes most of the time.

    They are compiled even if numba is told to leave other code as it is.
    """
    name = "NUMBA_DISABLE_JIT" if with_loops else "HATCH_BUILD_NO_HOOKS"
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d"]
    subprocess.run(
        [*command, str(directory)], cwd=ROOT, env=os.environ | {name: "1"}, check=True
    )
    (built,) = directory.iterdir()
    return built


def wheel_with_loops() -> Path:
    """The wheel of these sources; without loops where the hook cannot make them."""
    folder = CACHE.with_name("wheels") / _digest()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with only_one(folder):
        if not folder.exists():
            fresh = folder.with_suffix(".fresh")
            build("wheel", fresh, with_loops=True)
            fresh.rename(folder)
    (wheel,) = folder.iterdir()
    return wheel


def _digest() -> str:
    """Stands for all that a build reads."""
    files = [ROOT / "build_backend.py", ROOT / "pyproject.toml"]
    for name in ("gpushard", "kernels"):
        files += (ROOT / name).rglob("*")
    read = sha256(f"{version('numba')} {version('llvmlite')}".encode())
    for path in sorted(files):
        if path.is_file() and "__pycache__" not in path.parts:
            read.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return read.hexdigest()[:20]


def main() -> None:
    """Have the loops of the wheel kept; where it has none, those that a read makes."""
    if machine_code.can_run() and loading.ready_code() is None:
        with zipfile.ZipFile(wheel_with_loops()) as archive:
            shipped = archive.read(LOOPS) if LOOPS in archive.namelist() else b""
        code = machine_code.code_in(shipped)
        if code is not None:
            kept_code.keep(code)
    loading.load()


if __name__ == "__main__":
    main()
