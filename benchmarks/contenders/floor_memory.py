"""Ceiling: the same elements copied by NumPy out of an array that is in memory.

Large ones to memory that was written before, so that no page has to be cleared.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.configs import MIB
from benchmarks.data import raw_path


def versions() -> dict[str, str]:
    """Versions of what this contender measures."""
    return {"numpy": np.__version__}


# The C library keeps memory that is smaller than this when it is freed.
_LARGE_NBYTES = 16 * MIB


@dataclass(frozen=True, slots=True)
class Handle:
    """The array, and memory of large results by their shape."""

    values: NDArray[Any]
    kept: dict[tuple[int, ...], NDArray[Any]]


def open_array(path: Path) -> Handle:
    """Handle that the reads take."""
    return Handle(np.load(raw_path(path)), {})


def read_box(handle: Handle, key: tuple[Any, ...]) -> NDArray[Any]:
    """Elements that basic indexing with `key` gives, until the next large read."""
    wanted = handle.values[key]
    if wanted.nbytes < _LARGE_NBYTES:
        return wanted.copy()
    if wanted.shape not in handle.kept:
        handle.kept[wanted.shape] = np.empty_like(wanted, order="C")
    out = handle.kept[wanted.shape]
    out[...] = wanted
    return out


def read_rows(handle: Handle, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Elements whose first index is in `rows`, in that order."""
    return handle.values[rows]
