"""Value of ``device=`` -> the device it names, or the one that this machine has."""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpushard.errors import DeviceError, OptionError, UnsupportedError

if TYPE_CHECKING:
    from gpushard.devices.base import Device


class FoundDevice(NamedTuple):
    """A device, or None for the host.

    `why` says why ``device="auto"`` chose the host; "" if it did not have to choose.
    """

    device: Device | None
    why: str = ""


def find_device(device: str | Device) -> FoundDevice:
    """Device that a value of ``device=`` means.

    Raises
    ------
    UnsupportedError
        The device does not exist, or a library that drives it is not installed.
    OptionError
        `device` is neither text nor a device.
    """
    if not isinstance(device, str):
        if not hasattr(device, "label"):
            raise OptionError(
                "device= is not a device",
                expected="'auto', 'cpu', 'cuda', 'cuda:N' or one of gpushard.devices",
                got=repr(device),
            )
        return FoundDevice(device)
    if device == "cpu":
        return FoundDevice(None)
    if device == "auto":
        return _usable_gpu(os.getpid())
    kind, _, ordinal = device.partition(":")
    if kind != "cuda" or not (ordinal or "0").isdecimal():
        raise UnsupportedError(
            "there is no such kind of device",
            expected="'auto', 'cpu', 'cuda' or 'cuda:N'",
            got=repr(device),
        )
    return FoundDevice(_cuda_device(os.getpid(), int(ordinal or 0)))


def find_device_for(device: str | Device, dtype: np.dtype[Any]) -> FoundDevice:
    """Device that a value of ``device=`` means for an array of `dtype`.

    "auto" means the host if a GPU has no arrays of `dtype`, such as times and text. A
    GPU that the user named is kept, because a read may cast to a type that it has.
    Raises as `find_device`.
    """
    found = find_device(device)
    if device != "auto" or found.device is None:
        return found
    try:
        found.device.empty((0,), dtype)
    except UnsupportedError as error:
        return FoundDevice(None, f"no GPU is used: {error.what}")
    return found


@cache
def _usable_gpu(process: int) -> FoundDevice:
    """First CUDA device, if all that it needs is installed; asked once per process."""
    if sys.platform != "linux":
        return FoundDevice(None, "no GPU is used: that takes Linux")
    if find_spec("cupy") is None:
        return FoundDevice(None, "no GPU is used: CuPy is not installed")
    try:
        return FoundDevice(_cuda_device(process, 0))
    except (UnsupportedError, DeviceError) as error:
        return FoundDevice(None, f"no GPU is used: {str(error).rstrip('.')}")


@cache
def _cuda_device(process: int, ordinal: int) -> Device:
    """One device object per GPU and process, so that all arrays see if it broke."""
    del process  # part of the cache key: a fork needs a device object of its own
    from gpushard.devices.cuda import CudaDevice

    return CudaDevice(ordinal)
