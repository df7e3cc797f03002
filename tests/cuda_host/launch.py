"""Launches kernels on the host with the arguments that a CUDA driver would get.

    kernels = Kernels()
    kernels.launch("gs_scale", grid=4, block=256, args=[values, np.uint64(n)])

An argument is a NumPy array (its address is passed, as for a device pointer), a NumPy
scalar, a ctypes structure or value (its bytes are passed), or None (a null pointer).
Numbers and sizes of arguments are checked against the kernel's signature.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuda_host.build import BUILD, HERE, build_shared_object, compiler
from gpushard.devices.kernels import (
    KernelSource,
    kernel_directory,
    load_kernel_sources,
    parse_kernel_source,
)

ALL_SCHEDULES = (0, 1, 2, 3)
"""Ascending, descending, pseudo-random, and pseudo-random with threads held back."""

SCHEDULES = (0, 3) if BUILD == "asan" else ALL_SCHEDULES
"""Schedules of tests; where it counts which bytes are touched, two of them do."""


_BAD_SHAPE, _BAD_COUNT, _BAD_NBYTES = 1, 2, 16  # schedule.h


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_nbytes", ctypes.c_uint64),
        ("schedule", ctypes.c_uint64),
        ("params", ctypes.c_void_p),
        ("param_nbytes", ctypes.c_void_p),
        ("param_count", ctypes.c_uint64),
        ("skipped_file", ctypes.c_char_p),
        ("skipped_line", ctypes.c_uint64),
    )


class Kernels:
    """Kernels that run on the host.

    Parameters
    ----------
    build
        "plain", "asan" (only in a process started by `run_sanitized`) or "ucontext".
    paths
        ``.cu`` files; by default those of gpushard.
    skipped
        File and line of a barrier that nobody waits at.
    """

    def __init__(
        self,
        build: str = BUILD,
        paths: Sequence[Path] | None = None,
        skipped: tuple[Path, int] | None = None,
    ) -> None:
        self._build = build
        self._loaded: dict[str, ctypes.CDLL] = {}
        self._skipped = (
            (None, 0) if skipped is None else (bytes(skipped[0]), skipped[1])
        )
        self._headers = kernel_directory()
        if paths is None:
            self._directory = self._headers
            self._sources = dict(load_kernel_sources())
        else:
            self._directory = paths[0].parent
            parsed = [parse_kernel_source(path, self._headers) for path in paths]
            self._sources = {name: s for s in parsed for name in s.threads}

    def threads(self, name: str) -> int:
        """Threads in a block that kernel `name` is written for."""
        return self._sources[name].threads[name]

    def launch(
        self,
        name: str,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        args: Sequence[Any],
        *,
        schedule: int = 0,
        shared_nbytes: int = 0,
    ) -> None:
        """Run kernel `name` to its end; what it writes is in the arrays of `args`."""
        values = [_as_parameter(arg) for arg in args]
        params = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        nbytes = (ctypes.c_uint64 * len(values))(*map(ctypes.sizeof, values))
        launch = _Launch(
            grid=_dim3(grid),
            block=_dim3(block),
            shared_nbytes=shared_nbytes,
            schedule=schedule,
            params=ctypes.addressof(params),
            param_nbytes=ctypes.addressof(nbytes),
            param_count=len(values),
            skipped_file=self._skipped[0],
            skipped_line=self._skipped[1],
        )
        error = self._function(name)(ctypes.byref(launch))
        if error:
            raise ValueError(_explain(name, error, grid, block, list(nbytes)))

    def parameter_sizes(self, name: str) -> list[int]:
        """Bytes of each parameter of kernel `name`: what a driver copies."""
        threads = self.threads(name)
        for count in range(64):
            nbytes = (ctypes.c_uint64 * count)()
            launch = _Launch(
                grid=_dim3(1),
                block=_dim3(threads),
                param_nbytes=ctypes.addressof(nbytes),
                param_count=count,
            )
            if self._function(name)(ctypes.byref(launch)) == _BAD_COUNT:
                continue
            while 0 in list(nbytes):
                self._function(name)(ctypes.byref(launch))
            return list(nbytes)
        raise AssertionError(name)

    def _function(self, name: str) -> Any:
        source = self._sources[name]
        if source.name not in self._loaded:
            path = self.path_of(source)
            self._loaded[source.name] = ctypes.CDLL(str(path))
        return getattr(self._loaded[source.name], f"gs_host_launch_{name}")

    def path_of(self, source: KernelSource) -> Path:
        """Shared object built from `source`."""
        file = self._directory / source.name
        exports = "".join(f"GS_HOST_EXPORT({name})\n" for name in source.threads)
        return build_shared_object(
            file.stem,
            f'#include "cuda_host.h"\n#include "{source.name}"\n{exports}',
            build=self._build,
            dependencies=(
                *sorted(HERE.glob("*.h")),
                file,
                *(self._headers / header for header in source.headers),
            ),
            is_kernel=True,
        )


def sanitized_environment() -> dict[str, str]:
    """Environment of a process that can load the sanitized build.

    What kernels are given lies in NumPy's arrays, whose bytes malloc gives. Python's
    own small objects do not: all of them guarded take a quarter longer.
    """
    libasan = subprocess.run(
        [compiler(), "-print-file-name=libasan.so"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if not Path(libasan).is_absolute():
        pytest.skip("g++ has no libasan, which the sanitized kernels need")
    return os.environ | {
        "LD_PRELOAD": libasan,
        # CPython itself leaks; findings abort with a stack. Nobody asks for the stacks
        # of all allocations, nor for those freed long ago.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:halt_on_error=1"
        ":malloc_context_size=1:quarantine_size_mb=16",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "GPUSHARD_KERNEL_BUILD": "asan",
        "PYTEST_ADDOPTS": "",  # what it prints is looked at
        # Of pytest's plugins only one is needed; others take a quarter of the start.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }


def run_sanitized(*pytest_args: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a process of its own on the ASan and UBSan build of the kernels.

    In it `BUILD` is "asan" and `in_sanitized_process` true.
    """
    # What a sanitizer says before it aborts is not for pytest to capture.
    options = ["-p", "no:cacheprovider", "--capture=sys"]
    options += ["-p", "_hypothesis_pytestplugin"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *pytest_args],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        cwd=HERE.parents[1],  # what pytest and Hypothesis keep lies there, ignored
        env=sanitized_environment(),
    )


