"""A small array of 5 x 3 inner chunks, as it is stored."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import ZstdCodec
from zarr.storage import MemoryStore

VALUES = np.arange(20 * 30, dtype="i4").reshape(20, 30) - 300


def write_values(place: Path, values: np.ndarray = VALUES) -> Path:
    """Array of 5 x 3 inner chunks in shards of 2 x 2, which reach beyond its edge."""
    for key, data in _objects(values.tobytes()).items():
        (place / key).parent.mkdir(parents=True, exist_ok=True)
        (place / key).write_bytes(data)
    return place


@cache
def _objects(elements: bytes) -> dict[str, bytes]:
    """What zarr-python writes, once."""
    objects: dict[str, Any] = {}
    z = zarr.create_array(
        MemoryStore(objects),
        shape=(20, 30),
        chunks=(4, 10),
        shards=(8, 20),
        dtype="i4",
        fill_value=-7,
        compressors=ZstdCodec(),
        attributes={"units": "K", "nested": {"a": [1, None]}},
        dimension_names=("y", None),
    )
    z[...] = np.frombuffer(elements, VALUES.dtype).reshape(VALUES.shape)
    return {key: buffer.to_bytes() for key, buffer in objects.items()}
