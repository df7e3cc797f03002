"""What is installed here, and what a read would use of it, as plain facts."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import gpushard
from gpushard.devices.cuda import cuda_facts
from gpushard.devices.find import find_device
from gpushard.devices.kvikio_file import find_kvikio
from gpushard.devices.nvcomp import load_nvcomp
from gpushard.errors import UnsupportedError
from gpushard.options import DEFAULT

_READERS = ("numpy", "zarr", "numcodecs", "zstandard", "cramjam", "crc32c", "obstore")
_FAST = ("numba", "blosc2", "cffi")
# Distributions of the same module, one for each CUDA major.
_CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
_KVIKIO = ("kvikio-cu13", "kvikio-cu12", "kvikio")


def diagnose() -> dict[str, Any]:
    """Facts about this machine, ready for JSON; nothing here fails for lack of any."""
    found = find_device("auto")
    return {
        "gpushard": gpushard.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": "cpu" if found.device is None else found.device.label,
        "why": found.why or "it can be used",
        "threads": DEFAULT.threads,
        "library": {name: _version(name) for name in _READERS},
        "compiled loops": {name: _version(name) for name in _FAST},
        "gpu": _gpu_facts(),
    }


def _gpu_facts() -> dict[str, Any]:
    return {
        "cupy": _first_version(_CUPY),
        "nvcomp": _nvcomp(),
        "kvikio": _first_version(_KVIKIO),
        "gds": _gds(),
        **cuda_facts(),
    }


def _gds() -> str:
    """Whether files are read straight into a GPU's memory, or why not."""
    try:
        find_kvikio()
    except UnsupportedError as error:
        return error.what
    return "active"


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _first_version(distributions: tuple[str, ...]) -> str | None:
    return next(filter(None, map(_version, distributions)), None)


def _nvcomp() -> str | None:
    """Version and place of nvCOMP, or why it cannot be used."""
    try:
        library = load_nvcomp()
    except UnsupportedError as error:
        return None if "not installed" in error.what else str(error)
    return f"{library.label}, CUDA {library.cuda_major}, {library.path}"
