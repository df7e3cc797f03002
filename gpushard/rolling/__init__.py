"""Arrays that roll: the origin moves, and stored shards stay where they are."""

from __future__ import annotations

from gpushard.rolling.array import RollingArray
from gpushard.rolling.view import RollingView

__all__ = ["RollingArray", "RollingView"]
