"""zarr-python over HTTP, through obstore, with its FusedCodecPipeline."""

from __future__ import annotations

from typing import Any

import zarr

from benchmarks.contenders import zarr_fused, zarr_obstore
from benchmarks.contenders.zarr_obstore import read_box, read_rows, versions

__all__ = ["open_array", "read_box", "read_rows", "versions"]


def open_array(url: str) -> zarr.Array[Any]:
    """Handle that the reads take."""
    zarr.config.set({"codec_pipeline.path": zarr_fused.PIPELINE})
    return zarr_obstore.open_array(url)
