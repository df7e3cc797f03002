"""tensorstore over HTTP without a cache pool: every read fetches the indexes anew."""

from __future__ import annotations

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


def open_array(url: str) -> tensorstore.TensorStore:
    """Handle that the reads take."""
    return open_with_cache(url, 0)
