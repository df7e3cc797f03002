"""An array in device memory, whoever made it."""

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
        Of element 0.
    shape, strides
        Elements along each axis, and bytes between neighbours, of any sign.
    dtype
        Data type of the elements.
    affine
        Applied to numbers on their way there.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    affine: Affine | None = None
