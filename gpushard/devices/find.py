"""The device that a user names."""

from __future__ import annotations

from gpushard.devices.base import Device
from gpushard.errors import UnsupportedError


def find_device(device: str | Device) -> Device | None:
    """Device that a request for `device` gives; None is the host.

    Raises
    ------
    UnsupportedError
        It is not there, or what drives it is not installed.
    """
    if not isinstance(device, str):
        return device
    if device in ("auto", "cpu"):
        return None
    kind, _, ordinal = device.partition(":")
    if kind != "cuda" or not (ordinal or "0").isdecimal():
        raise UnsupportedError(
            "there is no such kind of device",
            expected="'auto', 'cpu', 'cuda' or 'cuda:N'",
            got=repr(device),
        )
    from gpushard.devices.cuda import CudaDevice

    return CudaDevice(int(ordinal or 0))
