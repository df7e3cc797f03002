"""What the loaders read: rows and a volume in which every sample can be recognised."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEED = 20261120

N_ROWS, ROW = 262_144, 784
ROWS_CHUNK, ROWS_SHARD = 64, 4096
ROWS_BATCH = 256
# Inner chunks of rows whose samples are mixed, for all loaders alike.
MIXED = 64

VOLUME = 256
VOLUME_CHUNK, VOLUME_SHARD = 32, 128
PATCH, STRIDE = 48, 40
PATCH_BATCH = 8
N_ALONG = (VOLUME - PATCH) // STRIDE + 1
N_PATCHES = N_ALONG**3


def write(workload: str, directory: Path) -> Path:
    """Path of the array of a workload, in a group, written by zarr-python."""
    import zarr
    from zarr.codecs import ZstdCodec

    zarr.open_group(str(directory), mode="a")
    path = directory / f"{workload}.zarr"
    is_rows = workload == "rows"
    chunks = (ROWS_CHUNK, ROW) if is_rows else (VOLUME_CHUNK,) * 3
    shards = (ROWS_SHARD, ROW) if is_rows else (VOLUME_SHARD,) * 3
    array = zarr.create_array(
        str(path),
        shape=(N_ROWS, ROW) if is_rows else (VOLUME,) * 3,
        dtype="u1" if is_rows else "f4",
        chunks=chunks,
        shards=shards,
        compressors=ZstdCodec(level=3),
        dimension_names=("row", "column") if is_rows else ("z", "y", "x"),
    )
    if not is_rows:
        array[...] = volume()
        return path
    for first, values in rows():
        array[first : first + len(values)] = values
    return path


def rows() -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Sparse images, their number in the first four bytes.

    Yields
    ------
    first
        Number of the first one of `values`.
    values
        uint8, shape (ROWS_SHARD, ROW).
    """
    rng = np.random.default_rng(SEED)
    for first in range(0, N_ROWS, ROWS_SHARD):
        values = rng.integers(0, 256, (ROWS_SHARD, ROW), np.uint8)
        values[rng.random((ROWS_SHARD, ROW), np.float32) < 0.8] = 0
        number = np.arange(first, first + ROWS_SHARD, dtype="<u4")
        values[:, :4] = number.view(np.uint8).reshape(-1, 4)
        yield first, values


def volume() -> NDArray[np.float32]:
    """Every element its own number, which float32 holds: shape (VOLUME,) * 3."""
    return np.arange(VOLUME**3, dtype="f4").reshape((VOLUME,) * 3)


def origin(sample: int) -> tuple[int, int, int]:
    """Where a patch begins."""
    z, y, x = np.unravel_index(sample, (N_ALONG,) * 3)
    return int(z) * STRIDE, int(y) * STRIDE, int(x) * STRIDE


class Check:
    """Whether an epoch has every sample once, and each as it is stored."""

    def __init__(self, workload: str) -> None:
        self._workload = workload
        self._seen: list[NDArray[Any]] = []
        if workload == "rows":
            sums = [values.sum(axis=1, dtype=np.int64) for _, values in rows()]
            self._expected: NDArray[Any] = np.concatenate(sums)
        else:
            self._expected = volume()[:PATCH, :PATCH, :PATCH].copy()

    def see(self, batch: NDArray[Any]) -> None:
        """Look at a batch.

        Raises
        ------
        ValueError
            A sample is not what is stored.
        """
        if self._workload == "rows":
            batch = batch.reshape(len(batch), ROW)
            number = np.ascontiguousarray(batch[:, :4]).view("<u4").reshape(-1)
            is_right = batch.sum(axis=1, dtype=np.int64) == self._expected[number]
        else:
            batch = batch.reshape(-1, PATCH, PATCH, PATCH)
            first = batch[:, 0, 0, 0]
            number = first.astype(np.int64)
            is_right = np.array(
                [np.array_equal(b - b[0, 0, 0], self._expected) for b in batch]
            )
        if not is_right.all():
            raise ValueError("a sample is not what is stored")
        self._seen.append(number.astype(np.int64))

    def end(self) -> None:
        """Look at the epoch.

        Raises
        ------
        ValueError
            Samples are missing, come twice, or come in their stored order.
        """
        seen = np.concatenate(self._seen)
        if self._workload == "rows":
            wanted = np.arange(N_ROWS)
        else:
            shape = (VOLUME,) * 3
            origins = np.array([origin(s) for s in range(N_PATCHES)]).T
            wanted = np.ravel_multi_index(tuple(origins), shape)
        if not np.array_equal(np.sort(seen), np.sort(wanted)):
            raise ValueError("an epoch has not every sample once")
        if np.mean(np.diff(seen) > 0) > 0.9:
            raise ValueError("the samples are not shuffled")
