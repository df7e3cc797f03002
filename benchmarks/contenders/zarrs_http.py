"""zarr-python over HTTP with the codec pipeline of zarrs-python.

zarrs reads web servers itself where zarr's store is one of fsspec or of obstore.
"""

from __future__ import annotations

from typing import Any

import zarr

from benchmarks.contenders import zarr_obstore, zarrs_pipeline
from benchmarks.contenders.zarrs_pipeline import read_box, read_rows

__all__ = ["open_array", "read_box", "read_rows", "versions"]


def versions() -> dict[str, str]:
    """Versions of what this contender measures."""
    return zarrs_pipeline.versions() | zarr_obstore.versions()


def open_array(url: str) -> zarr.Array[Any]:
    """Handle that the reads take."""
    zarr.config.set({"codec_pipeline.path": zarrs_pipeline.PIPELINE})
    return zarr_obstore.open_array(url)