def assert_sanitized_run_passes(*files: str) -> None:
    """Fail, with its output, unless the tests of these files pass, some of each."""
    done = run_sanitized(*(f"tests/{file}" for file in files))
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    for file in files:
        assert re.search(rf"^tests/{file} s*\.", told, re.MULTILINE), (file, told)


def in_sanitized_process() -> bool:
    """Tell whether this process was started by `run_sanitized`."""
    return BUILD == "asan"


def _dim3(size: int | tuple[int, ...]) -> Any:
    sizes = (size,) if isinstance(size, int) else size
    return (ctypes.c_uint * 3)(*sizes, *(1,) * (3 - len(sizes)))


def _as_parameter(arg: Any) -> Any:
    """Storage with the bytes of one kernel parameter."""
    if arg is None:
        return ctypes.c_void_p(0)
    if isinstance(arg, np.ndarray):
        return ctypes.c_void_p(arg.ctypes.data)
    if isinstance(arg, np.generic):
        data = arg.tobytes()
        return (ctypes.c_char * len(data)).from_buffer_copy(data)
    if isinstance(arg, (ctypes.Structure, ctypes.Array, ctypes._SimpleCData)):
        return arg
    message = f"no kernel argument: {arg!r}, give a NumPy scalar of the exact type"
    raise TypeError(message)


def _explain(name: str, error: int, grid: Any, block: Any, nbytes: list[int]) -> str:
    if error == _BAD_SHAPE:
        return f"{name}: grid {grid} or block {block} is not what it is written for"
    if error == _BAD_COUNT:
        return f"{name}: {len(nbytes)} arguments are not as many as it takes"
    index = error - _BAD_NBYTES
    return f"{name}: argument {index} has another size than {nbytes[index]} bytes"
