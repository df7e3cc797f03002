"""zarr-python with its FusedCodecPipeline, which one has to ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import zarr
import zarr.core.codec_pipeline as pipelines

from benchmarks.contenders.zarr_default import read_box, read_rows, versions

__all__ = ["open_array", "read_box", "read_rows", "versions"]

if not hasattr(pipelines, "FusedCodecPipeline"):
    raise ImportError("this zarr-python has no FusedCodecPipeline")
PIPELINE = "zarr.core.codec_pipeline.FusedCodecPipeline"


def open_array(path: Path) -> zarr.Array[Any]:
    """Handle that the reads take."""
    zarr.config.set({"codec_pipeline.path": PIPELINE})
    return zarr.open_array(str(path), mode="r")
