"""Parsers of kernels/*_format.cuh as native code, and damaged bytes to feed them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cuda_host.build import build_shared_object
from cuda_host.launch import BUILD
from cuda_host.statuses import Status
from gpushard.devices.kernels import kernel_directory
from kernel_rows import held

HEADER = Path(__file__).with_name("kernel_fuzz.h")
GROWTH_NBYTES = 8


def native(name: str, source: str) -> Any:
    """Library compiled from C++ text that includes format headers and the fuzzer."""
    headers = tuple(sorted(kernel_directory().glob("*.cuh")))
    path = build_shared_object(
        name, source, build=BUILD, dependencies=(HEADER, *headers)
    )
    library = ctypes.CDLL(str(path))
    library.damaged.restype = ctypes.c_uint64
    return library


def found_by_fuzzing(function: Any, seeds: Sequence[bytes], n: int, *rules: Any) -> Any:
    """How often `function` answered with each status over `n` damaged seeds."""
    data = np.frombuffer(b"".join(seeds), np.uint8)
    bounds = np.cumsum([0, *map(len, seeds)]).astype(np.uint64)
    found = np.zeros(len(Status), np.uint64)
    function(
        *(ctypes.c_void_p(array.ctypes.data) for array in (data, bounds)),
        ctypes.c_uint64(len(seeds)),
        ctypes.c_uint64(n),
        ctypes.c_void_p(found.ctypes.data),
        *rules,
    )
    assert found.sum() == n
    return dict(zip(Status, found.tolist(), strict=True))


def damaged(library: Any, seeds: Sequence[bytes], n: int) -> Iterator[bytes]:
    """`n` damaged seeds, the same in every run."""
    rng = np.random.default_rng(n)
    for k in range(n):
        seed = held(seeds[int(rng.integers(len(seeds)))])
        out = np.empty(seed.nbytes + GROWTH_NBYTES, np.uint8)
        nbytes = library.damaged(
            ctypes.c_uint64(k),
            *(ctypes.c_void_p(seed.ctypes.data), ctypes.c_uint64(seed.nbytes)),
            ctypes.c_void_p(out.ctypes.data),
        )
        yield out[:nbytes].tobytes()
