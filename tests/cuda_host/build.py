"""Builds the host versions of kernel sources: one shared object a source, cached."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".pytest_cache" / "cuda_host"

BUILD = os.environ.get("GPUSHARD_KERNEL_BUILD", "plain")
"""Build that tests take unless they name one; `launch.run_sanitized` sets it."""

NO_COMPILER = "needs g++ to run CUDA kernels on the host"

COMMON_FLAGS = (
    "-std=c++20",
    "-fPIC",
    "-shared",
    # Lines for stacks; all that a debugger could ask takes g++ twice as long.
    "-g1",
    "-fvisibility=hidden",
    "-fno-gnu-unique",
    # Kernels look at bytes as words, which CUDA's compiler allows.
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-Wno-unknown-pragmas",
    "-Werror",
)
BUILD_FLAGS = {
    "plain": ("-O2",),
    "asan": (
        "-O1",
        "-fno-omit-frame-pointer",
        "-fsanitize=address,undefined",
        "-fno-sanitize=vptr",
        "-fno-sanitize-recover=all",
        # Shared memory lies in a section of its own; without this it has no red zones.
        "-fsanitize-sections=gs_shared",
    ),
    "ucontext": ("-O2", "-DGS_HOST_UCONTEXT"),
}


@cache
def compiler() -> str:
    """Path of g++; skips the test where there is none."""
    found = shutil.which("g++")
    if found is None:
        pytest.skip(NO_COMPILER)
    return found


@cache
def compiler_version() -> str:
    """What g++ says about itself."""
    return subprocess.run(
        [compiler(), "--version"], capture_output=True, text=True, check=True
    ).stdout


def build_shared_object(
    name: str, source: str, *, build: str, dependencies: tuple[Path, ...] = ()
) -> Path:
    """Shared object compiled from the C++ text `source`, from the cache if it is there.

    Parameters
    ----------
    name
        Stem of the file's name.
    source
        C++ text.
    build
        Key of `BUILD_FLAGS`.
    dependencies
        Files that `source` includes: part of the key, their directories are searched.
    """
    flags = [*COMMON_FLAGS, *BUILD_FLAGS[build]]
    flags += [f"-I{folder}" for folder in sorted({str(d.parent) for d in dependencies})]
    key = sha256("\0".join([source, compiler_version(), *flags]).encode())
    for path in dependencies:
        key.update(path.read_bytes())
    target = CACHE / f"{name}-{build}-{key.hexdigest()[:20]}.so"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with _only_one(target):
            if not target.exists():
                _compile(source, flags, target)
    return target


@contextmanager
def _only_one(target: Path) -> Iterator[None]:
    """Of several test processes one compiles, and the others wait for what it makes."""
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(source: str, flags: list[str], target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        unit = Path(scratch) / "unit.cpp"
        unit.write_text(source)
        fresh = Path(scratch) / "unit.so"
        done = subprocess.run(
            [compiler(), *flags, str(unit), "-o", str(fresh)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            message = f"g++ refuses {target.stem}:\n{done.stderr}"
            raise RuntimeError(message)
        # Atomic: those who look do not ask for the lock.
        os.replace(fresh, target)
