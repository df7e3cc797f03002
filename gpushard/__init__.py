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
    from gpushard.converting.conversion import ConversionReport
    from gpushard.converting.convert import convert
    from gpushard.creation import compact, create_array, repair
    from gpushard.errors import (
        ChecksumError,
        CorruptShardError,
        DamageWarning,
        DeviceError,
        DeviceMemoryError,
        GpushardError,
        HostMemoryError,
        LimitError,
        MetadataError,
        NoSuchArrayError,
        NotFoundError,
        ObjectChangedError,
        ObjectDeletedError,
        OptionError,
        SelectionError,
        StoreError,
        UnsupportedError,
        WindowMovedError,
    )
    from gpushard.group import Group, open_group
    from gpushard.integrations.zarr import GpushardCodecPipeline
    from gpushard.loader.loader import Loader
    from gpushard.loader.mix import Mix
    from gpushard.loader.ragged import Ragged
    from gpushard.options import Options
    from gpushard.report import CodecPlacement, ReadReport
    from gpushard.selecting.expressions import hyperslab
    from gpushard.write_options import WriteOptions
    from gpushard.writing.container import append_index

__version__ = "0.1.0.dev0"

# Where each public name lives. Resolved on first use, so that importing gpushard costs
# nothing but this page.
_HOMES = {
    "Array": "array",
    "ChecksumError": "errors",
    "CodecPlacement": "report",
    "ConversionReport": "converting.conversion",
    "ConcatArray": "concatenation",
    "CorruptShardError": "errors",
    "DamageWarning": "errors",
    "DeviceError": "errors",
    "GpushardCodecPipeline": "integrations.zarr",
    "DeviceMemoryError": "errors",
    "GpushardError": "errors",
    "Group": "group",
    "HostMemoryError": "errors",
    "LimitError": "errors",
    "Loader": "loader.loader",
    "MetadataError": "errors",
    "Mix": "loader.mix",
    "NoSuchArrayError": "errors",
    "NotFoundError": "errors",
    "ObjectChangedError": "errors",
    "ObjectDeletedError": "errors",
    "OptionError": "errors",
    "Options": "options",
    "Ragged": "loader.ragged",
    "ReadReport": "report",
    "SelectionError": "errors",
    "StoreError": "errors",
    "UnsupportedError": "errors",
    "WindowMovedError": "errors",
    "WriteOptions": "write_options",
    "append_index": "writing.container",
    "compact": "creation",
    "concat": "concatenation",
    "convert": "converting.convert",
    "create_array": "creation",
    "hyperslab": "selecting.expressions",
    "open_array": "array",
    "open_group": "group",
    "repair": "creation",
}
# What has public names of its own, reached as `gpushard.rolling.RollingArray`.
_ROOMS = ("errors", "rolling", "transformer")

__all__ = [
    "Array",
    "ChecksumError",
    "CodecPlacement",
    "ConcatArray",
    "ConversionReport",
    "CorruptShardError",
    "DamageWarning",
    "DeviceError",
    "DeviceMemoryError",
    "GpushardCodecPipeline",
    "GpushardError",
    "Group",
    "HostMemoryError",
    "LimitError",
    "Loader",
    "MetadataError",
    "Mix",
    "NoSuchArrayError",
    "NotFoundError",
    "ObjectChangedError",
    "ObjectDeletedError",
    "OptionError",
    "Options",
    "Ragged",
    "ReadReport",
    "SelectionError",
    "StoreError",
    "UnsupportedError",
    "WindowMovedError",
    "WriteOptions",
    "append_index",
    "compact",
    "concat",
    "convert",
    "create_array",
    "hyperslab",
    "open_array",
    "open_group",
    "repair",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"gpushard.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'gpushard' has no attribute {name!r}")
    value = getattr(import_module(f"gpushard.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    # Without what importing the package's modules has bound in it.
    dunders = (name for name in globals() if name.startswith("__"))
    return sorted({*dunders, *__all__, *_ROOMS})
