"""The software that a GPU needs, as installed on this machine, and its conflicts."""

from __future__ import annotations

import ctypes
import os
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpushard.device_reading.payload.kvikio_file import find_kvikio, kvikio_facts
from gpushard.devices.cuda_facts import cuda_facts
from gpushard.devices.nvcomp import load_nvcomp
from gpushard.errors import UnsupportedError

# Distributions with the same files, one for each CUDA major version; two conflict.
_DISTRIBUTIONS = {
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy"),
    "nvcomp": (
        *("nvidia-nvcomp-cu13", "nvidia-nvcomp-cu12"),
        *("nvidia-libnvcomp-cu13", "nvidia-libnvcomp-cu12"),
    ),
    "kvikio": ("kvikio-cu13", "kvikio-cu12", "kvikio"),
}
_MODULES, _MOUNTS = Path("/proc/modules"), Path("/proc/self/mountinfo")
# From NVIDIA's guide to GPUDirect Storage; network file systems also need RDMA.
_GDS_FILE_SYSTEMS = {
    *("ext4", "xfs", "lustre", "nfs", "nfs4", "gpfs", "wekafs", "beegfs", "scatefs"),
}


def installed(distribution: str) -> str | None:
    """Version of a distribution; None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def gpu_software(place: Path) -> dict[str, Any]:
    """Driver, CuPy, nvCOMP and kvikio, and how kvikio would read files at `place`."""
    found = {
        kind: {name: number for name in names if (number := installed(name))}
        for kind, names in _DISTRIBUTIONS.items()
    }
    return {
        "cupy": _names_and_versions(found["cupy"]),
        "nvcomp": _nvcomp(),
        "kvikio": _names_and_versions(found["kvikio"]),
        "gds": _gds(place),
        **_driver(),
        "flavours": found,
    }


def _driver() -> dict[str, str | None]:
    """The newest CUDA of the driver, the driver in words, and the GPUs CuPy sees."""
    newest, facts = _driver_version(), cuda_facts()
    if newest is None:
        return {"driver_version": None, "driver": "none: libcuda.so.1 is not there"}
    # Containers often have the driver's library without a GPU.
    trouble = facts.pop("trouble", None)
    words = f", of which CuPy says: none that works ({trouble})" if trouble else ""
    return {**facts, "driver_version": newest, "driver": f"{newest}{words}"}


def conflicts(found: dict[str, dict[str, str]]) -> list[list[str]]:
    """Distributions that write the same files for several CUDA majors."""
    several: list[list[str]] = []
    for kind, flavours in found.items():
        names = list(flavours)
        if kind == "nvcomp":
            # For one CUDA major there are two distributions: the library and its Python
            # module.
            names = [name for name in names if name.startswith("nvidia-libnvcomp")]
        if len(names) > 1:
            several.append(names)
    return several


def _driver_version() -> str | None:
    """Newest CUDA that the driver runs, such as "13.1"; None without a driver."""
    number = ctypes.c_int()
    try:
        library = ctypes.CDLL("libcuda.so.1")
        status = library.cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return None if status else f"{number.value // 1000}.{number.value % 1000 // 10}"


def _names_and_versions(flavours: dict[str, str]) -> str | None:
    return ", ".join(f"{n} {v}" for n, v in flavours.items()) or None


def _nvcomp() -> dict[str, Any]:
    """Version and place of nvCOMP, or why it cannot be used."""
    try:
        library = load_nvcomp()
    except UnsupportedError as error:
        error.hint = None  # the advice has a better text
        return {"version": None, "path": None, "cuda": None, "why": str(error)}
    return {
        "version": library.label,
        "path": library.path,
        "cuda": library.cuda_major,
        "why": "",
    }


def _gds(place: Path) -> dict[str, Any]:
    """Whether files are read directly into a GPU's memory, and what that requires."""
    try:
        find_kvikio()
        why = ""
    except UnsupportedError as error:
        why = error.what
    file_system, mount = file_system_of(place)
    has_module = "nvidia_fs " in _kernel_text(_MODULES)
    facts = {
        "is_active": not why,
        "why": why,
        "nvidia_fs_is_loaded": has_module,
        "file_system": file_system,
        "mount": mount,
        "file_system_is_supported": file_system in _GDS_FILE_SYSTEMS,
        "KVIKIO_COMPAT_MODE": os.environ.get("KVIKIO_COMPAT_MODE"),
        **kvikio_facts(),
    }
    return facts | {"why": _reasons(facts)} if why else facts


def _reasons(facts: dict[str, Any]) -> str:
    """Why GPUDirect Storage is not active, as far as this machine shows."""
    reasons = [facts["why"]]
    chosen = facts["KVIKIO_COMPAT_MODE"]
    if chosen and chosen.upper() in ("ON", "1", "TRUE", "YES"):
        reasons.append(f"KVIKIO_COMPAT_MODE is {chosen}")
    if not facts["nvidia_fs_is_loaded"]:
        reasons.append("the kernel module nvidia-fs is not loaded")
    if not facts["file_system_is_supported"]:
        kind, mount = facts["file_system"], facts["mount"]
        reasons.append(f"it does not read {kind}, as {mount} is")
    return "; ".join(reasons)


def file_system_of(place: Path) -> tuple[str, str]:
    """Type and mount point of the file system that `place` lies on."""
    target = os.path.realpath(place)
    best = ("unknown", "/")
    longest = 0
    for line in _kernel_text(_MOUNTS).splitlines():
        before, _, after = line.partition(" - ")
        mount = re.sub(r"\\\d{3}", _unescaped, before.split()[4])
        is_above = target == mount or target.startswith(mount.rstrip("/") + "/")
        # If two are mounted at one place, the later one hides the other.
        if is_above and len(mount) >= longest:
            best, longest = (after.split()[0], mount), len(mount)
    return best


def _unescaped(code: re.Match[str]) -> str:
    """Character that the kernel has escaped as an octal number."""
    return chr(int(code[0][1:], 8))


def _kernel_text(path: Path) -> str:
    """Text of a kernel file; "" if there is no such file."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
