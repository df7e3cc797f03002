"""The order in which the inner chunks of a shard are stored."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from gpushard.selecting.selection import Ints
from gpushard.write_options import ChunkOrder


@lru_cache(maxsize=64)
def payload_order(grid_shape: tuple[int, ...], order: ChunkOrder) -> Ints:
    """Entries of a shard's index in the order in which their inner chunks are stored.

    Parameters
    ----------
    grid_shape
        Inner chunks along each stored axis.
    order
        "c" and "f" are NumPy's; "morton" interleaves the bits of the coordinates, so
        that neighbours along every axis lie near one another.

    Returns
    -------
    ndarray
        int64, shape (n_entries,), host, read-only.
    """
    entries = _ordered(grid_shape, order)
    entries.setflags(write=False)  # all who ask get the same array
    return entries


@lru_cache(maxsize=64)
def payload_rank(grid_shape: tuple[int, ...], order: ChunkOrder) -> Ints:
    """Place in that order of each entry of a shard's index: int64, (n_entries,)."""
    entries = payload_order(grid_shape, order)
    rank = np.empty_like(entries)
    rank[entries] = np.arange(len(entries))
    rank.setflags(write=False)
    return rank


def _ordered(grid_shape: tuple[int, ...], order: ChunkOrder) -> Ints:
    entries = np.arange(int(np.prod(grid_shape, dtype=np.int64)), dtype=np.int64)
    if order == "c" or len(grid_shape) <= 1:
        return entries
    if order == "f":
        return entries.reshape(grid_shape).ravel(order="F")
    coordinates = np.unravel_index(entries, grid_shape)
    n_bits = [(n - 1).bit_length() for n in grid_shape]
    key = np.zeros(len(entries), np.int64)
    position = 0
    for bit in range(max(n_bits)):
        for axis in reversed(range(len(grid_shape))):
            # Axes without such a bit leave no gap, so the key fits 64 bits.
            if bit < n_bits[axis]:
                key |= ((coordinates[axis] >> bit) & 1) << position
                position += 1
    return np.argsort(key, kind="stable").astype(np.int64)
