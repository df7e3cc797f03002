"""Arrays that loaders read in the tests, and what they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.storage import MemoryStore

import gpushard

N = 103
"""Samples: not a multiple of anything."""

IMAGES: NDArray[Any] = np.arange(N * 6, dtype="u2").reshape(N, 2, 3)
LABELS: NDArray[Any] = np.arange(N, dtype="i4") * 10

ORDERS: dict[str, dict[str, Any]] = {
    "sequential": {},
    "global": {"shuffle": True},
    "shards": {"shuffle": True, "block": "shard", "buffer_blocks": 2},
    "chunks": {"shuffle": True, "block": "chunk", "buffer_blocks": 3},
    "rows": {"shuffle": True, "block": 7, "buffer_blocks": 1},
    "drawn": {"replacement": True},
    "weighted": {"replacement": True, "weights": np.arange(N) % 3},
    "listed": {"sampler": [5, 5, 102, 0]},
    "by epoch": {"sampler": lambda epoch: np.arange(epoch, N, 2)},
}


def stored(
    values: NDArray[Any], chunks: tuple[int, ...], shards: Any = None, fill: int = 7
) -> Any:
    """Array of gpushard that holds `values`, in memory."""
    store = MemoryStore({})
    z = zarr.create_array(
        store,
        shape=values.shape,
        chunks=chunks,
        shards=shards,
        dtype=values.dtype,
        fill_value=fill,
    )
    z[...] = values
    return gpushard.open_array(store)


def images() -> gpushard.Array:
    """`IMAGES`, in inner chunks of 4 samples and shards of 12."""
    return stored(IMAGES, (4, 2, 2), (12, 2, 4))


def labels() -> gpushard.Array:
    """`LABELS`, cut differently."""
    return stored(LABELS, (10,))


def handed_out(loader: gpushard.Loader) -> list[list[int]]:
    """Samples of each batch of an epoch, of a loader with `return_index`."""
    return [list(index) for _, index in loader]
