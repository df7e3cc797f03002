"""Data made by code with a seed: smooth fields with noise, and image tiles."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.configs import DTYPES, Dataset, Shape

SEED = 20261120


class Described(Protocol):
    """An array that is to be stored."""

    @property
    def slug(self) -> str:
        """Name of its directory."""
        ...

    def document(self) -> dict[str, Any]:
        """Contents of its ``zarr.json``."""
        ...


def generate(dataset: Dataset, shape: Shape) -> NDArray[Any]:
    """Array of that shape, the same for the same arguments.

    "field": float32, slow waves, a texture and noise, quantised to 1/64 as packed
    sensor data are. "tiles": uint8 images, each with a gradient, an edge and noise.
    """
    rng = np.random.default_rng(SEED)
    out = np.empty(shape, DTYPES[dataset])
    slab = max(1, 2**20 // (shape[1] * shape[2]))
    for start in range(0, shape[0], slab):
        part = out[start : start + slab]
        index = np.arange(start, start + part.shape[0])
        part[:] = _field(rng, index, part) if dataset == "field" else _tiles(rng, part)
    return out


def _field(
    rng: np.random.Generator, index: NDArray[Any], part: NDArray[Any]
) -> NDArray[Any]:
    z = index.astype("f4")[:, None, None]
    y = np.arange(part.shape[1], dtype="f4")[:, None]
    x = np.arange(part.shape[2], dtype="f4")
    smooth = 40 * np.sin(x / 90 + y / 140) + 20 * np.cos(z / 50)
    texture = 2 * np.sin(x / 7) * np.cos(y / 9)
    noise = rng.standard_normal(part.shape, "f4") * np.float32(0.08)
    return np.round((smooth + texture + noise) * 64) / 64


def _tiles(rng: np.random.Generator, part: NDArray[Any]) -> NDArray[Any]:
    y, x = np.mgrid[0:64, 0:64].astype("f4")
    slope = rng.uniform(-1, 1, (2, part.shape[0], 1, 1)).astype("f4")
    edge = rng.integers(0, 64, (part.shape[0], 1, 1))
    tiles = 128 + slope[0] * (x - 32) + slope[1] * (y - 32) + 20 * (x > edge)
    noise = rng.standard_normal(part.shape, "f4") * np.float32(0.6)
    return np.clip(np.round(tiles + noise), 0, 255)


def raw_path(array_path: Path) -> Path:
    """Where the decoded elements of the array at `array_path` lie, as ``.npy``."""
    dataset = array_path.name.partition("-")[0]
    return array_path.with_name(f"{dataset}.npy")


def write(array: Described, root: Path, values: NDArray[Any]) -> Path:
    """Path of the array that now holds `values`, written by zarr-python."""
    path = begin(array, root)
    fill(path, values)
    return path


def begin(array: Described, root: Path) -> Path:
    """Path of a new array that holds nothing yet."""
    path = root / array.slug
    path.mkdir()
    (path / "zarr.json").write_text(json.dumps(array.document()), encoding="utf-8")
    return path


def fill(path: Path, values: NDArray[Any], first_row: int = 0) -> None:
    """Write rows of an array by zarr-python."""
    import zarr
    import zarr.core.codec_pipeline as pipelines

    # The same bytes sooner, where this zarr-python has it.
    fused = hasattr(pipelines, "FusedCodecPipeline")
    name = "FusedCodecPipeline" if fused else "BatchedCodecPipeline"
    with warnings.catch_warnings():
        # That numcodecs.lz4 is in no specification is why it is measured.
        warnings.simplefilter("ignore")
        with zarr.config.set(
            {"codec_pipeline.path": f"zarr.core.codec_pipeline.{name}"}
        ):
            a = zarr.open_array(str(path), mode="r+")
            a[first_row : first_row + len(values)] = values


def files_of(path: Path) -> list[Path]:
    """Files of a stored array."""
    return [child for child in path.rglob("*") if child.is_file()]


def evict(path: Path) -> None:
    """Take the files of an array out of the page cache; a request, not a promise."""
    for child in files_of(path):
        descriptor = os.open(child, os.O_RDONLY)
        try:
            # Pages that are not yet on the disk would stay.
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
