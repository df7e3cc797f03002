"""zarr-python over HTTP, through obstore, with the codec pipeline it comes with."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import zarr
from obstore.store import HTTPStore
from zarr.storage import ObjectStore

from benchmarks.contenders import zarr_default
from benchmarks.contenders.zarr_default import read_box, read_rows

__all__ = ["open_array", "read_box", "read_rows", "versions"]


def versions() -> dict[str, str]:
    """Versions of what this contender measures."""
    return zarr_default.versions() | {"obstore": version("obstore")}


def open_array(url: str) -> zarr.Array[Any]:
    """Handle that the reads take."""
    store = HTTPStore.from_url(url, client_options={"allow_http": True})
    return zarr.open_array(ObjectStore(store, read_only=True), mode="r")
