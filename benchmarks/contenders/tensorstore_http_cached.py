"""tensorstore over HTTP with a cache pool of a quarter of the array."""

from __future__ import annotations

from benchmarks.contenders.tensorstore_cached import (
    open_array,
    read_box,
    read_rows,
    versions,
)

__all__ = ["open_array", "read_box", "read_rows", "versions"]
