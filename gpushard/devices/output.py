"""An array in device memory, made by gpushard or by the caller."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpushard.devices.base import Device, Stream
from gpushard.devices.scattering.transfer import Affine


@dataclass(frozen=True, slots=True)
class DeviceOutput:
    """An array in device memory.

    Attributes
    ----------
    address
        Address of element 0.
    shape, strides
        Elements along each axis, and bytes between neighbours. Strides may be negative.
    dtype
        Data type of the elements.
    affine
        Scale and offset that numbers get when they are written.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    affine: Affine | None = None


def lies_on(array: Any, device: Device) -> bool:
    """Whether an array that names its device (CuPy's, torch's) names this one."""
    named = getattr(array, "device", None)
    for attribute in ("id", "index"):
        ordinal = getattr(named, attribute, None)
        if isinstance(ordinal, int):
            return device.label == f"cuda:{ordinal}"
    return True


def stream_of(array: Any, interface: Mapping[str, Any]) -> Stream | None:
    """Stream that an array's library uses it on, as far as that can be told.

    Parameters
    ----------
    interface
        Its ``__cuda_array_interface__``. That of torch tells no stream: a tensor is
        used on torch's current stream of its device.
    """
    stream = interface.get("stream")
    torch: Any = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)  # None while it is imported elsewhere
    if stream is not None or tensor is None or not isinstance(array, tensor):
        return stream
    return int(torch.cuda.current_stream(array.device).cuda_stream)
