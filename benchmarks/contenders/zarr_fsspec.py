"""zarr-python over HTTP, through fsspec: what it does with a URL."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import zarr

from benchmarks.contenders import zarr_default
from benchmarks.contenders.zarr_default import read_box, read_rows

__all__ = ["open_array", "read_box", "read_rows", "versions"]


def versions() -> dict[str, str]:
    """Versions of what this contender measures."""
    packages = ("fsspec", "aiohttp")
    return zarr_default.versions() | {name: version(name) for name in packages}


def open_array(url: str) -> zarr.Array[Any]:
    """Handle that the reads take."""
    return zarr.open_array(url, mode="r")
