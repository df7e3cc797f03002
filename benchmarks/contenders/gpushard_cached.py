"""gpushard with decoded inner chunks kept: a quarter of the array, as tensorstore's.

So a full read finds a quarter of its inner chunks at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gpushard
from benchmarks.contenders.gpushard_cpu import OPTIONS, read_box, read_rows, versions

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["open_array", "read_box", "read_rows", "versions"]


def open_array(path: Path) -> gpushard.Array:
    """Handle that the reads take."""
    nbytes = gpushard.open_array(path, device="cpu").nbytes
    options = OPTIONS.but(chunk_cache_nbytes=nbytes // 4)
    return gpushard.open_array(path, device="cpu", options=options)
