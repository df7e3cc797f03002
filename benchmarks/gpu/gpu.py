"""The machine that is measured: a device, and what benchmarks need of it besides."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.base import Device

REAL = "benchmarks.gpu.gpu:CudaMachine"
_PACKAGES = (
    *("gpushard", "numpy", "zarr", "numcodecs", "zstandard", "zarrs", "tensorstore"),
    *("cupy-cuda13x", "cupy-cuda12x", "nvidia-libnvcomp-cu13", "nvidia-libnvcomp-cu12"),
    *("kvikio-cu13", "kvikio-cu12", "torch"),
    *("numba", "cffi"),  # of the compiled loops
)


class Machine(Protocol):
    """A device and more."""

    device: Device
    is_emulated: bool

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        """Enqueue a copy within the memory of the device."""
        ...

    def to_device(self, values: NDArray[Any]) -> Any:
        """Copy of a host array in device memory, complete when it returns."""
        ...

    def facts(self) -> dict[str, Any]:
        """What it is."""
        ...


class CudaMachine:
    """The first CUDA device."""

    is_emulated = False

    def __init__(self) -> None:
        import cupy

        from gpushard.devices.cuda import CudaDevice

        self._cupy: Any = cupy
        self.device: Device = CudaDevice(0)

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        """Enqueue a copy within the memory of the device."""
        on_device = 3  # cudaMemcpyDeviceToDevice
        self._cupy.cuda.runtime.memcpyAsync(to, source, nbytes, on_device, stream)

    def to_device(self, values: NDArray[Any]) -> Any:
        """Copy of a host array, complete when it returns."""
        copied = self._cupy.asarray(values)
        self._cupy.cuda.get_current_stream().synchronize()
        return copied

    def facts(self) -> dict[str, Any]:
        """GPU, driver and runtime."""
        from gpushard.devices.cuda_facts import cuda_facts

        return {**cuda_facts(), "decoder": self.device.decoder.label}


def open_machine(name: str) -> Machine:
    """What `module:function` makes."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)()


def versions() -> dict[str, str]:
    """Installed versions of what takes part."""
    found: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def timed(
    device: Device, stream: int, enqueue: Callable[[], None], repetitions: int
) -> list[float]:
    """Seconds that what `enqueue` puts on `stream` takes, once for each repetition.

    Short work is put there many times in a row, so that the driver's answer to it does
    not count; the first time of all is not timed.
    """
    first = _seconds(device, stream, enqueue, 1)
    first = min(first, _seconds(device, stream, enqueue, 1))
    n = max(1, min(20, int(0.002 / max(first, 1e-6))))
    return [_seconds(device, stream, enqueue, n) for _ in range(repetitions)]


def _seconds(device: Device, stream: int, enqueue: Callable[[], None], n: int) -> float:
    device.wait_for(stream)
    started = perf_counter()
    for _ in range(n):
        enqueue()
    device.wait_for(stream)
    return (perf_counter() - started) / n


def rate(nbytes: int, seconds: list[float]) -> dict[str, Any]:
    """Columns of a row: seconds, and bytes a second at the median."""
    return {
        "nbytes": nbytes,
        "seconds": seconds,
        "gb_s": float(f"{nbytes / float(np.median(seconds)) / 1e9:.4g}"),
    }


def fetched(device: Device, address: int, nbytes: int) -> NDArray[np.uint8]:
    """Copy on the host of bytes in device memory."""
    host = device.allocate_pinned(max(nbytes, 1))[:nbytes]
    stream = device.create_stream()
    device.download(host, address, stream)
    device.wait_for(stream)
    device.release_stream(stream)
    return host.copy()
