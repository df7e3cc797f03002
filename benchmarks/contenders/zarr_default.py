"""zarr-python with the codec pipeline it comes with."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray


def versions() -> dict[str, str]:
    """Versions of what this contender measures."""
    return {name: version(name) for name in ("zarr", "numcodecs")}


def open_array(path: Path) -> zarr.Array[Any]:
    """Handle that the reads take."""
    return zarr.open_array(str(path), mode="r")


def read_box(handle: zarr.Array[Any], key: tuple[Any, ...]) -> NDArray[Any]:
    """Elements that basic indexing with `key` gives."""
    return np.asarray(handle[key])


def read_rows(handle: zarr.Array[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """Elements whose first index is in `rows`, in that order."""
    return np.asarray(handle.oindex[rows])
