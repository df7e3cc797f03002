"""What CuPy says of the driver and the GPUs of this machine."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any


def cuda_facts() -> dict[str, str]:
    """Driver, runtime and GPUs as CuPy sees them, or its `trouble`; {} without CuPy."""
    if find_spec("cupy") is None:
        return {}
    try:
        import cupy  # only where a GPU is

        runtime: Any = cupy.cuda.runtime
        return {
            "driver": version_text(runtime.driverGetVersion()),
            "runtime": version_text(runtime.runtimeGetVersion()),
            **dict(
                map(partial(_device_fact, runtime), range(runtime.getDeviceCount()))
            ),
        }
    except Exception as error:  # noqa: BLE001 - a diagnosis tells of any failure
        return {"trouble": str(error)}


def _device_fact(runtime: Any, ordinal: int) -> tuple[str, str]:
    properties: Any = runtime.getDeviceProperties(ordinal)
    capability = f"{properties['major']}.{properties['minor']}"
    nbytes = properties["totalGlobalMem"]
    name = properties["name"].decode()
    return f"cuda:{ordinal}", f"{name}, sm {capability}, {nbytes:,} bytes"


def version_text(number: int) -> str:
    """12080 is 12.8."""
    return f"{number // 1000}.{number % 1000 // 10}"
