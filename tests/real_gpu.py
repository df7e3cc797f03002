"""The CUDA device of the tests that need one: `pytest -m gpu`."""

from __future__ import annotations

import pytest

from gpushard.devices.cuda import CudaDevice
from gpushard.errors import UnsupportedError


def cuda_device() -> CudaDevice:
    """The first CUDA device; skips the test, with the reason, where there is none."""
    try:
        return CudaDevice(0)
    except UnsupportedError as error:
        pytest.skip(f"no CUDA device can be used here: {error}")
