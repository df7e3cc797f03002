"""What is installed on this machine, what a read would use, and advice."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gpushard
from gpushard.cli.codec_table import codec_table
from gpushard.cli.gpu_software import conflicts, gpu_software, installed
from gpushard.device_reading.host_rows import rates_here
from gpushard.devices.find import find_device
from gpushard.devices.rates import kept_rates
from gpushard.fused.code import kept_code, machine_code
from gpushard.fused.code.loading import import_numba, ready_code
from gpushard.options import DEFAULT

_READ_PACKAGES = (
    *("numpy", "zarr", "numcodecs", "zstandard", "cffi", "cramjam", "crc32c"),
)
# It compiles the loops where none were shipped.
_COMPILER = "numba"
# Extra -> packages that it installs, and their purpose.
_EXTRAS = {
    "remote": ("obstore", "s3:// and other object stores"),
    "xarray": ("xarray", "xarray's engine"),
    "dask": ("dask", "dask arrays"),
    "plots": ("matplotlib", "maps as .png"),
    "torch": ("torch", "torch tensors and its DataLoader"),
}


def diagnose(place: Path) -> dict[str, Any]:
    """Facts about this machine, ready for JSON; missing software is not an error.

    `place` is the directory of the data; its file system decides how they can be read.
    """
    found = find_device("auto")
    gpu = gpu_software(place)
    trouble = _compiler_trouble()
    facts: dict[str, Any] = {
        "gpushard": gpushard.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": "cpu" if found.device is None else found.device.label,
        "why": found.why or "it can be used",
        "threads": DEFAULT.threads,
        "library": {name: installed(name) for name in _READ_PACKAGES},
        "compilers": {} if _are_shipped() else {_COMPILER: installed(_COMPILER)},
        "compiler trouble": trouble,
        "loops may run": machine_code.may_run(),
        "loops are shipped": _are_shipped(),
        "loops are kept in": None if trouble else _loops_folder(),
        "loops are compiled": are_loops_ready(),
        "optional": {name: installed(name) for name, _ in _EXTRAS.values()},
        "gpu": gpu,
        "codecs": codec_table(gpu["nvcomp"]["version"]),
        # For a device that reads use: the rates that placement uses.
        "rates": {
            coding: asdict(rate)
            for coding, rate in rates_here(found.device.rates).items()
        }
        if found.device is not None
        else {},
        "rates are measured": found.device is not None
        and kept_rates(found.device.model) is not None,
    }
    return facts | {"advice": list(_advice(facts)), "extras": list(_extras(facts))}


def can_have_loops() -> bool:
    """Whether reads may run in loops: there are some, or what compiles them."""
    is_there = _are_shipped() or installed(_COMPILER) is not None
    return is_there and machine_code.may_run()


def are_loops_ready() -> bool:
    """Whether a read finds loops that were compiled before."""
    return can_have_loops() and ready_code() is not None


def _are_shipped() -> bool:
    return machine_code.find_shipped() is not None


def _compiler_trouble() -> str | None:
    """Why the compiler, which is installed and needed, cannot be imported; or None."""
    if not installed(_COMPILER) or ready_code() is not None:
        return None
    try:
        import_numba()
    except (ImportError, OSError) as error:
        return str(error)
    return None


def _loops_folder() -> str | None:
    if _are_shipped() or not installed(_COMPILER):
        return None
    place = kept_code.kept_file()
    return None if place is None else str(place.parent)


def _advice(facts: dict[str, Any]) -> Iterator[str]:
    """Obstacles and slow paths, a sentence each, with the command that helps."""
    gpu = facts["gpu"]
    for names in conflicts(gpu["flavours"]):
        yield (
            f"{' and '.join(names)} are installed at once and overwrite each other's"
            f" files: pip uninstall -y {' '.join(names)}, then"
            f" {_install(_cuda_extra(gpu))}"
        )
    yield from _gpu_advice(gpu)
    if facts["rates"] and not facts["rates are measured"]:
        slow = "whether the GPU or the host decodes goes by figures of other machines"
        yield f"{slow}: gpushard doctor --measure"
    yield from _loops_advice(facts)


def _loops_advice(facts: dict[str, Any]) -> Iterator[str]:
    """What keeps reads from running in the loops."""
    slow = "large reads on the CPU run in Python"
    if facts["device"] != "cpu":
        slow = f"files take a longer way to the GPU, and {slow}"
    if not facts["loops may run"]:
        yield (
            f"{slow}, as this system runs no code that a process has loaded into"
            " memory: allow that (systemd: MemoryDenyWriteExecute, SELinux: execmem)"
        )
        return
    if facts["loops are shipped"]:
        return
    if machine_code.can_run() and machine_code.SHIPPED.exists():
        changed = "the package or its loops were changed, so these are left alone"
        yield f"{changed}: install gpushard again"
    elif not facts["compilers"][_COMPILER]:
        yield f"{slow} without {_COMPILER}: {_install('fast')}"
    elif trouble := facts["compiler trouble"]:
        found = f"{_COMPILER} {facts['compilers'][_COMPILER]}"
        yield f"{slow}, as {found} cannot be imported ({trouble}): install another"
    elif machine_code.can_run() and not facts["loops are kept in"]:
        yield (
            "each process compiles the loops anew, as no folder for them can be"
            " written: set XDG_CACHE_HOME to one that you can write to"
        )


def _extras(facts: dict[str, Any]) -> Iterator[str]:
    """Optional software that is not installed, with the command that installs it."""
    for extra, (name, purpose) in _EXTRAS.items():
        if facts["optional"][name] is None:
            yield f"{purpose}: {_install(extra)}"


def _gpu_advice(gpu: dict[str, Any]) -> Iterator[str]:
    extra = _cuda_extra(gpu)
    if not gpu["driver_version"]:
        if gpu["cupy"]:
            yield (
                f"{gpu['cupy']} is installed, but there is no NVIDIA driver"
                " (libcuda.so.1): install the driver, or leave it as it is to read on"
                " the CPU"
            )
        return
    if not gpu["cupy"]:
        missing = f"the driver runs CUDA {gpu['driver']}, but CuPy is missing"
        yield f"{missing}: {_install(extra)}"
    elif not gpu["nvcomp"]["version"]:
        yield f"{gpu['nvcomp']['why'].rstrip('.')}: {_install(extra)}"
    elif not extra.endswith(str(gpu["nvcomp"]["cuda"])):
        cuda = gpu["nvcomp"]["cuda"]
        yield f"nvCOMP is for CUDA {cuda}, CuPy is not: {_install(extra)}"
    if not gpu["kvikio"]:
        faster = "files could be read into the GPU's memory by kvikio"
        yield f"{faster}: {_install(extra.replace('cuda', 'gds'))}"
    elif not gpu["gds"]["is_active"]:
        yield f"GPUDirect Storage is not active: {gpu['gds']['why']}"


def _cuda_extra(gpu: dict[str, Any]) -> str:
    """Extra for the CUDA major version of the installed CuPy, or of the driver."""
    majors = [name[9:11] for name in gpu["flavours"]["cupy"] if name != "cupy"]
    if len(majors) == 1 and majors[0] in ("12", "13"):
        return f"cuda{majors[0]}"
    major = (gpu["driver_version"] or "").partition(".")[0]
    return "cuda12" if major in ("11", "12") else "cuda13"


def _install(extra: str) -> str:
    return f"pip install 'gpushard[{extra}]'"
