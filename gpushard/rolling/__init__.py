"""Arrays that roll: the origin moves, and stored shards stay where they are."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpushard.rolling.array import RollingArray
    from gpushard.rolling.view import RollingView

# Rooms above in the walk import only the watch and the window, so names load late.
_HOMES = {"RollingArray": "array", "RollingView": "view"}

__all__ = ["RollingArray", "RollingView"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'gpushard.rolling' has no attribute {name!r}")
    return getattr(import_module(f"gpushard.rolling.{home}"), name)
