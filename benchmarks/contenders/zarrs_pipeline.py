"""zarr-python with the codec pipeline of zarrs-python, written in Rust.

What it does not do itself (a step other than 1, scattered rows, codecs it lacks) it
hands back to zarr-python's own pipeline: that is what its users get, and is measured.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import zarr
import zarrs  # noqa: F401 - registers its pipeline, or fails here when not installed

from benchmarks.contenders import zarr_default
from benchmarks.contenders.zarr_default import read_box, read_rows

__all__ = ["open_array", "read_box", "read_rows", "versions"]

PIPELINE = "zarrs.ZarrsCodecPipeline"


def versions() -> dict[str, str]:
    """Versions of what this contender measures."""
    return {"zarrs": version("zarrs"), **zarr_default.versions()}


def open_array(path: Path) -> zarr.Array[Any]:
    """Handle that the reads take."""
    zarr.config.set({"codec_pipeline.path": PIPELINE})
    return zarr.open_array(str(path), mode="r")
