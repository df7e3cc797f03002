"""gpushard over HTTP, with its default options but for when the loops are loaded."""

from __future__ import annotations

import gpushard
from benchmarks.contenders.gpushard_cpu import OPTIONS, read_box, read_rows, versions

__all__ = ["open_array", "read_box", "read_rows", "versions"]


def open_array(url: str) -> gpushard.Array:
    """Handle that the reads take."""
    return gpushard.open_array(url, device="cpu", options=OPTIONS)
