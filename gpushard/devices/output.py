"""An array in device memory, made by gpushard or by the caller."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gpushard.devices.base import Device, Stream
from gpushard.devices.scattering.transfer import Affine


@dataclass(frozen=True, slots=True)
class DeviceOutput:
    """An array in device memory, with element 0 at `address`.

    Attributes
    ----------
    strides
        Bytes between neighbours along each axis; may be negative.
    affine
        Scale and offset that numbers get when they are written.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    affine: Affine | None = None

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie one after the other, in C order."""
        plain = contiguous_strides(self.shape, self.dtype.itemsize)
        axes = zip(self.shape, self.strides, plain, strict=True)
        return 0 in self.shape or all(n == 1 or s == p for n, s, p in axes)


def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Byte strides of an array in C order."""
    return tuple(itemsize * prod(shape[k + 1 :]) for k in range(len(shape)))


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

    Its ``__cuda_array_interface__`` tells it. That of torch does not: a tensor is used
    on torch's current stream of its device.
    """
    stream = interface.get("stream")
    if stream is not None or not _is_of("torch", "Tensor", array):
        return stream
    torch: Any = sys.modules["torch"]
    return int(torch.cuda.current_stream(array.device).cuda_stream)


def is_immutable(array: Any) -> bool:
    """Whether nobody may write to an array although DLPack gives its memory: JAX's.

    The flag that says so since DLPack 1.0 is not looked at by CuPy.
    """
    return _is_of("jax", "Array", array)


def _is_of(library: str, name: str, array: Any) -> bool:
    """Whether an array is of a library's type; the library is not imported for that."""
    # No type while another thread imports the library.
    kind = getattr(sys.modules.get(library), name, None)
    return kind is not None and isinstance(array, kind)
