"""Ways of reading an array, and shards that are damaged in one place."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gpushard
from cuda_host.device import EmulatedDevice
from cuda_host.launch import Kernels
from cuda_host.standin import load_standin
from gpushard import Options

WAYS: dict[str, Options] = {
    "plain": Options(small_read_chunks=0, compile_nbytes=2**40),
    "small": Options(small_read_chunks=1024),
    "compiled": Options(small_read_chunks=0, compile_nbytes=0),
    "device": Options(placement="device"),
}


@cache
def emulated() -> tuple[Kernels, Any]:
    """Kernels and vendor's library of all emulated devices, built once."""
    return Kernels(), load_standin()


def opened(place: Any, way: str, **options: Any) -> gpushard.Array:
    """Array whose reads take one of `WAYS`."""
    device: Any = "cpu"
    if way == "device":
        device = EmulatedDevice(*emulated(), seed=5)
    return gpushard.open_array(place, device=device, options=WAYS[way].but(**options))


def on_host(result: Any) -> NDArray[Any]:
    """Copy of a result that may lie in device memory."""
    return result if isinstance(result, np.ndarray | np.generic) else result.get()
