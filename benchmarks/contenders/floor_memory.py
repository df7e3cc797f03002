"""Ceiling: the same elements copied by NumPy out of an array that is in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import raw_path


def versions() -> dict[str, str]:
    """Versions of what this contender measures."""
    return {"numpy": np.__version__}


def open_array(path: Path) -> NDArray[Any]:
    """Handle that the reads take."""
    return np.load(raw_path(path))


def read_box(handle: NDArray[Any], key: tuple[Any, ...]) -> NDArray[Any]:
    """Elements that basic indexing with `key` gives."""
    return handle[key].copy()


def read_rows(handle: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """Elements whose first index is in `rows`, in that order."""
    return handle[rows]
