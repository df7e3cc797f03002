"""NVIDIA's run-time compiler, called where there is no GPU and no driver."""

from __future__ import annotations

import ctypes
import pickle
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cuda_host.build import CACHE, HERE, only_one

_SECTION = re.compile(r"\s*\.section\s+\.text\.(\w+)")
_PATTERNS = ("cu13/lib/libnvrtc.so.*", "cuda_nvrtc/lib/libnvrtc.so.*")


@dataclass(frozen=True, slots=True)
class Compiled:
    """What NVRTC made of a source: machine code (empty if refused) and its log."""

    cubin: bytes
    log: str


def nvidia_file(*patterns: str) -> Path | None:
    """First file of an installed NVIDIA wheel that matches a glob pattern."""
    spec = find_spec("nvidia")
    roots = [] if spec is None else list(spec.submodule_search_locations or ())
    for root in roots:
        for pattern in patterns:
            for path in sorted(Path(root).glob(pattern)):
                return path
    return None


@cache
def nvrtc() -> Any:
    """The library; skips the test where it is not installed."""
    path = nvidia_file(*_PATTERNS)
    if path is None:
        pytest.skip("needs NVRTC: pip install nvidia-cuda-nvrtc")
    return _loaded(path)


@cache
def nvrtc_of_cuda_12() -> Any:
    """That of the older CUDA; skips the test where it is not installed."""
    path = nvidia_file("cuda_nvrtc/lib/libnvrtc.so.12")
    if path is None:
        pytest.skip("needs NVRTC of CUDA 12: pip install nvidia-cuda-nvrtc-cu12")
    return _loaded(path)


def _loaded(path: Path) -> Any:
    library = ctypes.CDLL(str(path))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def supported_architectures() -> list[int]:
    """Compute capabilities that this NVRTC compiles for, as 10 * major + minor."""
    library = nvrtc()
    count = ctypes.c_int()
    library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    found = (ctypes.c_int * count.value)()
    library.nvrtcGetSupportedArchs(found)
    return list(found)


Program = tuple[str, str, Mapping[str, str], Sequence[str]]
"""Name of a source, its text, what it includes by name, and options."""


def compile_once(
    name: str, text: str, headers: Mapping[str, str], options: Sequence[str]
) -> Compiled:
    """As `compile_cubin`, kept for other processes and later runs."""
    place = _place_of(name, text, headers, options)
    if not place.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with only_one(place):
            if not place.exists():
                compiled = compile_cubin(name, text, headers, options)
                fresh = place.with_suffix(".fresh")
                fresh.write_bytes(pickle.dumps(compiled))
                fresh.replace(place)
    return pickle.loads(place.read_bytes())


def compile_apart(programs: Sequence[Program]) -> None:
    """As `compile_once`, each of many, in one process of their own.

    NVRTC keeps some of what ``--Ofast-compile`` sets: what the same process compiles
    later comes out differently.
    """
    places = [_place_of(*program) for program in programs]
    CACHE.mkdir(parents=True, exist_ok=True)
    with only_one(CACHE / "apart"):
        if all(place.exists() for place in places):
            return
        plain = [(name, text, dict(h), list(o)) for name, text, h, o in programs]
        subprocess.run(
            [sys.executable, "-c", _COMPILE],
            input=pickle.dumps(plain),
            check=True,
            cwd=HERE.parent,
        )


_COMPILE = """
import pickle, sys
from cuda_host.nvrtc import compile_once
for program in pickle.load(sys.stdin.buffer):
    compile_once(*program)
"""


def _place_of(
    name: str, text: str, headers: Mapping[str, str], options: Sequence[str]
) -> Path:
    asked = (nvrtc()._name, name, text, sorted(headers.items()), tuple(options))
    digest = sha256(repr((_version(), asked)).encode()).hexdigest()
    return CACHE / f"{Path(name).stem}-{digest[:20]}.cubin"


def _version() -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def compile_cubin(
    name: str,
    text: str,
    headers: Mapping[str, str],
    options: Sequence[str],
    library: Any = None,
) -> Compiled:
    """Machine code of the source `text` with its `headers`, and what was said."""
    library = library or nvrtc()
    program = ctypes.c_void_p()
    _check(
        library.nvrtcCreateProgram(
            ctypes.byref(program),
            text.encode(),
            name.encode(),
            len(headers),
            _strings(headers.values()),
            _strings(headers),
        )
    )
    try:
        status = library.nvrtcCompileProgram(program, len(options), _strings(options))
        log = _output(library, program, "ProgramLog").rstrip(b"\0").decode().strip()
        return Compiled(b"" if status else _output(library, program, "CUBIN"), log)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _output(library: Any, program: ctypes.c_void_p, what: str) -> bytes:
    nbytes = ctypes.c_size_t()
    _check(getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(nbytes)))
    buffer = ctypes.create_string_buffer(nbytes.value)
    _check(getattr(library, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _strings(texts: Any) -> Any:
    encoded = [text.encode() for text in texts]
    return (ctypes.c_char_p * len(encoded))(*encoded)


def _check(status: int) -> None:
    if status:
        raise RuntimeError(nvrtc().nvrtcGetErrorString(status).decode())


def disassemble(cubin: bytes, scratch: Path) -> dict[str, list[str]]:
    """Kernel -> its machine instructions, one a line; skips where nvdisasm is not."""
    tool = nvidia_file("cu13/bin/nvdisasm", "cuda_nvdisasm/bin/nvdisasm")
    if tool is None:
        pytest.skip("needs nvdisasm: pip install nvidia-cuda-nvdisasm")
    path = scratch / "kernels.cubin"
    path.write_bytes(cubin)
    text = subprocess.run(
        [str(tool), "--print-code", str(path)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    kernels: dict[str, list[str]] = {}
    for line in text.splitlines():
        section = _SECTION.match(line)
        if section:
            kernels[section[1]] = []
        elif kernels and line.strip().startswith("/*"):
            kernels[next(reversed(kernels))].append(line)
    return kernels
