"""A small array of 5 x 3 inner chunks, as it is stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import zarr
from zarr.codecs import ZstdCodec

VALUES = np.arange(20 * 30, dtype="i4").reshape(20, 30) - 300


def write_values(place: Path, values: np.ndarray = VALUES) -> Path:
    """Array of 5 x 3 inner chunks in shards of 2 x 2, which reach beyond its edge."""
    z = zarr.create_array(
        place,
        shape=(20, 30),
        chunks=(4, 10),
        shards=(8, 20),
        dtype="i4",
        fill_value=-7,
        compressors=ZstdCodec(),
        attributes={"units": "K", "nested": {"a": [1, None]}},
        dimension_names=("y", None),
    )
    z[...] = values
    return place
