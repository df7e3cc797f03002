"""Kernel sources -> what must be known to compile and launch them.

Pure: this module finds, parses and hashes the sources. A device compiles them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

from gpushard.errors import DeviceError

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+'
    r"(?:__launch_bounds__\s*\([^()]*\)\s*)?(gs_\w+)\s*\("
)
_THREADS = re.compile(r"^constexpr int (gs_\w+)_threads = (\d+);", re.MULTILINE)

_REINSTALL_HINT = "reinstall gpushard, its kernel sources are incomplete"


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One ``.cu`` file with everything it includes.

    Attributes
    ----------
    headers
        Name in an ``#include`` -> text, for all files included at any depth.
    threads
        Kernel -> threads per block that it is written for, in the file's order.
    digest
        Hexadecimal SHA-256 of text and headers, which is part of a cache key.
    """

    name: str
    text: str
    headers: Mapping[str, str]
    threads: Mapping[str, int]
    digest: str


def kernel_directory() -> Path:
    """Directory of the kernel sources: in the package, or beside it in a checkout.

    Raises `DeviceError` if there are none: the installation is incomplete.
    """
    package = Path(__file__).resolve().parents[1]
    for directory in (package / "kernels", package.parent / "kernels"):
        if (directory / "common.cuh").is_file():
            return directory
    raise DeviceError(
        "the CUDA kernel sources are missing",
        expected=str(package / "kernels"),
        hint=_REINSTALL_HINT,
    )


@cache
def load_kernel_sources() -> Mapping[str, KernelSource]:
    """Kernel name -> the source that defines it, over all ``.cu`` files.

    Raises `DeviceError` if a source or a header is missing or declares a kernel badly.
    """
    directory = kernel_directory()
    sources: dict[str, KernelSource] = {}
    for path in sorted(directory.glob("*.cu")):
        source = parse_kernel_source(path, directory)
        sources.update(dict.fromkeys(source.threads, source))
    return MappingProxyType(sources)


def parse_kernel_source(path: Path, header_directory: Path) -> KernelSource:
    """Source at `path`, with its kernels and the headers that it includes.

    Every kernel ``gs_name`` is declared ``extern "C" __global__ void`` and preceded by
    ``constexpr int gs_name_threads = N;``. Raises `DeviceError` if a header is missing,
    or a kernel lacks its number of threads.
    """
    text = path.read_text(encoding="utf-8")
    headers = dict(_headers_of(text, header_directory, set()))
    declared = {name: int(number) for name, number in _THREADS.findall(text)}
    kernels: list[str] = _KERNEL.findall(text)
    if sorted(kernels) != sorted(declared):
        raise DeviceError(
            f"kernels of {path.name} and their numbers of threads do not match",
            expected=f"a line `constexpr int NAME_threads = N;` for each of {kernels}",
            got=str(sorted(declared)),
            hint=_REINSTALL_HINT,
        )
    return KernelSource(
        name=path.name,
        text=text,
        headers=MappingProxyType(headers),
        threads=MappingProxyType({name: declared[name] for name in kernels}),
        digest=_digest(path.name, text, headers),
    )


def nvrtc_options(compute_capability: tuple[int, int]) -> tuple[str, ...]:
    """NVRTC options for machine code of one architecture: (9, 0) -> ``sm_90``.

    Products are not contracted into fused multiply-adds, because decoded values must
    equal the host's bit for bit.
    """
    major, minor = compute_capability
    return (
        f"--gpu-architecture=sm_{major}{minor}",
        "--std=c++17",
        "--fmad=false",
        "--generate-line-info",
    )


def _headers_of(
    text: str, directory: Path, seen: set[str]
) -> Iterator[tuple[str, str]]:
    """Name and text of every header that `text` includes at any depth, each once."""
    for name in _INCLUDE.findall(text):
        if name in seen:
            continue
        seen.add(name)
        path = directory / name
        if not path.is_file():
            raise DeviceError(
                f"kernel header {name} is missing",
                expected=str(path),
                hint=_REINSTALL_HINT,
            )
        header = path.read_text(encoding="utf-8")
        yield name, header
        yield from _headers_of(header, directory, seen)


def _digest(name: str, text: str, headers: Mapping[str, str]) -> str:
    digest = sha256()
    for part in (name, text, *(x for item in sorted(headers.items()) for x in item)):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def threads_of(kernel: str) -> int:
    """Threads per block that `kernel` is written for."""
    return load_kernel_sources()[kernel].threads[kernel]
