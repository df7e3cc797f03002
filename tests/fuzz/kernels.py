"""The kernels' parsers under a coverage-guided loop, with ASan and UBSan.

g++ has the sanitizers and the coverage hooks but no fuzzer: `coverage_loop.h` is one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numcodecs

from blosc_cases import CASES, frames_of
from blosc_cases import NBYTES as FRAME_NBYTES
from cuda_host.build import BUILD_FLAGS, CACHE, COMMON_FLAGS, compiler
from cuda_host.statuses import Status
from gate_cases import DATA, GZIP_CASES, LZ4, NOISE, ZLIB, ZSTD_CASES
from gpushard.devices.kernels import kernel_directory

_HERE = Path(__file__).parent
_FLAGS = (
    # An executable of its own, optimised: a fuzzer is worth what it tries.
    *(flag for flag in COMMON_FLAGS if flag not in ("-shared", "-fPIC")),
    *(flag for flag in BUILD_FLAGS["asan"] if flag != "-O1"),
    *("-O2", "-fsanitize-coverage=trace-pc,trace-cmp"),
)
_ZSTD, _LZ4, _GZIP, _ZLIB, _SNAPPY, _BLOSC = range(6)
# Bits of an input's first byte: 4096 decoded bytes, and frames need not tell them.
_OF_FRAMES, _UNSIZED = 128, 64


def seeds() -> Iterator[bytes]:
    """Valid and lying streams of every format, each behind its choice of a parser."""
    streams = {
        _ZSTD | _UNSIZED: [data for data, _ in ZSTD_CASES.values()],
        _LZ4: [LZ4, bytes(numcodecs.LZ4().encode(NOISE))],
        _GZIP: [data for data, _ in GZIP_CASES.values()],
        _ZLIB: [ZLIB],
        _SNAPPY: [b"\x88\x27" + DATA, b"\xff\xff\xff\xff\x0f" + b"x" * 9],
        _BLOSC: [*(data for data, _ in CASES.values()), *frames_of(FRAME_NBYTES)],
    }
    for kind, found in streams.items():
        # The first byte modulo six names the parser.
        flags = _OF_FRAMES | _UNSIZED if kind == _BLOSC else kind & _UNSIZED
        wanted = kind % _UNSIZED
        first = next(byte for byte in range(flags, 256) if byte % 6 == wanted)
        for data in found:
            if len(data) < 6000:
                yield bytes([first]) + data


def built() -> Path:
    """The fuzzing executable, compiled where the sources have changed."""
    sources = [_HERE / "kernels.cpp", _HERE / "coverage_loop.h"]
    headers = [
        _HERE.parent / "kernel_fuzz.h",
        *sorted(kernel_directory().glob("*.cuh")),
    ]
    key = sha256("".join(_FLAGS).encode())
    for path in (*sources, *headers):
        key.update(path.read_bytes())
    target = CACHE / f"fuzz-{key.hexdigest()[:20]}"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        folders = [f"-I{folder}" for folder in (_HERE.parent, kernel_directory())]
        command = [compiler(), *_FLAGS, *folders, str(sources[0]), "-o", str(target)]
        subprocess.run(command, check=True)
    return target


def explored(n: int, seed: int) -> tuple[dict[Status, int], int]:
    """How often the parsers answered with each status, and the inputs kept.

    Raises
    ------
    subprocess.CalledProcessError
        A sanitizer ended the run; what it says is in `stderr`.
    """
    held = CACHE / f"fuzz-seeds-{n}-{seed}"
    executable = built()
    with held.open("wb") as file:
        for data in seeds():
            file.write(len(data).to_bytes(4, "little") + data)
    command = [str(executable), str(held), str(n), str(seed)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    *counts, n_kept = map(int, done.stdout.split())
    return dict(zip(Status, counts, strict=True)), n_kept


def fuzz_kernels(n: int, seed: int) -> None:
    """Run the loop and tell what came out."""
    try:
        found, n_kept = explored(n, seed)
    except subprocess.CalledProcessError as error:
        sys.exit(error.stderr)
    told = ", ".join(
        f"{count} {status.name}" for status, count in found.items() if count
    )
    sys.stderr.write(f"{n} inputs: {told}; {n_kept} kept\n")
