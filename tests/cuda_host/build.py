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
    # A GPU faults where x86 does not: of an address that is no multiple of the access.
    "plain": ("-O1", "-fsanitize=alignment", "-fno-sanitize-recover=alignment"),
    "asan": (
        "-Og",
        # Calls instead of code in place at each access: g++ takes half the time.
        "--param=asan-instrumentation-with-call-threshold=0",
        "-fno-omit-frame-pointer",
        "-fsanitize=address,undefined",
        "-fno-sanitize=vptr",
        "-fno-sanitize-recover=all",
        # Shared memory lies in a section of its own; without this it has no red zones.
        "-fsanitize-sections=gs_shared",
    ),
    "ucontext": ("-O1", "-DGS_HOST_UCONTEXT"),
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
    name: str,
    source: str,
    *,
    build: str,
    dependencies: tuple[Path, ...] = (),
    is_kernel: bool = False,
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
    is_kernel
        Whether `source` begins with ``cuda_host.h``.
    """
    flags = [*COMMON_FLAGS, *BUILD_FLAGS[build]]
    flags += [f"-I{folder}" for folder in sorted({str(d.parent) for d in dependencies})]
    key = sha256("\0".join([source, compiler_version(), *flags]).encode())
    for path in dependencies:
        key.update(path.read_bytes())
    target = CACHE / f"{name}-{build}-{key.hexdigest()[:20]}.so"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with only_one(target):
            if not target.exists():
                if is_kernel:
                    flags += ["-include", str(_parsed_header(build))]
                _compile(source, flags, target)
    return target


def _parsed_header(build: str) -> Path:
    """Header that includes ``cuda_host.h``, beside which lies what g++ made of it.

    To parse that, with all of the standard library that it needs, takes longer than to
    compile most kernels.
    """
    flags = [*COMMON_FLAGS, *BUILD_FLAGS[build]]
    key = sha256("\0".join([compiler_version(), *flags]).encode())
    for path in sorted(HERE.glob("*.h")):
        key.update(path.read_bytes())
    header = CACHE / f"cuda_host-{build}-{key.hexdigest()[:20]}.h"
    target = header.with_suffix(".h.gch")
    if not target.exists():
        with only_one(target):
            if not target.exists():
                text = f'#include "{HERE / "cuda_host.h"}"\n'
                header.write_text(text)
                _compile(text, [*flags, "-x", "c++-header"], target)
    return header


@contextmanager
def only_one(target: Path) -> Iterator[None]:
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
