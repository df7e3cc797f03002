"""An array in device memory, made by gpushard or by the caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

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
