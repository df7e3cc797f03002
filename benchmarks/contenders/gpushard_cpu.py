"""gpushard on the CPU, with its default options but for when the loops are loaded."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gpushard
from gpushard.fused.code import machine_code

# The compiled loops are loaded in the untimed read, also of arrays that are smaller
# than what a process reads by default before it pays for them.
OPTIONS = gpushard.Options(compile_nbytes=0)


def versions() -> dict[str, str]:
    """Versions of what this contender measures."""
    found = {"gpushard": gpushard.__version__}
    for name in ("numcodecs", "zstandard", "cramjam", "numba"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # some of them are optional
            continue
    if machine_code.find_shipped() is not None:
        found["loops"] = "shipped"
    return found


def open_array(path: Path) -> gpushard.Array:
    """Handle that the reads take."""
    return gpushard.open_array(path, device="cpu", options=OPTIONS)


def read_box(handle: gpushard.Array, key: tuple[Any, ...]) -> NDArray[Any]:
    """Elements that basic indexing with `key` gives."""
    return handle[key]


def read_rows(handle: gpushard.Array, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Elements whose first index is in `rows`, in that order."""
    return handle.oindex[rows]
