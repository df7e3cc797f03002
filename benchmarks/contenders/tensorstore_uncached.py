"""tensorstore without a cache pool: every read decodes anew."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore
from numpy.typing import NDArray


def versions() -> dict[str, str]:
    """Versions of what this contender measures."""
    return {"tensorstore": version("tensorstore")}


def open_array(path: Path) -> tensorstore.TensorStore:
    """Handle that the reads take."""
    return open_with_cache(path, 0)


def open_with_cache(path: Path | str, cache_nbytes: int) -> tensorstore.TensorStore:
    """Handle whose decoded chunks, and shard indexes, share a cache of that size.

    A path that is text is a URL.
    """
    local = {"driver": "file", "path": f"{path}/"}
    spec = {
        "driver": "zarr3",
        "kvstore": f"{path}/" if isinstance(path, str) else local,
        "context": {"cache_pool": {"total_bytes_limit": cache_nbytes}},
    }
    return tensorstore.open(spec, read=True).result()


def read_box(handle: tensorstore.TensorStore, key: tuple[Any, ...]) -> NDArray[Any]:
    """Elements that basic indexing with `key` gives."""
    return handle[key].read().result()


def read_rows(handle: tensorstore.TensorStore, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Elements whose first index is in `rows`, in that order."""
    return handle.oindex[rows].read().result()
