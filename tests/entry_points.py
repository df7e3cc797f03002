"""Entry points that pyproject.toml names, as if this checkout were installed."""

from __future__ import annotations

import tomllib
from importlib import import_module
from typing import Any

from places import ROOT


def entry_points(group: str) -> dict[str, Any]:
    """What the entry points of a group name, by their names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = {}
    for name, target in project["entry-points"][group].items():
        module, _, attribute = target.partition(":")
        found[name] = getattr(import_module(module), attribute)
    return found


def add_to_xarray() -> None:
    """Let xarray find our engine, also where the package is only on the path."""
    from xarray.backends import plugins
    from xarray.backends.common import BACKEND_ENTRYPOINTS

    for name, backend in entry_points("xarray.backends").items():
        BACKEND_ENTRYPOINTS[name] = (backend.__module__, backend)
    plugins.list_engines.cache_clear()


def add_to_zarr() -> None:
    """Let zarr find our pipeline, also where the package is only on the path."""
    from zarr.registry import register_pipeline

    for pipeline in entry_points("zarr.codec_pipeline").values():
        register_pipeline(pipeline)
