"""Sharded Zarr arrays, read in batches.

>>> import gpushard
>>> a = gpushard.open_array("demo.zarr/u")
>>> a[0, :, 60:120, ::2].shape
(3, 60, 240)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpushard.array import Array, open_array
    from gpushard.concatenation import ConcatArray, concat
    from gpushard.errors import (
        ChecksumError,
        CorruptShardError,
        DeviceError,
        GpushardError,
        MetadataError,
        NoSuchArrayError,
        NotFoundError,
        ObjectChangedError,
        OptionError,
        SelectionError,
        StoreError,
        UnsupportedError,
    )
    from gpushard.expressions import hyperslab
    from gpushard.group import Group, open_group
    from gpushard.options import Options
    from gpushard.report import CodecPlacement, ReadReport

__version__ = "0.1.0.dev0"

# Where each public name lives. Resolved on first use, so that importing gpushard costs
# nothing but this page.
_HOMES = {
    "Array": "array",
    "ChecksumError": "errors",
    "CodecPlacement": "report",
    "ConcatArray": "concatenation",
    "CorruptShardError": "errors",
    "DeviceError": "errors",
    "GpushardError": "errors",
    "Group": "group",
    "MetadataError": "errors",
    "NoSuchArrayError": "errors",
    "NotFoundError": "errors",
    "ObjectChangedError": "errors",
    "OptionError": "errors",
    "Options": "options",
    "ReadReport": "report",
    "SelectionError": "errors",
    "StoreError": "errors",
    "UnsupportedError": "errors",
    "concat": "concatenation",
    "hyperslab": "expressions",
    "open_array": "array",
    "open_group": "group",
}

__all__ = [
    "Array",
    "ChecksumError",
    "CodecPlacement",
    "ConcatArray",
    "CorruptShardError",
    "DeviceError",
    "GpushardError",
    "Group",
    "MetadataError",
    "NoSuchArrayError",
    "NotFoundError",
    "ObjectChangedError",
    "OptionError",
    "Options",
    "ReadReport",
    "SelectionError",
    "StoreError",
    "UnsupportedError",
    "concat",
    "hyperslab",
    "open_array",
    "open_group",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'gpushard' has no attribute {name!r}")
    value = getattr(import_module(f"gpushard.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
