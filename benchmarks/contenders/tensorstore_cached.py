"""tensorstore with a cache pool of a quarter of the array.

So a full read never comes from the cache, and shard indexes stay in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.contenders.tensorstore_uncached import (
    open_with_cache,
    read_box,
    read_rows,
    versions,
)

if TYPE_CHECKING:
    import tensorstore

__all__ = ["open_array", "read_box", "read_rows", "versions"]


def open_array(path: Path | str) -> tensorstore.TensorStore:
    """Handle that the reads take."""
    array = open_with_cache(path, 0)
    nbytes = array.domain.size * array.dtype.numpy_dtype.itemsize
    return open_with_cache(path, nbytes // 4)
